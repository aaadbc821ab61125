/** Who is in a channel, on any protocol. */

import { h, toggle } from "./dom.js";
import { badge, peerLink, peerName } from "./parts.js";

/**
 * A list of peers; *choose* is called with the one that the user wants to write to.
 *
 * @param {(peer: any) => void} choose
 */
export function presence(choose) {
  /** @type {Map<number, HTMLElement>} */
  const known = new Map();
  const list = h("ul", { class: "peers" });
  const empty = h("p", { class: "hint" }, "Nobody else.");

  /** @param {any} peer */
  function add(peer) {
    known.get(peer.number)?.remove();
    const row = h(
      "li",
      {},
      h("span", { class: "who" }, peerLink(peer), badge(peer.protocol)),
      h("button", { type: "button", class: "link", click: () => choose(peer), "aria-label": `Write to ${peerName(peer)} alone` }, "Write"),
    );
    known.set(peer.number, row);
    list.append(row);
    toggle(empty, false);
  }

  return {
    element: h("div", {}, empty, list),
    add,
    /** @param {any} peer */
    remove(peer) {
      known.get(peer.number)?.remove();
      known.delete(peer.number);
      toggle(empty, !known.size);
    },
    /** @param {any[]} peers */
    set(peers) {
      known.clear();
      list.replaceChildren();
      toggle(empty, true);
      peers.forEach(add);
    },
  };
}
