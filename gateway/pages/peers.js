/** The peers of all channels with listeners; an address with a number shows one peer and its names on each protocol. */

import { channelPath, get, listChannels } from "./api.js";
import { h } from "./dom.js";
import { number, title } from "./format.js";
import { badge, channelLink, fact, heading, notice, peerLink, peerName, section } from "./parts.js";
import { table } from "./table.js";

const MAX_CHANNELS = 32; // that are asked for their peers
const EVERY_MS = 5_000;

/**
 * Show all peers, or the one with a number.
 *
 * @param {HTMLElement} place
 * @param {string[]} parts
 * @param {AbortSignal} signal
 */
export async function show(place, parts, signal) {
  return parts[0] ? showPeer(place, parts[0], signal) : showPeers(place, signal);
}

/** @param {HTMLElement} place @param {AbortSignal} signal */
async function showPeers(place, signal) {
  const problem = notice();
  const list = table(
    "Peers",
    [
      { title: "Peer", cell: (/** @type {any} */ row) => peerLink(row.peer) },
      { title: "Protocol", cell: (row) => badge(row.peer.protocol) },
      { title: "Number", cell: (row) => String(row.peer.number), numeric: true, minor: true },
      { title: "Channels", cell: (row) => row.channels.join(", ") },
    ],
    (row) => String(row.peer.number),
    "Nobody listens to a channel that you may see.",
  );
  const load = async () => {
    try {
      list.update(await findPeers(signal));
      problem.clear();
    } catch (error) {
      if (!signal.aborted) problem.show(error);
    }
  };
  place.append(heading("Peers", `The peers in the first ${MAX_CHANNELS} channels that have listeners, on any protocol.`), problem.element, section("Connected peers", list.element));
  await load();
  const timer = setInterval(() => document.hidden || void load(), EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** @param {AbortSignal} signal */
async function findPeers(signal) {
  const busy = (await listChannels(MAX_CHANNELS, { listened: "true" }, signal)).channels.slice(0, MAX_CHANNELS);
  const lists = await Promise.all(
    busy.map((/** @type {any} */ row) => get(channelPath(row.name, "/peers"), signal).catch(() => ({ peers: [] }))),
  );
  /** @type {Map<number, {peer: any, channels: string[]}>} */
  const found = new Map();
  lists.forEach(({ peers }, at) => {
    for (const peer of peers) {
      const row = found.get(peer.number) ?? { peer, channels: [] };
      row.channels.push(busy[at].name);
      found.set(peer.number, row);
    }
  });
  return [...found.values()].sort((one, other) => one.peer.number - other.peer.number);
}

/** @param {HTMLElement} place @param {string} id @param {AbortSignal} signal */
async function showPeer(place, id, signal) {
  const peer = await get(`v1/peers/${encodeURIComponent(id)}`, signal);
  const names = Object.entries(peer.addresses).map(([protocol, name]) => fact(title(protocol), name === null ? "no name yet" : write(name)));
  const links = (/** @type {string[]} */ channels) =>
    channels.length ? h("span", {}, ...channels.flatMap((name, at) => [at ? ", " : null, channelLink(name)])) : "none";
  place.append(
    heading(peerName(peer), `Peer ${peer.number}, on ${peer.protocols.map(title).join(" and ")}.`),
    section("Names on each protocol", h("dl", { class: "facts" }, ...names)),
    section(
      "What is known",
      h(
        "dl",
        { class: "facts" },
        fact("Connections", number(peer.connections)),
        fact("Identity", peer.identity ?? "none"),
        fact("Key", peer.key ?? "none"),
        peer.boundTo === null ? null : fact("Same as", h("a", { href: `#/peers/${peer.boundTo}` }, `peer ${peer.boundTo}`)),
        fact("Present in", links(peer.channels)),
        fact("Has published in", links(peer.saidIn)),
      ),
    ),
  );
}

/** @param {unknown} value */
function write(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
