/** What was refused, what went wrong, and how near the gateway is to its limits. */

import { h } from "./dom.js";
import { bytes, number, title } from "./format.js";
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
  const problem = h("p", { class: "notice", role: "alert", hidden: true });
  const used = table(
    "Limits in use",
    [
      { title: "Limit", cell: (/** @type {any} */ row) => row.name },
      { title: "Used", cell: (row) => row.write(row.used), numeric: true },
      { title: "Maximum", cell: (row) => row.write(row.limit), numeric: true },
      { title: "Share", cell: (row) => `${number((100 * row.used) / row.limit)} %`, numeric: true },
    ],
    (row) => row.name,
  );
  const rates = table(
    "Rate limits",
    [
      { title: "Limit for each", cell: (/** @type {any} */ row) => row.name },
      { title: "Per second", cell: (row) => row.write(row.rate), numeric: true },
      { title: "Burst", cell: (row) => row.write(row.burst), numeric: true },
    ],
    (row) => row.name,
    "Rate limits are switched off.",
  );
  const refusals = table(
    "Refusals",
    [
      { title: "Reason", cell: (/** @type {any} */ row) => row.reason },
      { title: "Protocol", cell: (row) => title(row.protocol) },
      { title: "Count", cell: (row) => number(row.count), numeric: true },
    ],
    (row) => `${row.protocol} ${row.reason}`,
    "Nothing has been refused since the start.",
  );
  const faults = table(
    "Faults",
    [
      { title: "Kind", cell: (/** @type {any} */ row) => row.kind },
      { title: "Count", cell: (row) => number(row.count), numeric: true },
    ],
    (row) => row.kind,
    "No faults since the start.",
  );
  place.append(
    heading("Refusals and limits", "What the gateway has refused since it started, and how close it is to its limits."),
    problem,
    section("Refusals", h("p", { class: "hint" }, "For REST, the reason is the HTTP status."), refusals.element),
    section("Faults", h("p", { class: "hint" }, "Errors that should not happen. The gateway's log has a line for each."), faults.element),
    section("Limits in use", used.element),
    section("Rate limits", rates.element),
  );
  stats.follow(() => {
    problem.hidden = stats.error === null;
    if (stats.error !== null) problem.textContent = explain(stats.error);
    const now = stats.latest;
    if (now === null) return;
    const { limits } = now;
    used.update([
      { name: "Connections", ...limits.connections, write: number },
      { name: "Channels", ...limits.channels, write: number },
      { name: "Memory for peers", ...limits.memory, write: bytes },
    ]);
    rates.update(Object.entries(limits.rates ?? {}).map(([name, rate]) => named(name, /** @type {any} */ (rate))));
    refusals.update([...now.refusals].sort((one, other) => other.count - one.count));
    faults.update(Object.entries(now.faults).map(([kind, count]) => ({ kind, count })));
  }, signal);
}

/** @param {string} name @param {{rate: number, burst: number}} rate */
function named(name, rate) {
  if (name === "bytes") return { name: "network, bytes", ...rate, write: bytes };
  return { name: `${name === "address" ? "network" : name}, requests`, ...rate, write: number };
}
