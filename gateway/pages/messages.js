/** The messages of a channel in order of time or by thread: who said what, on which protocol, in answer to what. */

import { h, toggle } from "./dom.js";
import { moment, shorten, title } from "./format.js";
import { badge, peerLink, peerName } from "./parts.js";

const MAX_SHOWN = 2_000; // messages; older ones leave the page
const MAX_DEPTH = 4; // of indentation
const NEAR_END = 80; // px from the end within which the list follows new messages

/**
 * A message as `/v1` shows it; one that was sent to a single peer has no sequence.
 *
 * @typedef {{id: string, sequence?: number, channel: string, timestamp: number, sender: any, content: any,
 *   inReplyTo: string | null, native: Record<string, unknown>, undelivered: string[]}} Message
 */

/**
 * A list of messages, and the choice of its order.
 *
 * @param {string} channel
 * @param {(message: Message) => void} reply is called when the user wants to answer a message
 */
export function messageList(channel, reply) {
  /** @type {Map<string, {message: Message, element: HTMLElement, order: number}>} */
  const known = new Map();
  const element = h("div", { class: "messages", role: "log", "aria-label": "Messages", tabindex: 0 });
  const empty = h("p", { class: "hint" }, "Nothing has been said here yet.");
  const byThread = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", id: "by-thread" }));
  const tools = h("p", { class: "choice" }, byThread, h("label", { for: "by-thread" }, "Group by thread"));
  let arrivals = 0;

  /**
   * Add messages; those that are known are left out.
   *
   * @param {Message[]} messages in order
   * @param {boolean} [direct] whether they were sent to this user alone
   */
  function add(messages, direct = false) {
    const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END;
    for (const message of messages) {
      if (known.has(message.id)) continue;
      const order = message.sequence ?? last() + arrivals++ / 1e6;
      known.set(message.id, { message, element: draw(message, direct, () => reply(message)), order });
    }
    arrange();
    if (atEnd) toEnd();
  }

  function arrange() {
    const all = [...known.values()].sort((one, other) => one.order - other.order);
    for (const { message } of all.splice(0, all.length - MAX_SHOWN)) known.delete(message.id);
    const rows = byThread.checked ? threads(all) : all.map((row) => ({ row, depth: 0 }));
    rows.forEach(({ row, depth }, at) => {
      row.element.className = row.element.className.replace(/ ?depth-\d/, "") + (depth ? ` depth-${depth}` : "");
      quote(row.element, byThread.checked ? undefined : known.get(row.message.inReplyTo ?? "")?.message, row.message);
      if (element.children[at] !== row.element) element.insertBefore(row.element, element.children[at] ?? null);
    });
    while (element.children.length > rows.length) element.lastElementChild?.remove();
    toggle(empty, !rows.length);
  }

  /** The highest sequence that is known. */
  function last() {
    return Math.max(0, ...[...known.values()].map((row) => row.message.sequence ?? 0));
  }

  function toEnd() {
    element.scrollTop = element.scrollHeight;
  }

  byThread.addEventListener("change", arrange);
  return {
    element: h("div", { class: "history" }, empty, element),
    tools,
    add,
    toEnd,
    get last() {
      return last();
    },
    channel,
  };
}

/**
 * The rows with each answer below what it answers.
 *
 * @template {{message: Message}} R
 * @param {R[]} rows in order
 */
function threads(rows) {
  const ids = new Set(rows.map((row) => row.message.id));
  /** @type {Map<string, R[]>} */
  const answers = new Map();
  for (const row of rows) {
    const parent = row.message.inReplyTo ?? "";
    const place = ids.has(parent) ? parent : "";
    answers.set(place, [...(answers.get(place) ?? []), row]);
  }
  /** @type {{row: R, depth: number}[]} */
  const found = [];
  const left = (answers.get("") ?? []).map((row) => ({ row, depth: 0 })).reverse();
  for (let next = left.pop(); next !== undefined; next = left.pop()) {
    found.push(next);
    const depth = Math.min(next.depth + 1, MAX_DEPTH);
    left.push(...(answers.get(next.row.message.id) ?? []).map((row) => ({ row, depth })).reverse());
  }
  return found;
}

/**
 * @param {Message} message
 * @param {boolean} direct
 * @param {() => void} reply
 */
function draw(message, direct, reply) {
  const name = peerName(message.sender);
  const when = h("time", { datetime: new Date(message.timestamp).toISOString() }, moment(message.timestamp));
  const missed = message.undelivered.length ? h("span", { class: "hint" }, `undelivered to ${message.undelivered.map(title).join(", ")}`) : null;
  const trace = `#/trace/${encodeURIComponent(message.channel)}/${encodeURIComponent(message.id)}`;
  return h(
    "article",
    { class: direct ? "message direct" : "message", id: `m-${message.id}` },
    h("p", { class: "from" }, peerLink(message.sender), badge(message.sender.protocol), when, direct ? h("span", { class: "tag" }, "only to you") : null, missed),
    h("p", { class: "quote", hidden: true }),
    content(message.content),
    direct
      ? null
      : h(
          "p",
          { class: "act" },
          h("button", { type: "button", class: "link", click: reply, "aria-label": `Reply to ${name}` }, "Reply"),
          h("a", { href: trace, "aria-label": `Trace the message of ${name}` }, "Trace"),
        ),
  );
}

/**
 * Show what a message answers, unless that stands above it.
 *
 * @param {HTMLElement} element
 * @param {Message | undefined} parent
 * @param {Message} message
 */
function quote(element, parent, message) {
  const place = /** @type {HTMLElement} */ (element.querySelector(".quote"));
  toggle(place, parent !== undefined && message.inReplyTo !== null);
  if (parent !== undefined && !place.textContent) {
    place.append(`in reply to ${peerName(parent.sender)}: ${shorten(plain(parent.content), 80)}`);
  }
}

/** @param {any} value */
function content(value) {
  const text = words(value);
  return text === null ? h("pre", { class: "content" }, JSON.stringify(value, null, 2)) : h("p", { class: "content" }, text);
}

/**
 * What people wrote: a string, or the text in an object that has nothing else (`content` is the topic relay's word).
 *
 * @param {any} value
 * @returns {string | null}
 */
function words(value) {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object") return null;
  const names = Object.keys(value).filter((name) => name !== "inReplyTo");
  const known = names.length === 1 && (names[0] === "text" || names[0] === "content");
  return known && typeof value[names[0]] === "string" ? value[names[0]] : null;
}

/** @param {any} value */
export function plain(value) {
  return words(value) ?? JSON.stringify(value);
}
