/** Parts that several pages use: headings, notices, badges, tiles, forms. */

import { Refused } from "./api.js";
import { h, setText } from "./dom.js";
import { title } from "./format.js";

/**
 * The heading of a page, with a sentence below it.
 *
 * @param {string} text
 * @param {...import("./dom.js").Child} below
 */
export function heading(text, ...below) {
  return h("div", { class: "heading" }, h("h1", { tabindex: -1 }, text), below.length ? h("p", { class: "lead" }, ...below) : null);
}

/**
 * A section with a heading.
 *
 * @param {string} name
 * @param {...import("./dom.js").Child} children
 */
export function section(name, ...children) {
  const id = `about-${name.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, name), ...children);
}

/**
 * A protocol, in its colour.
 *
 * @param {string} protocol
 */
export function badge(protocol) {
  return h("span", { class: `badge ${protocol}` }, title(protocol));
}

/**
 * What a peer is called: its name, what it is known by, or its number.
 *
 * @param {{name?: string | null, identity?: string | null, number?: number, peer?: number}} peer
 */
export function peerName(peer) {
  if (peer.name) return peer.name;
  if (peer.identity === "(no key)") return "anonymous"; // all requests without one are the same peer
  if (peer.identity) return peer.identity;
  return `peer ${peer.number ?? peer.peer}`;
}

/**
 * A link to the page of a peer.
 *
 * @param {{name?: string | null, identity?: string | null, number?: number, peer?: number}} peer
 */
export function peerLink(peer) {
  return h("a", { href: `#/peers/${peer.number ?? peer.peer}`, class: "name" }, peerName(peer));
}

/**
 * A link to the page of a channel.
 *
 * @param {string} name
 */
export function channelLink(name) {
  return h("a", { href: `#/channels/${encodeURIComponent(name)}`, class: "name" }, name);
}

/** A paragraph that says why something did not work; empty until then. */
export function notice() {
  const element = h("p", { class: "notice", role: "alert", hidden: true });
  return {
    element,
    /** @param {unknown} error */
    show(error) {
      setText(element, explain(error));
      element.hidden = false;
    },
    clear() {
      element.hidden = true;
      setText(element, "");
    },
  };
}

/**
 * What went wrong, in a sentence.
 *
 * @param {unknown} error
 */
export function explain(error) {
  const text = error instanceof Error ? error.message : String(error);
  const sentence = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
}

/**
 * Whether *error* is a refusal for want of a right.
 *
 * @param {unknown} error
 */
export function isForbidden(error) {
  return error instanceof Refused && (error.status === 401 || error.status === 403);
}

/** A number with a name and a small picture of how it went. */
export function tile(/** @type {string} */ name, /** @type {Element} */ picture) {
  const value = h("dd", { class: "value" }, "–");
  const element = h("div", { class: "tile" }, h("dt", {}, name), value, picture);
  return { element, show: (/** @type {string} */ text) => setText(value, text) };
}

/**
 * A row of a list of facts.
 *
 * @param {string} name
 * @param {import("./dom.js").Child} value
 */
export function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

/**
 * A labelled field.
 *
 * @param {string} label
 * @param {HTMLElement} field with an id
 * @param {string} [hint]
 */
export function labelled(label, field, hint) {
  if (hint) field.setAttribute("aria-describedby", `${field.id}-hint`);
  return h(
    "p",
    { class: "field" },
    h("label", { for: field.id }, label),
    field,
    hint ? h("span", { class: "hint", id: `${field.id}-hint` }, hint) : null,
  );
}

/**
 * Tell users of screen readers.
 *
 * @param {string} text
 */
export function announce(text) {
  const element = document.getElementById("announcer");
  if (element) element.textContent = text;
}
