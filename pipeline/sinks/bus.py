"""Publishes statistics on the bus: one message for each minute and channel, on the channel `gateway/stats`.

The idempotency key of each message consists of job, window and channel, so a repeated one is not published twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

import httpx

from pipeline.config import bearer
from pipeline.errors import PipelineError

CHANNEL: Final = "gateway/stats"
TIMEOUT_SECONDS: Final = 30.0  # for a response
_PATH: Final = f"/v1/channels/{quote(CHANNEL, safe='')}/messages"
_DONE: Final = (201, 422)  # 422: published before with other numbers, before a late record was counted

Message = tuple[str, dict[str, Any]]


def messages(minutes: Iterable[Any], latencies: Iterable[Any]) -> Iterator[tuple[datetime, Message]]:
    """Yield the window, and the key and content of its message, for rows of the two gold tables, which come by time."""
    for (minute, channel), rows in groupby(minutes, lambda row: (row.minute, row.channel)):
        protocols = {
            row.protocol: {"n": row.n, "bytes": row.bytes, "senders": row.senders, "undelivered": row.undelivered}
            for row in sorted(rows, key=lambda row: row.protocol)
        }
        yield minute, _message(minute, channel, {"protocols": protocols})
    for minute, rows in groupby(latencies, lambda row: row.minute):
        flows = [
            {"from": row.from_protocol, "to": row.to_protocol, "n": row.n, "undelivered": row.undelivered}
            | {name: row[name] for name in ("p50", "p95", "p99")}
            for row in sorted(rows, key=lambda row: (row.from_protocol, row.to_protocol))
        ]
        yield minute, _message(minute, None, {"latency": flows})


def publish(url: str, key: str | None, told: Iterable[Message]) -> int:
    """Publish each of *told* once on the gateway at *url*; return how many there were."""
    count = 0
    with httpx.Client(base_url=url, headers=bearer(key), timeout=TIMEOUT_SECONDS) as client:
        for name, content in told:
            try:
                answer = client.post(_PATH, json=content, headers={"Idempotency-Key": name})
            except httpx.TransportError as error:
                raise PipelineError(f"{url} cannot be reached to publish statistics: {error}") from None
            if answer.status_code not in _DONE:
                raise PipelineError(f"{url} refused statistics ({answer.status_code}): {answer.text[:300]}")
            count += 1
    return count


def _message(minute: datetime, channel: str | None, more: dict[str, Any]) -> Message:
    window = minute.strftime("%Y-%m-%dT%H:%MZ")
    key = f"stats/{window}/{'' if channel is None else quote(channel)}"
    return key, {"job": "stats", "window": window, "seconds": 60, "channel": channel, **more}
