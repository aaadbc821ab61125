"""What a client says in one go: messages of one publisher in one stream partition, for which most is asked once.

Laws of this file. A run takes only what `Saying.say` would take as well, and what becomes of it is the same, in the
same order: a property of the tests compares them. (Where the log becomes congested half-way, the rest is refused, while
frame by frame it would wait.) Whatever is in doubt about a message is left to `say`, which has the words for it. Nobody
hears anything before `Run.say`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from adapters.streamr.crypto.batch import mark_verified
from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.ids import NAME, channel_of, inbox_of, key_exchange_address
from adapters.streamr.wire.publish_template import PublishTemplate, RequestedMessage
from gateway.core import jsontext
from gateway.core.errors import RequestError
from gateway.core.message import LATE_AFTER, Message, Peer

from .publishing import MAX_AHEAD, as_sent, check_signature, ids_of, is_clear_cut, is_signed
from .saying import Saying, Speaker

if TYPE_CHECKING:
    from adapters.streamr.context import Context
    from adapters.streamr.wire.control import PublishRequest
    from adapters.streamr.wire.message import StreamMessage
    from gateway.core.session import Session

MAX_RUN = 128  # requests: then it is asked whether the peer has to wait


class Doubt(Exception):
    """What this request says has to be looked at by itself."""


class RunSpeaker(Speaker, Protocol):
    """A session that can say many messages in a row."""

    def stays(self, request: PublishRequest) -> bool:
        """Whether *request* shows nobody's token or key that was not shown before."""

    def pace(self, channel: str) -> None:
        """Raise `Throttled` where the connection says too much in *channel*."""

    def refuse(self, frame: PublishRequest, error: RequestError) -> None:
        """Answer *frame* with the *error*."""


class Run:
    """Says what goes on with *request* of *speaker*, whose session is *origin*.

    It begins empty: `first`, which is that request, is to be added as well. To make one raises `Doubt` or a
    `RequestError` where `Saying.say` should have *request*.
    """

    def __init__(
        self, context: Context, saying: Saying, speaker: RunSpeaker, request: PublishRequest, origin: Session
    ) -> None:
        message, bus, streams = request.message, context.bus, context.streams
        stream, partition, timestamp, _, publisher, _ = message.id
        self._signed = is_signed(message)
        self._publisher = publisher.lower()
        if inbox_of(stream) is not None or key_exchange_address(stream) is not None or streams.decrypts(stream):
            raise Doubt
        if self._signed and (self._publisher != speaker.address and not is_clear_cut(message)):
            raise Doubt
        if not speaker.stays(request) or (self._signed and saying.is_own(message)):
            raise Doubt
        self._channel = bus.channels.channel(NAME, channel_of(stream, partition))
        saying.check(speaker, request, "publish", self._channel)
        self._sender: Peer | None = None if self._signed else saying.sender(speaker, request)
        self._bus = bus
        self._saying = saying
        self._speaker = speaker
        self._origin = origin
        self._carried = self._signed and self._publisher != speaker.address  # and so paced by its author as well
        self._plain = message.encryption_type == kinds.NONE
        if message.message_type != kinds.MESSAGE or (self._plain and streams.rules(stream).require_encrypted_data):
            raise Doubt
        now = bus.clock()
        self._late = timestamp < now - LATE_AFTER
        self._from = max(0 if self._late else now - LATE_AFTER, saying.kept_since if self._signed else 0)
        self._until = now - LATE_AFTER - 1 if self._late else now + MAX_AHEAD
        self._last = saying.positions.reached(self._channel, self._publisher)
        self._said: list[RequestedMessage] = []
        if not self._goes_on(message):
            raise Doubt
        self._request = request
        self._alike = PublishTemplate(request)
        self.first: RequestedMessage = str(request.request_id), message

    def read(self, data: bytes) -> RequestedMessage | None:
        """What is said in *data*, where the run goes on with that; else None."""
        if len(self._said) == MAX_RUN or (said := self._alike.read(data)) is None:
            return None
        return said if self._goes_on(said[1]) else None

    def add(self, said: RequestedMessage) -> None:
        """Take what was `read`, or the first; `RequestError` where it comes too fast."""
        self._speaker.pace(self._channel)
        _, message = said
        self._last = message.id[2:4]
        self._said.append(said)

    def say(self) -> None:
        """Say all of it, but for what is not genuine: that is refused in its turn."""
        if self._signed:
            mark_verified(self._publisher, [message for _, message in self._said])
        genuine: list[RequestedMessage] = []
        for said in self._said:
            _, message = said
            try:
                if self._sender is None or not message.verified:  # else there is nothing to ask
                    self._check(message)
                if self._carried and self._sender is not None:
                    self._speaker.charge(self._sender)
            except RequestError as error:
                self._publish(genuine)
                genuine = []
                self.refuse(said, error)
            else:
                genuine.append(said)
        self._publish(genuine)

    def refuse(self, said: RequestedMessage, error: RequestError) -> None:
        """Tell the client that *said* was not said, and why."""
        request_id, message = said
        self._speaker.refuse(replace(self._request, request_id=request_id, message=message), error)

    def _goes_on(self, message: StreamMessage) -> bool:
        """Whether *message*, which is like those before it, can be no copy of anything."""
        _, _, timestamp, sequence, _, _ = message.id
        return (
            (timestamp, sequence) > self._last
            and self._from <= timestamp <= self._until
            and bool(message.signature) is self._signed
            and not (self._said and "inReplyTo" in message.content)  # what it answers may be among them
            and (not self._plain or jsontext.is_json(message.content))
        )

    def _check(self, message: StreamMessage) -> None:
        """Raise unless *message* is genuine; the first that is tells who the sender is."""
        if self._sender is None:
            self._saying.check_signature(message)
            self._sender = self._bus.peers.identity(NAME, self._publisher)
        elif self._signed:
            check_signature(message)

    def _publish(self, genuine: Sequence[RequestedMessage]) -> None:
        """Publish what is *genuine*, or tell the client that none of it was."""
        if not genuine or self._sender is None:
            return
        _, last = genuine[-1]
        self._saying.positions.reach(self._channel, self._publisher, last.id[2:4])
        run: list[Message] = []
        for _, message in genuine:
            sent = as_sent(message, ids_of(message), self._channel, self._sender, self._request.version)
            sent.late = self._late
            run.append(sent)
        try:
            self._bus.publish_run(run, self._origin)
        except RequestError as error:
            for said in genuine:
                self.refuse(said, error)
