/** A table of deliveries from protocol to protocol; the darker a cell, the more. */

import { h, setText } from "./dom.js";
import { number, PROTOCOLS, title } from "./format.js";

const STEPS = 5; // shades

/** Make the table. */
export function matrix() {
  /** @type {Map<string, Element>} */
  const cells = new Map();
  const names = [...PROTOCOLS.keys()];
  const rows = names.map((from) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, title(from)),
      ...names.map((to) => {
        const cell = h("td", { class: "number" }, "0");
        cells.set(`${from} ${to}`, cell);
        return cell;
      }),
    ),
  );
  const element = h(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": "Who hears whom" },
    h(
      "table",
      { class: "matrix" },
      h("caption", { class: "unseen" }, "Deliveries from protocol to protocol"),
      h("thead", {}, h("tr", {}, h("td"), ...names.map((name) => h("th", { scope: "col", class: "number" }, title(name))))),
      h("tbody", {}, ...rows),
    ),
  );

  /** @param {{from: string, to: string, delivered: number, undelivered: number}[]} flows */
  function update(flows) {
    const most = Math.max(1, ...flows.map((flow) => flow.delivered));
    for (const { from, to, delivered, undelivered } of flows) {
      const cell = cells.get(`${from} ${to}`);
      if (cell === undefined) continue;
      setText(cell, undelivered ? `${number(delivered)} (${number(undelivered)} undelivered)` : number(delivered));
      cell.className = `number shade-${delivered ? Math.max(1, Math.ceil((delivered / most) * STEPS)) : 0}`;
    }
  }

  return { element, update };
}
