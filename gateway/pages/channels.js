/** The list of channels; an address with a name shows the conversation in that channel. */

import { channelPath, listChannels, send } from "./api.js";
import { show as showConversation } from "./conversation.js";
import { h, toggle } from "./dom.js";
import { number } from "./format.js";
import { channelLink, heading, labelled, notice, section } from "./parts.js";
import { stats } from "./stats.js";
import { table } from "./table.js";

const PAGE = 200; // channels that are asked for at once
const EVERY_MS = 5_000;
const NONE = "There is no channel that you may see. The first message creates one.";
const COUNTED = "Messages and deliveries are counted since the gateway started, for the 256 busiest channels.";
const NOT_FOUND = "No channel that you may see has this in its name.";

/**
 * Show the list, or one channel.
 *
 * @param {HTMLElement} place
 * @param {string[]} parts
 * @param {AbortSignal} signal
 */
export async function show(place, parts, signal) {
  if (parts[0]) return showConversation(place, parts[0], signal);
  const problem = notice();
  const list = makeTable();
  const search = /** @type {HTMLInputElement} */ (h("input", { id: "search", type: "search", autocomplete: "off" }));
  const more = h("button", { type: "button", class: "quiet", hidden: true }, "Show more");
  /** @type {any[] | null} */
  let rows = null; // until there was an answer
  let count = PAGE; // channels that are asked for
  let asked = 0; // how often the list was asked for: an older answer does not replace a newer one

  const draw = () => {
    if (rows === null) return;
    const counts = new Map(stats.latest?.channels.map((/** @type {any} */ row) => [row.name, row]) ?? []);
    list.update(rows.map((row) => ({ ...row, counts: counts.get(row.name) })), search.value ? NOT_FOUND : NONE);
  };
  const load = async () => {
    const turn = ++asked;
    try {
      const found = await listChannels(count, search.value ? { contains: search.value } : {}, signal);
      if (turn !== asked) return;
      rows = found.channels;
      toggle(more, found.more);
      problem.clear();
    } catch (error) {
      if (signal.aborted || turn !== asked) return;
      problem.show(error);
    }
    draw();
  };
  search.addEventListener("input", () => {
    count = PAGE;
    void load();
  });
  more.addEventListener("click", () => {
    count += PAGE;
    void load();
  });
  place.append(
    heading("Channels", "A channel has the same messages on every protocol."),
    problem.element,
    section("All channels", h("div", { class: "tools" }, labelled("Find", search), makeForm(problem)), list.element, more, h("p", { class: "hint" }, COUNTED)),
  );
  await load();
  stats.follow(draw, signal);
  const timer = setInterval(() => document.hidden || void load(), EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

function makeTable() {
  return table(
    "Channels",
    [
      { title: "Channel", cell: (/** @type {any} */ row) => channelLink(row.name) },
      { title: "Listeners", cell: (row) => number(row.members), numeric: true },
      { title: "Messages", cell: (row) => counted(row, "messages"), numeric: true },
      { title: "Deliveries", cell: (row) => counted(row, "deliveries"), numeric: true, minor: true },
      { title: "Last sequence", cell: (row) => (row.sequence ? number(row.sequence) : "–"), numeric: true, minor: true },
    ],
    (row) => row.name,
    NONE,
  );
}

/**
 * A count since the start; the gateway tells those of 256 channels, to callers with the right to read the history.
 *
 * @param {any} row
 * @param {string} what
 */
function counted(row, what) {
  return row.counts ? number(row.counts[what]) : "–";
}

/**
 * A form that creates a channel and goes there.
 *
 * @param {ReturnType<typeof notice>} problem
 */
function makeForm(problem) {
  const field = /** @type {HTMLInputElement} */ (
    h("input", { id: "new-channel", type: "text", maxlength: 255, required: true, autocomplete: "off" })
  );
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    problem.clear();
    try {
      await send("PUT", channelPath(field.value));
      location.hash = `#/channels/${encodeURIComponent(field.value)}`;
    } catch (error) {
      problem.show(error);
    }
  };
  return h("form", { class: "inline", submit }, labelled("New channel", field), h("button", { type: "submit" }, "Create"));
}
