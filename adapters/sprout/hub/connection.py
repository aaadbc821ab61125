"""The interface of a connection that the senders and takers of nodes need; `sessions.session` implements it."""

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
    """A connected peer, as the parts see it that take its nodes or announce nodes to it.

    `since` is when it connected (ms); `announces_presence` is set once its client has announced presence; `wanted` are
    the communities that it subscribed to, known or not.
    """

    protocol = NAME

    def __init__(self, bus: Any, principal: Principal) -> None:
        super().__init__(bus, principal)
        self.since: int = bus.clock()
        self.announces_presence = False
        self.wanted: dict[str, None] = {}

    def announce(self, line: Form) -> None:
        """Announce one node, whose *line* may not be signed yet."""
        self.put(line)

    def status(self, id: int, code: int) -> None:
        """Answer the request *id* with a status."""
        self.send(codec.encode_status(id, code))

    def statuses(self, answers: Sequence[tuple[int, int]]) -> None:
        """Answer several requests, by their ids and codes."""
        self.send(b"".join([codec.encode_status(id, code) for id, code in answers]))

    def exchanges(self, verb: str, channel: str | None = None) -> bool:  # noqa: ARG002  # only links have limits
        """Whether nodes may go the way that *verb* allows, in *channel* or, without one, in any channel.

        Rights are checked in addition.
        """
        return True

    @property
    @abstractmethod
    def unwritable(self) -> bool:
        """Whether nodes are refused since the log cannot be written; while it is merely slow they wait."""

    @abstractmethod
    def request(self, frame: Frame) -> int:
        """Send a request to the peer; return its id."""

    @abstractmethod
    def community_added(self, community: str) -> None:
        """Join the channel of a community that has just got one, if the peer wants it."""

    @abstractmethod
    def take_ready(self) -> None:
        """Take the nodes that waited and are ready."""

    @abstractmethod
    def call_soon(self, call: Callable[[], None]) -> None:
        """Run *call* in a later turn of the loop."""
