/** Tables that follow data: a row keeps its element, and a cell its focus, while the numbers in it change. */

import { h } from "./dom.js";

/**
 * A column. `cell` returns what is shown of a row; a node is made once for each row, a text follows the data.
 *
 * @template R
 * @typedef {{title: string, cell: (row: R) => Node | string | number, numeric?: boolean, minor?: boolean}} Column
 */

/**
 * A table with a caption, in a box that scrolls sideways if it has to.
 *
 * @template R
 * @param {string} caption
 * @param {Column<R>[]} columns the first one heads its row; `minor` ones are left out on a phone
 * @param {(row: R) => string} key what a row is recognised by
 * @param {string} [empty] shown in place of rows if there are none
 */
export function table(caption, columns, key, empty = "None.") {
  const body = h("tbody");
  const element = h(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...columns.map((column) => h("th", { scope: "col", class: style(column) }, column.title)))),
      body,
    ),
  );
  /** @type {Map<string, HTMLElement>} */
  const known = new Map();

  /** @param {R[]} rows @param {string} [instead] shown if there are none */
  function update(rows, instead = empty) {
    const wanted = new Set(rows.map(key));
    for (const [name, row] of known) {
      if (!wanted.has(name)) {
        row.remove();
        known.delete(name);
      }
    }
    body.querySelector(".empty")?.remove();
    rows.forEach((row, at) => place(body, at, renew(row)));
    if (!rows.length) {
      body.append(h("tr", { class: "empty" }, h("td", { colspan: columns.length }, instead)));
    }
  }

  /** @param {R} row */
  function renew(row) {
    const name = key(row);
    let found = known.get(name);
    if (found === undefined) {
      found = h("tr", {}, ...columns.map((column, at) => newCell(column, row, at)));
      known.set(name, found);
    } else {
      columns.forEach((column, at) => renewCell(/** @type {HTMLElement} */ (found).children[at], column.cell(row)));
    }
    return found;
  }

  return { element, update };
}

/**
 * @template R
 * @param {Column<R>} column
 * @param {R} row
 * @param {number} at
 */
function newCell(column, row, at) {
  const about = at === 0 ? { scope: "row", class: style(column) } : { class: style(column) };
  return h(at === 0 ? "th" : "td", about, column.cell(row));
}

/**
 * @param {Element} cell
 * @param {Node | string | number} value
 */
function renewCell(cell, value) {
  if (!(value instanceof Node) && cell.textContent !== String(value)) cell.textContent = String(value);
}

/**
 * @param {Element} body
 * @param {number} at
 * @param {Element} row
 */
function place(body, at, row) {
  if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
}

/** @param {Column<any>} column */
function style(column) {
  return [column.numeric && "number", column.minor && "minor"].filter(Boolean).join(" ") || null;
}
