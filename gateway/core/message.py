"""Messages on the bus: a message, its sender, and its wire forms.

The received form is kept verbatim, because signatures cover it. Every other form is made once, when it is first needed,
and shared by all connections that want it. Nothing here knows what a form looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

REST = "rest"  # the protocol of HTTP callers in records, metrics and principals; it has no adapter
LATE_AFTER = 10 * 60_000  # ms between the creation and the arrival of a message, beyond which it is history


class Peer(Struct, frozen=True, gc=False):
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
    """A form that is still being made; it calls back when it is finished."""

    __slots__ = ("_wakes", "data", "done")

    def __init__(self) -> None:
        self.done = False
        self.data: bytes | None = None
        self._wakes: list[Callable[[], None]] = []

    @classmethod
    def skipped(cls) -> PendingForm:
        """A form that cannot be made: it is done, and skipped."""
        form = cls()
        form.fill(None)
        return form

    @property
    def size(self) -> int:
        """The size in bytes, with the parts that are still to come; meaningful once it is done."""
        return len(self.data or b"")

    def advance(self) -> bool:
        """Continue after the present data was taken; return whether another part, still being made, follows."""
        return False

    def when_done(self, wake: Callable[[], None]) -> None:
        """Call *wake* once the form is finished or has failed."""
        if self.done:
            wake()
        else:
            self._wakes.append(wake)

    def fill(self, data: bytes | None) -> None:
        """Set the finished form; None means that it could not be made and is skipped."""
        self.data, self.done = data, True
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()


Form = bytes | PendingForm

# The steps in which an adapter takes over a message that another gateway has kept, and whether it was new.
TakingOver = Generator[None, None, bool]


class Message(Struct, eq=False):
    """One message on one channel, or to one peer in it (`target`).

    The bus sets `seq` and `time` (ms, never decreasing); they are 0 before. `timestamp` (ms) is the author's. `content`
    is one JSON value as received text, on one line. `parent` is the canonical id of the message that this one answers.
    `ids` are the ids that the author chose, by which a copy is recognised; `native` is the same for people and for the
    log, by protocol. `key` is another id by which the message is found. `refs` has what each bridged form depends on,
    by protocol; a protocol that cannot carry the message is in `undelivered` instead. `late` means that the message is
    history already, `id_has_seq` that its id was made here and contains its seq.
    """

    channel: str
    sender: Peer
    protocol: str
    content: bytes
    wire: bytes | None = None
    parent: str | None = None
    forms: dict[str, Form] = {}
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
    refs: dict[str, Any] = {}
    undelivered: tuple[str, ...] = ()

    def form(self, key: str, make: Callable[[Message, str], Form]) -> Form:
        """The form called *key* of this message, made by *make* at most once."""
        form = self.forms.get(key)
        if form is None:
            form = self.forms[key] = make(self, key)
        return form


class MessageIds:
    """Canonical ids: version 7 UUIDs (RFC 9562) that carry their sequence number.

    A message is found by an id of this gateway without an index: the 48 low bits are the sequence number, and the 26
    random bits before them are the gateway's own *salt*, so that ids of two gateways do not collide.
    """

    def __init__(self, salt: int) -> None:
        self._salt = f"-7{salt >> 14 & 0xFFF:03x}-{0x8000 | salt & 0x3FFF:04x}-"
        self._time = -1
        self._head = ""

    def make(self, time: int, seq: int) -> str:
        """The id of the message with sequence number *seq*, accepted at *time* (ms)."""
        return self.head(time) + seq.to_bytes(6).hex()

    def head(self, time: int) -> str:
        """The start of the ids of messages accepted at *time*; the sequence number in 12 hex digits follows."""
        if time != self._time:
            self._time, self._head = time, f"{time >> 16:08x}-{time & 0xFFFF:04x}{self._salt}"
        return self._head

    def seq(self, id: str) -> int | None:
        """The sequence number in *id*; None if this gateway did not make it."""
        if len(id) != 36 or id[13:24] != self._salt:
            return None
        try:
            return int(id[24:], 16)
        except ValueError:
            return None
