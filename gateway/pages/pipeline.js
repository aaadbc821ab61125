/** What the pipeline last wrote into each of its tables. */

import { h, setText } from "./dom.js";
import { ago, moment, number } from "./format.js";
import { explain, heading, section } from "./parts.js";
import { stats } from "./stats.js";
import { table } from "./table.js";

/**
 * Show the page.
 *
 * @param {HTMLElement} place
 * @param {string[]} _parts
 * @param {AbortSignal} signal
 */
export function show(place, _parts, signal) {
  const lead = h("span", {}, "…");
  const problem = h("p", { class: "notice", role: "alert", hidden: true });
  const list = table(
    "Tables",
    [
      { title: "Table", cell: (/** @type {any} */ row) => row.table },
      { title: "Rows", cell: (row) => number(row.rows), numeric: true },
      { title: "Batch", cell: (row) => String(row.batch), numeric: true, minor: true },
      { title: "Written", cell: (row) => `${moment(row.written)} (${ago(row.written)})`, numeric: true },
    ],
    (row) => row.table,
    "The pipeline has not written anything that this gateway finds.",
  );
  place.append(
    heading("Pipeline", lead),
    problem,
    section("Tables", list.element, h("p", { class: "hint" }, h("code", {}, "make pipeline"), " writes them, and a report beside them.")),
  );
  stats.follow(() => {
    problem.hidden = stats.error === null;
    if (stats.error !== null) setText(problem, explain(stats.error));
    const told = stats.latest?.pipeline;
    setText(lead, told ? `The last report is report.html in ${told.warehouse}.` : "Tables, audits and statistics of the log.");
    list.update(told?.tables ?? []);
  }, signal);
}
