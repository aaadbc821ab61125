"""What the rest of the hub knows of a connection: the lower half of `session`, which is built on all the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from adapters.sprout.store.tables import NAME
from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import Frame
from gateway.core.message import Form
from gateway.core.principal import Principal
from gateway.core.session import Session


class SproutConnection(Session):
    """A connected peer, as those see it who take what it brings or tell it something.

    `since` is when it connected (ms); it `announces_presence` once its client has used the words for who is there;
    `wanted` are the communities that it subscribed to, known or not.
    """

    protocol = NAME

    def __init__(self, bus: Any, principal: Principal) -> None:
        super().__init__(bus, principal)
        self.since: int = bus.clock()
        self.announces_presence = False
        self.wanted: dict[str, None] = {}

    def announce(self, line: Form) -> None:
        """Announce one node, whose *line* may still be being made."""
        self.put(line)

    def status(self, id: int, code: int) -> None:
        """Answer the request *id*."""
        self.send(codec.encode_status(id, code))

    def statuses(self, answers: Sequence[tuple[int, int]]) -> None:
        """Answer several requests: their ids, and the codes."""
        self.send(b"".join([codec.encode_status(id, code) for id, code in answers]))

    @property
    @abstractmethod
    def unwritable(self) -> bool:
        """Whether nodes are refused now, since the log cannot be written; where it is merely slow they wait."""

    @abstractmethod
    def request(self, frame: Frame) -> int:
        """Make a request of ours; its id."""

    @abstractmethod
    def community_added(self, community: str) -> None:
        """A community is a channel from now on."""

    @abstractmethod
    def take_ready(self) -> None:
        """Take what waited, and is to be taken now."""

    @abstractmethod
    def call_soon(self, call: Callable[[], None]) -> None:
        """Run *call* when others had their turn."""
