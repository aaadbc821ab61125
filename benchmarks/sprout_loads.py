"""The loads of Arbor clients, which announce, listen, and ask. Each load is a fixed number of nodes or questions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from adapters.sprout.forest import forest
from adapters.sprout.wire.codec import NodeLine, Response
from adapters.sprout.wire.parser import Parser

from .servers import BenchmarkServer
from .sprout_load import SproutLoadConnection, announce, ask_all, connected, subscribe, until_held
from .sprout_nodes import Tree, trees
from .workload import Bench, CountedLoad

FASTER = 20  # times as many questions for the gateway, or its rounds would be too short


class ForestLoad(CountedLoad):
    """A load of *size* items on a forest that is made for each round, the same for all servers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.trees: list[Tree] = []

    def renew(self, bench: Bench) -> None:  # noqa: ARG002
        """Sign new nodes: a server that has seen a node takes it for a copy."""
        self.trees = trees(1, self.size)


class Announce(ForestLoad):
    """Nodes taken in, *batch* a message; the gateway verifies them and has them on disk, the reference does neither."""

    def __init__(self, size: int, batch: int = 1) -> None:
        super().__init__(size)
        self.batch = batch

    @contextmanager
    def prepare(self, server: BenchmarkServer) -> Iterator[Callable[[], int]]:
        """Announce what the nodes stand below."""
        tree = self.trees[0]
        with connected(server.sprout, 1) as (peer,):
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


class FanOut(ForestLoad):
    """What one announces, many hear."""

    def __init__(self, size: int, listeners: int) -> None:
        super().__init__(size)
        self.listeners = listeners

    @contextmanager
    def prepare(self, server: BenchmarkServer) -> Iterator[Callable[[], int]]:
        """Let the listeners subscribe."""
        tree = self.trees[0]
        with connected(server.sprout, 1 + self.listeners) as (peer, *listeners):
            subscribe([peer, *listeners], tree.community.id)
            for root in (tree.identity, tree.community):
                announce(peer, [root], listeners)
                until_held(peer, [root.id])

            def run() -> int:
                announce(peer, tree.replies, listeners)
                return self.size * self.listeners

            yield run


class Ask(ForestLoad):
    """One *question* about a forest of *held* replies, *size* times; ID in it stands for the community's id."""

    def __init__(self, size: int, question: bytes, held: int) -> None:
        super().__init__(size)
        self.question = question
        self.held = held

    def renew(self, bench: Bench) -> None:  # noqa: ARG002
        """Make the forest once: nobody adds to it."""
        self.trees = self.trees or trees(1, self.held)

    @contextmanager
    def prepare(self, server: BenchmarkServer) -> Iterator[Callable[[], int]]:
        """Announce the forest."""
        tree = self.trees[0]
        with connected(server.sprout, 1) as (peer,):
            subscribe([peer], tree.community.id)
            for root in (tree.identity, tree.community):
                announce(peer, [root])
                until_held(peer, [root.id])
            announce(peer, tree.replies)
            for start in range(0, self.held, 500):
                until_held(peer, [line.id for line in tree.replies[start : start + 500]])
            count = self.size * (1 if server.name.startswith("go") else FASTER)
            text = self.question.replace(b"ID", tree.community.id.encode())
            time.sleep(0.5)  # the index is written in the background

            def run() -> int:
                ask_all(peer, text, count)
                return count

            yield run


class AskPlanted(CountedLoad):
    """One *question* about a forest that a gateway holds from the beginning, *size* times."""

    def __init__(self, size: int, question: bytes) -> None:
        self.size = size
        self.question = question

    @contextmanager
    def prepare(self, server: BenchmarkServer) -> Iterator[Callable[[], int]]:
        """Find the community."""
        with connected(server.sprout, 1) as (peer,):
            community = next(line for line in _nodes(peer.ask(b"list %d 1 9\n")) if b"room " in line.raw)
            text = self.question.replace(b"ID", community.id.encode())

            def run() -> int:
                ask_all(peer, text, self.size)
                return self.size

            yield run


class Bootstrap(ForestLoad):
    """What a client does that begins: communities, authors, and each node with all that is above it."""

    def renew(self, bench: Bench) -> None:  # noqa: ARG002
        """Make ten communities once."""
        self.trees = self.trees or trees(10, self.size // 10)

    @contextmanager
    def prepare(self, server: BenchmarkServer) -> Iterator[Callable[[], int]]:
        """Let another client announce the forest."""
        with connected(server.sprout, 1) as (peer,):
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


def _bootstrap(peer: SproutLoadConnection, community: bytes, held: set[str]) -> None:
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
