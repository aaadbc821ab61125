"""The load for Sprout: clients on raw sockets that count what arrives, and answer as genuine ones do."""

from __future__ import annotations

import re
import select
import selectors
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NoReturn

from adapters.sprout.wire.codec import NodeLine

from .sockets import PATIENCE_SECONDS, connect
from .workload import LoadError

WINDOW = 64  # announces without a status
SILENCE_SECONDS = 0.3
_ANNOUNCE = re.compile(rb"^announce (\d+) ", re.MULTILINE)
_STATUS = re.compile(rb"^status \d+ (\d+)$", re.MULTILINE)


class SproutLoadConnection:
    """One connection. `nodes`, `answers` and `refused` count what came: node lines, statuses and responses, and
    those statuses that are not 0.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = connect(host, int(port))
        self.nodes = self.answers = self.refused = 0
        self._id = 0
        self._rest = b""

    def request(self, text: bytes, count: int = 1) -> bytes:
        """*count* times the same request, whose *text* has `%d` for the id."""
        first, self._id = self._id, self._id + count
        return b"".join([text % id for id in range(first, self._id)])

    def ask(self, text: bytes) -> bytes:
        """Send one request and wait for the whole answer."""
        before, heard = self.answers, b""
        self.socket.sendall(self.request(text))
        while self.answers == before or not self._whole(heard):
            heard += self.take()
        return heard

    def take(self) -> bytes:
        """Read what there is, count it, and say to each announce that it is welcome; the whole lines of it."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise LoadError("the server hung up")
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        text = whole + newline
        self.nodes += text.count(b"SHA512_B32__")
        self.answers += text.count(b"response ")
        if b"status " in text:
            codes = _STATUS.findall(text)
            self.answers += len(codes)
            self.refused += len(codes) - codes.count(b"0")
        if ids := _ANNOUNCE.findall(text):
            self.socket.sendall(b"".join([b"status %b 0\n" % id for id in ids]))
        return text

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    @staticmethod
    def _whole(heard: bytes) -> bool:
        head, _, body = heard[max(heard.find(b"response "), 0) :].partition(b"\n")
        return not head.startswith(b"response ") or body.count(b"SHA512_B32__") >= int(head.split()[2])


def subscribe(peers: Iterable[SproutLoadConnection], community: str) -> None:
    """Let all *peers* listen."""
    for peer in peers:
        peer.ask(b"subscribe %%d %b\n" % community.encode())


def announce(
    peer: SproutLoadConnection,
    lines: Sequence[NodeLine],
    listeners: Sequence[SproutLoadConnection] = (),
    batch: int = 1,
) -> None:
    """Announce *lines*, *batch* to a message, `WINDOW` nodes in flight, until all *listeners* have them all."""
    texts = [
        b"announce %%d %d\n" % len(part) + b"".join([line.line + b"\n" for line in part])
        for part in (lines[at : at + batch] for at in range(0, len(lines), batch))
    ]
    wanted = [each.nodes + len(lines) for each in listeners]
    start, sent = peer.answers, 0
    window = max(1, WINDOW // batch)
    with selectors.DefaultSelector() as selector:
        for each in (peer, *listeners):
            selector.register(each.socket, selectors.EVENT_READ, each)
        while peer.answers - start < len(texts) or any(
            each.nodes < want for each, want in zip(listeners, wanted, strict=True)
        ):
            room = window - (sent - (peer.answers - start))
            if room > 0 and sent < len(texts):
                peer.socket.sendall(b"".join([peer.request(text) for text in texts[sent : sent + room]]))
                sent += len(texts[sent : sent + room])
            for key, _ in selector.select(PATIENCE_SECONDS) or _stalled():
                key.data.take()


def until_held(peer: SproutLoadConnection, ids: Sequence[str]) -> None:
    """Wait until the server holds the nodes *ids*: the reference answers before it does."""
    text = b"query %%d %d\n" % len(ids) + b"".join([id.encode() + b"\n" for id in ids])
    while peer.ask(text).count(b"SHA512_B32__") < len(ids):
        pass


def ask_all(peer: SproutLoadConnection, text: bytes, count: int, window: int = 8) -> None:
    """Ask the same *count* times, *window* in flight."""
    start, sent = peer.answers, 0
    while peer.answers - start < count:
        room = min(window - (sent - (peer.answers - start)), count - sent)
        if room > 0:
            peer.socket.sendall(peer.request(text, room))
            sent += room
        peer.take()


def hear(listeners: Sequence[SproutLoadConnection], wanted: Sequence[int]) -> None:
    """Read until each of *listeners* has heard as many nodes as *wanted*."""
    waiting = {each.socket: (each, want) for each, want in zip(listeners, wanted, strict=True)}
    while waiting := {key: pair for key, pair in waiting.items() if pair[0].nodes < pair[1]}:
        readable, _, _ = select.select(list(waiting), [], [], PATIENCE_SECONDS)
        if not readable:
            _stalled()
        for each in readable:
            waiting[each][0].take()


def hear_silence(listeners: Sequence[SproutLoadConnection]) -> None:
    """Read until nothing comes for a while."""
    waiting = {each.socket: each for each in listeners}
    while readable := select.select(list(waiting), [], [], SILENCE_SECONDS)[0]:
        for each in readable:
            waiting[each].take()


@contextmanager
def connected(address: str, count: int) -> Iterator[list[SproutLoadConnection]]:
    """Connect *count* peers, and hang up; raise `LoadError` if the server refused anything."""
    with ExitStack() as stack:
        peers = [stack.enter_context(closing(SproutLoadConnection(address))) for _ in range(count)]
        yield peers
        if refused := sum(peer.refused for peer in peers):
            raise LoadError(f"{refused} requests were refused")


def _stalled() -> NoReturn:
    raise LoadError("nothing came any more")
