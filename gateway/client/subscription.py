"""A subscription: the events of channels over as many connections as it takes, without a gap or a repetition.

Every connection begins after the last sequence that the one before it brought. The gateway says where a new
subscription begins, so nothing that is published after `Welcome` is missed, even if the connection is lost before the
first message. Direct messages and presence are not kept by the gateway: while there is no connection, they are missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from urllib.parse import urlencode

import anyio
import httpx
from anyio.abc import AsyncResource

from .errors import Refused, TrellisError, Unreachable
from .events import Event, Gap, Interrupted, Joined, Left, Welcome, parse
from .records import Message, Peer
from .sse import EventReader
from .transport import FIRST_PAUSE, MAX_PAUSE, Backoff, Transport, end, next_pause, path_of

ENDED = "the gateway ended the stream"
PING = "ping"  # the comment that keeps an idle stream open; every other one says why the stream ends


class Subscription(AsyncIterator[Event], AsyncResource):
    """The events of *channels* and of those that match *patterns*, on one connection.

    `TrellisClient.subscribe` makes it, and `aclose` or the end of its context ends it. `last` is the sequence after
    which it continues, in all channels: that of the last message that it has returned. If `__anext__` is cancelled, the
    connection is given up, and the next call opens another.
    """

    def __init__(
        self,
        transport: Transport,
        channels: tuple[str, ...],
        patterns: tuple[str, ...],
        after: int | None,
        on_close: Callable[[Subscription], None],
    ) -> None:
        self.channels = channels
        self.patterns = patterns
        self.last = after
        self._present: dict[str, dict[int, Peer]] = {}  # by channel
        self._transport = transport
        self._on_close = on_close
        self._received: deque[tuple[int | None, Event | None]] = deque()  # the sequence to resume after, and the event
        self._connection: _Connection | None = None
        self._closed = False
        self._first_attempts: Backoff | None = None
        self._welcomed = False
        self._delay = 0.0  # seconds until the next attempt
        self._pause = FIRST_PAUSE

    @property
    def peers(self) -> dict[int, Peer]:
        """Who is in the channels now, by their numbers; a pattern does not tell who is in the channels it matches."""
        return {number: peer for peers in self._present.values() for number, peer in peers.items()}

    def peers_in(self, channel: str) -> dict[int, Peer]:
        """Return who is in one of the channels now."""
        return dict(self._present.get(channel, {}))

    async def aclose(self) -> None:
        """Leave the channels; the iteration ends."""
        self._closed = True
        self._on_close(self)
        await self._disconnect()

    async def __anext__(self) -> Event:
        """Return the next event.

        Raises `Refused` if the gateway refuses the subscription for good, and `Unreachable` only if there has been no
        connection yet.
        """
        while (event := self._next()) is None:
            if self._closed:
                raise StopAsyncIteration
            try:
                await self._receive()
            except TrellisError as error:
                if self._closed:
                    raise StopAsyncIteration from None
                if not error.temporary:
                    raise
                self._interrupt(error)
        return event

    def _next(self) -> Event | None:
        """Return the next event that was received; `last` and `peers` are those after it, whatever came with it."""
        while self._received:
            sequence, event = self._received.popleft()
            if sequence is not None:
                self.last = sequence
            if event is not None:
                self._note(event)
                return event
        return None

    async def _receive(self) -> None:
        """Read what comes next; connect if there is no connection."""
        if self._connection is None:
            if self._first_attempts is None:
                self._first_attempts = Backoff(self._transport.retry_seconds)
            await anyio.sleep(self._delay)
            headers = {} if self.last is None else {"Last-Event-ID": str(self.last)}
            self._connection = _Connection(await self._transport.stream(self._path(), headers))
        try:
            with self._transport.errors():
                data = await self._connection.read()
        except BaseException:
            await self._disconnect()
            raise
        if data is None:
            reason = self._connection.reader.comment
            await self._disconnect()
            raise Unreachable(f"{ENDED}: {reason}" if reason not in ("", PING) else ENDED)
        try:
            with self._transport.reading():
                for received in self._connection.reader.receive_data(data):
                    self._received.append((int(received.id) if received.id else None, parse(received)))
        except TrellisError:
            await self._disconnect()
            raise

    def _path(self) -> str:
        if len(self.channels) == 1 and not self.patterns:
            return path_of(self.channels[0], "events")
        asked = [*(("channel", name) for name in self.channels), *(("pattern", name) for name in self.patterns)]
        return "/v1/events?" + urlencode(asked, errors="surrogateescape")

    def _note(self, event: Event) -> None:
        """Keep `peers` and the pauses up to date."""
        match event:
            case Welcome():
                self._welcomed, self._delay, self._pause = True, 0.0, FIRST_PAUSE
                if event.channel is not None:
                    self._present[event.channel] = {peer.number: peer for peer in event.peers}
            case Joined():
                self._present.setdefault(event.channel, {})[event.peer.number] = event.peer
            case Left():
                self._present.get(event.channel, {}).pop(event.peer.number, None)
            case Message() | Gap() | Interrupted():
                pass

    def _interrupt(self, error: TrellisError) -> None:
        """Say that the connection is lost, and when the next one is tried; raise *error* if there was none in time."""
        if self._welcomed or self._first_attempts is None:
            self._delay = next_pause(self._pause, error)
            self._pause = min(self._pause * 2, MAX_PAUSE)
        elif (delay := self._first_attempts.next(error)) is None:
            self._first_attempts = None
            raise error
        else:
            self._delay = delay
        reason = error.detail if isinstance(error, Refused) else str(error)
        self._received.append((None, Interrupted(reason, self._delay)))

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._present = {}
        if connection is not None:
            with anyio.CancelScope(shield=True):
                await connection.aclose()


class _Connection:
    """One response with events, and the reader of its bytes."""

    def __init__(self, response: httpx.Response) -> None:
        self.reader = EventReader()
        self._response = response
        self._data = response.aiter_raw()
        self._ended = False

    async def read(self) -> bytes | None:
        """Return what arrives next; None at the end."""
        ended, self._ended = self._ended, True  # as it is after an error
        if ended or (data := await anext(self._data, None)) is None:
            return None
        self._ended = False
        return data

    async def aclose(self) -> None:
        """Close the connection, and end the generators that read from it.

        They end by themselves if the next read fails; if they were dropped, trio would complain.
        """
        if not self._ended:
            self._ended = True
            await end(self._response, self._data)
        with suppress(Exception):
            await self._response.aclose()
