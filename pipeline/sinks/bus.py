"""Publishes on the bus: statistics on `gateway/stats`, alerts on `gateway/alerts`.

Each message has an idempotency key, so a repeated one is not published twice: that of a statistic consists of window
and channel, that of an alert of what went wrong, with whom, and how far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from itertools import groupby
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx

from pipeline.config import bearer, is_temporary
from pipeline.errors import PipelineError, Unreachable

CHANNEL: Final = "gateway/stats"
ALERTS: Final = "gateway/alerts"
TIMEOUT_SECONDS: Final = 30.0  # for a response
MAX_QUOTED: Final = 255  # characters of a name in a key, which may have 512; a longer name is there by its hash
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


class Alert(NamedTuple):
    """What is wrong with a publisher: *about* names both, *size* is how often and when last (`gold/publishers`)."""

    about: str
    size: tuple[int, int]
    content: dict[str, Any]

    @property
    def message(self) -> Message:
        """The message of the alert, whose key changes with its size."""
        return f"alerts/{self.about}/{self.size[0]}/{self.size[1]}", self.content


def alerts(publishers: Iterable[Any]) -> Iterator[Alert]:
    """Yield the alerts for rows of `gold/publishers`."""
    for row in publishers:
        for what, count, newest in (("gaps", row.missing, row.newest_missing), ("signatures", row.bad, row.newest_bad)):
            if count:
                content = {"job": "publishers", "alert": what, "protocol": row.protocol, "publisher": row.publisher}
                about = f"{what}/{row.protocol}/{_in_key(row.publisher, safe='')}"
                yield Alert(about, (count, newest), {**content, "count": count, "messages": row.messages})


def publish(url: str, key: str | None, messages: Iterable[Message], channel: str = CHANNEL) -> int:
    """Publish each of *messages* once on *channel* of the gateway at *url*; return how many there were."""
    count, path = 0, f"/v1/channels/{quote(channel, safe='')}/messages"
    with httpx.Client(base_url=url, headers=bearer(key), timeout=TIMEOUT_SECONDS) as client:
        for name, content in messages:
            try:
                answer = client.post(path, json=content, headers={"Idempotency-Key": name})
            except httpx.TransportError as error:
                raise Unreachable(f"{url} cannot be reached to publish on {channel}: {error}") from None
            if answer.status_code not in _DONE:
                kind = Unreachable if is_temporary(answer.status_code) else PipelineError
                raise kind(f"{url} refused what is for {channel} ({answer.status_code}): {answer.text[:300]}")
            count += 1
    return count


def _message(minute: datetime, channel: str | None, more: dict[str, Any]) -> Message:
    window = minute.strftime("%Y-%m-%dT%H:%MZ")
    key = f"stats/{window}/{'' if channel is None else _in_key(channel)}"
    return key, {"job": "stats", "window": window, "seconds": 60, "channel": channel, **more}


def _in_key(name: str, safe: str = "/") -> str:
    """Return *name* in the characters of a key: a letter of another script takes up to twelve."""
    quoted = quote(name, safe=safe)
    return quoted if len(quoted) <= MAX_QUOTED else f"sha256:{sha256(name.encode()).hexdigest()}"
