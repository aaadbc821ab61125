"""The contract of a session: an object that is fed data and drained of data for one connected peer, and never waits.

What a shell must do, and nothing else:
1. Call `receive_data` with what arrived, however it was cut (a WebSocket: one call for each whole message). A shell
   that hands over in portions what it has read sets `more_follows` during all of them but the last.
2. Call `data_to_send` (or `all_to_send` first) whenever `wake` was called or the wire can take more, and write what it
   returns, in order. Each element is whole: one frame of a WebSocket; one message of a line protocol, or a part of a
   long one, whose other parts come next.
3. Read from the wire only while `ask_to_read` returns true; ask again after every `data_to_send`, and when woken. If
   the bus has a `read_pacer`, record what was read with it, and wait for as long as it returns.
4. When `closing` is set: write what `data_to_send` still returns, then close with that code and reason. After the peer
   has shut down its sending side, do the same once nothing is `unfinished`.
5. Set `blocked` while the wire takes nothing more: only a peer that does not read can be too slow.
6. Call `receive_eof` exactly once at the end, however the connection ended. (The bus calls `tick`, once a second.)

What the core promises in return: no call raises, whatever the bytes are; `wake` is called when there is something to
write again (or to close); nothing is written from another thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Self

from .bus import Bus
from .errors import Forbidden, ProtocolError, Throttled
from .message import Message, Peer
from .outbox import LOW_WATER, MAX_STREAMS, Outbox
from .presence import LEAVE_NOTICES_PER_REQUEST
from .principal import Principal
from .read_pacer import Penalty
from .subscriber import Subscriber


class Session(Outbox, ABC):
    """One connected peer. Subclasses read requests in `handle` and write with `send`, `put` and `stream`."""

    protocol: ClassVar[str]
    text: ClassVar[bool] = False  # WebSocket text messages; data is UTF-8 bytes all the same
    echo: ClassVar[bool] = False  # whether a publisher that listens gets its own messages
    hears_presence: ClassVar[bool] = False  # whether `peer_joined` or `peer_left` does anything

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.hears_presence = cls.peer_joined is not Session.peer_joined or cls.peer_left is not Session.peer_left

    def __init__(self, bus: Bus, principal: Principal) -> None:
        super().__init__(partial(bus.metrics.overflow, self.protocol))
        self.bus = bus
        self.principal = principal
        self.penalty: Penalty | None = None  # see `gateway.core.read_pacer`
        self.channels: dict[str, None] = {}
        self.identity: Peer | None = None
        self.link = False
        self.more_follows = False
        self.peer = bus.join(self)

    # What adapters write

    @abstractmethod
    def handle(self, data: bytes) -> None:
        """Act on what arrived. Raise `ProtocolError`, after queueing a last answer, only when the framing is lost."""

    @abstractmethod
    def deliver(self, message: Message) -> None:
        """Queue *message* for the peer. This must not call the bus."""

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Self], origins: Sequence[Subscriber | None]) -> int:
        """Deliver a *run* to all *sessions* (of this class, of one dialect), each message but to its origin.

        Return the number of deliveries.
        """
        count = 0
        for message, origin in zip(run, origins, strict=True):
            for session in sessions:
                if session is not origin:
                    session.deliver(message)
                    count += 1
        return count

    def dialect(self, channel: str) -> str:  # noqa: ARG002  # most protocols have one
        """A key that differs between sessions of one class that are sent different forms of messages on *channel*.

        `deliver_all` gets the sessions of one dialect. Call `Bus.dialect_changed` when this changes.
        """
        return ""

    def fits(self, message: Message) -> bool:  # noqa: ARG002  # most protocols can carry any
        """Whether this protocol can carry a direct *message*."""
        return True

    def peer_joined(self, channel: str, peer: Peer) -> None:
        """Tell the peer that another joined *channel*; most protocols do not. This must not call the bus."""

    def peer_left(self, channel: str, peer: Peer) -> None:
        """Tell the peer that another left *channel*; most protocols do not. This must not call the bus."""

    def tick(self, now: int) -> None:
        """Do what is due; the bus calls this once a second. *now* is its clock in ms.

        In a cluster another gateway may accept now, or nobody: what waits is handled by `resume`, which minds that.
        """

    def may_log(self, data: bytes) -> bool:  # noqa: ARG002  # protocols know better
        """Whether handling *data* may log something, so that it waits until this gateway accepts."""
        return True

    def subscription_principal(self, channel: str) -> Principal:  # noqa: ARG002  # mostly the same for all
        """The principal by whose right this connection listens to *channel*."""
        return self.principal

    def is_still_allowed(self) -> bool:
        """Whether what this connection keeps doing, beside listening to its channels, is still allowed."""
        return True

    def goodbye(self) -> None:
        """Queue what the protocol sends when the gateway stops, and close."""
        self.close(1001, "the gateway is stopping")

    # What shells call

    def ask_to_read(self) -> bool:
        """Whether the shell may read from the wire; if not, it is woken once there may be room."""
        if not self.readable:
            self.bus.wait_for_log(self)  # does nothing unless the log is congested
            return False
        return True

    @property
    def readable(self) -> bool:
        """Whether the shell reads from the wire, unless the read pacer pauses it: silence is the peer's then."""
        return not (self._backlog or (self.saturated and (self.overloaded or not self.bus.acceptance.elsewhere)))

    @property
    def ready(self) -> bool:
        """Whether what arrives now is handled at once."""
        return self.closing is None and not self._backlog and not self.saturated

    @property
    def saturated(self) -> bool:
        """Whether the next request has to wait until the peer, or a slow disk, has caught up.

        Nothing waits for a failing disk: requests are handled, and those that need the log are refused. While another
        gateway of a cluster accepts, only what `may_log` waits.
        """
        ledger = self.bus.ledger
        return self.overloaded or (ledger.congested and ledger.failing is None)

    @property
    def overloaded(self) -> bool:
        """Whether the next request has to wait for this peer, whatever the log does; subclasses have more reasons."""
        return self._size >= LOW_WATER or len(self._streams) >= MAX_STREAMS

    def receive_data(self, data: bytes) -> None:
        """Handle what the peer sent; it is kept for later while the session is saturated."""
        if self.closing is not None:
            return
        if self._backlog or (self.saturated and not self._may_pass(data)):
            self._backlog.append(data)
            self.bus.wait_for_log(self)
        else:
            self._handle(data)

    def receive_all(self, messages: Sequence[bytes]) -> None:
        """Handle several messages that arrived together, on a wire that has messages."""
        for message in messages:
            self.receive_data(message)

    def receive_eof(self) -> None:
        """End the session, since the connection is over."""
        self.bus.leave(self)
        self._end()

    def resume(self) -> None:
        """Handle the backlog, as far as there is room now."""
        while self._backlog and not self.saturated and self.closing is None:
            self._handle(self._backlog.popleft())
        if self._backlog:
            self.bus.wait_for_log(self)

    def _may_pass(self, data: bytes) -> bool:
        """Whether *data* is handled although another gateway accepts now, since it only reads."""
        return self.bus.acceptance.elsewhere and not self.overloaded and not self.may_log(data)

    # What adapters call

    @property
    def who(self) -> Peer:
        """The peer that others see: its identity once it is bound to one, else the connection."""
        return self.identity or self.peer

    def check(self, verb: str, channel: str) -> None:
        """Raise `Forbidden` or `Throttled` unless this peer may *verb* on *channel* now."""
        if not self.bus.allowed(self.principal, verb, channel):
            raise Forbidden(verb, channel)
        self.pace(channel)

    def pace(self, channel: str) -> None:
        """Raise `Throttled` if this peer asks too often; *channel* is what it asks about."""
        if self.bus.throttle is None:  # spares a call if there are no limits
            return
        try:
            self.bus.pace(self.principal, self.who, channel)
        except Throttled:
            if self.bus.read_pacer is not None:
                self.bus.read_pacer.record_refused(self)
            raise

    def put_back(self, data: bytes) -> None:
        """Keep *data*, which cannot be handled now, before all that waits; `overloaded` has to be true until it can."""
        self._backlog.appendleft(data)

    def stop_listening(self, channel: str) -> None:
        """Stop listening to *channel*, as the peer asked: it counts as more requests if many others are told.

        A connection that ends costs nothing: thousands of one network may end together. Raises `NotSubscribed`.
        """
        self.bus.unsubscribe(self, channel)
        self.bus.charge(self.network, self.bus.listener_count(channel) / LEAVE_NOTICES_PER_REQUEST)

    def record_malformed(self) -> None:
        """Count input that the protocol does not allow; a peer that keeps sending it is slowed, then closed."""
        if self.bus.read_pacer is not None:
            self.bus.read_pacer.record_malformed(self)

    def record_refusal(self, reason: str, why: str = "") -> None:
        """Count a request that was refused for this *reason*, one of few, and let the log say *why*."""
        self.bus.metrics.refused(self.protocol, reason, peer=self.peer.number, network=self.network, why=why)

    @property
    def network(self) -> str:
        """The network of the peer, as limits count it; empty for a link."""
        return self.principal.network

    @property
    def held_size(self) -> int:
        """The bytes that are kept for the peer; subclasses that keep more add theirs."""
        return self._size + sum(map(len, self._backlog))

    def release_memory(self) -> None:
        """Discard all that is kept for the peer and disconnect it, since the gateway is short of memory."""
        self._discard()
        self.close(1013, "the gateway is short of memory, and this connection held most of it")

    def _handle(self, data: bytes) -> None:
        try:
            self.handle(data)
        except ProtocolError as error:
            self.close(1002, str(error))
