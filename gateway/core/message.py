"""What travels on the bus: one message, who said it, and every wire form it has.

The received form is kept verbatim, because signatures cover it. Every other form is made once, at the
first need, and shared by all connections that want it. Nothing here knows what a form looks like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

REST = "rest"  # the protocol of who has no adapter, in records, metrics and principals
LATE_AFTER = 10 * 60_000  # ms between a message's making and its arrival, beyond which it is history


@dataclass(frozen=True, slots=True)
class Peer:
    """A sender or receiver of messages: a connection, or an identity that outlives connections.

    `number` is unique for the gateway's life. `identity` is the durable name in `protocol` (an Arbor author, an
    Ethereum address, the name of an API key), None for a mere connection. `connection_protocol` is the protocol of the
    connection if it differs from `protocol`, as it may for an identity with an API key.
    """

    number: int
    protocol: str
    identity: str | None = None
    name: str | None = None
    connection_protocol: str | None = None

    def connected_by(self, protocol: str) -> Peer:
        """This peer on a connection of *protocol*."""
        return replace(self, connection_protocol=None if protocol == self.protocol else protocol)


class PendingForm:
    """A form that somebody is still making; whoever holds one is woken when it is there."""

    __slots__ = ("_wakes", "data", "done")

    def __init__(self) -> None:
        self.done = False
        self.data: bytes | None = None
        self._wakes: list[Callable[[], None]] = []

    @classmethod
    def skipped(cls) -> PendingForm:
        """What stands for a form that cannot be: done, and skipped."""
        form = cls()
        form.fill(None)
        return form

    @property
    def size(self) -> int:
        """How many bytes it has, with all parts that are to come; once it is done."""
        return len(self.data or b"")

    def advance(self) -> bool:
        """What is there was taken: whether another part follows in its place, which is still being made."""
        return False

    def when_done(self, wake: Callable[[], None]) -> None:
        """Call *wake* once the form is there or has failed."""
        if self.done:
            wake()
        else:
            self._wakes.append(wake)

    def fill(self, data: bytes | None) -> None:
        """Set the finished form; None says that it could not be made and is to be skipped."""
        self.data, self.done = data, True
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()


Form = bytes | PendingForm


@dataclass(slots=True, eq=False)
class Message:
    """One thing said on one channel, or to one peer in it.

    `seq` and `time` (ms, never decreasing) are the bus's, 0 until it takes the message. `timestamp` (ms)
    is the author's. `content` is one JSON value as received text, on one line. `parent` is the canonical id
    of the message this one answers. `ids` are the ids its author chose, by which a copy is recognised;
    `native` is the same for people and for the log, by protocol. `refs` holds what each bridged form
    depends on, by protocol; a protocol that the message does not fit is in `undelivered` instead. `late` says that it
    is history already, `id_has_seq` that its id was made here and carries its seq.
    """

    channel: str
    sender: Peer
    protocol: str
    content: bytes
    wire: bytes | None = None
    parent: str | None = None
    forms: dict[str, Form] = field(default_factory=dict, repr=False)
    id: str = ""
    seq: int = 0
    time: int = 0
    timestamp: int = 0
    target: Peer | None = None
    ids: tuple[str, ...] = ()
    native: dict[str, Any] | None = None
    key: str | None = None
    late: bool = False
    id_has_seq: bool = False
    refs: dict[str, Any] = field(default_factory=dict)
    undelivered: tuple[str, ...] = ()

    def form(self, key: str, make: Callable[[Message, str], Form]) -> Form:
        """This message in the form called *key*, made by *make* at most once."""
        form = self.forms.get(key)
        if form is None:
            form = self.forms[key] = make(self, key)
        return form


class MessageIds:
    """Canonical ids: version 7 UUIDs (RFC 9562) that carry their sequence number.

    An id that this gateway made is found again without an index: the 48 low bits are the sequence, and the 26 random
    bits before them are the gateway's own *salt*, so that two gateways do not collide.
    """

    def __init__(self, salt: int) -> None:
        self._salt = f"-7{salt >> 14 & 0xFFF:03x}-{0x8000 | salt & 0x3FFF:04x}-"
        self._time = -1
        self._head = ""

    def make(self, time: int, seq: int) -> str:
        """The id of the message with sequence *seq*, accepted at *time* (ms)."""
        return self.head(time) + seq.to_bytes(6).hex()

    def head(self, time: int) -> str:
        """What the ids of messages accepted at *time* begin with; their sequence in 12 hex digits follows."""
        if time != self._time:
            self._time, self._head = time, f"{time >> 16:08x}-{time & 0xFFFF:04x}{self._salt}"
        return self._head

    def seq(self, id: str) -> int | None:
        """The sequence number inside *id*, or None where it cannot be one of ours."""
        if len(id) != 36 or id[13:24] != self._salt:
            return None
        try:
            return int(id[24:], 16)
        except ValueError:
            return None
