"""`GET .../events`: a channel as server-sent events (WHATWG HTML, section 9.2), live or resumed from a sequence.

A stream is a session like any other, with two differences. A `message` is sent once it is on disk, because it carries
its sequence. And a resumed stream first sends what the log has, a page at a time, then live messages. Between them lies
a boundary: everything below it comes from the log, everything from it on from the bus, so no message is missing or
sent twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

import anyio
from starlette.types import Receive, Scope, Send

from gateway.core.errors import Unavailable
from gateway.core.jsontext import dumps
from gateway.core.message import REST, Message, Peer
from gateway.core.outbox import LOW_WATER
from gateway.core.session import Session
from gateway.runtime import Gateway
from gateway.storage.layout import BEYOND_ALL

from . import listing, views
from .callers import Caller
from .paced import run_in_turn
from .problems import Problem
from .streaming import StreamedResponse

PAGE = 32  # messages that are read from the log in one turn of the loop
PING_SECONDS = 15  # between comments that keep proxies from closing an idle stream
MAX_OUTBOX = 4 << 20  # bytes: twice the longest message, with as much again for its metadata
STALLED_SECONDS = 30.0  # for a client to read what was written; then the stream is aborted
# Caches keep nothing, and proxies pass each event on at once.
HEADERS = {"Cache-Control": "no-store", "Connection": "keep-alive", "X-Accel-Buffering": "no"}


class EventSession(Session):
    """One stream of one channel. *after* is the last sequence that the client has seen, None for a new stream."""

    protocol = REST
    max_outbox = MAX_OUTBOX

    def __init__(self, gateway: Gateway, caller: Caller, channel: str, after: int | None = None) -> None:
        super().__init__(gateway.bus, caller.principal)
        self.budget = gateway.budget
        self._gateway = gateway
        self._channel = channel
        self._unsynced: deque[Message] = deque()  # delivered, but not on disk yet
        self._seen = after or 0
        self._boundary: int | None = None  # the first sequence that comes from the bus
        self._replaying = after is not None
        self._awaiting_sync = False  # until everything below the boundary is on disk
        if caller.key is not None:
            self.bus.bind(self, caller.who)
        try:
            others = self.bus.subscribe(self, channel)
        except BaseException:
            self.receive_eof()
            raise
        slices = listing.list_slices("peers", map(views.peer, others), **views.peer(self.who), channel=channel)
        resume = gateway.log.synced_seq if after is None else after  # nothing after it is missed if the stream ends now
        head = b"id: %d\nevent: welcome\ndata: " % resume
        self._welcome: Iterator[bytes] | None = chain((head,), slices, (b"\n\n",))
        if len(others) <= listing.BATCH:
            self.send(b"".join(self._welcome))
            self._welcome = None

    # What the bus brings

    def handle(self, data: bytes) -> None:
        """Ignore input: a stream only listens."""

    def deliver(self, message: Message) -> None:
        """Queue a direct message at once, any other message once it is on disk."""
        if message.target is not None:
            self.put(event("direct", views.message(self.bus.peers, message)))
        elif self.closing is None and (not self._replaying or self._boundary is not None):
            self._unsynced.append(message)
            if len(self._unsynced) == 1 and not self._replaying:
                self.bus.ledger.when_synced(message.seq, self._on_synced)

    def peer_joined(self, channel: str, peer: Peer) -> None:  # noqa: ARG002  # a stream has one
        """Say who came."""
        self.put(_presence("joined", peer))

    def peer_left(self, channel: str, peer: Peer) -> None:  # noqa: ARG002
        """Say who left."""
        self.put(_presence("left", peer))

    def _discard(self) -> None:
        """Discard what waits for the disk as well."""
        self._unsynced.clear()
        super()._discard()

    # What the shell takes

    def data_to_send(self) -> list[bytes]:
        """Return the next slice of the welcome; after it, what is queued and the next page of missed messages."""
        if self._welcome is not None and self.closing is None:
            if (part := next(self._welcome, None)) is not None:
                return [part]
            self._welcome = None
        try:
            page = (
                self._next_page() if self._catching_up else []
            )  # read first: the last page puts what was delivered meanwhile into the outbox
        except Unavailable as error:  # a client that reconnects continues where this stream ends
            self.close(1013, str(error))
            page = []
        return super().data_to_send() + page

    async def next_data(self) -> list[bytes]:
        """Return `data_to_send`, in a turn of its own if it may be long."""
        if self._welcome is not None or self._catching_up:
            return await run_in_turn(self._gateway.answer_scheduler, self.network, self.data_to_send)
        return self.data_to_send()

    def closing_comment(self, reason: str) -> bytes:
        """Return a comment that says why the stream ends; an unfinished event before it is not dispatched."""
        return (b": %b\n\n" if self._welcome is None else b"\n: %b\n") % reason.encode()

    @property
    def _catching_up(self) -> bool:
        return self._replaying and not self._awaiting_sync and self.closing is None

    def _next_page(self) -> list[bytes]:
        """Return the next page; after the last one, set the boundary and continue with what the bus delivered."""
        page = self._gateway.index.history(
            self._channel, after=self._seen, before=self._boundary, limit=PAGE, size=LOW_WATER
        )
        gap = []
        # Read after the page, since retention may have retired messages meanwhile.
        kept = min(self._gateway.log.segments.first_kept, self._boundary or BEYOND_ALL)
        if kept > self._seen + 1:
            gap = [event("gap", dumps({"after": self._seen, "before": kept}))]
            self._seen, page = kept - 1, [message for message in page if message.seq >= kept]
        if page:
            self._seen = page[-1].seq
        if page or gap:
            return gap + [self._event_of(message) for message in page]
        if self._boundary is None:
            self._boundary = self.bus.ledger.next_seq
            self._awaiting_sync = True
            self.bus.ledger.when_synced(self._boundary - 1, self._on_boundary_synced)
            return [] if self._awaiting_sync else self._next_page()
        self._replaying = False
        if self._unsynced:
            self.bus.ledger.when_synced(self._unsynced[0].seq, self._on_synced)
        return []

    def _on_boundary_synced(self) -> None:
        """Everything below the boundary is on disk."""
        self._awaiting_sync = False
        self.wake()

    def _on_synced(self) -> None:
        """Queue all messages that are on disk now."""
        on_disk = self._gateway.log.synced_seq
        while self._unsynced and self._unsynced[0].seq <= on_disk:
            self.put(self._event_of(self._unsynced.popleft()))
        if self._unsynced:
            self.bus.ledger.when_synced(self._unsynced[0].seq, self._on_synced)

    def _event_of(self, message: Message) -> bytes:
        form = message.form(REST, self._make_event)
        assert isinstance(form, bytes)
        return form

    def _make_event(self, message: Message, _key: str) -> bytes:
        return b"id: %d\n%b" % (message.seq, event("message", views.message(self.bus.peers, message)))


def event(name: str, data: bytes) -> bytes:
    """Return an event called *name*; *data* is JSON on one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


@lru_cache(maxsize=4)  # all listeners of a channel get the same event
def _presence(name: str, peer: Peer) -> bytes:
    return event(name, dumps(views.peer(peer)))


class EventStream(StreamedResponse):
    """The response that carries an `EventSession`; however it ends, the session leaves the bus."""

    def __init__(self, session: EventSession) -> None:
        super().__init__("text/event-stream", HEADERS, stalled_seconds=STALLED_SECONDS, idle_seconds=PING_SECONDS)
        self._session = session
        self._woken = anyio.Event()
        self._left = False
        session.wake = self._wake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the session until either side ends it."""
        budget = self._session.budget
        budget.enter(self._session)
        try:
            await super().__call__(scope, receive, send)
        finally:
            budget.leave(self._session)
            self._session.receive_eof()
        if self.stalled:
            self._session.bus.metrics.overflow(REST)

    def end(self) -> None:
        """The client has left."""
        self._left = True
        self._session.receive_eof()
        self._wake()

    def idle(self) -> None:
        """Send a comment."""
        self._session.put(b": ping\n\n")

    async def write(self, send: Send) -> None:
        """Send events as they come, until the session is closed."""
        session = self._session
        while not self._left:
            self._woken = anyio.Event()
            if data := await session.next_data():
                for piece in join_chunks(data):
                    await self.send_body(send, piece)
            elif session.closing is not None:
                await self.send_body(send, session.closing_comment(session.closing.reason))
                return
            else:
                await self._woken.wait()

    def _wake(self) -> None:
        self._woken.set()


def join_chunks(data: list[bytes]) -> list[bytes]:
    """Return *data* joined to chunks of about `LOW_WATER` bytes, each worth a write."""
    joined: list[bytes] = []
    some: list[bytes] = []
    size = 0
    for one in data:
        some.append(one)
        size += len(one)
        if size >= LOW_WATER:
            joined.append(b"".join(some))
            some, size = [], 0
    return [*joined, b"".join(some)] if some else joined


def open_stream(caller: Caller, channel: str, after: int | None) -> EventStream:
    """Start a stream; raise `Problem` 503 if there are too many connections."""
    gateway = caller.gateway
    if (reason := gateway.admission.capacity_error(caller.principal.address)) is not None:
        raise Problem("too-many-connections", reason, {"Retry-After": "10"})
    gateway.metrics.count("connections", REST)
    return EventStream(EventSession(gateway, caller, channel, after))
