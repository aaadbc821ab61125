"""Mints nodes for Arbor: the gateway's identity, those of other peers, communities, and the conversations of days.

Laws of this file. Each node is minted once, for the purpose that its fact names in `what`. Everything is a function of
the key and of the log: a node that was offered and whose fact was lost in a crash is made again with the same bytes.
So no node is dated by the clock: a node without a date of its own has the key's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import (
    NULL_ID,
    Content,
    Identity,
    Node,
    Reply,
    ReplyPosition,
    decode,
    node_id,
    sign_community,
    sign_identity,
    sign_reply,
)
from adapters.sprout.forest.node_rules import MAX_NAME
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.forest.trusted_gateways import CHANNEL
from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import DAY_PREFIX, NAME, day_name, parse_day_name
from adapters.sprout.wire.codec import NodeLine, node_line
from gateway.core.bounded_maps import BoundedMap
from gateway.core.bus import Bus
from gateway.core.message import Peer
from gateway.storage.record import Fact, decode_base64url

from .signing import PendingNode, SigningJob, SigningPool

GATEWAY: Final = "gateway"  # the `what` of the gateway's own identity
PEER_PREFIX: Final = "peer "  # and a number: the `what` of other peers' identities
MAX_IDS: Final = 10_000  # cached ids of minted nodes
SHORT: Final = 12  # characters of an identity that are shown in full

OnMinted = Callable[[PendingNode, str, bool], None]


@lru_cache(MAX_IDS)
def existing(id: str) -> PendingNode:
    """The signed node *id*, without its line, which is not needed."""
    return PendingNode(id)


def display_name(peer: Peer, title: str) -> str:
    """The name in Arbor of a *peer* of another protocol, whose name is *title*."""
    identity = peer.identity
    if peer.name:
        name = peer.name
    elif identity is None:
        name = f"peer {peer.number} ({title})"
    else:
        short = identity if len(identity) <= SHORT else f"{identity[:6]}…{identity[-4:]}"
        name = f"{short} ({title})"
    return name.replace("\n", " ").encode(errors="replace")[:MAX_NAME].decode(errors="ignore")


class Mint:
    """Makes the authors and ancestors of the gateway's replies, and finds those that were made.

    *on_minted(made, channel, is_community)* is called when an identity or a community is minted. Listeners of *channel*
    get its line before any later one; everyone else gets it when it is signed. A conversation is not announced: a
    client that needs the parent of a reply requests it, and one that draws no tree has no use for it.
    """

    def __init__(
        self,
        bus: Bus,
        store: Store,
        signers: SigningPool,
        key: SecretKey,
        name: str,
        titles: Mapping[str, str],
        on_minted: OnMinted,
    ) -> None:
        self._bus = bus
        self._store = store
        self._submit = signers.submit
        self._key = key
        self._titles = titles
        self._on_minted = on_minted
        self._key_created = key.created * 1000
        self._making: dict[str, PendingNode] = {}
        self._ids = BoundedMap[str, str](MAX_IDS)
        self.id = self._own_identity(name)

    def community(self, channel: str) -> PendingNode:
        """The community of *channel*; minted if it has none."""
        id = self._bus.channels.address(NAME, channel)
        if id is not None:
            return existing(id)
        metadata = twig.encode({CHANNEL: channel.encode()})
        name = channel.encode()[:MAX_NAME].decode(errors="ignore")

        def assign(line: NodeLine) -> None:
            self._store.log_entity(line)
            if self._bus.channels.address(NAME, channel) is None:
                self._bus.channels.assign(NAME, channel, line.id)

        sign = SigningJob(partial(sign_community, name, self.id, self._key, self._key_created, metadata))
        return self._mint(_community(channel), sign, assign, channel)

    def has_community(self, channel: str) -> bool:
        """Whether *channel* has a community, signed or being signed."""
        return self._bus.channels.address(NAME, channel) is not None or _community(channel) in self._making

    def conversation(self, channel: str, name: str) -> PendingNode:
        """The conversation with the id *name*, or with the `day_name` *name*, which is minted if needed."""
        if not name.startswith(DAY_PREFIX):
            return existing(name)
        if (made := self._minted(name)) is not None:
            return made
        community = self.community(channel)
        metadata = twig.encode({CHANNEL: channel.encode()})
        date, created, _ = parse_day_name(name)

        def sign() -> bytes:
            place = ReplyPosition(community.id, 1, community.id, NULL_ID)
            return sign_reply(place, Content(date.encode()), self.id, self._key, created, metadata)

        return self._mint(name, SigningJob(sign), partial(self._store.log_entity, what=name, channel=channel))

    def identity(self, peer: Peer, channel: str) -> PendingNode:
        """The identity that stands for *peer*, of another protocol, in Arbor; minted if it has none."""
        what = f"{PEER_PREFIX}{peer.number}"
        if (made := self._minted(what)) is not None:
            return made
        known = peer if peer.identity is None else self._bus.peers.find(peer.protocol, peer.identity)
        name = self._name(known or peer)
        # The number, as milliseconds, distinguishes peers of the same name.
        sign = SigningJob(partial(sign_identity, name, self._key, self._key_created + peer.number))
        return self._mint(what, sign, partial(self._store.log_entity, what=what), channel)

    def _name(self, peer: Peer) -> str:
        return display_name(peer, self._titles.get(peer.protocol, peer.protocol))

    # Nodes that were offered, lost in a crash, and are brought back by a peer

    def has_own_key(self, author: Identity) -> bool:
        """Whether *author* has the gateway's key: it signs the nodes of that identity."""
        return author.public_key == self._key.public_key

    def recovered_fields(self, node: Node, channel: str = "") -> dict[str, str]:
        """The fields to log with *node*, an identity or a conversation of *channel*, if the gateway minted it."""
        what = None
        if isinstance(node, Identity) and self.has_own_key(node):
            peer = self._bus.peers.with_number(node.created - self._key_created)
            if peer is not None and node.name.text == self._name(peer):
                what = f"{PEER_PREFIX}{peer.number}"
        elif isinstance(node, Reply) and node.author == self.id:
            what = day_name(channel, node.created)
        return {} if what is None or self._store.minted(what) is not None else {"what": what}

    # The purposes of minted nodes

    def minted_for(self, author: str) -> str | None:
        """The purpose for which the gateway minted the identity *author*; None if it did not."""
        seq = self._store.seq(author)
        entry = None if seq is None else self._store.entry(seq)
        what: str | None = entry.fields.get("what") if isinstance(entry, Fact) else None
        return what

    def peer_number(self, author: str) -> int | None:
        """The number of the peer of another protocol that the identity *author* stands for; None if there is none."""
        what = self.minted_for(author) or ""
        return int(what.removeprefix(PEER_PREFIX)) if what.startswith(PEER_PREFIX) else None

    def identity_of(self, number: int) -> str | None:
        """The identity that stands for the peer *number* of another protocol; None if none was minted."""
        return self._store.minted(f"{PEER_PREFIX}{number}")

    def forget(self, what: str) -> None:
        """Forget the node minted for *what*, which leaves the log; it is minted again when it is needed."""
        self._ids.pop(what)

    # Minting

    def _own_identity(self, name: str) -> str:
        """The id of the gateway's own identity; minted if there is none with the current key."""
        seq = self._store.seq(self._store.minted(GATEWAY) or "")
        entry = None if seq is None else self._store.entry(seq)
        if isinstance(entry, Fact):
            node = decode(decode_base64url(entry.fields["wire"]))
            if isinstance(node, Identity) and self.has_own_key(node):
                return str(entry.fields["native"][NAME])
        line = _line(sign_identity(name, self._key, self._key_created))
        self._store.log_entity(line, what=GATEWAY)
        return line.id

    def _minted(self, what: str) -> PendingNode | None:
        if (made := self._making.get(what)) is not None:
            return made
        id = self._ids.get(what) or self._store.minted(what)
        if id is None:
            return None
        self._ids[what] = id
        return existing(id)

    def _mint(
        self,
        what: str,
        sign: SigningJob,
        record: Callable[[NodeLine], object],
        channel: str | None = None,
    ) -> PendingNode:
        if (making := self._making.get(what)) is not None:
            return making
        made = self._making[what] = PendingNode()
        if channel is not None:
            self._on_minted(made, channel, what == _community(channel))
        self._submit(made, sign, record)

        def done() -> None:
            del self._making[what]

        made.line.when_done(done)
        return made


def _line(raw: bytes) -> NodeLine:
    return node_line(node_id(raw), raw)


def _community(channel: str) -> str:
    """The key of the community of *channel* while it is being signed."""
    return f"community {channel}"
