"""What a client says in one go: messages of one publisher in one stream partition, for which most is asked once.

Laws of this file. A run takes only what `Saying.say` would take as well, and what becomes of it is the same, in the
same order: a property of the tests compares them. Whatever is in doubt about a message is left to `say`, which has the
words for it. Nobody hears anything before `Run.say`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway import jsontext
from gateway.errors import RequestError
from gateway.message import LATE, Message, Peer

from . import message as kinds
from .batch import prove
from .ids import NAME, channel_of, inbox_of, key_exchange_address
from .publishing import MAX_AHEAD, as_sent, check_signature, ids_of, is_clear_cut, is_signed

if TYPE_CHECKING:
    from .adapter import StreamrAdapter
    from .control import Publish
    from .message import StreamMessage
    from .session import StreamrSession


MAX_RUN = 128  # requests: then it is asked whether the peer has to wait


class Doubt(Exception):
    """What this request says has to be looked at by itself."""


class Run:
    """Begins with *request* of *session*; raises `Doubt` or a `RequestError` where `Saying.say` should have it."""

    def __init__(self, adapter: StreamrAdapter, session: StreamrSession, request: Publish) -> None:
        message, bus, saying = request.message, adapter.bus, adapter.saying
        stream, partition, timestamp, _, publisher, chain = message.id
        self._signed = is_signed(message)
        self._publisher = publisher.lower()
        if inbox_of(stream) is not None or key_exchange_address(stream) is not None or adapter.streams.decrypts(stream):
            raise Doubt
        if self._signed and (self._publisher != session.address and not is_clear_cut(message)):
            raise Doubt
        if not session.stays(request) or (self._signed and saying.is_own(message)):
            raise Doubt
        self._channel = bus.channels.channel(NAME, channel_of(stream, partition))
        saying.check(session, request, "publish", self._channel)
        self._sender: Peer | None = None if self._signed else saying.sender(session, request)
        self._adapter = adapter
        self._session = session
        self._kind = message.message_type, message.encryption_type, message.signature_type
        self._like = (stream, partition, publisher, chain, request.session_token)
        self._plain = message.encryption_type == kinds.NONE
        if message.message_type != kinds.MESSAGE or (
            self._plain and adapter.streams.rules(stream).require_encrypted_data
        ):
            raise Doubt
        now = bus.clock()
        self._late = timestamp < now - LATE
        self._from = max(0 if self._late else now - LATE, saying.kept_since if self._signed else 0)
        self._until = now - LATE - 1 if self._late else now + MAX_AHEAD
        self._last = saying.positions.reached(self._channel, self._publisher)
        self._requests: list[Publish] = []

    def goes_on(self, request: Publish) -> bool:
        """Whether *request* is like those before it, and can be no copy of anything."""
        message = request.message
        stream, partition, timestamp, sequence, publisher, chain = message.id
        return (
            len(self._requests) < MAX_RUN
            and (stream, partition, publisher, chain, request.session_token) == self._like
            and (message.message_type, message.encryption_type, message.signature_type) == self._kind
            and (timestamp, sequence) > self._last
            and self._from <= timestamp <= self._until
            and bool(message.signature) is self._signed
            and not (self._requests and "inReplyTo" in message.content)  # what it answers may be among them
            and (not self._plain or jsontext.is_json(message.content))
        )

    def add(self, request: Publish) -> None:
        """Take *request*, with which the run goes on; `RequestError` where it comes too fast."""
        self._session.pace(self._channel)
        self._last = request.message.id[2:4]
        self._requests.append(request)

    def say(self) -> None:
        """Say all of it, but for what is not genuine: that is refused in its turn."""
        if self._signed:
            prove(self._publisher, [request.message for request in self._requests])
        said: list[Publish] = []
        for request in self._requests:
            try:
                if self._sender is None or not request.message.proven:  # else there is nothing to ask
                    self._check(request.message)
            except RequestError as error:
                self._publish(said)
                said = []
                self._session.refuse(request, error)
            else:
                said.append(request)
        self._publish(said)

    def _check(self, message: StreamMessage) -> None:
        """Raise unless *message* is genuine; the first that is tells who the sender is."""
        if self._sender is None:
            self._adapter.saying.check_signature(message)
            self._sender = self._adapter.bus.peers.identity(NAME, self._publisher)
        elif self._signed:
            check_signature(message)

    def _publish(self, requests: Sequence[Publish]) -> None:
        """Publish *requests*, or tell the client that none of them was."""
        if not requests or self._sender is None:
            return
        self._adapter.saying.positions.reach(self._channel, self._publisher, requests[-1].message.id[2:4])
        run: list[Message] = []
        for request in requests:
            message = request.message
            sent = as_sent(message, ids_of(message), self._channel, self._sender, request.version)
            sent.late = self._late
            run.append(sent)
        try:
            self._adapter.bus.publish_run(run, self._session)
        except RequestError as error:
            for request in requests:
                self._session.refuse(request, error)
