"""Connections to `/v1/ws` that subscribe to, resume and request more than anybody needs."""

from __future__ import annotations

from itertools import count
from urllib.parse import quote

from .client_frames import WS, ask, http, websocket
from .target import Report, Target
from .wire import NARROW, drive

LONG = 3_000  # messages of the channel that is resumed
PATTERNS = 100  # `gateway.core.watchers.MAX_PREFIXES`
NAMES = 2_000
SPEAKERS = 4


def _fill(target: Target, channel: str) -> None:
    """Make *channel* long."""
    path, lines = f"/v1/channels/{quote(channel, safe='')}/messages", b'"x"\n' * LONG
    http(target, path, "POST", lines, {"Content-Type": "application/x-ndjson"})


def resume(target: Target, seconds: float) -> Report:
    """Each connection resumes a long channel from the beginning by 100 patterns at once, and then again.

    None of them is `*`: honest messages would have more listeners, and take longer for that alone.
    """
    _fill(target, "resumed")
    names = [f"{'resumed'[:n]}*" for n in range(1, 8)] + [f"resumed{n}*" for n in range(PATTERNS - 7)]
    feed = b"".join(
        ask("subscribe", pattern=name, after=0) + ask("unsubscribe", pattern=name) * (n % 2)
        for n, name in enumerate(names)
    )
    return _drive(target, seconds, feed)


def nothing_found(target: Target, seconds: float) -> Report:
    """The same with patterns that match nothing: all of the log is looked through for each."""
    _fill(target, "resumed")
    feed = b"".join(ask("subscribe", pattern=f"none{n}*", after=0) for n in range(PATTERNS))
    return _drive(target, seconds, feed + b"".join(ask("unsubscribe", pattern=f"none{n}*") for n in range(PATTERNS)))


def many(target: Target, seconds: float) -> Report:
    """Each connection resumes thousands of channels from the beginning."""
    _fill(target, "resumed")
    feeds = [b"".join(ask("subscribe", channel=f"many/{n}", after=0) for n in range(NAMES)) for _ in range(SPEAKERS)]
    report = Report()
    peers = [websocket(target, WS, feed) for feed in feeds]
    for peer in peers:
        peer.turns = 1
    drive(peers, report, seconds)
    return report


def churn(target: Target, seconds: float) -> Report:
    """Subscribing and unsubscribing, of a channel with many peers in it."""
    connections = [websocket(target, WS) for _ in range(200)]
    for each in connections:
        each.send(ask("subscribe", channel="churn"))
    feed = (ask("subscribe", channel="churn") + ask("unsubscribe", channel="churn")) * 100
    report = Report()
    drive([*connections, *(websocket(target, WS, feed) for _ in range(SPEAKERS))], report, seconds)
    return report


def huge(target: Target, seconds: float) -> Report:
    """Patterns and channels of half a megabyte, no two alike."""
    numbers = count()
    feed = b"".join(
        ask("subscribe", **{kind: f"{next(numbers)}{'x' * 500_000}{'*' * (kind == 'pattern')}"})
        for kind in ("pattern", "channel") * 2
    )
    return _drive(target, seconds, feed)


def unread(target: Target, seconds: float) -> Report:
    """Pages of history, lists and pongs that nobody reads."""
    _fill(target, "unread/ws")
    feed = (ask("history", channel="unread/ws") + ask("presence", channel="unread/ws") + ask("ping")) * 100
    report = Report()
    drive([websocket(target, WS, feed, window=NARROW) for _ in range(54)], report, seconds, reads=0)
    return report


def gone(target: Target, seconds: float) -> Report:
    """Direct messages to peers that are not there."""
    feed = b"".join(ask("direct", channel="gone", peer=n, content="x") for n in range(1_000))
    return _drive(target, seconds, feed)


def keys(target: Target, seconds: float) -> Report:
    """Publishes with an idempotency key each."""
    feed = b"".join(ask("publish", channel="once", content="x", idempotencyKey=f"{n}") for n in range(1_000))
    return _drive(target, seconds, feed)


def _drive(target: Target, seconds: float, feed: bytes) -> Report:
    report = Report()
    drive([websocket(target, WS, feed) for _ in range(SPEAKERS)], report, seconds)
    return report
