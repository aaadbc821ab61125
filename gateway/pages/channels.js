/** The list of channels; an address with a name shows the conversation in that channel. */

import { channelPath, get, send } from "./api.js";
import { show as showConversation } from "./conversation.js";
import { h, toggle } from "./dom.js";
import { number } from "./format.js";
import { channelLink, heading, labelled, notice, section } from "./parts.js";
import { stats } from "./stats.js";
import { table } from "./table.js";

const PAGE = 200; // channels that are asked for at once
const EVERY_MS = 5_000;

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
  /** @type {any[]} */
  let rows = [];
  let next = "v1/channels?limit=" + PAGE;
  let count = 1; // pages that are shown

  const draw = () => {
    const counted = new Map(stats.latest?.channels.map((/** @type {any} */ row) => [row.name, row]) ?? []);
    const wanted = search.value.toLowerCase();
    list.update(
      rows.filter((row) => row.name.toLowerCase().includes(wanted)).map((row) => ({ ...row, counts: counted.get(row.name) })),
    );
  };
  const load = async () => {
    try {
      /** @type {any[]} */
      const found = [];
      let path = `v1/channels?limit=${PAGE}`;
      for (let page = 0; page < count && path; page++) {
        const answer = await get(path, signal);
        found.push(...answer.channels);
        path = answer.next?.slice(1) ?? "";
      }
      [rows, next] = [found, path];
      problem.clear();
    } catch (error) {
      if (signal.aborted) return;
      problem.show(error);
    }
    toggle(more, Boolean(next));
    draw();
  };
  search.addEventListener("input", draw);
  more.addEventListener("click", () => {
    count += 1;
    void load();
  });
  place.append(
    heading("Channels", "A channel has the same messages on every protocol."),
    problem.element,
    section("All channels", h("div", { class: "tools" }, labelled("Find", search), makeForm(problem)), list.element, more),
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
      { title: "Messages", cell: (row) => number(row.counts?.messages ?? 0), numeric: true },
      { title: "Deliveries", cell: (row) => number(row.counts?.deliveries ?? 0), numeric: true, minor: true },
      { title: "Last sequence", cell: (row) => (row.sequence ? number(row.sequence) : "–"), numeric: true, minor: true },
    ],
    (row) => row.name,
    "There is no channel that you may see. The first message creates one.",
  );
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
