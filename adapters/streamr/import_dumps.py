"""Imports old stream messages: they are published again, as if their publishers sent them now, and become history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from adapters.streamr.model.users import User
from adapters.streamr.publishing.publish_handler import PublishHandler
from adapters.streamr.wire.control import PublishRequest
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME, channel_of
from adapters.streamr.wire.message import StreamMessage, parse_message
from gateway.adapter import ProtocolFiles, TransferFault, TransferReport
from gateway.core.errors import RequestError, Unavailable
from gateway.core.message import Message, Peer
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal
from gateway.storage.record import Entry

from .dump_files import read_dump

OPERATOR: Final = "streamr:operator"  # the principal that imports
SYNC_EVERY: Final = 256  # messages between two waits for the disk


class StreamFiles(ProtocolFiles):
    """Responses of the broker's data API, in any of its formats (`adapters.streamr.dump_files`)."""

    def __init__(self, publish_handler: PublishHandler, peers: PeerRegistry) -> None:
        self._publish_handler = publish_handler
        self._peers = peers

    def read(self, paths: Sequence[Path], settle: Callable[[], None]) -> TransferReport:
        """Publish the stream messages in the files *paths*."""
        flaws: list[TransferFault] = []
        report = self._restore(_dumped(paths, flaws), settle)
        report.faults[:0] = flaws
        return report

    def publish(self, entries: Iterable[Entry], settle: Callable[[], None]) -> TransferReport:
        """Publish the stream messages in *entries*."""
        return self._restore(_logged(entries), settle)

    def _restore(self, messages: Iterable[tuple[str, StreamMessage]], settle: Callable[[], None]) -> TransferReport:
        """Publish *messages*, each with its place in the input."""
        report, speaker = TransferReport(), _Operator(self._peers)
        for count, (place, message) in enumerate(messages, 1):
            # The operator may name any publisher of an unsigned message; a signature has to be the publisher's own.
            speaker.address = None if message.signature else message.id.publisher_id.lower() or None
            while not self._publish(speaker, place, message, report):
                settle()
            if not count % SYNC_EVERY:
                settle()
        settle()
        return report

    def _publish(self, speaker: _Operator, place: str, message: StreamMessage, report: TransferReport) -> bool:
        """Whether *message* is settled, imported or refused; False if the log could not take it now."""
        channel = channel_of(message.id.stream_id, message.id.stream_partition)

        def refuse(error: RequestError) -> None:
            report.faults.append(TransferFault(place, str(error)))

        try:
            taken = self._publish_handler.publish(speaker, PublishRequest(message=message), channel, refuse)
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


class _Operator:
    """The operator, who may publish unsigned messages in the name of any publisher."""

    def __init__(self, peers: PeerRegistry) -> None:
        self._peers = peers
        self.principal = Principal(OPERATOR)
        self.address: str | None = None

    @property
    def user(self) -> User:
        """The publisher that the message names."""
        return User(self.principal, self.address)

    @property
    def who(self) -> Peer:
        """The sender of messages that name no publisher."""
        return self._peers.identity(NAME, "import")

    def pace_author(self, author: Peer) -> None:
        """Do not pace *author*: the messages were published at another time."""

    def authenticate(self, _request: PublishRequest) -> User:
        """The operator."""
        return self.user


def _dumped(files: Sequence[Path], flaws: list[TransferFault]) -> Iterator[tuple[str, StreamMessage]]:
    for file in files:
        try:
            for found in read_dump(file.read_bytes()):
                place = f"{file}, message {found.number}"
                if found.message is None:
                    flaws.append(TransferFault(place, found.fault))
                else:
                    yield place, found.message
        except (OSError, ValueError) as error:
            flaws.append(TransferFault(str(file), str(error)))


def _logged(entries: Iterable[Entry]) -> Iterator[tuple[str, StreamMessage]]:
    for entry in entries:
        if isinstance(entry, Message) and entry.protocol == NAME and entry.wire is not None:
            yield f"record {entry.seq}", parse_message(entry.wire)
