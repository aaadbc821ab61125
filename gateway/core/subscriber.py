"""The interface of a session that the bus, and code that handles all sessions, needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from .flows import Flow
from .message import Message, Peer
from .outbox import Close
from .principal import Principal


class Subscriber(Protocol):
    """A session on the bus; `gateway.core.session.Session` documents these in full."""

    protocol: ClassVar[str]
    echo: ClassVar[bool]
    hears_presence: ClassVar[bool]
    principal: Principal
    peer: Peer
    identity: Peer | None
    link: bool
    channels: dict[str, None]
    closing: Close | None
    wake: Callable[[], None]

    @property
    def who(self) -> Peer:
        """The peer that others see."""

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait for the peer to read them."""

    # Delivering

    def deliver(self, message: Message) -> None:
        """Queue *message*."""

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Any], origins: Sequence[Any]) -> int:
        """Queue a *run* for all *sessions*, of this class, each message but for its origin; count the deliveries."""

    def dialect(self, channel: str) -> str:
        """A key that differs between sessions of one class that are sent different forms."""

    def fits(self, message: Message) -> bool:
        """Whether the protocol can carry a direct *message*."""

    def peer_joined(self, channel: str, peer: Peer) -> None:
        """Tell the peer that another joined."""

    def peer_left(self, channel: str, peer: Peer) -> None:
        """Tell the peer that another left."""

    def sample(self, flow: Flow) -> None:
        """Measure the delivery that was just queued."""

    def when_written(self, call: Callable[[], None]) -> None:
        """Call *call* once the wire has taken everything that is queued now."""

    # Life cycle

    def tick(self, now: int) -> None:
        """Do what is due; called once a second."""

    def resume(self) -> None:
        """Handle the backlog."""

    def subscription_principal(self, channel: str) -> Principal:
        """The principal by whose right it listens to *channel*."""

    def is_still_allowed(self) -> bool:
        """Whether what it keeps doing beside listening is still allowed."""

    def goodbye(self) -> None:
        """Close, since the gateway stops."""

    def close(self, code: int, reason: str) -> None:
        """End the connection once everything queued is written."""
