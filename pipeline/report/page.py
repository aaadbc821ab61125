"""Writes the report's page: one HTML file without scripts or external resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

from .axes import format_time, period_name
from .charts import (
    VERDICTS,
    Periods,
    Raw,
    bar,
    bars_over_time,
    colour,
    key_of,
    lines_over_time,
    placeholder,
    table,
    visible,
)
from .data import MINUTE_MS, ReportData

STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881}
*{box-sizing:border-box}
body{font:1rem/1.5 system-ui,sans-serif;margin:0 auto;max-width:64rem;padding:1rem}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2rem 0 .5rem}
p{margin:.5rem 0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.5rem;padding:0;list-style:none}
.facts li{background:var(--soft);border-radius:.5rem;padding:.5rem .75rem}
.facts b{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums}
figure{margin:0}figcaption{font-size:.9rem}
.plot{display:grid;grid-template:12rem 1.6rem/auto 1fr;column-gap:.4rem;padding-top:.6rem;font-size:.8rem;
font-variant-numeric:tabular-nums}
.plot svg{display:block;width:100%;height:100%}
.y,.x{position:relative}.y span,.x span{position:absolute;white-space:nowrap}
.y span{right:0;transform:translateY(50%)}.x{grid-column:2}.x span{top:.2rem}
.x .inner{transform:translateX(-50%)}.x .last{transform:translateX(-100%)}
.grid line{stroke:var(--line);vector-effect:non-scaling-stroke}
.line0,.line1,.line2{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}
.line0{stroke:#2a6f3e}.line1{stroke:#d9822b;stroke-dasharray:6 2}.line2{stroke:#b3261e;stroke-dasharray:2 2}
.pictures{margin-top:1rem;display:grid;grid-template-columns:repeat(auto-fit,minmax(min(19rem,100%),1fr));gap:1rem}
.pictures .plot{grid-template-rows:8rem 1.6rem}
dl{display:grid;grid-template-columns:auto 1fr;gap:.1rem .75rem;font-size:.9rem;margin:.5rem 0}
dt{font-weight:600}dd{margin:0}
svg.bar{display:block;width:100%;height:.5rem;margin:.15rem 0;background:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:1rem;list-style:none;padding:0;margin:.5rem 0;font-size:.9rem}
.legend i{display:inline-block;width:.9rem;height:.9rem;margin-right:.3rem;vertical-align:-.1rem}
.wide{overflow-x:auto}.wide+.wide{margin-top:1rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .5rem;border-bottom:1px solid var(--line)}
th{font-weight:600}td{overflow-wrap:anywhere}td:first-child{width:35%;max-width:20rem}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap;overflow-wrap:normal}
.nothing{color:#777}
@media screen and (max-width:40rem){td:first-child{width:auto}
.many thead{display:none}.many tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}
.many td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.1rem 0;overflow-wrap:anywhere}
.many td:first-child{display:block;width:auto;max-width:none;font-weight:600}
.many td::before{content:attr(data-name);flex:none}.many td:first-child::before{content:none}}
@media print{body{max-width:none;padding:0;font-size:10pt}figure,tr{break-inside:avoid}
h2,h2+p,p+dl,thead{break-after:avoid}.small section{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}.wide{overflow:visible}
.small{columns:2;column-gap:2rem;font-size:9pt}.small h2{margin-top:1rem}
.small th,.small td{padding:.2rem .25rem}.small td:first-child{width:auto;min-width:5rem}}
"""


PERCENTILES: Final = {
    "p50": "half of the deliveries took at most so long (green)",
    "p95": "95 of 100 deliveries did (orange)",
    "p99": "99 of 100 deliveries did (red)",
}
CHECKS: Final = {
    "node_id": "the id of an Arbor node is computed again",
    "openpgp": "the signature of an Arbor node",
    "eth": "the signature of a Streamr message",
    "eth_legacy": "the signature of a Streamr message, in the older form",
}
GAPS: Final = {
    "open": "it is not in the log",
    "filled": "it came later",
    "fork": "it is in the log, and is not the message before this one",
    "unknown before": "it is older than everything of its chain in the log",
}
FAST, SLOW = "#2a6f3e", "#d9822b"  # colours of the half, and of the rest up to 95 of 100
LATER: Final = (1, 2, 4)  # weeks
FAULTS: Final = {
    "line": "a line of the log is no record",
    "check": "an id or a signature is bad",
    "chain": "a Streamr message whose predecessor is missing or is another one",
    "copy": "a further message with an id that its channel had before",
    "undelivered": "a message that does not fit this protocol",
}
LACKS: Final = {"missing": SLOW, "bad": VERDICTS["bad"]}
SPACE: Final = {"content": FAST, "as received": SLOW, "ids and references": "#3b6fb6"}
REASONS: Final = {
    "checksum": "the checksum does not match",
    "torn": "the line does not end",
    "corrupt": "the line is no valid record",
    "foreign": "the line does not belong there",
    "duplicate": "the record is there already",
}


def page(numbers: ReportData, made: int) -> str:
    """Return the report as HTML; *made* is the time (ms) to show."""
    gateways = ", ".join(numbers.gateways) or "no gateway yet"
    large = (("Traffic", _traffic(numbers)), ("Channels", _channels(numbers)), ("Latency", _latency(numbers)))
    asked = (
        ("Who answers whom", _answers(numbers)),
        ("How long the first answer takes", _answer_times(numbers)),
        ("Threads by depth", _threads(numbers)),
        ("Space in the log", _storage(numbers)),
        ("Publishers with faults", _publishers(numbers)),
    )
    small = (
        ("Refused, missing or there twice", _faults(numbers)),
        ("Senders who come back", _retention(numbers)),
        ("Ids and signatures", _integrity(numbers)),
        ("Gaps in Streamr chains", _gaps(numbers)),
        ("Arbor nodes", _forest(numbers)),
        ("Unreadable lines", _rejects(numbers)),
        ("Work of the pipeline", _work(numbers)),
    )
    body = f'{_sections((*large, *asked))}<div class="small">{_sections(small)}</div>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Trellis report</title><style>{STYLE}</style></head><body>"
        f"<header><h1>Trellis report</h1><p>Gateway {escape(gateways)}. Generated {format_time(made)} UTC.</p>"
        f"{_facts(numbers)}</header><main>{body}</main></body></html>\n"
    )


def _facts(numbers: ReportData) -> str:
    facts = {
        "records": f"{numbers.records:,}",
        "messages": f"{numbers.messages:,}",
        "channels": f"{numbers.channel_count:,}",
        "from": "-" if numbers.first_time is None else format_time(numbers.first_time),
        "to": "-" if numbers.last_time is None else format_time(numbers.last_time),
    }
    items = "".join(f'<li><b id="{name}">{value}</b>{name}</li>' for name, value in facts.items())
    return f'<ul class="facts">{items}</ul>'


def _sections(sections: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<section><h2>{escape(title)}</h2>{text}</section>" for title, text in sections)


def _periods(numbers: ReportData) -> Periods:
    return Periods(numbers.begin, numbers.end, numbers.bucket_minutes * MINUTE_MS)


def _terms(terms: Mapping[str, str]) -> str:
    """Explain the words of a table."""
    return f"<dl>{''.join(f'<dt>{escape(word)}</dt><dd>{escape(text)}</dd>' for word, text in terms.items())}</dl>"


def _traffic(numbers: ReportData) -> str:
    each = period_name(numbers.bucket_minutes)
    return (
        f"<p>Messages in each {each} (UTC), by the sender's protocol. The gateway's own channels are not"
        f" counted.</p>{bars_over_time(numbers.traffic, _periods(numbers))}"
        f"{table(('protocol', 'messages', 'bytes'), numbers.protocols, 'protocols')}"
    )


def _channels(numbers: ReportData) -> str:
    most = max((row[1] for row in numbers.channels), default=1)
    rows = [(name, n, size, Raw(bar([(n / most, colour("topic_relay"))]))) for name, n, size in numbers.channels]
    more = numbers.channel_count - len(rows)
    note = f"<p>The busiest channels; {more:,} more are not shown.</p>" if more > 0 else ""
    return note + table(("channel", "messages", "bytes"), rows, "channels")


def _latency(numbers: ReportData) -> str:
    """Show the percentiles of each pair of protocols: over everything as a table, over time as pictures."""
    if not numbers.flows:
        return placeholder("The log has no latencies yet.")
    most = max(row[2] for row in numbers.flows) or 1
    rows = [(*_pair(row), *row[2:], Raw(bar([(row[2] / most, colour(row[0]))]))) for row in numbers.flows]
    head = ("from, to", "delivered", "undelivered", "p50, ms", "p95, ms", "p99, ms")
    pictures = "".join(
        f"<figure><figcaption>{escape(visible(' '.join(_pair(pair))))}, ms</figcaption>"
        f"{lines_over_time([(time, values) for _, _, time, *values in found], _periods(numbers), 'latency over time')}"
        "</figure>"
        for pair, found in ((pair, list(found)) for pair, found in groupby(numbers.latency, lambda row: row[:2]))
    )
    each = period_name(numbers.bucket_minutes)
    return (
        "<p>How long deliveries took within the gateway, from the sender's protocol to the listener's: from the moment"
        " a message was queued for a listener until it was written to the connection. Some ten deliveries a second were"
        f" measured. The table covers the whole log, the pictures each {each} (UTC).</p>"
        f"{_terms(PERCENTILES)}{table(head, rows, 'flows')}"
        f'<div class="pictures">{pictures}</div>'
    )


def _answers(numbers: ReportData) -> str:
    """Show how much is answered across protocols, and between which senders."""
    if not numbers.answers:
        return placeholder("Nobody has answered anybody yet.")
    most = max(row[2] for row in numbers.answers)
    flows = [(*_pair(row), row[2], Raw(bar([(row[2] / most, colour(row[0]))]))) for row in numbers.answers]
    pairs = [
        (who, whom, f"{speaks} → {other}", n, Raw(bar([(n / numbers.pairs[0][4], colour(speaks))])))
        for speaks, who, other, whom, n in numbers.pairs
    ]
    return (
        "<p>Answers by the protocols of both senders, and the pairs of senders with most answers.</p>"
        f"{table(('who answers, whom', 'answers'), flows, 'answers')}"
        f"{table(('who answers', 'whom', 'protocols', 'answers'), pairs, 'pairs')}"
    )


def _answer_times(numbers: ReportData) -> str:
    if not numbers.answer_times:
        return placeholder("No message has been answered yet.")
    longest = max(row[3] for row in numbers.answer_times) or 1
    rows = [
        (channel, n, half / 1000, most / 1000, Raw(bar([(half / longest, FAST), ((most - half) / longest, SLOW)])))
        for channel, n, half, most in numbers.answer_times
    ]
    head = ("channel", "answered", "half within, s", "95 % within, s")
    return f"<p>From a message to its first answer, where most is answered.</p>{table(head, rows, 'answer-times')}"


def _retention(numbers: ReportData) -> str:
    """Show for each week who came first in it, and how many of them came again one to four weeks later."""
    weeks: dict[str, dict[int, int]] = {}
    for week, later, senders in numbers.retention:
        weeks.setdefault(week, {})[later] = senders
    rows = [
        (week, found[0], *(found.get(n, 0) for n in LATER), Raw(bar([(found.get(1, 0) / found[0], FAST)])))
        for week, found in weeks.items()
    ]
    if not rows:
        return placeholder("No sender with a name has said anything yet.")
    head = ("first week, from", "senders", *("a week later" if n == 1 else f"{n} weeks later" for n in LATER))
    note = "Senders with a name by the week of their first message, and those who came back. The bar is the next week."
    return f"<p>{note}</p>{table(head, rows, 'retention')}"


def _threads(numbers: ReportData) -> str:
    if not numbers.threads:
        return placeholder("Nobody has answered anybody yet.")
    most = max(row[1] for row in numbers.threads)
    rows = [
        (f"{depth:,}", n, ends, None if half is None else half / 1000, Raw(bar([(n / most, FAST)])))
        for depth, n, ends, half in numbers.threads
    ]
    more = f" The deepest thread has {numbers.deepest:,}." if numbers.deepest > numbers.threads[-1][0] else ""
    note = (
        "A thread is a message that answers nothing in the log (depth 0), the answers to it (depth 1), the answers to"
        f" those, and so on, whatever protocols they came by.{more}"
    )
    head = ("depth", "messages", "threads that end here", "half follow within, s")
    return f"<p>{note}</p>{table(head, rows, 'threads')}"


def _storage(numbers: ReportData) -> str:
    if not numbers.storage:
        return placeholder("There are no messages yet.")
    most = max(sum(row[2:]) for row in numbers.storage) or 1
    rows = [
        (name, n, sum(sizes), Raw(bar([(size / most, fill) for size, fill in zip(sizes, SPACE.values(), strict=True)])))
        for name, n, *sizes in numbers.storage
    ]
    return (
        "<p>The channels whose messages take most space in the log.</p>"
        f"{table(('channel', 'messages', 'bytes'), rows, 'storage')}{key_of(SPACE)}"
    )


def _publishers(numbers: ReportData) -> str:
    if not numbers.publishers:
        return placeholder("No publisher's messages are missing, and no id or signature is bad.")
    most = max(sum(row[3:]) for row in numbers.publishers)
    rows = [
        (*row, Raw(bar([(n / most, fill) for n, fill in zip(row[3:], LACKS.values(), strict=True)])))
        for row in numbers.publishers
    ]
    return (
        "<p>Messages whose predecessor is missing or is another one, and records with a bad id or signature, of the"
        " publishers with most of them.</p>"
        f"{table(('publisher', 'protocol', 'messages', *LACKS), rows, 'publishers')}{key_of(LACKS)}"
    )


def _faults(numbers: ReportData) -> str:
    if not numbers.faults:
        return placeholder("Nothing was refused, is missing or is there twice.")
    most = max(row[2] for row in numbers.faults)
    rows = [(f"{what}: {cause}", n, Raw(bar([(n / most, VERDICTS["bad"])]))) for what, cause, n in numbers.faults]
    known = {word: text for word, text in FAULTS.items() if any(row[0].split()[0] == word for row in numbers.faults)}
    return table(("what and why", "number"), rows, "faults") + _terms(known)


def _pair(row: Sequence[Any]) -> tuple[str]:
    return (f"{row[0]} → {row[1]}",)


def _integrity(numbers: ReportData) -> str:
    checks: dict[str, dict[str, int]] = {}
    for check, verdict, n in numbers.integrity:
        checks.setdefault(check, dict.fromkeys(VERDICTS, 0))[verdict] = n
    rows = []
    for check, found in checks.items():
        total = sum(found.values())
        rows.append((check, *found.values(), Raw(bar([(n / total, VERDICTS[name]) for name, n in found.items()]))))
    known = {check: text for check, text in CHECKS.items() if check in checks}
    return table(("check", *VERDICTS), rows, "integrity") + (_terms(known) if known else "")


def _gaps(numbers: ReportData) -> str:
    if not numbers.gaps:
        return placeholder("Every chain is complete.")
    total = sum(row[1] for row in numbers.gaps) or 1
    rows = [(state, n, Raw(bar([(n / total, colour("streamr"))]))) for state, n in numbers.gaps]
    known = {state: GAPS[state] for state, _ in numbers.gaps if state in GAPS}
    return table(("predecessor", "messages"), rows, "gaps") + _terms(known)


def _forest(numbers: ReportData) -> str:
    return table(("", "number"), numbers.forest.items(), "forest")


def _rejects(numbers: ReportData) -> str:
    if not numbers.rejects:
        return placeholder("Every line of the log could be read.")
    known = {reason: REASONS[reason] for reason, _ in numbers.rejects if reason in REASONS}
    return table(("reason", "lines"), numbers.rejects, "rejects") + _terms(known)


def _work(numbers: ReportData) -> str:
    return table(("job", "batches", "rows read", "rows written", "seconds"), numbers.batches, "batches")
