"""An Arbor author for the demo: makes and reads nodes with the adapter's own forest and a fresh key."""

from __future__ import annotations

import time

from adapters.sprout.forest import forest, twig
from adapters.sprout.forest.forest import Content, Reply, ReplyPosition
from adapters.sprout.forest.openpgp import SecretKey
from gateway.demo_clients import ArborNode, ReplyContent


class ArborAuthor:
    """One identity; its key is made here and forgotten with it."""

    def __init__(self, name: str) -> None:
        self._last = now = _now()
        self._key = SecretKey.generate(now // 1000)
        raw = forest.sign_identity(name, self._key, now)
        self._identity = ArborNode(forest.node_id(raw), raw)

    def identity(self) -> ArborNode:
        """The author."""
        return self._identity

    def reply(self, community: str, text: str, twig: dict[str, str]) -> ArborNode:
        """A signed Reply, child of the community."""
        place = ReplyPosition(community, 1, community, forest.NULL_ID)
        self._last = max(self._last + 1, _now())  # two replies that say the same must not be the same node
        author = self._identity.id
        raw = forest.sign_reply(place, Content(text.encode()), author, self._key, self._last, _metadata(twig))
        return ArborNode(forest.node_id(raw), raw)

    def read(self, raw: bytes) -> ReplyContent | None:
        """The text of a node; None if it is not a Reply."""
        node = forest.decode(raw)
        if not isinstance(node, Reply):
            return None
        return ReplyContent(node.community, node.content.text or "", frozenset(twig.decode(node.metadata.blob)))


def _now() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def _metadata(pairs: dict[str, str]) -> bytes:
    return twig.encode({key: value.encode() for key, value in pairs.items()})
