/** What the pipeline last wrote: its report, and each of its tables. */

import { get } from "./api.js";
import { h, setText } from "./dom.js";
import { ago, moment, number } from "./format.js";
import { heading, notice, section } from "./parts.js";
import { report } from "./report.js";
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
  const problem = notice();
  const last = report();
  const hint = h("p", { class: "hint" });
  const list = makeTables();
  place.append(heading("Pipeline", lead), problem.element, last.element, section("Tables", list.element, hint));
  /** @type {number | null} when the report that is shown was written */
  let shown = null;

  /** @param {number | null} written */
  async function load(written) {
    shown = written;
    try {
      const told = written === null ? null : await get("v1/report", signal);
      if (shown === written) last.update(told);
    } catch (error) {
      if (!signal.aborted) problem.show(error);
    }
  }

  stats.follow(() => {
    if (stats.error !== null) {
      problem.show(stats.error);
      shown = null;
    } else if (stats.latest !== null) {
      const told = stats.latest.pipeline;
      setText(lead, told ? `What the data pipeline wrote in ${told.warehouse}.` : "What the data pipeline makes of the log.");
      setText(hint, told ? "The report with pictures is report.html in the same folder." : "Run trellis pipeline all to make tables and a report.");
      list.update(told?.tables ?? []);
      const written = told?.report ?? null;
      if (written !== shown) {
        problem.clear();
        void load(written);
      }
    }
  }, signal);
}

function makeTables() {
  return table(
    "Tables",
    [
      { title: "Table", cell: (/** @type {any} */ row) => row.table },
      { title: "Rows", cell: (row) => number(row.rows), numeric: true },
      { title: "Batch", cell: (row) => String(row.batch), numeric: true, minor: true },
      { title: "Written", cell: (row) => `${moment(row.written)} (${ago(row.written)})`, numeric: true },
    ],
    (row) => row.table,
    "The pipeline has written nothing that this gateway finds.",
  );
}
