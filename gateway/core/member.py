"""What the bus, and whoever looks after everybody on it, needs of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from .flows import Flow
from .message import Message, Peer
from .outbox import Close
from .principal import Principal


class Member(Protocol):
    """One connected peer on the bus; `gateway.core.session.Session` says what each of these does."""

    protocol: ClassVar[str]
    echo: ClassVar[bool]
    principal: Principal
    peer: Peer
    identity: Peer | None
    link: bool
    channels: dict[str, None]
    closing: Close | None
    wake: Callable[[], None]

    @property
    def who(self) -> Peer:
        """The peer as others see it."""

    # Saying

    def deliver(self, message: Message) -> None:
        """Queue *message*."""

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Any], origin: Any) -> int:
        """Queue a *run* for all *sessions*, which are of this class, but *origin*; how many deliveries that is."""

    def dialect(self, channel: str) -> str:
        """What tells apart the sessions of one class that are sent different forms."""

    def fits(self, message: Message) -> bool:
        """Whether there is room for a direct *message*."""

    def peer_joined(self, channel: str, peer: Peer) -> None:
        """Tell that another joined."""

    def peer_left(self, channel: str, peer: Peer) -> None:
        """Tell that another left."""

    def sample(self, flow: Flow) -> None:
        """Measure the delivery that was just queued."""

    # Going on, and ending

    def tick(self, now: int) -> None:
        """A second has passed."""

    def resume(self) -> None:
        """Handle what had to wait."""

    def subscription_principal(self, channel: str) -> Principal:
        """By whose right it listens to *channel*."""

    def is_still_allowed(self) -> bool:
        """Whether what goes on beside its channels is allowed still."""

    def goodbye(self) -> None:
        """The gateway stops."""

    def close(self, code: int, reason: str) -> None:
        """End the connection once everything queued is written."""
