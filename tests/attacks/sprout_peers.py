"""A hostile Arbor relay that the gateway dials, because it is one of its `sprout.peers`."""

from __future__ import annotations

import socket
import time
from functools import partial
from itertools import count

from adapters.sprout.forest import forest
from gateway.commands.arbor_author import ArborAuthor
from gateway.demo_clients import ArborNode
from gateway.demo_clients.sprout import _line

from .floods import forged_node
from .relays import BATCH, LINKED, attack
from .target import Report, Target
from .unread import community_of
from .wire import PATIENCE, Raw

SIGNED = 200  # nodes that are made beforehand: a signature takes half a millisecond
UNASKED = 1_000  # ids of the gateway's requests that are answered, whether it made them or not


class AttackingRelay(Raw):
    """A connection that the gateway opened. *answers* are said at once."""

    def __init__(self, stream: socket.socket, answers: bytes = b"") -> None:
        self._begin(stream, b"")
        stream.settimeout(PATIENCE)
        stream.sendall(answers)


def lines(kind: str, id: int, nodes: list[ArborNode]) -> bytes:
    """A message with *nodes*."""
    return "\n".join([f"{kind} {id} {len(nodes)}", *map(_line, nodes), ""]).encode()


def flood(target: Target, seconds: float) -> Report:
    """It announces good nodes in a community that is here, at full speed."""
    community, author = community_of(target, LINKED), ArborAuthor("relay")
    nodes = [author.reply(community, f"{n}", {}) for n in range(SIGNED)]
    feed = b"".join(lines("announce", n, [node]) for n, node in enumerate(nodes))
    return attack(
        target, seconds, lambda: feed, partial(AttackingRelay, answers=lines("announce", 9999, [author.identity()]))
    )


def garbage(target: Target, seconds: float) -> Report:
    """It announces nodes that are forged or cut off, and says what is no message at all."""
    community, author = community_of(target, LINKED), ArborAuthor("forger")
    good = [author.reply(community, f"{n}", {}) for n in range(SIGNED)]
    cut = [ArborNode(forest.node_id(node.raw[: -n - 1]), node.raw[: -n - 1]) for n, node in enumerate(good)]
    numbers = count()

    def feed() -> bytes:
        n = next(numbers)
        strange = [b"announce %d 1\nnot a node\n" % n, b"response %d 1\nSHA512_B32__x AAAA\n" % n, b"status -1 0\n"]
        return b"".join(
            [*strange, lines("announce", n, [forged_node(node) for node in good[:50]]), lines("announce", n, cut[:50])]
        )

    return attack(target, seconds, feed, partial(AttackingRelay, answers=lines("announce", 9999, [author.identity()])))


def answers(target: Target, seconds: float) -> Report:
    """It answers each question with nodes that were not asked for, again and again, and what was never asked too."""
    community, author = community_of(target, LINKED), ArborAuthor("answers")
    other = ArborAuthor("nobody knows")
    orphans = [other.reply(community, f"{n}", {}) for n in range(SIGNED)]  # whose author never comes
    numbers = count()

    def feed() -> bytes:
        begin = next(numbers) * BATCH
        return b"".join(lines("response", id % UNASKED, orphans[:20]) for id in range(begin, begin + BATCH))

    return attack(target, seconds, feed, partial(AttackingRelay, answers=lines("response", 0, [author.identity()])))


def endless(target: Target, seconds: float) -> Report:
    """Its answer to the first question says that it has more nodes than anybody, in lines that do not end."""
    chunk = b"A" * (1 << 20)
    return attack(target, seconds, lambda: chunk, partial(AttackingRelay, answers=b"response 0 1024\nSHA512_B32__"))


def silent(target: Target, seconds: float) -> Report:
    """It asks for everything, and neither reads nor answers."""
    questions = b"".join(b"list %d 1 1024\nleaves_of %d SHA512_B32__x 1024\n" % (n, n + 1) for n in range(0, 1000, 2))
    begun = time.monotonic()

    def feed() -> bytes:
        return questions if time.monotonic() - begun < seconds / 2 else b"\n"

    return attack(target, seconds, feed, AttackingRelay)
