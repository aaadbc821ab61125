"""Imports old stream messages: they are published again, as if their publishers sent them now, and become history."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from adapters.streamr.model.users import User
from adapters.streamr.wire.control import PublishRequest
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME, channel_of
from gateway.core.errors import RequestError, Unavailable
from gateway.core.message import Peer
from gateway.core.principal import Principal

if TYPE_CHECKING:
    from adapters.streamr.wire.message import StreamMessage

    from .adapter import StreamrAdapter

OPERATOR: Final = "streamr:operator"  # the principal that imports
SYNC_EVERY: Final = 256  # messages between two waits for the disk


@dataclass
class RestoreResult:
    """How many messages were imported and how many were known, and the place and fault of each of the others."""

    done: int = 0
    known: int = 0
    flaws: list[tuple[str, str]] = field(default_factory=list)


class _Operator:
    """The operator, who may publish unsigned messages in the name of any publisher."""

    def __init__(self, adapter: StreamrAdapter) -> None:
        self._adapter = adapter
        self.principal = Principal(OPERATOR)
        self.address: str | None = None

    @property
    def user(self) -> User:
        """The publisher that the message names."""
        return User(self.principal, self.address)

    @property
    def who(self) -> Peer:
        """The sender of messages that name no publisher."""
        return self._adapter.bus.peers.identity(NAME, "import")

    def pace_author(self, author: Peer) -> None:
        """Do not pace *author*: the messages were published at another time."""

    def authenticate(self, _request: PublishRequest) -> User:
        """The operator."""
        return self.user


def restore(
    adapter: StreamrAdapter, messages: Iterable[tuple[str, StreamMessage]], settle: Callable[[], None]
) -> RestoreResult:
    """Publish *messages*, each with its place in the input; *settle* waits for the disk.

    Every message is checked like one that a publisher sends, except for rights: a user who can write to the data
    directory may import.
    """
    report, speaker = RestoreResult(), _Operator(adapter)
    for count, (place, message) in enumerate(messages, 1):
        # The operator may name any publisher of an unsigned message; a signature has to be the publisher's own.
        speaker.address = None if message.signature else message.id.publisher_id.lower() or None
        while not _publish(adapter, speaker, place, message, report):
            settle()
        if not count % SYNC_EVERY:
            settle()
    settle()
    return report


def _publish(
    adapter: StreamrAdapter, speaker: _Operator, place: str, message: StreamMessage, report: RestoreResult
) -> bool:
    """Whether *message* is settled, imported or refused; False if the log could not take it now."""
    channel = channel_of(message.id.stream_id, message.id.stream_partition)

    def refuse(error: RequestError) -> None:
        report.flaws.append((place, str(error)))

    try:
        taken = adapter.parts.publish_handler.publish(speaker, PublishRequest(message=message), channel, refuse)
    except Unavailable:
        return False
    except (RequestError, StreamrError) as error:
        refuse(error)
        return True
    if taken is None:
        report.known += 1
    else:
        report.done += 1
    return True
