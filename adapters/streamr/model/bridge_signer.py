"""Signs messages of other protocols as stream messages.

Everything that such a message depends on is decided once, in `add_refs`, and logged with the record: its timestamp, its
sequence number and the message before it in its chain. `seal` is a function of the record and the sender's key
alone, so the result is always the same, signature included (RFC 6979). Where a stream requires encryption, the
day whose group key is used is part of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from coincurve import PrivateKey

from adapters.streamr.crypto.encrypt import DAY, DerivedGroupKeys
from adapters.streamr.crypto.keys import DerivedKeys, EthereumAccount
from adapters.streamr.crypto.signing import sign_message
from adapters.streamr.wire.ids import NAME, inbox_id, stream_of
from adapters.streamr.wire.message import MessageID, MessageRef, StreamMessage
from gateway.core.bounded_maps import BoundedMap
from gateway.core.message import LATE_AFTER, Message

from .stored import ChainPosition

if TYPE_CHECKING:
    from gateway.core.peers import PeerRegistry
    from gateway.storage.index_queries import Lookup

MAX_HEADS = 65_536  # chains whose last message is kept in memory; the others are in the index
INDEXED_AFTER = 60_000  # ms after which a head is certainly in the index


class ChainLink(NamedTuple):
    """The place of a message in its chain: its own position and, unless it is the first, the one before.

    *day* is that of the group key, where the content is encrypted.
    """

    timestamp: int
    sequence: int
    prev_timestamp: int | None = None
    prev_sequence: int | None = None
    day: int | None = None


ChainKey = tuple[str, int, str]  # the channel, the number of the sender, and the protocol it speaks there


class BridgeSigner:
    """Keeps the message chain of each foreign sender, and signs its messages."""

    def __init__(self, keys: DerivedKeys) -> None:
        self.keys = keys
        self.group_keys = DerivedGroupKeys(keys.secret)
        self._heads = BoundedMap[ChainKey, tuple[int, int]]()
        self._accounts = BoundedMap[tuple[str, str], EthereumAccount](MAX_HEADS)
        self._signed = BoundedMap[str, None](MAX_HEADS)  # addresses
        self._direct = (0, 0)

    def start(self, index: Lookup, peers: PeerRegistry) -> None:
        """Continue the chains where they end in *index*; *peers* tells which senders are too new to have any there."""
        self._index = index
        self._peers = peers
        self._first_unindexed = peers.free  # all chains of peers with this number or a higher one are in `_heads`

    def address(self, message: Message) -> str:
        """The publisher's address of *message* in Streamr."""
        return self._signer(message).address

    def add_refs(self, run: Sequence[Message], *, encrypt: bool = False) -> None:
        """Append the messages to their chain, encrypted if *encrypt*: their refs become the fields of a `ChainLink`.

        A timestamp is never below the one before it, nor ahead of the gateway's clock. What comes late would stand
        before messages that readers have seen already: it is told apart by a chain without links, where the
        sequence number is the record's own.
        """
        self._chain(run)
        if encrypt:
            for message in run:
                place = message.refs[NAME]
                place += [None] * (len(ChainLink._fields) - 1 - len(place))
                place.append(message.time // DAY)

    def learn(self, message: Message) -> None:
        """Continue the chain of *message*, which another gateway accepted."""
        self._remember(message)
        if not is_late(message):
            chain = (message.channel, message.sender.number, message.protocol)
            self._heads[chain] = ChainLink(*message.refs[NAME])[:2]
            self._make_room(message)

    def _chain(self, run: Sequence[Message]) -> None:
        heads: dict[ChainKey, tuple[int, int]] = {}  # they change when all are found
        sender = None
        late_before = run[0].time - LATE_AFTER  # see `is_late`; all have one time, and each a timestamp of its own
        for message in run:
            if message.timestamp < late_before:
                self._remember(message)
                message.refs[NAME] = [message.timestamp, message.seq]
                continue
            if message.sender is not sender:  # often all are of one
                sender = message.sender
                chain = (message.channel, sender.number, message.protocol)
                head = heads.get(chain) or self._heads.get(chain) or self._load_head(message)
            timestamp = message.timestamp
            if timestamp > message.time:  # `min` would take as long as the rest of this loop
                timestamp = message.time
            last = next_position(head, timestamp)
            message.refs[NAME] = [*last] if head is None else [*last, *head]
            heads[chain] = head = last
        for chain, last in heads.items():
            self._heads[chain] = last

    def has_signed_as(self, address: str) -> bool:
        """Whether *address* signed something that may not be in the index, yet or ever."""
        return address in self._signed

    def recent_account(self, channel: str, address: str) -> EthereumAccount | None:
        """The account *address*, if it signed something in *channel* that may not be indexed yet; otherwise None."""
        return self._accounts.get((channel, address))

    def position(self, message: Message) -> ChainPosition:
        """The position of the signed form of a published *message*."""
        link = ChainLink(*message.refs[NAME])
        return ChainPosition(link.timestamp, link.sequence, self.address(message), _chain_name(message))

    def sign(self, message: Message, *, utf16: bool = False) -> StreamMessage:
        """The signed form of a *message* that was published; *utf16* as in `signing.sign`."""
        link = ChainLink(*message.refs[NAME])
        prev = None if link.prev_timestamp is None else MessageRef(link.prev_timestamp, link.prev_sequence)
        stream, partition = stream_of(message.channel)
        key, message_id = self._id(message, stream, partition, (link.timestamp, link.sequence))
        plain = StreamMessage(message_id, message.content.decode(), prev)
        shown = plain if link.day is None else self.group_keys.encrypt(plain, link.day)
        return sign_message(shown, key, utf16=utf16)

    def sign_direct(self, message: Message, inbox: int | str, *, utf16: bool = False) -> StreamMessage:
        """The signed form of a direct *message*, in the inbox of the peer that *inbox* numbers or addresses.

        *utf16* is as in `signing.sign`.

        Direct messages have no chain, but readers skip a message that does not follow those before it, so all of them
        share one order.
        """
        self._direct = next_position(self._direct, message.time)
        key, message_id = self._id(message, inbox_id(message.channel, inbox), 0, self._direct)
        return sign_message(StreamMessage(message_id, message.content.decode()), key, utf16=utf16)

    def _id(
        self, message: Message, stream: str, partition: int, position: tuple[int, int]
    ) -> tuple[PrivateKey, MessageID]:
        signer = self._signer(message)
        return signer.key, MessageID(stream, partition, *position, signer.address, _chain_name(message))

    def _signer(self, message: Message) -> EthereumAccount:
        signer = self.keys.of(message.sender.protocol, message.sender.identity, message.sender.number)
        if signer.address not in self._signed:
            self._signed[signer.address] = None
        return signer

    def _load_head(self, message: Message) -> tuple[int, int] | None:
        """Where the chain of *message* ended before; chains beyond `MAX_HEADS` leave, if the index has them."""
        self._remember(message)
        self._make_room(message)
        return None if message.sender.number >= self._first_unindexed else self._find_head(message)

    def _make_room(self, message: Message) -> None:
        settled, count = message.time - INDEXED_AFTER, len(self._heads)
        self._heads.drop_while(lambda head: len(self._heads) >= MAX_HEADS and head[0] < settled)
        if len(self._heads) < count:
            self._first_unindexed = self._peers.free

    def _find_head(self, message: Message) -> tuple[int, int] | None:
        """Where the chain of *message* ends, by the newest of its sender's messages in the log."""
        for former in self._index.history(message.channel, sender=message.sender.number, newest_first=True):
            link = former.refs.get(NAME)
            ours = former.protocol == message.protocol and former.sender.protocol == message.sender.protocol
            if link is not None and ours and not is_late(former):
                return link[0], link[1]
        return None

    def _remember(self, message: Message) -> None:
        signer = self._signer(message)
        self._accounts[message.channel, signer.address] = signer


def is_late(message: Message) -> bool:
    """Whether *message* was history when it came: as the record tells it, at any time after."""
    return message.timestamp < message.time - LATE_AFTER


def _chain_name(message: Message) -> str:
    """The msgChainId of a chain: the protocol that its messages came by, with a suffix for late ones."""
    return f"{message.protocol}:late" if is_late(message) else message.protocol


def next_position(head: tuple[int, int] | None, timestamp: int) -> tuple[int, int]:
    """The position that follows *head*, at *timestamp* if that is later."""
    if head is None or timestamp > head[0]:
        return timestamp, 0
    return head[0], head[1] + 1
