/** What the pipeline last wrote: its report, and each of its tables. */

import { ROOT, get, request } from "./api.js";
import { h, setText } from "./dom.js";
import { ago, moment, number } from "./format.js";
import { key } from "./key.js";
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
  const hint = h("p", { class: "hint" }, "Run trellis pipeline all to make tables and a report.");
  const whole = h("p", { class: "hint", hidden: true }, makeLink(problem, signal), ", with pictures over time.");
  const list = makeTables();
  place.append(heading("Pipeline", lead), problem.element, last.element, whole, section("Tables", list.element, hint));
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
      hint.hidden = Boolean(told);
      list.update(told?.tables ?? []);
      const written = told?.report ?? null;
      whole.hidden = written === null;
      if (written !== shown) {
        problem.clear();
        void load(written);
      }
    }
  }, signal);
}

/**
 * Make the link to the report's page. A browser that follows a link sends no key, so with one the page is saved instead.
 *
 * @param {ReturnType<typeof notice>} problem
 * @param {AbortSignal} signal
 */
function makeLink(problem, signal) {
  const address = new URL("v1/report", ROOT).href;

  /** @param {Event} event */
  async function save(event) {
    if (!key.secret) return;
    event.preventDefault();
    try {
      const answer = await request("v1/report", { signal, headers: { Accept: "text/html" } });
      const url = URL.createObjectURL(await answer.blob());
      h("a", { href: url, download: "report.html" }).click();
      URL.revokeObjectURL(url);
    } catch (error) {
      if (!signal.aborted) problem.show(error);
    }
  }

  return h("a", { href: address, target: "_blank", rel: "noopener", click: (event) => void save(event) }, "The whole report");
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
