"""The gateway as an author: its key, the identities, communities and conversations it mints, the replies it seals.

Laws of this file. What a node says is decided on the loop; how it is signed is in `signers`. Everything is a function
of the key and of what the log holds: a node that was shown and whose fact was lost in a crash comes out the same.
So nothing is dated when it is made: what has no date of its own has the key's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final

from gateway.adapter import Services
from gateway.bus import DIRECT_MEMORY
from gateway.message import Form, Message, Peer
from gateway.record import Fact, unbinary

from . import twig
from .codec import NodeLine, node_line
from .content import said
from .directs import Directs
from .forest import (
    MAX_BLOB,
    NULL_ID,
    TWIG,
    Content,
    Identity,
    Node,
    Place,
    Reply,
    below,
    decode,
    node_id,
    sign_community,
    sign_identity,
    sign_reply,
)
from .gateways import CHANNEL
from .lines import Lines
from .openpgp import Key
from .signers import Made, Signers, Signing
from .store import DAY, NAME, Store, day_of, moment
from .validate import EXPIRATION, MAX_NAME, expiration

PRIVATE: Final = "private/1"
JSON: Final = "json/1"
ORIGIN: Final = "origin/1"
TRUE: Final = b"true"
GATEWAY: Final = "gateway"  # what the gateway's own identity is called among what it mints
PEER: Final = "peer "  # and a number: what identities of others are called there
MAX_DEPTH: Final = 1000  # a reply below a deeper one from elsewhere starts anew: each needs the id of the one above
MAX_IDS: Final = 10_000  # ids of minted nodes that are kept
SHORT: Final = 12  # characters of an identity that are shown as they are


Introduce = Callable[[Made, str], None]


def name_of(peer: Peer, title: str) -> str:
    """What a sender from elsewhere is called."""
    identity = peer.identity
    if peer.name:
        name = peer.name
    elif identity is None:
        name = f"peer {peer.number} ({title})"
    else:
        short = identity if len(identity) <= SHORT else f"{identity[:6]}…{identity[-4:]}"
        name = f"{short} ({title})"
    return name.replace("\n", " ").encode(errors="replace")[:MAX_NAME].decode(errors="ignore")


class Author:
    """Makes nodes for what others say.

    *introduce(made, channel)* is called when the gateway mints an identity or a community: those who listen to
    *channel* are to get its line before anything that follows, everybody else once it is there. A conversation is
    not announced: who lacks the parent of a reply asks for it, and who draws no tree has no use for it.
    """

    def __init__(
        self,
        services: Services,
        store: Store,
        directs: Directs,
        key: Key,
        name: str,
        titles: Mapping[str, str],
        introduce: Introduce,
    ) -> None:
        self._services = services
        self._bus = services.bus
        self._store = store
        self._directs = directs
        self._key = key
        self._titles = titles
        self._introduce = introduce
        self._born = key.created * 1000
        self._making: dict[str, Made] = {}
        self._sealing: dict[int, Made] = {}
        self._ids: OrderedDict[str, str] = OrderedDict()
        self.lines = Lines()
        self._newest_seq = services.log.next_seq  # of what was sealed; nothing beyond was shown to anybody
        self._make = Signers(services).make
        self.id = self._own_identity(name)

    # What a form depends on

    def refer(self, run: Sequence[Message]) -> None:
        """Note where the Arbor forms of the messages will stand, and what is too long for one."""
        for message in run:
            ref = {} if message.parent is None else self._below(message, message.parent)
            if len(message.content) <= MAX_BLOB or self.has_room(message.content, ref.get("parent")):
                message.refs[NAME] = ref
            else:
                message.undelivered += (NAME,)

    @staticmethod
    def has_room(content: bytes, parent: str | None = None) -> bool:
        """Whether a reply to the message *parent* has room for the value *content*."""
        return len(content) <= MAX_BLOB or len(said(content, parent)[0]) <= MAX_BLOB

    def _below(self, message: Message, parent_id: str) -> dict[str, Any]:
        """The place of *message* below another one of its channel that Arbor gets; empty where it is none."""
        receipt = self._bus.known(parent_id)
        seq = self._store.seq(parent_id) if receipt is None else receipt.seq  # the form of one that was just shown
        spot = None if seq is None else self._store.spot(seq)
        if spot is None or spot.channel != message.channel:
            return {}
        parent = self._store.entry(spot.seq)
        if not isinstance(parent, Message):
            return {}
        if parent.protocol == NAME and parent.native is not None:
            place = below(parent.native[NAME], self.reply(parent))
            ref: dict[str, Any] = {"parent": parent.id, "depth": place.depth, "conversation": place.conversation}
            same = place.community == self._bus.channels.address(NAME, message.channel)
            return ref if same else ref | {"community": place.community}
        ref = _ref(parent)
        depth = ref.get("depth", 2) + 1
        if depth > MAX_DEPTH:
            return {}
        return ref | {"parent": parent.id, "depth": depth, "conversation": ref.get("conversation") or _day(parent)}

    def reply(self, message: Message) -> Reply:
        """The node that *message* is, as far as its children need it: without signature if it is from elsewhere."""
        if message.protocol == NAME and message.wire is not None:
            node = decode(unbinary(message.wire))
            assert isinstance(node, Reply)
            return node
        ref = _ref(message)
        conversation = self._conversation(message.channel, ref.get("conversation") or _day(message)).id
        community = self._community_of(message.channel, ref).id
        head = ("", ref.get("depth", 2), moment(message.timestamp), Content(b"", TWIG), "")
        return Reply(*head, community, conversation, Content(b""), b"")

    # Forms

    def form(self, message: Message) -> Form:
        """The line of a *message* from elsewhere: a direct one, one that was just said, or one out of the log."""
        if not message.seq:
            return self._seal_direct(message).line
        if (line := self.lines.get(message.seq)) is not None:
            return line
        if "parent" not in _ref(message):
            return self._seal(message).line
        ancestors = [message]
        while (parent := self._unsealed_parent(ancestors[-1])) is not None:
            ancestors.append(parent)
        while len(ancestors) > 1:
            self._seal(ancestors.pop())
        return self._seal(message).line

    def _unsealed_parent(self, message: Message) -> Message | None:
        """The parent of *message*, where it is from elsewhere too and has no id yet."""
        spot = self._store.known_as(_ref(message).get("parent", ""))
        if spot is None or spot.seq in self._sealing or self._store.form(spot.seq) is not None:
            return None
        parent = self._store.entry(spot.seq)
        return parent if isinstance(parent, Message) and parent.protocol != NAME else None

    def _parent(self, ref: dict[str, Any]) -> Made:
        """The node that has been sealed, or signed by its author, for the parent that *ref* names."""
        spot = self._store.known_as(ref["parent"])
        if spot is None:
            return _made("")  # retired; a node below it cannot be made
        if (making := self._sealing.get(spot.seq)) is not None:
            return making
        parent = self._store.entry(spot.seq)
        native = parent.native if isinstance(parent, Message) and parent.protocol == NAME else None
        return _made(native[NAME] if native is not None else self._store.form(spot.seq) or "")

    def _seal(self, message: Message) -> Made:
        if (made := self._sealing.get(message.seq)) is not None:
            return made
        made = self._sealing[message.seq] = Made()
        may_be_shown, self._newest_seq = message.seq <= self._newest_seq, max(message.seq, self._newest_seq)
        self._make(made, self._signing(message, _ref(message), {}), partial(self._sealed, message.seq, may_be_shown))
        made.line.when_done(lambda: _void(self._sealing.pop(message.seq)))
        return made

    def _seal_direct(self, message: Message) -> Made:
        made = Made()
        sign = self._signing(message, {}, {PRIVATE: TRUE, EXPIRATION: expiration(message.time + DIRECT_MEMORY)})
        self._make(made, sign, lambda line: self._directs.add(line.id, decode(line.raw), message.sender.number))
        return made

    def write(self, peer: Peer, channel: str, created: int, metadata: bytes) -> Made:
        """A reply without a text, right below the community of *channel*, by *peer*, from elsewhere; logged nowhere.

        *created* is in ms, *metadata* is TWIG.
        """
        community, author = self.community(channel), self._identity(peer, channel)

        def sign() -> bytes:
            place = Place(community.id, 1, community.id, NULL_ID)
            return sign_reply(place, Content(b""), author.id, self._key, created, metadata)

        made = Made()
        self._make(made, Signing(sign, bool(community.id and author.id)), _void)
        return made

    def _signing(self, message: Message, ref: dict[str, Any], more: dict[str, bytes]) -> Signing:
        """Gather what a reply says."""
        community = self._community_of(message.channel, ref)
        conversation = self._conversation(message.channel, ref.get("conversation") or _day(message))
        parent = self._parent(ref) if ref else conversation
        author = self._identity(message.sender, message.channel)
        text, is_json = said(message.content, ref.get("parent"))
        pairs = {ORIGIN: message.id.encode(), **({JSON: TRUE} if is_json else {}), **more}
        created, depth = moment(message.timestamp), ref.get("depth", 2)

        def sign() -> bytes:
            place = Place(parent.id, depth, community.id, conversation.id)
            return sign_reply(place, Content(text), author.id, self._key, created, twig.encode(pairs))

        return Signing(sign, bool(parent.id and community.id and conversation.id and author.id))

    def _sealed(self, seq: int, may_be_shown: bool, line: NodeLine) -> bool:
        """Log the first showing; a form that came out otherwise than it was shown is a fault, and is not."""
        shown = self._store.form(seq) if may_be_shown else None
        if shown is None:
            self._store.shown(seq, line)
        elif shown != line.id:
            self._services.metrics.count("faults", "form")
            return False
        self.lines.add(seq, line.line)
        return True

    # What is minted

    def community(self, channel: str) -> Made:
        """The community that *channel* is; minted where it is none yet."""
        id = self._bus.channels.address(NAME, channel)
        if id is not None:
            return _made(id)
        metadata = twig.encode({CHANNEL: channel.encode()})
        name = channel.encode()[:MAX_NAME].decode(errors="ignore")

        def assign(line: NodeLine) -> None:
            self._store.entity(line)
            if self._bus.channels.address(NAME, channel) is None:
                self._bus.channels.assign(NAME, channel, line.id)

        sign = Signing(partial(sign_community, name, self.id, self._key, self._born, metadata))
        return self._mint(_community(channel), sign, assign, channel)

    def _community_of(self, channel: str, ref: dict[str, Any]) -> Made:
        """The community of a reply there: the channel's, or that of the node which it answers."""
        return _made(ref["community"]) if "community" in ref else self.community(channel)

    def is_making(self, channel: str) -> bool:
        """Whether the community of *channel* is being made."""
        return _community(channel) in self._making

    def _conversation(self, channel: str, name: str) -> Made:
        """The conversation with that id or, where the gateway opens it, that name (`day_of`)."""
        if not name.startswith(DAY):
            return _made(name)
        if (made := self._minted(name)) is not None:
            return made
        community = self.community(channel)
        metadata = twig.encode({CHANNEL: channel.encode()})
        date = name.removeprefix(DAY).split(" ")[0]
        created = int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) * 1000

        def sign() -> bytes:
            place = Place(community.id, 1, community.id, NULL_ID)
            return sign_reply(place, Content(date.encode()), self.id, self._key, created, metadata)

        return self._mint(name, Signing(sign), partial(self._store.entity, what=name, channel=channel))

    def _identity(self, peer: Peer, channel: str) -> Made:
        """The identity that stands for a sender from elsewhere, in Arbor, for ever."""
        what = f"{PEER}{peer.number}"
        if (made := self._minted(what)) is not None:
            return made
        known = peer if peer.identity is None else self._bus.peers.known(peer.protocol, peer.identity)
        name = self._name(known or peer)
        # The number, as milliseconds, tells apart those who are called the same.
        sign = Signing(partial(sign_identity, name, self._key, self._born + peer.number))
        return self._mint(what, sign, partial(self._store.entity, what=what), channel)

    def _name(self, peer: Peer) -> str:
        return name_of(peer, self._titles.get(peer.protocol, peer.protocol))

    # What was shown, lost in a crash, and is brought back by who saw it

    def signs_for(self, author: Identity) -> bool:
        """Whether what *author* says is signed by the gateway."""
        return author.public_key == self._key.public_key

    def lost(self, node: Node, channel: str = "") -> dict[str, str]:
        """What is to be logged with *node*, an identity or, in *channel*, a conversation, if the gateway minted it."""
        what = None
        if isinstance(node, Identity) and self.signs_for(node):
            peer = self._bus.peers.numbered(node.created - self._born)
            if peer is not None and node.name.text == self._name(peer):
                what = f"{PEER}{peer.number}"
        elif isinstance(node, Reply) and node.author == self.id:
            what = day_of(channel, node.created)
        return {} if what is None or self._store.minted(what) is not None else {"what": what}

    def minted_for(self, author: str) -> str | None:
        """What the gateway minted the identity *author* for; None where somebody else did."""
        seq = self._store.seq(author)
        entry = None if seq is None else self._store.entry(seq)
        what: str | None = entry.fields.get("what") if isinstance(entry, Fact) else None
        return what

    def number_of(self, author: str) -> int | None:
        """The number of the peer from elsewhere that the identity *author* stands for."""
        what = self.minted_for(author) or ""
        return int(what.removeprefix(PEER)) if what.startswith(PEER) else None

    def identity_of(self, number: int) -> str | None:
        """The identity that stands for the peer from elsewhere with *number*, where one has been made."""
        return self._store.minted(f"{PEER}{number}")

    def _own_identity(self, name: str) -> str:
        """The gateway's own identity, made with its key."""
        seq = self._store.seq(self._store.minted(GATEWAY) or "")
        entry = None if seq is None else self._store.entry(seq)
        if isinstance(entry, Fact):
            node = decode(unbinary(entry.fields["wire"]))
            if isinstance(node, Identity) and node.public_key == self._key.public_key:
                return str(entry.fields["native"][NAME])
        line = _line(sign_identity(name, self._key, self._born))
        self._store.entity(line, what=GATEWAY)
        return line.id

    def _minted(self, what: str) -> Made | None:
        if (made := self._making.get(what)) is not None:
            return made
        id = self._ids.get(what) or self._store.minted(what)
        if id is None:
            return None
        self._ids[what] = id
        if len(self._ids) > MAX_IDS:
            self._ids.popitem(last=False)
        return _made(id)

    def _mint(
        self,
        what: str,
        sign: Signing,
        record: Callable[[NodeLine], object],
        channel: str | None = None,
    ) -> Made:
        if (making := self._making.get(what)) is not None:
            return making
        made = self._making[what] = Made()
        if channel is not None:
            self._introduce(made, channel)
        self._make(made, sign, record)
        made.line.when_done(lambda: _void(self._making.pop(what)))
        return made


@lru_cache(MAX_IDS)
def _made(id: str) -> Made:
    """A node that is there: nobody asks for its line."""
    return Made(id)


def _line(raw: bytes) -> NodeLine:
    return node_line(node_id(raw), raw)


def _ref(message: Message) -> dict[str, Any]:
    return message.refs.get(NAME) or {}


def _community(channel: str) -> str:
    """What the community of *channel* is called among what is being made."""
    return f"community {channel}"


def _day(message: Message) -> str:
    return day_of(message.channel, moment(message.timestamp))


def _void(_value: object) -> None:
    """Nothing."""
