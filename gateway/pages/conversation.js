/** One channel: its conversation across protocols, who is there, and boxes to publish, reply and write directly. */

import { channelPath, get } from "./api.js";
import { composer } from "./composer.js";
import { h, setText, toggle } from "./dom.js";
import { messageList } from "./messages.js";
import { heading, notice, peerName, section } from "./parts.js";
import { presence } from "./presence.js";
import { listen } from "./stream.js";

const PAGE = 50; // messages that are read at once

/**
 * Show the channel called *name*.
 *
 * @param {HTMLElement} place
 * @param {string} name
 * @param {AbortSignal} signal
 */
export async function show(place, name, signal) {
  const stream = channelPath(name, "/events");
  document.title = `${name} – Trellis`;
  const problem = notice();
  const state = h("span", { role: "status" }, "Connecting…");
  const write = composer(name);
  const list = messageList(name, (message) => write.answer(message));
  const here = presence((peer) => write.address(peer));
  const earlier = h("button", { type: "button", class: "quiet", hidden: true }, "Show earlier messages");
  const addresses = h("dl", { class: "facts" });
  const about = h("details", { class: "about" }, h("summary", {}, "What this channel is called on each protocol"), addresses);
  place.append(
    heading(name, state),
    about,
    problem.element,
    h(
      "div",
      { class: "conversation" },
      h("section", { class: "card talk", "aria-label": "Conversation" }, list.tools, earlier, list.element, write.element),
      section("Here now", here.element),
    ),
  );

  let first = 0;
  const load = async () => {
    const before = first ? `&before=${first}` : "";
    const { messages, next } = await get(channelPath(name, `/messages?order=desc&limit=${PAGE}${before}`), signal);
    list.add(messages.reverse());
    first = messages[0]?.sequence ?? first;
    toggle(earlier, next !== null);
  };
  earlier.addEventListener("click", () => load().catch(problem.show));
  try {
    await load();
  } catch (error) {
    if (signal.aborted) return;
    problem.show(error); // without the right to read the history, live messages may still come
  }
  list.toEnd();
  get(channelPath(name), signal).then((channel) => showAddresses(addresses, channel)).catch(() => toggle(about, false));

  const receive = (/** @type {import("./stream.js").StreamEvent} */ event) => {
    if (event.name === "message" || event.name === "direct") list.add([event.data], event.name === "direct");
    else if (event.name === "welcome") here.set(event.data.peers);
    else if (event.name === "joined") here.add(event.data);
    else if (event.name === "left") here.remove(event.data);
    if (event.name === "welcome") setText(state, `Live. You are ${peerName(event.data)}.`);
  };
  const tell = (/** @type {string} */ text) => {
    if (text === "waiting") setText(state, "The connection was interrupted; trying again…");
    else if (text !== "open") setText(state, `Not live: ${text}`);
  };
  void listen(stream, list.last, receive, tell, signal);
}

/**
 * @param {Element} place
 * @param {any} channel
 */
function showAddresses(place, channel) {
  const { name: _name, addresses: _addresses, members: _members, sequence: _sequence, ...known } = channel;
  for (const [what, value] of Object.entries(known)) {
    place.append(h("div", {}, h("dt", {}, what), h("dd", {}, typeof value === "string" ? value : JSON.stringify(value))));
  }
}
