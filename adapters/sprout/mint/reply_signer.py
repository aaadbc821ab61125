"""Signs replies for the messages of other protocols, and decides where they stand in the forest.

Laws of this file. The content of a node is decided on the loop; `signing` signs it, `mint` makes its ancestors and its
author. Everything is a function of the key and of the log: a node that was offered and whose fact was lost in a crash
is made again with the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from adapters.sprout.forest import twig
from adapters.sprout.forest.content import encode_content
from adapters.sprout.forest.forest import (
    MAX_BLOB,
    NULL_ID,
    TWIG,
    Content,
    Reply,
    ReplyPosition,
    decode,
    position_below,
    sign_reply,
)
from adapters.sprout.forest.node_rules import EXPIRATION, expiration
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.store.direct_messages import DirectMessages
from adapters.sprout.store.line_cache import LineCache
from adapters.sprout.store.lineage import Lineage
from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import NAME, day_name, node_time
from adapters.sprout.wire.codec import NodeLine
from gateway.adapter import Services
from gateway.core.directs import DIRECT_ID_LIFETIME
from gateway.core.errors import Unavailable
from gateway.core.message import Form, Message, Peer
from gateway.core.shared_ids import shared_id
from gateway.storage.record import decode_base64url

from .mint import Mint, existing
from .signing import PendingNode, SigningJob, SigningPool

PRIVATE: Final = "private/1"
JSON: Final = "json/1"
ORIGIN: Final = "origin/1"
TRUE: Final = b"true"
MAX_DEPTH: Final = 1000  # a reply to a deeper message of another protocol opens a new thread: each needs its parent


class ReplySigner:
    """Makes replies of messages, with the key of *mint*, and through the same *signers*, which keep the order."""

    def __init__(
        self,
        services: Services,
        store: Store,
        lineage: Lineage,
        directs: DirectMessages,
        mint: Mint,
        signers: SigningPool,
        key: SecretKey,
    ) -> None:
        self._services = services
        self._bus = services.bus
        self._store = store
        self._lineage = lineage
        self._directs = directs
        self._mint = mint
        self._submit = signers.submit
        self._key = key
        self._in_progress: dict[int, PendingNode] = {}
        self._newest_seq = services.log.next_seq  # of what was signed; nothing after it was offered to anybody
        self._newest_elsewhere = 0  # of what other gateways offered since the start
        self.lines = LineCache()

    def offered(self, seq: int) -> None:
        """Note that another gateway offered the message at *seq*: it has a form from now on."""
        self._newest_elsewhere = max(seq, self._newest_elsewhere)

    # The position of a message in the forest

    def add_refs(self, run: Sequence[Message]) -> None:
        """Set the position of each message of a *run* in one channel, or mark it as undelivered."""
        offered = self.is_offered(run[0].channel, run[0].time)
        for message in run:
            ref = {} if message.parent is None else self._reply_refs(message, message.parent)
            fits = len(message.content) <= MAX_BLOB or self.has_room(message.content, ref.get("parent"))
            if offered and fits:
                message.refs[NAME] = ref
            else:
                message.undelivered += (NAME,)

    def is_offered(self, channel: str, time: int) -> bool:
        """Whether messages of *channel* are offered to Arbor at *time* (ms): its community may have expired."""
        id = self._bus.channels.address(NAME, channel) if self._store.incomplete else None
        if id is None:
            return True
        try:
            seq = self._store.seq(id)
            return seq is None or self._lineage.is_complete(seq, time)
        except Unavailable:  # the index is being rebuilt: messages are accepted meanwhile
            return True

    @staticmethod
    def has_room(content: bytes, parent: str | None = None) -> bool:
        """Whether the value *content* fits into a reply to the message *parent*."""
        return len(content) <= MAX_BLOB or len(encode_content(content, parent)[0]) <= MAX_BLOB

    def _reply_refs(self, message: Message, parent_id: str) -> dict[str, Any]:
        """The position of *message* below *parent_id*; empty if that is not offered in the same channel."""
        receipt = self._bus.find(parent_id)
        info = None if receipt is None else self._store.info(receipt.seq)
        if info is None or info.channel != message.channel or not self._lineage.is_complete(info.seq, message.time):
            return {}
        parent = self._store.entry(info.seq)
        if not isinstance(parent, Message):
            return {}
        if parent.protocol == NAME and parent.native is not None:
            place = position_below(parent.native[NAME], self.reply(parent))
            ref: dict[str, Any] = {"parent": parent.id, "depth": place.depth, "conversation": place.conversation}
            same = place.community == self._bus.channels.address(NAME, message.channel)
            return ref if same else ref | {"community": place.community}
        ref = _ref(parent)
        depth = ref.get("depth", 2) + 1
        if depth > MAX_DEPTH:
            return {}
        return ref | {"parent": parent.id, "depth": depth, "conversation": ref.get("conversation") or _day(parent)}

    def reply(self, message: Message) -> Reply:
        """The node of *message*, as far as its children need it: without a signature for other protocols."""
        if message.protocol == NAME and message.wire is not None:
            node = decode(decode_base64url(message.wire))
            assert isinstance(node, Reply)
            return node
        ref = _ref(message)
        conversation = self._mint.conversation(message.channel, ref.get("conversation") or _day(message)).id
        community = self._community_of(message.channel, ref).id
        head = ("", ref.get("depth", 2), node_time(message.timestamp), Content(b"", TWIG), "")
        return Reply(*head, community, conversation, Content(b""), b"")

    # Forms

    def form(self, message: Message) -> Form:
        """The line of a *message* of another protocol: direct, new, or from the log."""
        if not message.seq:
            return self._sign_direct(message).line
        if (line := self.lines.get(message.seq)) is not None:
            return line
        if "parent" not in _ref(message):
            return self._sign_message(message).line
        ancestors = [message]
        while (parent := self._unsigned_parent(ancestors[-1])) is not None:
            ancestors.append(parent)
        while len(ancestors) > 1:
            self._sign_message(ancestors.pop())
        return self._sign_message(message).line

    def _unsigned_parent(self, message: Message) -> Message | None:
        """The parent of *message* if it is of another protocol too and not signed yet; None otherwise."""
        info = self._store.info_by_key(_ref(message).get("parent", ""))
        if info is None or info.seq in self._in_progress or self._store.form_id(info.seq) is not None:
            return None
        parent = self._store.entry(info.seq)
        return parent if isinstance(parent, Message) and parent.protocol != NAME else None

    def _parent(self, ref: dict[str, Any]) -> PendingNode:
        """The node of the parent that *ref* names, signed by the gateway or by its author."""
        info = self._store.info_by_key(ref["parent"])
        if info is None:
            return existing("")  # retired: a reply to it cannot be signed
        if (making := self._in_progress.get(info.seq)) is not None:
            return making
        parent = self._store.entry(info.seq)
        native = parent.native if isinstance(parent, Message) and parent.protocol == NAME else None
        return existing(native[NAME] if native is not None else self._store.form_id(info.seq) or "")

    def _sign_message(self, message: Message) -> PendingNode:
        if (made := self._in_progress.get(message.seq)) is not None:
            return made
        made = self._in_progress[message.seq] = PendingNode()
        may_be_shown, self._newest_seq = message.seq <= self._newest_seq, max(message.seq, self._newest_seq)
        job = self._signing_job(message, _ref(message), {})
        self._submit(made, job, partial(self._record_form, message.seq, may_be_shown))
        made.line.when_done(lambda: _discard(self._in_progress.pop(message.seq)))
        return made

    def _sign_direct(self, message: Message) -> PendingNode:
        made = PendingNode()
        sign = self._signing_job(
            message, {}, {PRIVATE: TRUE, EXPIRATION: expiration(message.time + DIRECT_ID_LIFETIME)}
        )
        self._submit(made, sign, lambda line: self._directs.add(line.id, decode(line.raw), message.sender.number))
        return made

    def sign_presence(self, peer: Peer, channel: str, created: int, metadata: bytes) -> PendingNode:
        """A reply without text by *peer*, directly below the community of *channel*; it is not logged.

        *created* is in ms, *metadata* is TWIG.
        """
        community, author = self._mint.community(channel), self._mint.identity(peer, channel)

        def sign() -> bytes:
            place = ReplyPosition(community.id, 1, community.id, NULL_ID)
            return sign_reply(place, Content(b""), author.id, self._key, created, metadata)

        made = PendingNode()
        self._submit(made, SigningJob(sign, bool(community.id and author.id)), _discard)
        return made

    def _signing_job(self, message: Message, ref: dict[str, Any], more: dict[str, bytes]) -> SigningJob:
        """Collect the fields of the reply for *message*, with *more* TWIG pairs."""
        community = self._community_of(message.channel, ref)
        conversation = self._mint.conversation(message.channel, ref.get("conversation") or _day(message))
        parent = self._parent(ref) if ref else conversation
        author = self._mint.identity(message.sender, message.channel)
        text, is_json = encode_content(message.content, ref.get("parent"))
        pairs = {ORIGIN: shared_id(message).encode(), **({JSON: TRUE} if is_json else {}), **more}
        created, depth = node_time(message.timestamp), ref.get("depth", 2)

        def sign() -> bytes:
            place = ReplyPosition(parent.id, depth, community.id, conversation.id)
            return sign_reply(place, Content(text), author.id, self._key, created, twig.encode(pairs))

        return SigningJob(sign, bool(parent.id and community.id and conversation.id and author.id))

    def _community_of(self, channel: str, ref: dict[str, Any]) -> PendingNode:
        """The community of a reply in *channel*: that of the parent if *ref* names one, else the channel's."""
        return existing(ref["community"]) if "community" in ref else self._mint.community(channel)

    def _record_form(self, seq: int, may_be_shown: bool, line: NodeLine) -> bool:
        """Log the node of the message at *seq* when it is first offered; False if another one was offered before.

        That is a fault of the gateway, and the node is not offered.
        """
        shown = self._store.form_id(seq) if may_be_shown or seq <= self._newest_elsewhere else None
        if shown is None:
            self._store.log_form(seq, line)
        elif shown != line.id:
            self._services.metrics.count("faults", "form")
            return False
        self.lines.add(seq, line.line)
        return True


def _ref(message: Message) -> dict[str, Any]:
    return message.refs.get(NAME) or {}


def _day(message: Message) -> str:
    return day_name(message.channel, node_time(message.timestamp))


def _discard(_value: object) -> None:
    """Ignore a value."""
