"""Writes the report's page: one HTML file without scripts or external resources."""

from __future__ import annotations

from html import escape
from typing import Final

from .charts import VERDICTS, Raw, bar, bars_over_time, colour, format_time, placeholder, table
from .data import ReportData

STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881}
*{box-sizing:border-box}
body{font:1rem/1.5 system-ui,sans-serif;margin:0 auto;max-width:64rem;padding:1rem}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2rem 0 .5rem}
p{margin:.5rem 0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.5rem;padding:0;list-style:none}
.facts li{background:var(--soft);border-radius:.5rem;padding:.5rem .75rem}
.facts b{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums}
figure{margin:0}figcaption{display:flex;justify-content:space-between;font-size:.9rem}
.most{font-size:.9rem;margin:0}
svg.time{display:block;width:100%;height:12rem;border-bottom:1px solid currentColor}
svg.bar{display:block;width:100%;height:.5rem;margin:.15rem 0;background:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:1rem;list-style:none;padding:0;margin:.5rem 0;font-size:.9rem}
.legend i{display:inline-block;width:.9rem;height:.9rem;margin-right:.3rem;vertical-align:-.1rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .5rem;border-bottom:1px solid var(--line)}
th{font-weight:600}td:first-child{width:35%;max-width:20rem;overflow-wrap:break-word}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}
.nothing{color:#777}
@media print{body{max-width:none;padding:0;font-size:10pt}h2{break-after:avoid}figure,tr{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}.wide{overflow:visible}}
"""


def page(numbers: ReportData, made: int) -> str:
    """Return the report as HTML; *made* is the time (ms) to show."""
    gateways = ", ".join(numbers.gateways) or "no gateway yet"
    sections = (
        ("Traffic", _traffic(numbers)),
        ("Channels", _channels(numbers)),
        ("From protocol to protocol", _flows(numbers)),
        ("Integrity", _integrity(numbers)),
        ("Gaps in streams", _gaps(numbers)),
        ("Arbor forest", _forest(numbers)),
        ("Rejected lines", table(("reason", "lines"), numbers.rejects, "rejects")),
        ("The pipeline", table(("job", "batches", "rows in", "rows out", "seconds"), numbers.batches, "batches")),
    )
    body = "".join(f"<section><h2>{escape(title)}</h2>{text}</section>" for title, text in sections)
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
        "from": format_time(numbers.first_time),
        "to": format_time(numbers.last_time),
    }
    items = "".join(f'<li><b id="{name}">{value}</b>{name}</li>' for name, value in facts.items())
    return f'<ul class="facts">{items}</ul>'


def _traffic(numbers: ReportData) -> str:
    step = numbers.bucket_minutes
    each = "minute" if step == 1 else f"{step} minutes"
    rows = [(protocol, n, size) for protocol, n, size in numbers.protocols]
    return (
        f"<p>Messages in each {each}, by the sender's protocol.</p>"
        f"{bars_over_time(numbers.traffic, step * 60_000)}{table(('protocol', 'messages', 'bytes'), rows, 'protocols')}"
    )


def _channels(numbers: ReportData) -> str:
    most = max((row[1] for row in numbers.channels), default=1)
    rows = [(name, n, size, Raw(bar([(n / most, colour("topic_relay"))]))) for name, n, size in numbers.channels]
    more = numbers.channel_count - len(rows)
    note = f"<p>The busiest channels; {more:,} more are not shown.</p>" if more > 0 else ""
    return note + table(("channel", "messages", "bytes"), rows, "channels")


def _flows(numbers: ReportData) -> str:
    if not numbers.flows:
        return placeholder("The log has no latency counts yet.")
    most = max(row[2] for row in numbers.flows) or 1
    rows = [(*row, Raw(bar([(row[2] / most, colour(row[0]))]))) for row in numbers.flows]
    head = ("from", "to", "delivered", "undelivered", "p50 ms", "p95 ms", "p99 ms")
    return f"<p>Latencies are those of the worst minute.</p>{table(head, rows, 'flows')}"


def _integrity(numbers: ReportData) -> str:
    checks: dict[str, dict[str, int]] = {}
    for check, verdict, n in numbers.integrity:
        checks.setdefault(check, dict.fromkeys(VERDICTS, 0))[verdict] = n
    rows = []
    for check, found in checks.items():
        total = sum(found.values())
        rows.append((check, *found.values(), Raw(bar([(n / total, VERDICTS[name]) for name, n in found.items()]))))
    return table(("check", *VERDICTS), rows, "integrity")


def _gaps(numbers: ReportData) -> str:
    total = sum(row[1] for row in numbers.gaps) or 1
    rows = [(state, n, Raw(bar([(n / total, colour("streamr"))]))) for state, n in numbers.gaps]
    return table(("state", "messages"), rows, "gaps") if rows else placeholder("Every chain is complete.")


def _forest(numbers: ReportData) -> str:
    return table(("", "nodes"), numbers.forest.items(), "forest")
