"""Raw connections of attackers, which may misbehave, and a loop that drives many of them."""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from .target import HOST, SOURCE, Report

PATIENCE = 10.0  # seconds for anything that should take a moment
TURN = 0.05  # seconds between two checks for dropped connections
ESTABLISHED = 1  # a state of tcp(7); in any other, the other side has ended the connection
CHUNK = 1 << 16  # bytes that are read at once
NARROW = 4096  # bytes of a receive buffer that is soon full
KEPT = 4_000  # bytes that are kept of the beginning, and of the end, of what the gateway sent

# Statuses, error codes and close codes in the answers of all protocols.
ANSWER = re.compile(
    rb'HTTP/1\.1 (?P<http>\d{3})|"error": ?"(?P<error>[A-Z][A-Za-z]{1,40})"|\[2,7,[^]]*?"(?P<streamr>[A-Z_]{4,})"|'
    rb"^status -?\d+ (?P<sprout>\d)|\x88[\x02-\x7d](?P<close>[\x03-\x0f][\x00-\xff])",
    re.MULTILINE,
)


class Raw:
    """A connection of an attacker. It sends `feed` again and again, as fast as the gateway reads.

    *window* is the size of its receive buffer: with `NARROW`, nearly everything that it does not read waits in the
    gateway.
    """

    def __init__(self, port: int, feed: bytes = b"", greeting: bytes = b"", *, window: int = 0) -> None:
        stream = socket.socket()
        if window:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        stream.settimeout(PATIENCE)
        stream.bind((SOURCE, 0))
        stream.connect((HOST, port))
        self._begin(stream, feed)
        if greeting:
            self.socket.sendall(greeting)

    def _begin(self, stream: socket.socket, feed: bytes) -> None:
        """Begin with *stream*, which is connected."""
        self.socket = stream
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.begun = time.monotonic()
        self.ended: float | None = None
        self.feed = feed
        self.turns: float = float("inf")  # how often the feed is sent
        self.place = self.sent = self.received = 0
        self.first = self.last = b""

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    def send(self, data: bytes) -> None:
        """Send *data*, however long that takes."""
        self.socket.settimeout(PATIENCE)
        self.socket.sendall(data)
        self.sent += len(data)

    def receive_until(self, until: bytes, most: int = 1 << 26) -> bytes:
        """Read until *until* has come, or the end."""
        self.socket.settimeout(PATIENCE)
        found = b""
        while until not in found[-len(until) - CHUNK :] and len(found) < most and (data := self.socket.recv(CHUNK)):
            found += data
        return found

    def push(self) -> None:
        """Send as much of the feed as there is room for."""
        try:
            for _ in range(8):
                count = self.socket.send(memoryview(self.feed)[self.place :])
                self.sent += count
                self.place += count
                if self.place == len(self.feed):
                    self.place = 0
                    self.turns -= 1
                    if self.turns <= 0:
                        self.feed = b""
                        return
        except BlockingIOError:
            return
        except OSError:
            self.end()

    def pull(self, most: int = CHUNK) -> None:
        """Read what there is."""
        try:
            data = self.socket.recv(most)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            data = b""
        if not data:
            self.end()
            return
        self.received += len(data)
        if len(self.first) < KEPT:
            self.first += data[:KEPT]
        self.last = (self.last + data)[-KEPT:]

    def end(self) -> None:
        """Note that the gateway has ended it."""
        if self.ended is None:
            self.ended = time.monotonic()

    def check(self) -> None:
        """Check whether the gateway has ended it; a connection that never reads does not notice that otherwise."""
        if self.ended is None and self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED:
            self.end()

    def account(self, report: Report) -> None:
        """Close it, and add its figures to *report*."""
        self.socket.close()
        report.connections += 1
        report.sent += self.sent
        report.received += self.received
        if self.ended is not None:
            report.dropped.append(round(self.ended - self.begun, 2))
        report.answers.update(message_words(self.first if len(self.first) < KEPT else self.first + self.last))


def message_words(data: bytes) -> Iterator[str]:
    """Yield the statuses and codes in *data*, such as `http 429`."""
    for found in ANSWER.finditer(data):
        kind, value = str(found.lastgroup), found[found.lastgroup or 0]
        yield f"{kind} {int.from_bytes(value)}" if kind == "close" else f"{kind} {value.decode(errors='replace')}"


def drive(
    peers: Sequence[Raw],
    report: Report,
    seconds: float,
    *,
    reads: int = CHUNK,
    again: Callable[[], Raw] | None = None,
) -> None:
    """Let *peers* send their feeds for so many *seconds*, and read *reads* bytes at once: slowly if less than `CHUNK`.

    A peer that was dropped is replaced by one that *again* makes. It ends early if all are gone.
    """
    deadline = time.monotonic() + seconds
    with ConnectionSet(report, reads) as connections:
        for peer in peers:
            connections.add(peer)
        while connections.peers and time.monotonic() < deadline:
            connections.run_once()
            for _ in range(connections.remove_dropped()):
                if again is None or time.monotonic() > deadline:
                    break
                try:
                    connections.add(again())
                except OSError:
                    report.answers["no connection"] += 1


class ConnectionSet:
    """Connections that are driven together; their outcomes go to *report*."""

    def __init__(self, report: Report, reads: int) -> None:
        self.peers: dict[Raw, None] = {}
        self._report = report
        self._reads = reads
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> ConnectionSet:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in list(self.peers):
            self._leave(peer)
        self._selector.close()

    def add(self, peer: Raw) -> None:
        """Add a connection."""
        self.peers[peer] = None
        peer.socket.setblocking(False)
        self._want(peer)

    def run_once(self) -> None:
        """Read and write for `TURN` seconds."""
        deadline = time.monotonic() + TURN
        while (left := deadline - time.monotonic()) > 0:
            for key, ready in self._selector.select(left) if self._selector.get_map() else ():
                self._move(key.data, ready)
            if not self._selector.get_map():
                time.sleep(max(0, deadline - time.monotonic()))
        if self._reads < CHUNK:
            for peer in self.peers if self._reads else ():
                peer.pull(self._reads)

    def remove_dropped(self) -> int:
        """Remove the connections that the gateway dropped; return how many."""
        for peer in self.peers:
            peer.check()
        gone = [peer for peer in self.peers if peer.ended is not None]
        for peer in gone:
            self._leave(peer)
        return len(gone)

    def _move(self, peer: Raw, ready: int) -> None:
        if ready & selectors.EVENT_READ:
            peer.pull()
        if ready & selectors.EVENT_WRITE:
            peer.push()
        if peer.ended is not None or not peer.feed:
            self._selector.unregister(peer)
            self._want(peer)

    def _want(self, peer: Raw) -> None:
        reads = selectors.EVENT_READ if self._reads >= CHUNK else 0
        wanted = 0 if peer.ended is not None else reads | (selectors.EVENT_WRITE if peer.feed else 0)
        if wanted:
            self._selector.register(peer, wanted, peer)

    def _leave(self, peer: Raw) -> None:
        with suppress(KeyError):
            self._selector.unregister(peer)
        del self.peers[peer]
        for _ in range(64):  # what it was told at the end
            before = peer.received
            peer.pull(1 << 20)
            if peer.received == before:
                break
        peer.account(self._report)
