"""A connection to another broker that the gateway dials: here it is the client, and the other side the server.

A stream partition is the same channel on both sides. The link subscribes to the streams of the exchanged channels and,
once a subscription is confirmed, asks for what was published since it was last up; ids and signatures tell what is a
copy. `LinkSpool` sends the other way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import Field, SecretStr

from adapters.streamr.model.users import User
from adapters.streamr.publishing.publish_handler import LINK_PRINCIPAL
from adapters.streamr.wire.claims import ASKED
from adapters.streamr.wire.codec import decode_control, encode
from adapters.streamr.wire.control import (
    ControlType,
    ErrorResponse,
    MessageDelivery,
    PublishRequest,
    ResendRequest,
    StreamResponse,
    SubscribeRequest,
)
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME, channel_of, stream_of
from adapters.streamr.wire.message import LATEST, MessageRef, StreamMessage
from adapters.streamr.wire.validation_errors import InvalidSignature
from gateway.adapter import OutboundLink
from gateway.core.errors import RequestError, Throttled, Unavailable
from gateway.core.frames import text_frame
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.link_channels import PORTS, ChannelSearch, LinkSession, WebSocketPeer

from .link_cursors import Cursor, LinkCursors
from .link_spool import CONTROL, SENT, LinkSpool

if TYPE_CHECKING:
    from adapters.streamr.shared_parts import StreamrParts
    from gateway.core.message import Message, Peer

PATH: Final = "/api/v1/ws"  # of every broker, unless the URL has another
MAX_STREAMS: Final = 1_000  # that one link subscribes to
MAX_ASKED: Final = 8  # requests without an answer; brokers limit resends
KEEP_MS: Final = 10_000  # between two writes of the cursor, while the link is up
MAX_REASON: Final = 200  # characters of an error of the other side that are logged
NOT_NOW: Final = "Publish request failed: "  # the start of a broker's error if the message itself was valid and allowed
ANSWER_MS: Final = 60_000  # for an answer; brokers give one to every request but publishes
MARGIN_MS: Final = 300_000  # by which timestamps may be behind the time of publication; they may be as much ahead


class StreamrPeer(WebSocketPeer):
    """A broker of Streamr's first network: a genuine one, or another gateway."""

    key: SecretStr | None = Field(
        default=None, max_length=1024, description="A session token, or an API key of a gateway, for its requests."
    )


class StreamrLink(LinkSession):
    """The connection to *peer*; *cursors* keep its progress."""

    protocol = NAME
    text = True

    def __init__(
        self, parts: StreamrParts, principal: Principal, peer: StreamrPeer, cursors: LinkCursors, max_outbox: int
    ) -> None:
        super().__init__(parts.context.bus, principal)
        self.link = True
        self.max_outbox = max_outbox
        self.received = 0  # messages that were new here
        self.streams: set[tuple[str, int]] = set()  # stream partitions whose subscription was confirmed
        self._parts = parts
        self._peer = peer
        self._cursors = cursors
        self._token = None if peer.key is None else peer.key.get_secret_value()
        self._since = cursors.get(peer.url).since
        self._until = self._since or self.bus.clock() - MARGIN_MS  # ms; all that was published there until then is here
        self._wanted: set[tuple[str, int]] = set()  # stream partitions
        self._asked: dict[str, int] = {}  # requests without an answer, and when the broker last said something, ms
        self._waiting: deque[SubscribeRequest | ResendRequest] = deque()  # requests that are not sent yet
        self._kept = 0  # when the cursor was kept, ms
        self._requests = 0
        self._search = ChannelSearch(self.bus.channels, peer, MAX_STREAMS)
        self.spool: LinkSpool | None = None
        if peer.sends:
            for prefix in {*peer.names, *peer.prefixes}:
                self.bus.watchers.add(self, prefix)
            self.spool = LinkSpool(self, parts, self._may_send, self._token, cursors.get(peer.url).sent)
            self.spool.start()
        if peer.receives:
            self._subscribe()
        self._keep_cursor()

    # What publishing asks of a requester

    user: User | None = None
    address: str | None = None

    def authenticate(self, _request: PublishRequest) -> User:
        """Return the link's own user: the operator configured it, so it needs no token."""
        return User(self.principal)

    def pace_author(self, author: Peer) -> None:
        """Do not pace *author*: the other side has let it pass."""

    # What the gateway asks

    def deliver(self, message: Message) -> None:
        """Send a *message* of an exchanged channel."""
        if self.spool is not None and self._peer.matches(message.channel):
            self.spool.deliver(message)

    def tick(self, now: int) -> None:
        """Subscribe to new channels, ask for a confirmation of what was sent, and close if an answer is overdue."""
        if self._peer.receives:
            self._subscribe()
        if self.spool is not None:
            self.spool.tick(now)
        if self.paused:
            self._wait_for_answers(now)
            self.go_on()
        asked = (*self._asked.values(), *(() if self.spool is None else (self.spool.asked_at,)))
        if any(at is not None and now - at > ANSWER_MS for at in asked):
            self.close(1002, "it does not answer")
        elif self.caught_up and self.ready:  # else what came waits, and is asked for again after a restart
            self._until = now - MARGIN_MS
        if now - self._kept >= KEEP_MS:
            self._kept = now
            self._keep_cursor()

    def _wait_for_answers(self, now: int) -> None:
        """Start waiting for all answers anew: they may have come while nothing was read."""
        self._asked = dict.fromkeys(self._asked, now)
        if self.spool is not None and self.spool.asked_at is not None:
            self.spool.asked_at = now

    def receive_eof(self) -> None:
        """The connection is closed."""
        self._keep_cursor()
        super().receive_eof()

    @property
    def held_size(self) -> int:
        """The bytes that are kept for the other side, with what waits until the link has caught up."""
        return super().held_size + (0 if self.spool is None else self.spool.held_size)

    def report(self) -> dict[str, Any]:
        """Return the progress of the link, for `GET /v1/stats`."""
        sent = 0 if self.spool is None else self.spool.count
        return {"streams": len(self.streams), "received": self.received, "sent": sent, "caughtUp": self.caught_up}

    @property
    def caught_up(self) -> bool:
        """Whether every request was answered, and everything that waited in the log was sent."""
        return not self._asked and not self._waiting and (self.spool is None or self.spool.caught_up)

    # From the other side

    def take(self, data: bytes) -> None:
        """Publish a message that arrived, or take an answer; ignore everything else."""
        try:
            frame = decode_control(data)
        except StreamrError as error:
            self.record_malformed()
            self.record_refusal("malformed", error.message)
            return
        id = str(frame.request_id)
        if isinstance(frame, MessageDelivery):
            if id in self._asked:
                self._asked[id] = self.bus.clock()
            if not id.startswith(SENT):
                self._take(frame.message)
            return
        if isinstance(frame, ErrorResponse):
            self._refused(id, frame.error_message)
        elif not isinstance(frame, StreamResponse) or frame.type is ControlType.RESENDING:
            return
        elif frame.type is ControlType.SUBSCRIBED and id in self._asked:
            self._subscribed(frame.stream_id, frame.stream_partition)
        if id.startswith(SENT) and self.spool is not None:
            self.spool.answered()
        self._asked.pop(id, None)
        self._ask_next()

    def _refused(self, id: str, text: str) -> None:
        if not (self.spool is not None and id.isdecimal() and text.startswith(NOT_NOW) and self.spool.failed(int(id))):
            self.record_refusal("by the other side", text[:MAX_REASON])

    def _take(self, message: StreamMessage) -> None:
        """Publish *message*, unless it is a copy, or of a stream that was not asked for."""
        stream, partition = message.id.stream_id, message.id.stream_partition
        if (stream, partition) not in self._wanted:  # another one would begin a channel here
            return
        try:
            channel = self.bus.channels.channel(NAME, channel_of(stream, partition))
            self.pace(channel)
            request = PublishRequest(message=message)
            taken = self._parts.publish_handler.publish(self, request, channel, self._refuse, self)
            self.received += taken is not None
        except (Throttled, Unavailable):  # nothing is lost
            raise
        except RequestError as error:
            self._refuse(error)

    def _refuse(self, error: RequestError) -> None:
        """Count a message that is not valid; if the log fails, close: after reconnecting, ask for the message again."""
        if isinstance(error, Unavailable):
            self.close(1013, str(error))
        else:
            if isinstance(error, InvalidSignature):
                self.record_malformed()
            self.record_refusal("invalid", str(error))

    # Requests

    def _subscribe(self) -> None:
        for channel in self._search.next():
            stream, partition = stream_of(channel)
            self._wanted.add((stream, partition))
            self._waiting.append(
                SubscribeRequest(
                    stream_id=stream,
                    stream_partition=partition,
                    request_id=self._next_id(),
                    session_token=self._token,
                )
            )
        self._ask_next()

    def _subscribed(self, stream: str, partition: int) -> None:
        if (stream, partition) not in self._wanted:
            return
        self.streams.add((stream, partition))
        if self._since:
            self._waiting.append(
                ResendRequest(
                    stream_id=stream,
                    stream_partition=partition,
                    from_ref=MessageRef(self._since, 0),
                    request_id=self._next_id(),
                    session_token=self._token,
                )
            )

    def _ask_next(self) -> None:
        while self._waiting and len(self._asked) < MAX_ASKED:
            request = self._waiting.popleft()
            self._asked[str(request.request_id)] = self.bus.clock()
            self.send(text_frame(encode(request, CONTROL)))

    def _next_id(self) -> str:
        self._requests += 1
        return f"link {self._requests}"

    def _may_send(self, channel: str) -> bool:
        return self._peer.matches(channel) and self.bus.allowed(self.principal, "subscribe", channel)

    def _keep_cursor(self) -> None:
        synced = self._parts.context.services.index.synced_seq
        sent = 0 if self.spool is None else min(self.spool.cursor, synced)
        self._cursors.set(self._peer.url, Cursor(self._until, sent))


def link(peer: StreamrPeer, open: Callable[[Principal, StreamrPeer], StreamrLink]) -> OutboundLink:
    """Return the link to *peer*; *open* makes the session of a connection."""
    parts = urlsplit(peer.url)
    assert parts.hostname is not None  # it was checked
    wanted = {"controlLayerVersion": str(CONTROL), "messageLayerVersion": str(LATEST), ASKED: "1"}
    query = urlencode(wanted | dict(parse_qsl(parts.query)))
    path = f"{parts.path if parts.path.strip('/') else PATH}?{query}"
    dialled = partial(open, Principal(LINK_PRINCIPAL, parts.hostname), peer)
    port = parts.port or PORTS[parts.scheme]
    return OutboundLink(peer.url, parts.hostname, port, dialled, _report, parts.scheme == "wss", path=path)


def _report(session: Session) -> dict[str, Any]:
    assert isinstance(session, StreamrLink)
    return session.report()
