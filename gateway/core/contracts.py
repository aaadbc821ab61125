"""What the bus is given: the log, the translators of each protocol, what counts, and who decides what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .message import Message, Peer
from .principal import Principal


class Receipt(NamedTuple):
    """What is known of a message that was taken earlier."""

    seq: int
    id: str
    time: int
    undelivered: tuple[str, ...] = ()


class Ledger(Protocol):
    """What the bus needs of the log and the index together."""

    @property
    def next_seq(self) -> int:
        """The seq of the entry that is appended next."""

    @property
    def congested(self) -> bool:
        """Whether nothing can be appended now."""

    @property
    def failing(self) -> str | None:
        """Why the last write to disk failed; None where it did not, also where the disk is merely slow."""

    def extend(self, messages: Sequence[Message]) -> None:
        """Take messages that have their seqs; they are found by their ids from now on, and on disk soon."""

    def find(self, id: str) -> Receipt | None:
        """The message with this id, accepted at any time before."""

    def when_synced(self, seq: int, callback: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Call back once everything up to *seq* is on disk; at once if it is.

        *otherwise* is called in its place where the disk has failed for so long that nobody knows.
        """


class Translator(Protocol):
    """Brings messages from elsewhere into one protocol: notes, for each, what its form there will depend on."""

    @property
    def name(self) -> str:
        """The protocol."""

    def describe(self, address: str) -> dict[str, Any]:
        """The parts of a channel's *address* by the names that people know them by."""

    def add_refs(self, run: Sequence[Message]) -> None:
        """Put what the bridged form of each message of a *run* (see `Bus.publish_run`) depends on into its `refs`.

        That is a JSON value under the protocol's name, if it depends on anything. Where the message does not fit the
        protocol, the name is added to `undelivered` instead. The messages have their seqs already, so nothing may be
        logged here.
        """

    def resolve_id(self, id: str) -> str | None:
        """The canonical id of the message that this protocol calls *id*, where the log does not have that id as it is.

        So it is where the id follows from what the message depends on, or can be written in more than one way.
        """


class Counters(Protocol):
    """What the bus counts."""

    def published(self, run: Sequence[Message], deliveries: int) -> None:
        """A run of messages was accepted, and handed to sessions so many times."""

    def direct(self, message: Message, listeners: int) -> None:
        """A direct message was handed to *listeners* sessions."""

    def undeliverable(self, message: Message) -> None:
        """A message did not fit the protocols that it names."""

    def overflow(self, protocol: str) -> None:
        """A session was closed because it read too slowly."""


Allowed = Callable[[Principal, str, str], bool]
Throttle = Callable[[Principal, Peer | None, str], float]
