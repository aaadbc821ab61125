"""A hostile topic relay that the gateway dials, because its operator configured a link to it."""

from __future__ import annotations

import json
import socket
import struct
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha1
from itertools import count
from select import select

from .client_frames import BINARY, PING, RELAY, TEXT, broadcast, http, websocket
from .target import Report, Target
from .unread import LARGE
from .wire import NARROW, PATIENCE, TURN, Raw

LINKED = "linked"  # the channel of the link, and what the names of others begin with
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
CONTINUATION = 0
BATCH = 500  # frames that are made at once
ROUND = 40  # messages of 60 kB, until it is looked whether the link was given up

Feed = Callable[[], bytes]
Begin = Callable[[socket.socket], Raw]


class Dialled(Raw):
    """A connection that the gateway opened, after the handshake."""

    def __init__(self, stream: socket.socket, feed: bytes = b"") -> None:
        self._begin(stream, feed)
        stream.settimeout(PATIENCE)
        head = self.receive_until(b"\r\n\r\n")
        if not head.endswith(b"\r\n\r\n"):
            raise ConnectionError("the gateway had given up this connection")
        key = next(line for line in head.splitlines() if line.lower().startswith(b"sec-websocket-key:"))
        accept = b64encode(sha1(key.partition(b":")[2].strip() + MAGIC).digest())
        stream.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
        )


def served(payload: bytes, opcode: int = TEXT, *, final: bool = True) -> bytes:
    """A server's WebSocket frame: without a mask."""
    first, size = (0x80 if final else 0) | opcode, len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    head = struct.pack(">BBH", first, 126, size) if size < 1 << 16 else struct.pack(">BBQ", first, 127, size)
    return head + payload


def relay_frame(**fields: object) -> bytes:
    """The frame of a packet."""
    return served(json.dumps(fields, separators=(",", ":")).encode())


def flood(target: Target, seconds: float) -> Report:
    """It broadcasts at full speed, for senders without number, and says ids that it made up."""
    numbers = count()

    def feed() -> bytes:
        return b"".join(
            relay_frame(type=6, topic=LINKED, src=n, text="x" * 50, trellisId=f"0190b3c2-1111-7abc-8def-{n:012d}")
            for n, _ in zip(numbers, range(BATCH), strict=False)
        )

    return attack(target, seconds, feed)


def garbage(target: Target, seconds: float) -> Report:
    """It answers what nobody asked, in frames of all sizes and kinds, most of which are no packets."""
    numbers = count()
    fixed = [
        served(b"[" * 60_000),
        served(b"[" * 1_000_000),
        served(b"{" + b'"a":1,' * 9_000 + b'"type":6,"topic":"linked"}'),
        served(json.dumps({"type": 6, "topic": LINKED, "error": [[["x" * 100] * 100] * 5]}).encode()),
        served(b"\xff" * 60_000, BINARY),
        served(b"p" * 125, PING) * BATCH,
        served(b'{"type":0,"topic":"', final=False)
        + served(b"", CONTINUATION, final=False) * 50_000
        + served(b'"}', CONTINUATION),
    ]

    def feed() -> bytes:
        topics = [f"{n:020d}" for n, _ in zip(numbers, range(BATCH), strict=False)]
        strange = [relay_frame(type=kind, topic=topic, peers=[]) for topic in topics for kind in (2, 6)]
        return b"".join([*fixed, *strange])

    return attack(target, seconds, feed)


def unread(target: Target, seconds: float) -> Report:
    """It never reads, while somebody says 60 kB again and again on the channel that is linked."""
    report, deadline, dropped = Report(), time.monotonic() + seconds, 0
    speaker = websocket(target, RELAY)
    for silent in dialled(target, deadline, Dialled, window=NARROW):
        now = dropped
        while now == dropped and time.monotonic() < deadline:
            for _ in range(ROUND):
                speaker.send(broadcast(LINKED, LARGE))
            now = drops(target)
        if now > dropped:
            dropped = now
            silent.end()  # it learns nothing of that, as it does not read
        silent.account(report)
    speaker.socket.close()
    report.require("who never reads is dropped", dropped)
    return report


def drops(target: Target) -> int:
    """How many connections of its link the gateway has given up."""
    answer = http(target, "/v1/stats")
    (link,) = json.loads(answer.partition(b"\r\n\r\n")[2])["links"]
    return int(link["connects"] - (link["state"] == "connected"))


def attack(target: Target, seconds: float, feed: Feed, begin: Begin = Dialled) -> Report:
    """Say what *feed* makes on each connection that the gateway opens, after *begin* has made a peer of it."""
    report, deadline = Report(), time.monotonic() + seconds
    for peer in dialled(target, deadline, begin):
        while peer.ended is None and time.monotonic() < deadline:
            if not peer.feed:
                peer.feed, peer.place, peer.turns = feed(), 0, 1
            readable, writable, _ = select([peer], [peer], [], TURN)
            if writable:
                peer.push()
            if readable:
                peer.pull()
        peer.account(report)
    report.require("the gateway dials again", report.connections)
    return report


def dialled(target: Target, deadline: float, begin: Begin, *, window: int = 0) -> Iterator[Raw]:
    """What *begin* makes of the connections that the gateway opens until *deadline*, one after another."""
    assert target.relay is not None
    with target.relay as listener:
        if window:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        while (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                stream, _ = listener.accept()
            except TimeoutError:
                return
            try:
                peer = begin(stream)
            except OSError:  # the gateway gave it up before anybody was here
                stream.close()
                continue
            peer.socket.setblocking(False)
            yield peer
