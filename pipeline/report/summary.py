"""The report's numbers as JSON, for `GET /v1/report` and the console; the pictures are on the page alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .data import ReportData, Rows

TRAFFIC = ("messages", "bytes")
FLOW = ("from", "to", "delivered", "undelivered", "p50", "p95", "p99")
COUNTED = ("name", "count")
WORK = ("job", "batches", "rowsRead", "rowsWritten", "seconds")


def summary(numbers: ReportData, made: int) -> str:
    """Return the report as JSON; *made* is the time (ms) to show."""
    members = {
        "made": made,
        "gateways": numbers.gateways,
        "records": numbers.records,
        "messages": numbers.messages,
        "channelCount": numbers.channel_count,
        "firstTime": numbers.first_time,
        "lastTime": numbers.last_time,
        "protocols": _named(("protocol", *TRAFFIC), numbers.protocols),
        "channels": _named(("channel", *TRAFFIC), numbers.channels),
        "flows": _named(FLOW, numbers.flows),
        "verdicts": _named(("check", "verdict", "count"), numbers.integrity),
        "gaps": _named(COUNTED, numbers.gaps),
        "nodes": _named(COUNTED, list(numbers.forest.items())),
        "unreadable": _named(COUNTED, numbers.rejects),
        "work": _named(WORK, numbers.batches),
    }
    return json.dumps(members, ensure_ascii=False)


def _named(names: Sequence[str], rows: Rows) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]
