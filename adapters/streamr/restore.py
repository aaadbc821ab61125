"""Old stream messages, said once more: what a dump holds becomes history here, as if its publishers sent it now."""

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

OPERATOR: Final = "streamr:operator"  # who imports
SYNC_EVERY: Final = 256  # messages between two waits for the disk


@dataclass
class RestoreResult:
    """How many messages were taken, how many were known, and what is wrong with the others, by where they stood."""

    done: int = 0
    known: int = 0
    flaws: list[tuple[str, str]] = field(default_factory=list)


class _Operator:
    """The operator, who may speak for whoever a message without a signature names."""

    def __init__(self, adapter: StreamrAdapter) -> None:
        self._adapter = adapter
        self.principal = Principal(OPERATOR)
        self.address: str | None = None

    @property
    def user(self) -> User:
        """Whoever the message names."""
        return User(self.principal, self.address)

    @property
    def who(self) -> Peer:
        """Who said what names nobody."""
        return self._adapter.bus.peers.identity(NAME, "import")

    def pace_author(self, author: Peer) -> None:
        """Nothing: what is imported was said at another time."""

    def authenticate(self, _request: PublishRequest) -> User:
        """The operator."""
        return self.user


def restore(
    adapter: StreamrAdapter, messages: Iterable[tuple[str, StreamMessage]], settle: Callable[[], None]
) -> RestoreResult:
    """Say *messages*, each with the place where it stood; *settle* waits for the disk.

    Everything is checked as what a publisher sends is, but for rights: whoever may write the data directory may import.
    """
    report, speaker = RestoreResult(), _Operator(adapter)
    for count, (place, message) in enumerate(messages, 1):
        # Who is believed to be the publisher may say it under any cut of the fields; a signature has to tell it itself.
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
    """Whether that is done with, one way or the other."""
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
