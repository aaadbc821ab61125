"""The interfaces that the bus is given: the log, the translators of protocols, counters, and the access check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .message import Message, Peer
from .principal import Principal
from .read_pacer import ReadPacer

MAX_SUBSCRIPTIONS = 10_000  # of one session, so that one peer cannot use up `channels.limit`


class Receipt(NamedTuple):
    """What is known of a message that was accepted earlier."""

    seq: int
    id: str
    time: int
    undelivered: tuple[str, ...] = ()


class Ledger(Protocol):
    """What the bus needs of the log and its index together."""

    @property
    def next_seq(self) -> int:
        """The seq of the entry that is appended next."""

    @property
    def congested(self) -> bool:
        """Whether no message can be appended now."""

    @property
    def failing(self) -> str | None:
        """Why the last write to disk failed; None if it did not, even if the disk is slow."""

    def extend(self, messages: Sequence[Message]) -> None:
        """Append *messages*, which have their seqs; `find` finds them from now on, and they are on disk soon."""

    def find(self, id: str) -> Receipt | None:
        """The receipt of the message with this id, accepted at any time before; None if there is none."""

    def find_message(self, id: str) -> Message | None:
        """The same message itself."""

    def when_synced(
        self,
        seq: int,
        callback: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
        *,
        hurry: bool = True,
    ) -> None:
        """Call *callback* once everything up to *seq* is on disk; at once if it is.

        *otherwise* is called instead if the disk has failed for so long that the outcome is unknown. Without *hurry*
        the log may wait a moment for more, so that it writes all of it together.
        """


class Translator(Protocol):
    """Translates messages of other protocols into one: records what the form of each in that protocol depends on."""

    @property
    def name(self) -> str:
        """The protocol."""

    def describe(self, address: str) -> dict[str, Any]:
        """The parts of a channel's *address* by the names that users know."""

    def add_refs(self, run: Sequence[Message]) -> None:
        """Put what the bridged form of each message of a *run* (see `Bus.take`) depends on into its `refs`.

        That is a JSON value under the protocol's name, if it depends on anything. If the protocol cannot carry the
        message, the name is added to `undelivered` instead. The messages have their seqs already, so nothing may be
        logged here.
        """

    def resolve_id(self, id: str) -> str | None:
        """The canonical id of the message that this protocol calls *id*, for an id that the log does not contain.

        That is an id which follows from the message's `refs`, or which can be written in more than one way.
        """


class Counters(Protocol):
    """The counters of the bus."""

    def published(self, run: Sequence[Message], deliveries: int) -> None:
        """Count a published *run* and its *deliveries* to sessions."""

    def direct(self, message: Message, listeners: int) -> None:
        """Count a direct *message*, delivered to *listeners* sessions."""

    def undeliverable(self, message: Message) -> None:
        """Count a *message* that the protocols in its `undelivered` cannot carry."""

    def refused(self, protocol: str, reason: str, **details: object) -> None:
        """Count a refusal, for a *reason* of which there are few; *details* are for the log, and never secret."""

    def id_taken(self, protocol: str) -> None:
        """Count a message by *protocol* whose id from another gateway belongs to another message here."""

    def overflow(self, protocol: str) -> None:
        """Count a session of *protocol* that was closed because it read too slowly."""


Allowed = Callable[[Principal, str, str], bool]
Throttle = Callable[[Principal, Peer | None, str], float]


class Policies(NamedTuple):
    """The limits that the bus is given; without any, everybody may do everything.

    Every session asks `allowed` and `throttle` for every request; `throttle` returns the seconds to wait (None: there
    is no rate limit). `read_pacer` paces what the shells read (None: no limit). `subscriptions` is how many channels
    one session may listen to.
    """

    allowed: Allowed = lambda _principal, _verb, _channel: True
    throttle: Throttle | None = None
    read_pacer: ReadPacer | None = None
    subscriptions: int = MAX_SUBSCRIPTIONS


PERMISSIVE = Policies()
