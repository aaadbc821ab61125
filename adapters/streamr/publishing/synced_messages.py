"""Signed messages that another gateway kept and `trellis sync` transfers: published as those of a link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.streamr.model.users import User
from adapters.streamr.wire.control import PublishRequest
from adapters.streamr.wire.ids import NAME, channel_of
from adapters.streamr.wire.message import parse_message
from gateway.core.errors import RequestError
from gateway.core.message import Peer, TakingOver
from gateway.core.principal import Principal

from .publish_handler import LINK_PRINCIPAL

if TYPE_CHECKING:
    from gateway.core.bus import Bus

    from .publish_handler import PublishHandler

OTHER_CHANNEL = "the message is for another channel"


class _HandoverRequester:
    """The *caller* that transfers messages, whose rights are checked: their authors have none here."""

    address: str | None = None

    def __init__(self, caller: Principal, who: Peer) -> None:
        self.principal = Principal(LINK_PRINCIPAL)
        self.user = User(caller)
        self.who = who

    def authenticate(self, _request: PublishRequest) -> User:
        """The caller."""
        return self.user

    def pace_author(self, author: Peer) -> None:
        """Do not pace *author*: the caller is paced."""


def take_over(bus: Bus, handler: PublishHandler, wire: bytes, channel: str, caller: Principal, who: Peer) -> TakingOver:
    """Publish the stream message *wire*, in one step, as `Adapter.take_over` says; return whether it was new."""
    yield from ()
    message = parse_message(wire)
    if bus.channels.channel(NAME, channel_of(message.id.stream_id, message.id.stream_partition)) != channel:
        raise RequestError(OTHER_CHANNEL)
    refusals: list[RequestError] = []
    taken = handler.publish(_HandoverRequester(caller, who), PublishRequest(message=message), channel, refusals.append)
    if refusals:
        raise refusals[0]
    return taken is not None
