/** The pipeline's last report, as tables. */

import { h, toggle } from "./dom.js";
import { ago, bytes, milliseconds, moment, number, title } from "./format.js";
import { fact, section } from "./parts.js";
import { table } from "./table.js";

const CHECKS = new Map([
  ["node_id", "ids of Arbor nodes"],
  ["openpgp", "signatures of Arbor nodes"],
  ["eth", "signatures of Streamr messages"],
  ["eth_legacy", "signatures of Streamr messages, in the older form"],
]);
const GAPS = new Map([
  ["open", "not in the log"],
  ["filled", "came later"],
  ["fork", "in the log, but not the message before"],
  ["unknown before", "older than everything of its chain in the log"],
]);
const LINES = new Map([
  ["checksum", "the checksum does not match"],
  ["torn", "the line does not end"],
  ["corrupt", "the line is no valid record"],
  ["foreign", "the line does not belong there"],
  ["duplicate", "the record is there already"],
]);

/** Make the sections of a report; they are hidden until there is one. */
export function report() {
  const facts = h("dl", { class: "facts" });
  const parts = makeParts();
  const element = h("div", { class: "report", hidden: true }, section("Last report", facts), ...parts.map((part) => part.element));

  /** @param {any} told the answer of `/v1/report`, or null if there is none */
  function update(told) {
    toggle(element, told !== null);
    if (told === null) return;
    facts.replaceChildren(
      fact("Made", `${moment(told.made)} (${ago(told.made)})`),
      fact("Gateway", told.gateways.join(", ") || "none yet"),
      fact("Records", `${number(told.records)}, of which ${number(told.messages)} are messages`),
      fact("Channels", number(told.channelCount)),
      fact("From", told.firstTime === null ? "–" : moment(told.firstTime)),
      fact("To", told.lastTime === null ? "–" : moment(told.lastTime)),
    );
    for (const part of parts) part.update(told);
  }

  return { element, update };
}

/** The sections below the facts, each with what it takes of a report. */
function makeParts() {
  return [
    part("Messages by protocol", (told) => told.protocols, (row) => row.protocol, [
      { title: "Protocol", cell: (row) => title(row.protocol) },
      count("Messages", (row) => row.messages),
      { title: "Size", cell: (row) => bytes(row.bytes), numeric: true },
    ]),
    part("Busiest channels", (told) => told.channels, (row) => row.channel, [
      { title: "Channel", cell: (row) => row.channel },
      count("Messages", (row) => row.messages),
      { title: "Size", cell: (row) => bytes(row.bytes), numeric: true },
    ]),
    part("Latency", (told) => told.flows, (row) => `${row.from} ${row.to}`, [
      { title: "From, to", cell: (row) => `${title(row.from)} → ${title(row.to)}` },
      count("Delivered", (row) => row.delivered),
      { ...count("Undelivered", (row) => row.undelivered), minor: true },
      { title: "Median", cell: (row) => latency(row.p50), numeric: true },
      { title: "95 %", cell: (row) => latency(row.p95), numeric: true },
      { title: "99 %", cell: (row) => latency(row.p99), numeric: true, minor: true },
    ], "Half, 95 % and 99 % of the deliveries took at most this long."),
    part("Ids and signatures", (told) => verdicts(told.verdicts), (row) => row.check, [
      { title: "Check", cell: (row) => CHECKS.get(row.check) ?? row.check },
      count("Good", (row) => row.ok),
      count("Bad", (row) => row.bad),
      { ...count("Cannot be checked", (row) => row.unverifiable), minor: true },
    ]),
    counted("Gaps in Streamr chains", (told) => told.gaps, "Predecessor", GAPS, "Every chain is complete."),
    counted("Arbor nodes", (told) => told.nodes, "Nodes", new Map(), "None."),
    counted("Unreadable lines of the log", (told) => told.unreadable, "Why", LINES, "Every line could be read."),
    part("Work of the pipeline", (told) => told.work, (row) => row.job, [
      { title: "Job", cell: (row) => row.job },
      count("Batches", (row) => row.batches),
      { ...count("Rows read", (row) => row.rowsRead), minor: true },
      count("Rows written", (row) => row.rowsWritten),
      { title: "Seconds", cell: (row) => number(row.seconds), numeric: true },
    ]),
  ];
}

/**
 * A section with one table.
 *
 * @param {string} name
 * @param {(told: any) => any[]} rows
 * @param {(row: any) => string} key
 * @param {import("./table.js").Column<any>[]} columns
 * @param {string} [hint]
 * @param {string} [empty]
 */
function part(name, rows, key, columns, hint, empty) {
  const list = table(name, columns, key, empty);
  const element = section(name, hint ? h("p", { class: "hint" }, hint) : null, list.element);
  return { element, update: (/** @type {any} */ told) => list.update(rows(told)) };
}

/**
 * A section that says how often something was found.
 *
 * @param {string} name
 * @param {(told: any) => any[]} rows
 * @param {string} what
 * @param {Map<string, string>} words for people
 * @param {string} empty
 */
function counted(name, rows, what, words, empty) {
  const columns = [{ title: what, cell: (/** @type {any} */ row) => words.get(row.name) ?? row.name }, count("Number", (row) => row.count)];
  return part(name, rows, (row) => row.name, columns, undefined, empty);
}

/**
 * @param {string} name
 * @param {(row: any) => number} read
 * @returns {import("./table.js").Column<any>}
 */
function count(name, read) {
  return { title: name, cell: (row) => number(read(row)), numeric: true };
}

/**
 * One row for each check.
 *
 * @param {{check: string, verdict: string, count: number}[]} found
 */
function verdicts(found) {
  /** @type {Map<string, any>} */
  const rows = new Map();
  for (const { check, verdict, count: n } of found) {
    rows.set(check, { check, ok: 0, bad: 0, unverifiable: 0, ...rows.get(check), [verdict]: n });
  }
  return [...rows.values()];
}

/** @param {number | null} ms */
function latency(ms) {
  return ms === null ? "–" : milliseconds(ms);
}
