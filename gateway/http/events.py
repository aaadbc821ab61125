"""Server-sent events (WHATWG HTML, section 9.2): one channel or several, live or resumed from a sequence.

A stream is a session like any other. A `message` is sent once it is on disk, because it carries its sequence. A resumed
stream first sends what the log has, a page at a time, and hears through a `Feed` meanwhile.

A stream that has caught up is `detached` if the server can take it over (`DETACH_EXTENSION`): the response is left, and
the session writes chunks of HTTP/1.1 to a connection of its own. Detached streams share each chunk, and wait for the
disk together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Final, Self

import anyio
from starlette.types import Receive, Scope, Send

from gateway.core.errors import Unavailable
from gateway.core.jsontext import dumps
from gateway.core.message import REST, Message, Peer
from gateway.core.outbox import Close
from gateway.core.session import Session
from gateway.core.subscriber import Subscriber
from gateway.runtime import Gateway

from . import listing, views
from .callers import Caller
from .feed import Feed, Subscription
from .paced import run_in_turn
from .problems import Problem
from .selection import Selection, pattern_of
from .streaming import StreamedResponse, chunk, coalesce

DETACH_EXTENSION: Final = "trellis.detach"  # an ASGI extension, a weak reference to a function that takes the session
PING_SECONDS = 15  # between comments that keep proxies from closing an idle stream (WHATWG HTML, section 9.2.7)
PING: Final = b": ping\n\n"
CHUNK: Final = f"{REST}/chunk"  # the name of the form of a message that detached streams share
ENDED: Final = Close(1001, "the client has left")
MAX_OUTBOX = 4 << 20  # bytes: twice the longest message, with as much again for its metadata
STALLED_SECONDS = 30.0  # for a client to read a write; then the stream is aborted
# Caches keep nothing, and proxies pass each event on at once. The connection ends with the stream: a client that
# used it for the next request would find it closed.
HEADERS = {"Cache-Control": "no-store", "Connection": "close", "X-Accel-Buffering": "no"}


class EventSession(Session):
    """One stream of some channels. *after* is the last sequence that the client has seen, None for a new stream."""

    protocol = REST
    max_outbox = MAX_OUTBOX

    def __init__(self, gateway: Gateway, caller: Caller, selection: Selection, after: int | None = None) -> None:
        super().__init__(gateway.bus, caller.principal)
        self.budget = gateway.budget
        self._gateway = gateway
        self._feed = Feed(gateway, self, self._emit, self._wake_shell)
        self._welcome: Iterator[bytes] | None = None
        self._detached = False
        self._pinged = self.bus.clock()
        if caller.key is not None:
            self.bus.bind(self, caller.who)
        position = gateway.log.synced_seq if after is None else after
        try:
            others = {channel: self.bus.subscribe(self, channel) for channel in selection.channels}
            for prefix in selection.prefixes:
                self.bus.watchers.add(self, prefix)
        except BaseException:
            self.receive_eof()
            raise
        self._feed.add(selection, after)
        patterns = map(pattern_of, selection.prefixes)
        self._welcome = chain.from_iterable(
            (
                *(self._welcome_to(position, peers, channel=channel) for channel, peers in others.items()),
                *(self._welcome_to(position, (), pattern=pattern) for pattern in patterns),
            )
        )
        if sum(map(len, others.values())) <= listing.BATCH:
            self.send(b"".join(self._welcome))
            self._welcome = None

    # What the bus brings

    def handle(self, data: bytes) -> None:
        """Ignore input: a stream only listens."""

    def deliver(self, message: Message) -> None:
        """Queue a direct message at once, any other message once it is on disk."""
        if message.target is not None:
            self._put(event("direct", views.message(self.bus.peers, message)))
        elif self.closing is None:
            self._feed.offer(message)

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Self], origins: Sequence[Subscriber | None]) -> int:
        """Deliver as `deliver` does; detached streams wait for the disk in one call, and share their chunks."""
        first = sessions[0]
        if not first._detached:  # as all of one dialect
            return super().deliver_all(run, sessions, origins)
        first.bus.ledger.when_synced(run[-1].seq, partial(_show_all, run, sessions))
        return len(run) * len(sessions)

    def dialect(self, channel: str) -> str:  # noqa: ARG002
        """Return the form of messages: chunks for a detached stream."""
        return CHUNK if self._detached else REST

    def when_written(self, call: Callable[[], None]) -> None:
        """Wait until what was logged so far is on disk, because nothing of it is queued before; then as any session."""
        ledger = self.bus.ledger
        ledger.when_synced(ledger.next_seq - 1, partial(super().when_written, call))

    def peer_joined(self, channel: str, peer: Peer) -> None:
        """Queue the event `joined`."""
        self.put(_presence("joined", channel, peer, chunked=self._detached))

    def peer_left(self, channel: str, peer: Peer) -> None:
        """Queue the event `left`."""
        self.put(_presence("left", channel, peer, chunked=self._detached))

    def tick(self, now: int) -> None:
        """Queue a comment now and then, unless something waits to be written anyway."""
        if now - self._pinged >= PING_SECONDS * 1000:
            self._pinged = now
            if not self.waiting:
                self._put(PING)

    def receive_eof(self) -> None:
        """End the session; a run that waits for the disk brings it nothing any more."""
        super().receive_eof()
        self.closing = self.closing or ENDED

    @property
    def held_size(self) -> int:
        """About how many bytes are kept for the client."""
        return super().held_size + self._feed.held_size

    def _discard(self) -> None:
        """Discard what waits for the disk as well."""
        self._feed.discard()
        super()._discard()

    # Detaching

    @property
    def has_caught_up(self) -> bool:
        """Whether everything but what waits for the disk has been taken by the shell."""
        return not (self.waiting or self._welcome is not None or self._feed.is_behind or self.closing)

    def detach(self) -> None:
        """Queue chunks from now on. The session must have caught up."""
        self._detached = True
        for channel in self.channels:
            self.bus.dialect_changed(channel)
        for message in self._feed.take_unsynced():
            self.bus.ledger.when_synced(message.seq, partial(_show_all, (message,), (self,)))

    def _put(self, data: bytes) -> None:
        self.put(chunk(data) if self._detached else data)

    # What the shell takes

    def data_to_send(self) -> list[bytes]:
        """Return the next slice of the welcome; after it, what is queued and the next page of missed messages."""
        if self._welcome is not None and self.closing is None:
            if (part := next(self._welcome, None)) is not None:
                return [part]
            self._welcome = None
        try:
            # Read first: the last page puts what was delivered meanwhile into the outbox.
            page = self._next_page() if self.closing is None else []
        except Unavailable as error:  # a client that reconnects continues where this stream ends
            self.close(1013, str(error))
            page = []
        return super().data_to_send() + page

    async def next_data(self) -> list[bytes]:
        """Return `data_to_send`, in a turn of its own if it may be long."""
        while self._welcome is not None or (self._feed.ready and self.closing is None):
            if data := await run_in_turn(self._gateway.answer_scheduler, self.network, self.data_to_send):
                return data
        return self.data_to_send()

    def closing_comment(self, reason: str) -> bytes:
        """Return a comment that says why the stream ends; an unfinished event before it is not dispatched."""
        return comment(reason) if self._welcome is None else b"\n: %b\n" % reason.encode()

    def _wake_shell(self) -> None:
        """Wake the shell: there may be another page."""
        self.wake()

    def _welcome_to(self, position: int, others: Iterable[Peer], **where: str) -> Iterator[bytes]:
        """Return the event `welcome` in slices: who the client is, and which *others* listen."""
        head = b"id: %d\nevent: welcome\ndata: " % position
        slices = listing.list_slices("peers", map(views.peer, others), **views.peer(self.who), **where)
        return chain((head,), slices, (b"\n\n",))

    def _next_page(self) -> list[bytes]:
        if (found := self._feed.next_page()) is None:
            return []
        gap, messages = found[1]
        before = [] if gap is None else [event("gap", dumps(gap._asdict()))]
        return before + [self._event_of(message) for message in messages]

    def _emit(self, _subscription: Subscription, message: Message) -> None:
        self.put(self._event_of(message))

    def _event_of(self, message: Message) -> bytes:
        form = message.form(REST, self._make_event)
        assert isinstance(form, bytes)
        return form

    def _make_event(self, message: Message, _key: str) -> bytes:
        return b"id: %d\n%b" % (message.seq, event("message", views.message(self.bus.peers, message)))

    def _chunk_of(self, message: Message) -> bytes:
        form = message.form(CHUNK, lambda *_: chunk(self._event_of(message)))
        assert isinstance(form, bytes)
        return form


def _show_all(run: Sequence[Message], sessions: Sequence[EventSession]) -> None:
    """Queue a *run*, which is on disk, for detached *sessions*."""
    EventSession.fan_out([sessions[0]._chunk_of(message) for message in run], sessions, (None,) * len(run))


def event(name: str, data: bytes) -> bytes:
    """Return an event called *name*; *data* is JSON on one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def comment(text: str) -> bytes:
    """Return a comment, which clients ignore."""
    return b": %b\n\n" % text.encode()


@lru_cache(maxsize=4)  # all listeners of a channel get the same event
def _presence(name: str, channel: str, peer: Peer, *, chunked: bool) -> bytes:
    made = event(name, dumps({**views.peer(peer), "channel": channel}))
    return chunk(made) if chunked else made


class EventStream(StreamedResponse):
    """The response that carries an `EventSession`, until the server takes that over if it can.

    However it ends otherwise, the session leaves the bus.
    """

    def __init__(self, session: EventSession) -> None:
        super().__init__("text/event-stream", HEADERS, stalled_seconds=STALLED_SECONDS)
        self._session = session
        self._woken = anyio.Event()
        self._left = False
        self._take_over: Callable[[EventSession], None] | None = None
        session.wake = self._wake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the session until either side ends it."""
        budget = self._session.budget
        budget.enter(self._session)
        offered = scope.get("extensions", {}).get(DETACH_EXTENSION)
        self._take_over = offered and offered()
        try:
            await super().__call__(scope, receive, send)
        finally:
            budget.leave(self._session)
            self.end()
        if self.stalled:
            self._session.bus.metrics.overflow(REST)

    def end(self) -> None:
        """End the session, unless the server has taken it over."""
        if not self._left:
            self._left = True
            self._session.receive_eof()
            self._wake()

    async def write(self, send: Send) -> None:
        """Send events as they come, until the session is closed or the server takes it over."""
        session = self._session
        while not self._left:
            self._woken = anyio.Event()
            if data := await session.next_data():
                for piece in coalesce(data):
                    await self.send_body(send, piece)
            elif session.closing is not None:
                await self.send_body(send, session.closing_comment(session.closing.reason))
                return
            elif self._take_over is not None and session.has_caught_up:
                self._left = True
                session.detach()
                self._take_over(session)
            else:
                await self._woken.wait()

    def _wake(self) -> None:
        self._woken.set()


def open_stream(caller: Caller, selection: Selection, after: int | None) -> EventStream:
    """Start a stream; raise `Problem` 503 if there are too many connections, or if the caller may not hear it all."""
    gateway = caller.gateway
    caller.check_missed(selection, after)
    if (reason := gateway.admission.capacity_error(caller.principal.network)) is not None:
        raise Problem("too-many-connections", reason, {"Retry-After": "10"})
    gateway.metrics.count("connections", REST)
    return EventStream(EventSession(gateway, caller, selection, after))
