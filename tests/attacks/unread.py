"""Peers that request much data and read none of it, or read it slowly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from urllib.parse import quote

from .client_frames import (
    PING,
    RELAY,
    STREAMR,
    WS,
    ask,
    broadcast,
    frame,
    http,
    message,
    publish,
    request,
    subscribe_relay,
    subscribe_streamr,
    websocket,
)
from .target import Report, Target
from .wire import NARROW, PATIENCE, TURN, ConnectionSet, Raw, drive

LARGE = "x" * 60_000
ROUND = 200  # messages of 60 kB, sent one at a time, until the next reader comes
PAUSE = 0.002  # seconds between two of them
GIVEN_UP = 5.0  # seconds within which a connection that was ended is gone, on a busy machine
READERS = 8
PAGES = 54  # histories of 4 MiB that are asked for
TRICKLE = 50  # bytes that a slow reader reads at once


def relay(target: Target, seconds: float) -> Report:
    """One listener stops reading, another reads, and somebody says 60 kB again and again, one message at a time."""
    frames = [broadcast("unread", LARGE)] * ROUND
    return _rounds(target, seconds, RELAY, subscribe_relay("unread"), lambda: frames)


def streamr(target: Target, seconds: float) -> Report:
    """The same with Streamr."""

    def frames() -> list[bytes]:
        now = time.time_ns() // 1_000_000
        return [publish(message("unread/streamr", f'"{LARGE}"', now, n)) for n in range(ROUND)]

    return _rounds(target, seconds, STREAMR, subscribe_streamr("unread/streamr"), frames)


def ws(target: Target, seconds: float) -> Report:
    """The same on `/v1/ws`."""
    frames = [ask("publish", channel="unread/ws", content=LARGE)] * ROUND
    return _rounds(target, seconds, WS, ask("subscribe", channel="unread/ws"), lambda: frames)


def _rounds(target: Target, seconds: float, path: str, subscribe: bytes, frames: Callable[[], list[bytes]]) -> Report:
    report, deadline = Report(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        silent = websocket(target, path, window=NARROW)
        reader, speaker = websocket(target, path), websocket(target, path)
        for each in (silent, reader):
            each.send(subscribe)
            each.receive_until(b"]" if path == STREAMR else b"}")
        _send_each(speaker, frames(), reader)
        _await_end(silent)
        silent.account(report)
        speaker.socket.close()
        reader.socket.close()
    report.require("who never reads is dropped", report.dropped)
    return report


def _await_end(peer: Raw) -> None:
    """Read until the end of the connection: the close comes after all data that the kernel could not deliver yet."""
    deadline = time.monotonic() + GIVEN_UP
    peer.socket.settimeout(TURN)
    while peer.ended is None and time.monotonic() < deadline:
        with suppress(TimeoutError):
            peer.pull(1 << 20)


def _send_each(speaker: Raw, frames: Iterable[bytes], reader: Raw | None = None) -> None:
    """Send *frames* one at a time, while *reader* reads."""
    if reader is not None:
        reader.socket.setblocking(False)
    for each in frames:
        try:
            speaker.send(each)
        except OSError:
            return
        if reader is not None:
            reader.pull(1 << 20)
        time.sleep(PAUSE)


def sprout(target: Target, seconds: float) -> Report:
    """Arbor clients who never read a channel in which others say 60 kB again and again."""
    community, report, deadline = community_of(target, "unread/sprout"), Report(), time.monotonic() + seconds
    readers = [
        Raw(target.sprout, greeting=f"subscribe 1 {community}\n".encode(), window=NARROW) for _ in range(READERS)
    ]
    for reader in readers:
        reader.receive_until(b"status 1 0")
    speaker = websocket(target, RELAY)
    while time.monotonic() < deadline:
        _send_each(speaker, [broadcast("unread/sprout", LARGE)] * 20)
    speaker.socket.close()
    drive(readers, report, 2 * TURN, reads=0)
    return report


def events(target: Target, seconds: float) -> Report:
    """Event streams that nobody reads, on a channel in which somebody says 60 kB again and again."""
    report, deadline = Report(), time.monotonic() + seconds
    path = "/v1/channels/unread%2Fevents/events"
    readers = [Raw(target.http, greeting=request(target, path), window=NARROW) for _ in range(READERS)]
    speaker = websocket(target, RELAY)
    while time.monotonic() < deadline:
        _send_each(speaker, [broadcast("unread/events", LARGE)] * 20)
    speaker.socket.close()
    drive(readers, report, 2 * TURN, reads=0)
    return report


def fill(target: Target, channel: str, count: int = 70) -> None:
    """Publish *count* messages of 60 kB; the default fills a page of history."""
    speaker = Raw(target.http)
    one = request(target, f"/v1/channels/{quote(channel, safe='')}/messages", "POST", f'"{LARGE}"'.encode())
    for _ in range(count):
        speaker.send(one)
        speaker.receive_until(b'"sequence"')
    speaker.socket.close()


def history(target: Target, seconds: float) -> Report:
    """Connections that ask for 4 MiB of history again and again and read nothing."""
    report = Report()
    fill(target, "pages")
    feed = request(target, "/v1/channels/pages/messages?limit=256")
    drive([Raw(target.http, feed * 4, window=NARROW) for _ in range(PAGES)], report, seconds, reads=0)
    return report


def resends(target: Target, seconds: float) -> Report:
    """Streamr clients that ask for everything again and again and read nothing."""
    report = Report()
    fill(target, "pages")
    feed = frame('[2,11,"r","pages",0,1000,null]')
    drive([websocket(target, STREAMR, feed, window=NARROW) for _ in range(PAGES // 2)], report, seconds, reads=0)
    return report


def data(target: Target, seconds: float) -> Report:
    """The same by the data API."""
    report = Report()
    fill(target, "pages")
    feed = request(target, "/api/v1/streams/pages/data/partitions/0/last?count=1000")
    drive([Raw(target.http, feed, window=NARROW) for _ in range(PAGES)], report, seconds, reads=0)
    return report


def answers(target: Target, seconds: float) -> Report:
    """Arbor clients that ask for all nodes of a channel again and again and read nothing."""
    community, report = community_of(target, "pages/sprout"), Report()
    fill(target, "pages/sprout", 20)
    feed = f"leaves_of 1 {community} 1024\nlist 2 2 1024\n".encode()
    drive([Raw(target.sprout, feed, window=NARROW) for _ in range(PAGES // 2)], report, seconds, reads=0)
    return report


def pings(target: Target, seconds: float) -> Report:
    """Pings at full speed by peers who do not read the pongs."""
    report = Report()
    feed = frame(b"p" * 125, PING) * 100
    drive(
        [websocket(target, path, feed, window=NARROW) for path in (RELAY, STREAMR) for _ in range(4)],
        report,
        seconds,
        reads=0,
    )
    return report


def slowly(target: Target, seconds: float) -> Report:
    """A listener of each protocol that reads 1 kB a second, while somebody says 60 kB again and again."""
    report = Report()
    fill(target, "slow", 10)
    community, now = community_of(target, "slow"), time.time_ns() // 1_000_000
    slow = [
        websocket(target, RELAY, subscribe_relay("slow")),
        websocket(target, STREAMR, subscribe_streamr("slow")),
        websocket(target, STREAMR, frame('[2,11,"r","slow",0,1000,null]')),
        Raw(target.sprout, f"subscribe 1 {community}\nleaves_of 2 {community} 1024\n".encode()),
        Raw(target.http, request(target, "/v1/channels/slow/events")),
        Raw(target.http, request(target, "/v1/channels/slow/messages")),
        Raw(target.http, request(target, "/api/v1/streams/slow/data/partitions/0/last?count=1000")),
    ]
    for each in slow:
        each.turns = 1
    rows = [publish(message("slow", f'"{LARGE}"', now, n)) for n in range(2_500)]
    speaker = websocket(target, STREAMR)
    deadline, waiting = time.monotonic() + seconds, iter(rows)
    with ConnectionSet(report, TRICKLE) as connections:
        for each in slow:
            connections.add(each)
        while time.monotonic() < deadline:
            speaker.send(next(waiting))
            connections.run_once()
            connections.remove_dropped()
    speaker.socket.close()
    return report


def community_of(target: Target, channel: str) -> str:
    """Return the id of the community of *channel*, which is created if there is none."""
    path, deadline = f"/v1/channels/{quote(channel, safe='')}", time.monotonic() + PATIENCE
    http(target, path, "PUT")
    while b'"community":"' not in (found := http(target, path).replace(b'": "', b'":"')):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found.partition(b'"community":"')[2].partition(b'"')[0].decode()
