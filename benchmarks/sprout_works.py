"""The workloads of Sprout."""

from __future__ import annotations

import http.client
import json
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from adapters.sprout.forest import forest
from adapters.sprout.wire.codec import NodeLine, Response
from adapters.sprout.wire.parser import Parser

from .sprout_load import PATIENCE_SECONDS, Peer, Stalled, announce, ask_all, subscribe, until_held
from .sprout_nodes import Tree, trees
from .sprout_servers import Server

LISTENERS = 50


class Work:
    """One workload: `prepare` is not measured, `run` is, and says how many items there were."""

    title: str
    must: float | None = None
    reference = True  # whether the Go relay can do it

    def __init__(self, size: int) -> None:
        self.size = size
        self.trees: list[Tree] = []

    def fresh(self) -> None:
        """Make the nodes of the next round, the same for all servers."""
        self.trees = trees(1, self.size)

    def measures(self, server: str) -> bool:
        """Whether *server* can do it."""
        return server == "trellis" or (self.reference and server.startswith("go"))

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        """Connect, and yield what is to be measured."""
        raise NotImplementedError


class Announce(Work):
    """Nodes taken in, one a message; the gateway verifies them and has them on disk, the reference does neither."""

    title = "announce, 1 connection, 1 node a message"
    must = 8.0
    batch = 1

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer, tree = Peer(server.sprout), self.trees[0]
        subscribe([peer], tree.community.id)
        announce(peer, [tree.identity])
        until_held(peer, [tree.identity.id])
        announce(peer, [tree.community])
        until_held(peer, [tree.community.id])

        def run() -> int:
            announce(peer, tree.replies, batch=self.batch)
            for start in range(0, self.size, 500):
                until_held(peer, [line.id for line in tree.replies[start : start + 500]])
            return self.size

        yield run
        _close([peer])


class AnnounceMany(Announce):
    """The same, twenty nodes a message."""

    title = "announce, 1 connection, 20 nodes a message"
    batch = 20


class Fan(Work):
    """What one announces, fifty hear."""

    title = f"fan-out to {LISTENERS}"
    must = 10.0

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer, tree = Peer(server.sprout), self.trees[0]
        listeners = [Peer(server.sprout) for _ in range(LISTENERS)]
        subscribe([peer, *listeners], tree.community.id)
        for root in (tree.identity, tree.community):
            announce(peer, [root], listeners)
            until_held(peer, [root.id])

        def run() -> int:
            announce(peer, tree.replies, listeners)
            return self.size * LISTENERS

        yield run
        _close([peer, *listeners])


class Ask(Work):
    """One question about a forest of a certain size, again and again."""

    question: bytes
    forest_size = 5_000

    def fresh(self) -> None:
        self.trees = self.trees or trees(1, self.forest_size)

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer, tree = Peer(server.sprout), self.trees[0]
        subscribe([peer], tree.community.id)
        for root in (tree.identity, tree.community):
            announce(peer, [root])
            until_held(peer, [root.id])
        announce(peer, tree.replies)
        for start in range(0, self.forest_size, 500):
            until_held(peer, [line.id for line in tree.replies[start : start + 500]])
        count = self.size if server.name != "trellis" else 20 * self.size
        text = self.question.replace(b"ID", tree.community.id.encode())
        time.sleep(0.5)  # the index is written in the background

        def run() -> int:
            ask_all(peer, text, count)
            return count

        yield run
        _close([peer])


class Flat(Work):
    """One question about forests that were planted: the time is to be the same for all of them."""

    title = "leaves_of 10, whatever the forest's size"
    question = b"leaves_of %d ID 10\n"

    def fresh(self) -> None:
        pass

    def measures(self, server: str) -> bool:
        return server.startswith("trellis-")

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer = Peer(server.sprout)
        community = next(line for line in _nodes(peer.ask(b"list %d 1 9\n")) if b"room " in line.raw)
        text = self.question.replace(b"ID", community.id.encode())

        def run() -> int:
            ask_all(peer, text, self.size)
            return self.size

        yield run
        _close([peer])


class FlatList(Flat):
    """The newest of all."""

    title = "list 10, whatever the forest's size"
    question = b"list %d 2 10\n"


class LeavesOf(Ask):
    """The newest of a community."""

    title = "leaves_of 10 of 5,000"
    must = 30.0
    question = b"leaves_of %d ID 10\n"


class List(Ask):
    """The newest of all."""

    title = "list 10 of 5,000"
    must = 30.0
    question = b"list %d 2 10\n"


class Bootstrap(Work):
    """What a client does that begins: communities, authors, and each node with all that is above it."""

    title = "bootstrap of 10,000 nodes"
    reference = False

    def fresh(self) -> None:
        self.trees = self.trees or trees(10, self.size // 10)

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer = Peer(server.sprout)
        for tree in self.trees:
            announce(peer, [tree.identity, tree.community, *tree.replies], batch=20)
        time.sleep(0.5)

        def run() -> int:
            held: set[str] = set()
            for community in _nodes(peer.ask(b"list %d 1 1024\n")):
                id = community.id.encode()
                _bootstrap(peer, id, held)
            return len(held)

        yield run
        _close([peer])


def _bootstrap(peer: Peer, community: bytes, held: set[str]) -> None:
    peer.ask(b"subscribe %%d %b\n" % community)
    leaves = _nodes(peer.ask(b"leaves_of %%d %b 1024\n" % community))
    peer.ask(b"announce %d 0\n")
    for leaf in leaves:
        if leaf.id in held:
            continue
        node = forest.decode(leaf.raw)
        above = _nodes(peer.ask(b"ancestry %%d %b %d\n" % (leaf.id.encode(), node.depth)))
        for line in (*above, leaf):
            author = forest.decode(line.raw).author
            if author != forest.NULL_ID and author not in held:
                held |= {found.id for found in _nodes(peer.ask(b"query %%d 1\n%b\n" % author.encode()))}
            held.add(line.id)


def _nodes(text: bytes) -> tuple[NodeLine, ...]:
    parser = Parser()
    parser.feed(text[text.find(b"response ") :])
    frame = parser.next_frame()
    assert isinstance(frame, Response), text[:100]
    return frame.nodes


class Bridge(Work):
    """What REST says becomes nodes that the gateway signs, for one who listens or for many."""

    title = "bridged from REST to 1 listener"
    listeners = 1
    reference = False

    def fresh(self) -> None:
        pass

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        path = f"/v1/channels/bridge{time.time_ns()}"
        rest(server, "PUT", path)
        while (community := rest(server, "GET", path).get("community")) is None:
            time.sleep(0.02)
        listeners = [Peer(server.sprout) for _ in range(self.listeners)]
        subscribe(listeners, community)
        rest(server, "POST", f"{path}/messages", b'"first"')
        hear(listeners, [2] * self.listeners)  # the identity of who speaks, and the first node
        body = b"".join(b'{"n": %d, "text": "%b"}\n' % (n, b"x" * 80) for n in range(self.size))

        def run() -> int:
            before = [each.nodes for each in listeners]
            connection = http.client.HTTPConnection(server.http)
            connection.request("POST", f"{path}/messages", body, {"Content-Type": "application/x-ndjson"})
            hear(listeners, [count + self.size for count in before])
            connection.close()
            return self.size

        yield run
        _close(listeners)


class BridgeMany(Bridge):
    """The same, to fifty."""

    title = f"bridged from REST to {LISTENERS} listeners"
    listeners = LISTENERS


def hear(listeners: Sequence[Peer], wanted: Sequence[int]) -> None:
    """Read until each of *listeners* has heard as many nodes as *wanted*."""
    waiting = {each.socket: (each, want) for each, want in zip(listeners, wanted, strict=True)}
    while waiting := {key: pair for key, pair in waiting.items() if pair[0].nodes < pair[1]}:
        readable, _, _ = select.select(list(waiting), [], [], PATIENCE_SECONDS)
        if not readable:
            raise Stalled("nothing came any more")
        for each in readable:
            waiting[each][0].take()


def rest(server: Server, method: str, path: str, body: bytes | None = None) -> Any:
    """What the gateway's REST interface answers."""
    connection = http.client.HTTPConnection(server.http)
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    text = connection.getresponse().read()
    connection.close()
    return json.loads(text)


def _close(peers: Sequence[Peer]) -> None:
    refused = sum(peer.refused for peer in peers)
    for peer in peers:
        peer.close()
    if refused:
        raise Stalled(f"{refused} requests were refused")


# fmt: off
WORKS: dict[str, Callable[[], Work]] = {
    "announce":  lambda: Announce(3_000),
    "announce20": lambda: AnnounceMany(3_000),
    "fan50":     lambda: Fan(500),
    "leaves_of": lambda: LeavesOf(200),
    "list":      lambda: List(100),
    "flat":      lambda: Flat(4_000),
    "flat-list": lambda: FlatList(4_000),
    "bootstrap": lambda: Bootstrap(10_000),
    "bridge":    lambda: Bridge(4_000),
    "bridge50":  lambda: BridgeMany(4_000),
}
# fmt: on
