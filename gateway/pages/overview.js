/** The first page: what the gateway does now, on every protocol. */

import { get } from "./api.js";
import { lines, quantile, sparkline } from "./chart.js";
import { h, setText } from "./dom.js";
import { ago, bytes, duration, milliseconds, number, PROTOCOLS, title } from "./format.js";
import { matrix } from "./matrix.js";
import { badge, explain, heading, section, tile } from "./parts.js";
import { stats, total } from "./stats.js";
import { table } from "./table.js";

const WINDOW = 30; // samples (a minute) that a latency is taken over

/**
 * Show the page.
 *
 * @param {HTMLElement} place
 * @param {string[]} _parts
 * @param {AbortSignal} signal
 */
export async function show(place, _parts, signal) {
  const lead = h("span", {}, "…");
  const problem = h("p", { class: "notice", role: "alert", hidden: true });
  const tiles = makeTiles();
  const throughput = lines("Messages per second in the last five minutes, by the sender's protocol", perSecond);
  const flows = matrix();
  const protocols = makeProtocols();
  const links = makeLinks();
  place.append(
    heading("Overview", lead),
    problem,
    h("dl", { class: "tiles" }, ...tiles.map((each) => each.element)),
    section("Throughput", h("p", { class: "hint" }, "Messages per second, by the sender's protocol."), throughput.element),
    section("Who hears whom", h("p", { class: "hint" }, "Deliveries since the gateway started, from the row's protocol to the column's."), flows.element),
    section("Protocols", protocols.element),
    section("Links", h("p", { class: "hint" }, "Connections that this gateway opens to relays and other gateways."), links.element),
  );

  /** @type {any[]} */
  let spoken = [];
  stats.follow(() => {
    problem.hidden = stats.error === null;
    if (stats.error !== null) setText(problem, explain(stats.error));
    const now = stats.latest;
    if (now === null) return;
    setText(lead, `Trellis ${now.version}, up for ${duration(now.uptimeSeconds)}, ${number(now.sequence)} records in the log.`);
    tiles.forEach((each) => each.update());
    throughput.update(
      [...PROTOCOLS.keys()].map((name) => ({ name, points: stats.rates((each) => each.protocols[name]?.messages ?? 0) })),
    );
    flows.update(now.flows);
    protocols.update(spoken.map((row) => ({ ...row, counts: now.protocols[row.name] ?? {} })));
    links.update(now.links);
  }, signal);
  try {
    spoken = (await get("v1/protocols", signal)).protocols;
  } catch {
    return; // the statistics say why
  }
  stats.dispatchEvent(new Event("change"));
}

function makeTiles() {
  const rate = (/** @type {string} */ name) => stats.rates((each) => total(each, name));
  return [
    live("Messages", () => rate("messages"), perSecond),
    live("Deliveries", () => rate("deliveries"), perSecond),
    live("Latency, median", latencies, (value) => (value ? milliseconds(value) : "–")),
    live("Waiting for readers", () => stats.values((each) => each.backlog.heldBytes), bytes),
    live("Waiting for the disk", () => stats.values((each) => each.backlog.unsynced), number),
    live("Connections", () => stats.values((each) => each.connections), number),
  ];
}

/**
 * A tile that shows the last of its points.
 *
 * @param {string} name
 * @param {() => import("./chart.js").Point[]} read
 * @param {(value: number) => string} write
 */
function live(name, read, write) {
  const line = sparkline();
  const { element, show } = tile(name, line.element);
  return {
    element,
    update() {
      const points = read();
      line.update(points);
      show(points.length ? write(points[points.length - 1].value) : "–");
    },
  };
}

/** The median latency (ms) of the deliveries in the minute before each sample; the last known one if there were none. */
function latencies() {
  const cells = stats.samples.map(({ stats: each }) => histogram(each.flows));
  let last = 0;
  return stats.samples.map(({ time }, at) => {
    const before = cells[Math.max(0, at - WINDOW)];
    const during = [...cells[at]].map(([bound, count]) => /** @type {[number, number]} */ ([bound, count - (before.get(bound) ?? 0)]));
    const middle = quantile(at ? during : [...cells[at]], 0.5);
    last = middle === null ? last : middle / 1000;
    return { time, value: last };
  });
}

/**
 * @param {any[]} flows
 * @returns {Map<number, number>} how many deliveries took at most so many microseconds, in order of that
 */
function histogram(flows) {
  /** @type {Map<number, number>} */
  const all = new Map();
  for (const { latency } of flows) for (const [bound, count] of latency) all.set(bound, (all.get(bound) ?? 0) + count);
  return new Map([...all].sort(([one], [other]) => one - other));
}

function makeProtocols() {
  return table(
    "Protocols",
    [
      { title: "Protocol", cell: (/** @type {any} */ row) => badge(row.name) },
      { title: "Versions", cell: (row) => row.versions.join(", ") || "–", minor: true },
      { title: "Where", cell: (row) => [...row.paths, ...row.listeners.map(transport)].join(", "), minor: true },
      { title: "Connections", cell: (row) => number(row.counts.connections ?? 0), numeric: true },
      { title: "Messages", cell: (row) => number(row.counts.messages ?? 0), numeric: true },
      { title: "Direct", cell: (row) => number(row.counts.direct_messages ?? 0), numeric: true, minor: true },
      { title: "Refused", cell: (row) => number(row.counts.refused ?? 0), numeric: true },
    ],
    (row) => row.name,
    "Loading…",
  );
}

function makeLinks() {
  return table(
    "Links",
    [
      { title: "Address", cell: (/** @type {any} */ row) => row.address },
      { title: "Protocol", cell: (row) => title(row.protocol), minor: true },
      { title: "State", cell: (row) => (row.error ? `${row.state}: ${row.error}` : row.state) },
      { title: "Since", cell: (row) => ago(row.since) },
      { title: "Times connected", cell: (row) => number(row.connects), numeric: true, minor: true },
      { title: "Failures", cell: (row) => number(row.failures), numeric: true },
    ],
    (row) => `${row.protocol} ${row.address}`,
    "This gateway opens no connections.",
  );
}

/** @param {string} listener such as `sprout_tls` */
function transport(listener) {
  return listener.endsWith("_tls") ? "TLS" : "TCP";
}

/** @param {number} value */
function perSecond(value) {
  return `${number(value)}/s`;
}
