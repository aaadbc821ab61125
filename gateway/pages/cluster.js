/** The cluster as this gateway sees it: its members, whose turn it is, who holds which link, and the servers that keep
 * the stream. */

import { h, setText, toggle } from "./dom.js";
import { ago, bytes, duration, number } from "./format.js";
import { explain, fact, heading, section } from "./parts.js";
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
  const alone = h("p", { class: "hint", hidden: true }, "This gateway runs alone: no cluster is configured.");
  const state = h("p", {}, "");
  const members = table(
    "Gateways",
    [
      { title: "Gateway", cell: (/** @type {any} */ row) => row.name },
      { title: "Accepts", cell: (row) => (row.accepts ? "yes" : "no") },
      { title: "Sequence", cell: (row) => number(row.sequence), numeric: true },
      { title: "Position", cell: (row) => number(row.position), numeric: true, minor: true },
      { title: "Heard", cell: (row) => `${number(row.heardSeconds)} s ago`, minor: true },
      { title: "Started", cell: (row) => ago(row.started), minor: true },
      { title: "Version", cell: (row) => row.version, minor: true },
      {
        title: "Same log to",
        cell: (row) => (row.sameTo === null ? "not compared" : number(row.sameTo)),
        numeric: true,
        minor: true,
      },
      { title: "Differs in", cell: (row) => row.differs.join(", ") || "nothing" },
    ],
    (row) => row.name,
  );
  const links = table(
    "Links",
    [
      { title: "Link", cell: (/** @type {any} */ row) => row.link },
      { title: "Held by", cell: (row) => row.holder },
    ],
    (row) => row.link,
    "This gateway has no links to elsewhere.",
  );
  const replicas = table(
    "NATS servers",
    [
      { title: "Server", cell: (/** @type {any} */ row) => row.name },
      { title: "Leads", cell: (row) => (row.leads ? "yes" : "no") },
      { title: "Current", cell: (row) => (row.current ? "yes" : "no") },
      { title: "Behind", cell: (row) => number(row.lag), numeric: true },
    ],
    (row) => row.name,
    "One server keeps the stream, or none has answered yet.",
  );
  const facts = h("dl", { class: "facts" });
  const all = [
    state,
    section("Gateways", members.element),
    section("Links", links.element),
    section("Stream", facts, replicas.element),
  ];
  for (const each of all) toggle(each, false);
  place.append(
    heading("Cluster", "Several gateways that are one service, as this one sees them."),
    problem,
    alone,
    ...all,
  );
  stats.follow(() => {
    problem.hidden = stats.error === null;
    if (stats.error !== null) problem.textContent = explain(stats.error);
    const now = stats.latest;
    if (now === null) return;
    const { cluster } = now;
    toggle(alone, cluster === null);
    for (const each of all) toggle(each, cluster !== null);
    if (cluster === null) return;
    setText(state, sentence(cluster));
    members.update(cluster.members);
    links.update(cluster.links);
    replicas.update(cluster.stream.replicas);
    facts.replaceChildren(...describe(cluster));
  }, signal);
}

/** @param {any} cluster @returns {string} */
function sentence(cluster) {
  if (cluster.trouble !== null) return `Gateway ${cluster.member} does not take part: ${cluster.trouble}.`;
  const turn = cluster.turn === null ? "It is nobody's turn to accept." : `It is the turn of ${cluster.turn} to accept.`;
  const { records, batches, seconds } = cluster.lag;
  const lag = batches ? ` It is ${number(records)} records behind, for ${duration(seconds)}.` : "";
  return `Gateway ${cluster.member} takes part in the cluster ${cluster.name}. ${turn}${lag}`;
}

/** @param {any} cluster @returns {Element[]} */
function describe({ stream, log, batch, ignoredBatches, reconnects, unsentBytes }) {
  const connected = stream.connected ? `connected to ${stream.server}` : "not connected";
  const kept = stream.last === null ? "not known yet" : `${number(stream.first)} to ${number(stream.last)}, ${bytes(stream.bytes)}`;
  return [
    fact("Connection", `${connected}, connected again ${number(reconnects)} times`),
    fact("Positions kept", kept),
    fact("Batches", `${number(batch)} counted, ${number(ignoredBatches)} ignored since the start`),
    fact("Not sent yet", bytes(unsentBytes)),
    fact("Log", log === null ? "no block is complete yet" : `to record ${number(log.last)}, digest ${log.digest}`),
  ];
}
