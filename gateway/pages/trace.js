/** The way of messages through the gateway: received, logged, on disk, and handed to each connection. */

import { channelPath, get, send } from "./api.js";
import { h, setText, svg } from "./dom.js";
import { milliseconds, moment, title } from "./format.js";
import { badge, channelLink, heading, labelled, notice, peerLink, section } from "./parts.js";
import { table } from "./table.js";

const EVERY_MS = 1_000;

/**
 * Show the form, the traces of a channel, or the trace of one message.
 *
 * @param {HTMLElement} place
 * @param {string[]} parts the channel, and the id of a message
 * @param {AbortSignal} signal
 */
export async function show(place, parts, signal) {
  const [channel, id] = parts;
  if (channel && id) return showMessage(place, channel, id, signal);
  const field = /** @type {HTMLInputElement} */ (h("input", { id: "channel", type: "text", required: true, value: channel ?? "", autocomplete: "off" }));
  const problem = notice();
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    problem.clear();
    try {
      await send("PUT", channelPath(field.value, "/trace"));
      location.hash = `#/trace/${encodeURIComponent(field.value)}`;
    } catch (error) {
      problem.show(error);
    }
  };
  place.append(
    heading("Trace", "Follow what is published on a channel in the next minute, from its arrival to each connection."),
    problem.element,
    section(
      "Trace a channel",
      h("form", { class: "inline", submit }, labelled("Channel", field), h("button", { type: "submit" }, "Trace for a minute")),
      h("p", { class: "hint" }, "You need a key with the right admin."),
    ),
  );
  if (channel) await showChannel(place, channel, problem, signal);
}

/** @param {HTMLElement} place @param {string} channel @param {ReturnType<typeof notice>} problem @param {AbortSignal} signal */
async function showChannel(place, channel, problem, signal) {
  const state = h("p", { class: "hint", role: "status" });
  const list = table(
    "Traced messages",
    [
      { title: "Received", cell: (/** @type {any} */ row) => h("a", { href: address(channel, row.id), class: "time" }, moment(row.received)) },
      { title: "Sender", cell: (row) => peerLink(row.sender) },
      { title: "Protocol", cell: (row) => badge(row.sender.protocol), minor: true },
      { title: "On disk", cell: (row) => after(row, row.synced), numeric: true },
      { title: "Deliveries", cell: (row) => `${row.deliveries.filter((/** @type {any} */ each) => each.written).length} of ${row.deliveries.length + row.unlisted}`, numeric: true },
    ],
    (row) => row.id,
    "Nothing has been published since then. Publish something on the channel.",
  );
  place.append(section("Traced messages", state, list.element));
  const load = async () => {
    try {
      const { until, messages } = await get(channelPath(channel, "/trace"), signal);
      setText(state, until === null ? "Tracing has ended." : "What is published now is traced.");
      list.update(messages.reverse());
    } catch (error) {
      if (!signal.aborted) problem.show(error);
    }
  };
  await load();
  const timer = setInterval(() => document.hidden || void load(), EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** @param {HTMLElement} place @param {string} channel @param {string} id @param {AbortSignal} signal */
async function showMessage(place, channel, id, signal) {
  place.append(heading("Trace of a message", "On ", channelLink(channel), ". Times are counted from the moment the message entered the log's queue."));
  let trace;
  try {
    trace = await get(channelPath(channel, `/messages/${encodeURIComponent(id)}/trace`), signal);
  } catch (error) {
    const problem = notice();
    place.append(problem.element, h("p", {}, h("a", { href: `#/trace/${encodeURIComponent(channel)}` }, "Trace this channel"), " first, then publish."));
    problem.show(error);
    return;
  }
  const last = Math.max(trace.synced ?? 0, ...trace.deliveries.flatMap((/** @type {any} */ each) => [each.queued, each.written ?? 0]), trace.logged + 0.001);
  const span = last - trace.logged;
  const rows = [
    { key: "received", what: "Received", who: peerLink(trace.sender), from: null, to: trace.received, note: moment(trace.received) },
    { key: "logged", what: "Logged", who: "", from: 0, to: 0, note: `record ${trace.sequence}` },
    { key: "synced", what: "On disk", who: "", from: 0, to: trace.synced === null ? null : trace.synced - trace.logged, note: after(trace, trace.synced) },
    ...trace.deliveries.map((/** @type {any} */ each, /** @type {number} */ at) => ({
      key: `delivery ${at}`,
      what: `To ${title(each.protocol)}`,
      who: peerLink(each.peer),
      from: each.queued - trace.logged,
      to: each.written === null ? null : each.written - trace.logged,
      note: each.written === null ? "waiting for the reader" : after(trace, each.written),
    })),
  ];
  const list = table(
    "Timeline",
    [
      { title: "Step", cell: (/** @type {any} */ row) => row.what },
      { title: "Peer", cell: (row) => row.who },
      { title: "When", cell: (row) => row.note, numeric: true },
      { title: "Duration", cell: (row) => ruler(row, span), minor: true },
    ],
    (row) => row.key,
  );
  list.update(rows);
  place.append(section("Timeline", list.element, trace.unlisted ? h("p", { class: "hint" }, `${trace.unlisted} more deliveries are not listed.`) : h("span")));
}

/** @param {{from: number | null, to: number | null}} row @param {number} span */
function ruler({ from, to }, span) {
  if (from === null) return "";
  const start = (100 * from) / span;
  const end = (100 * (to ?? span)) / span;
  return svg(
    "svg",
    { class: "ruler", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { x: Math.min(start, 99), y: 0, width: Math.max(end - start, 1), height: 4 }),
  );
}

/** @param {any} trace @param {number | null} time */
function after(trace, time) {
  return time === null ? "not yet" : milliseconds(Math.max(0, time - trace.logged));
}

/** @param {string} channel @param {string} id */
function address(channel, id) {
  return `#/trace/${encodeURIComponent(channel)}/${encodeURIComponent(id)}`;
}
