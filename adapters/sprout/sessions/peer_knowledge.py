"""What the relay at the other end of a connection knows, and what it needs before it can take a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from adapters.sprout.forest.forest import NULL_ID, Reply, decode
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.wire import base64url
from adapters.sprout.wire.codec import MAX_NODES
from gateway.core.bounded_maps import BoundedMap
from gateway.core.message import Form, PendingForm

MAX_KNOWN: Final = 50_000  # ids remembered of one connection; beyond it some nodes are announced twice


class PeerKnowledge:
    """The nodes that one side of a connection has announced to the other."""

    def __init__(self, nodes: NodeDirectory) -> None:
        self._nodes = nodes
        self._known = BoundedMap[str, None](MAX_KNOWN)

    def add(self, ids: Iterable[str]) -> None:
        """Remember that the other side knows the nodes *ids*."""
        for id in ids:
            self._known[id] = None

    def with_ancestors(self, line: Form | None) -> Iterator[Form]:
        """Yield the node on *line* after its ancestors and their authors, except those that the other side knows.

        A node that is not signed yet comes alone: the other side requests what it needs.
        """
        data = line.data if isinstance(line, PendingForm) else line
        if data is None:
            yield from () if line is None else (line,)
            return
        chain: list[bytes] = []
        while data is not None and (id := _id_of(data)) not in self._known and len(chain) < MAX_NODES:
            self._known[id] = None
            chain.append(data)
            data = self.signed_line(_parent_of(data))
        for each in reversed(chain):
            yield from self._author_of(each)
            yield each

    def _author_of(self, line: bytes) -> Iterator[bytes]:
        """Yield the line of a node's author, unless the other side knows it."""
        author = decode(base64url.decode(line.partition(b" ")[2])).author
        if author not in self._known and (found := self.signed_line(author)) is not None:
            self._known[author] = None
            yield found

    def signed_line(self, id: str) -> bytes | None:
        """Return the line of the node *id*; None if it is not stored, or not signed yet."""
        info = None if id == NULL_ID else self._nodes.info(id)
        line = None if info is None else self._nodes.line_at(info.seq)
        return line.data if isinstance(line, PendingForm) else line


def _id_of(line: bytes) -> str:
    return line.partition(b" ")[0].decode()


def _parent_of(line: bytes) -> str:
    node = decode(base64url.decode(line.partition(b" ")[2]))
    return node.parent if isinstance(node, Reply) else NULL_ID
