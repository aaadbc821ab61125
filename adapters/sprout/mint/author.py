"""The gateway as an author: the replies that it signs for what others say, and where they stand in the forest.

Laws of this file. What a node says is decided on the loop; how it is signed is in `signers`, what it stands below and
who it is by in `mint`. Everything is a function of the key and of what the log holds: a node that was shown and whose
fact was lost in a crash comes out the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from adapters.sprout.forest import twig
from adapters.sprout.forest.content import said
from adapters.sprout.forest.forest import (
    MAX_BLOB,
    NULL_ID,
    TWIG,
    Content,
    Place,
    Reply,
    below,
    decode,
    sign_reply,
)
from adapters.sprout.forest.openpgp import Key
from adapters.sprout.forest.validate import EXPIRATION, expiration
from adapters.sprout.store.directs import Directs
from adapters.sprout.store.lineage import Lineage
from adapters.sprout.store.lines import Lines
from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import NAME, day_of, moment
from adapters.sprout.wire.codec import NodeLine
from gateway.adapter import Services
from gateway.core.bus import DIRECT_ID_LIFETIME
from gateway.core.errors import Unavailable
from gateway.core.message import Form, Message, Peer
from gateway.storage.record import decode_base64url

from .mint import Mint, existing
from .signers import Made, Signers, Signing

PRIVATE: Final = "private/1"
JSON: Final = "json/1"
ORIGIN: Final = "origin/1"
TRUE: Final = b"true"
MAX_DEPTH: Final = 1000  # a reply below a deeper one from elsewhere starts anew: each needs the id of the one above


class Author:
    """Makes replies of what others say, with the *key* that *mint* has, by the same *signers*: they keep the order."""

    def __init__(
        self,
        services: Services,
        store: Store,
        lineage: Lineage,
        directs: Directs,
        mint: Mint,
        signers: Signers,
        key: Key,
    ) -> None:
        self._services = services
        self._bus = services.bus
        self._store = store
        self._lineage = lineage
        self._directs = directs
        self._mint = mint
        self._make = signers.make
        self._key = key
        self._sealing: dict[int, Made] = {}
        self._newest_seq = services.log.next_seq  # of what was sealed; nothing beyond was shown to anybody
        self.lines = Lines()

    # What a form depends on

    def add_refs(self, run: Sequence[Message]) -> None:
        """Note where the Arbor forms of the messages, of one channel, will stand, and what Arbor is not to get."""
        offered = self.is_offered(run[0].channel)
        for message in run:
            ref = {} if message.parent is None else self._below(message, message.parent)
            fits = len(message.content) <= MAX_BLOB or self.has_room(message.content, ref.get("parent"))
            if offered and fits:
                message.refs[NAME] = ref
            else:
                message.undelivered += (NAME,)

    def is_offered(self, channel: str) -> bool:
        """Whether Arbor is offered what is said in *channel*: its community may have expired."""
        id = self._bus.channels.address(NAME, channel) if self._store.incomplete else None
        if id is None:
            return True
        try:
            seq = self._store.seq(id)
            return seq is None or self._lineage.is_whole(seq)
        except Unavailable:  # the index is made anew; that keeps nobody from saying something
            return True

    @staticmethod
    def has_room(content: bytes, parent: str | None = None) -> bool:
        """Whether a reply to the message *parent* has room for the value *content*."""
        return len(content) <= MAX_BLOB or len(said(content, parent)[0]) <= MAX_BLOB

    def _below(self, message: Message, parent_id: str) -> dict[str, Any]:
        """The place of *message* below another one of its channel that Arbor is offered; empty where it is none."""
        receipt = self._bus.find(parent_id)
        spot = None if receipt is None else self._store.spot(receipt.seq)
        if spot is None or spot.channel != message.channel or not self._lineage.is_whole(spot.seq):
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
            node = decode(decode_base64url(message.wire))
            assert isinstance(node, Reply)
            return node
        ref = _ref(message)
        conversation = self._mint.conversation(message.channel, ref.get("conversation") or _day(message)).id
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
            return existing("")  # retired; a node below it cannot be made
        if (making := self._sealing.get(spot.seq)) is not None:
            return making
        parent = self._store.entry(spot.seq)
        native = parent.native if isinstance(parent, Message) and parent.protocol == NAME else None
        return existing(native[NAME] if native is not None else self._store.form(spot.seq) or "")

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
        sign = self._signing(message, {}, {PRIVATE: TRUE, EXPIRATION: expiration(message.time + DIRECT_ID_LIFETIME)})
        self._make(made, sign, lambda line: self._directs.add(line.id, decode(line.raw), message.sender.number))
        return made

    def write(self, peer: Peer, channel: str, created: int, metadata: bytes) -> Made:
        """A reply without a text, right below the community of *channel*, by *peer*, from elsewhere; logged nowhere.

        *created* is in ms, *metadata* is TWIG.
        """
        community, author = self._mint.community(channel), self._mint.identity(peer, channel)

        def sign() -> bytes:
            place = Place(community.id, 1, community.id, NULL_ID)
            return sign_reply(place, Content(b""), author.id, self._key, created, metadata)

        made = Made()
        self._make(made, Signing(sign, bool(community.id and author.id)), _void)
        return made

    def _signing(self, message: Message, ref: dict[str, Any], more: dict[str, bytes]) -> Signing:
        """Gather what a reply says."""
        community = self._community_of(message.channel, ref)
        conversation = self._mint.conversation(message.channel, ref.get("conversation") or _day(message))
        parent = self._parent(ref) if ref else conversation
        author = self._mint.identity(message.sender, message.channel)
        text, is_json = said(message.content, ref.get("parent"))
        pairs = {ORIGIN: message.id.encode(), **({JSON: TRUE} if is_json else {}), **more}
        created, depth = moment(message.timestamp), ref.get("depth", 2)

        def sign() -> bytes:
            place = Place(parent.id, depth, community.id, conversation.id)
            return sign_reply(place, Content(text), author.id, self._key, created, twig.encode(pairs))

        return Signing(sign, bool(parent.id and community.id and conversation.id and author.id))

    def _community_of(self, channel: str, ref: dict[str, Any]) -> Made:
        """The community of a reply there: the channel's, or that of the node which it answers."""
        return existing(ref["community"]) if "community" in ref else self._mint.community(channel)

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


def _ref(message: Message) -> dict[str, Any]:
    return message.refs.get(NAME) or {}


def _day(message: Message) -> str:
    return day_of(message.channel, moment(message.timestamp))


def _void(_value: object) -> None:
    """Nothing."""
