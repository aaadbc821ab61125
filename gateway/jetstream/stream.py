"""A stream on NATS JetStream, which several gateways share.

It runs in a thread with an asyncio loop of its own, because the client of NATS needs one, whatever loop the gateway
runs on. The gateway submits bytes, and gets what all gateways submitted, in one order.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import structlog
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.errors import NotFoundError
from nats.js.manager import JetStreamManager

from .connecting import JetStreamSettings, UnfitStream, abort, describe, prepare, refusal, server_of
from .reader import EntryReader, StreamEntry, StreamGap
from .shared_value import SharedValue
from .status import JetStreamStatus, StoredStream, has_leader, stored_stream
from .stream_setup import ensure_stream
from .subjects import signal_subject, stream_subject
from .unconfirmed import Unconfirmed

ACK_SECONDS = 2.0  # for the server to answer a batch that is sent again
RETRY_SECONDS = 0.25  # between attempts to send again, or to connect
CHECK_SECONDS = 0.5  # between checks whether a batch has to be sent again
RECONNECT_SECONDS = 1  # between attempts of the client to connect again
WATCH_SECONDS = 2.0  # between requests for the state of the stream
PING_SECONDS = 2  # between pings; a server that does not answer two is left
SILENT_SECONDS = 10.0  # without an answer that names a leader, after which another server is tried; elections take less
LOOK_SECONDS = 1.0  # between checks of the connection; one that is still closing at the next check is aborted
STOP_SECONDS = 10.0
CLOSE_SECONDS = 1.0
CANCEL_SECONDS = 2 * CLOSE_SECONDS  # for the tasks to end, after which each is cancelled once more

logger = structlog.get_logger("trellis")


class JetStream:
    """Sends to a stream, and reads it.

    *receive* gets entries in their order, without a gap, *hear* gets what others `tell` to all or to *address*, and
    *fail* gets the reason if the stream cannot be used. *values* has a function for each shared value, by name, which
    gets its version and its bytes. All are called in the stream's thread.
    """

    def __init__(
        self,
        settings: JetStreamSettings,
        receive: Callable[[list[StreamEntry]], None],
        fail: Callable[[str], None],
        hear: Callable[[bytes], None] = lambda _data: None,
        address: str = "",
        values: Mapping[str, Callable[[int, bytes], None]] = MappingProxyType({}),
    ) -> None:
        self._settings = settings
        self._client = Client()
        self._context = self._client.jetstream()
        self._values = {
            name: SharedValue(self._client, f"{settings.name}+{name}", settings.replicas, receive)
            for name, receive in values.items()
        }
        self._subject = stream_subject(settings.name)
        self._address = address
        self._receive = receive
        self._fail = fail
        self._hear = hear
        self._tasks: asyncio.TaskGroup | None = None
        self._unconfirmed = Unconfirmed()
        self._repeats = True  # whether batches are sent again, or for the first time: new ones wait for that
        self._has_reconnected = asyncio.Event()  # what was sent before may be lost
        self._waiting: asyncio.Timeout | None = None  # for the answer to a batch that was sent again last
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="jetstream", daemon=True)
        self._reader: EntryReader | None = None
        self._main: asyncio.Task[None] | None = None
        self._error = ""
        self._refusals: int | None = 0  # of the first connection; None once there was one
        self._reconnects = 0
        self._stored: StoredStream | None = None
        self._answered = self._led = time.monotonic()  # when an answer named a leader last, or came from one
        self._closed = False  # whether the client has closed the last connection, and has no other yet

    # Called in any thread

    def start(self, after: int, digest: int | None = None) -> None:
        """Connect, and read what follows the position *after*, 0 for all. Data that was submitted before is sent.

        By the *digest* (CRC-32) of the data at that position the stream is recognised as the same one.
        """
        self._after, self._digest = after, digest
        self._thread.start()

    def submit(self, data: bytes) -> None:
        """Send *data* after everything submitted before; retry until it is in the stream."""
        self._call(self._add, data)

    def tell(self, data: bytes, to: str = "") -> None:
        """Send *data* to all that read the stream now, or to the address *to*; it may be lost, and is not kept.

        This program does not hear what it sends to all.
        """
        self._call(self._send_now, signal_subject(self._settings.name, to), data)

    def put_value(self, name: str, data: bytes, version: int) -> None:
        """Replace the shared value *name* of *version* by *data*; the result is received as the present value."""
        self._call(self._values[name].put, data, version)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call *call*, in the stream's thread, after *seconds*."""
        self._call(self._loop.call_later, seconds, call)

    def acknowledge_read(self, position: int) -> None:
        """Note that everything up to *position* was taken, so that more may be read."""
        if (reader := self._reader) is not None and reader.acknowledge_read(position):
            self._call(reader.go_on)

    def stop(self) -> None:
        """End the connection; what is not in the stream yet is left out."""
        for cancel, seconds in ((self._cancel, CANCEL_SECONDS), (self._cancel_all, STOP_SECONDS)):
            self._call(cancel)
            self._thread.join(seconds)

    def status(self) -> JetStreamStatus:
        """Return the state of the connection and of the stream."""
        reader = self._reader
        position = self._after if reader is None else reader.position
        client = self._client
        return JetStreamStatus(
            client.is_connected,
            position,
            self._unconfirmed.size,
            self._error,
            server_of(client),
            self._reconnects,
            self._stored,
            time.monotonic() - self._answered,
        )

    def _call(self, call: Callable[..., object], *args: Any) -> None:
        with suppress(RuntimeError):  # it has stopped
            self._loop.call_soon_threadsafe(call, *args)

    @property
    def end(self) -> int | None:
        """The last position when reading began; None if it has not."""
        return None if self._reader is None else self._reader.end

    # Called in the stream's thread

    def _send_now(self, subject: str, data: bytes) -> None:
        """Send *data* now or, without a connection, not at all."""
        if self._tasks is None or not self._client.is_connected:
            return  # it would arrive late
        sending = self._publish(subject, data)
        try:
            self._tasks.create_task(sending)
        except RuntimeError:  # the stream ends
            sending.close()

    async def _publish(self, subject: str, data: bytes) -> None:
        with suppress(Error, OSError):
            await self._client.publish(subject, data)

    async def _signal_received(self, message: Msg) -> None:
        self._hear(message.data)

    def _add(self, data: bytes) -> None:
        self._unconfirmed.add(data, time.monotonic())
        if not self._repeats:
            self._send_now(self._subject, data)

    def _came(self, entries: list[StreamEntry]) -> None:
        for entry in entries:
            if self._unconfirmed.came(entry.data, entry.position):
                self._error = ""
                self._stop_waiting()
        self._receive(entries)

    def _cancel(self) -> None:
        if self._main is not None:
            self._main.cancel()

    def _cancel_all(self) -> None:
        """Cancel each task: one may have lost its cancellation, as `asyncio.wait_for` does when an answer comes too."""
        for task in asyncio.all_tasks():
            task.cancel()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._live())
            except asyncio.CancelledError:
                pass
            except UnfitStream as refused:
                self._fail(str(refused))
            except Exception as error:
                logger.exception("the stream failed")
                self._fail(repr(error))

    async def _live(self) -> None:
        self._main = asyncio.current_task()
        options = prepare(self._client, self._settings)
        try:
            await self._connect(options)
            create = not self._after  # a new stream would lack what was read of the one before
            await self._retry(lambda: ensure_stream(self._client, self._settings, create=create))
            self._reader = EntryReader(self._client, self._settings.name, self._after, self._came, self._digest)
            for address in dict.fromkeys(("", self._address)):
                await self._client.subscribe(signal_subject(self._settings.name, address), cb=self._signal_received)
            async with asyncio.TaskGroup() as self._tasks:
                tasks = self._tasks
                tasks.create_task(self._repeat())
                tasks.create_task(self._read(self._reader))
                for value in self._values.values():
                    tasks.create_task(value.run())
                tasks.create_task(self._watch())
                tasks.create_task(self._leave())
        finally:
            with suppress(Error, OSError):
                async with asyncio.timeout(CLOSE_SECONDS):  # asyncio waits for a minute after a TLS handshake failed
                    await self._client.close()

    async def _read(self, reader: EntryReader) -> None:
        try:
            await reader.run()
        except StreamGap as gap:
            self._error = str(gap)
            self._fail(str(gap))

    async def _watch(self) -> None:
        """Request the state of the stream every few seconds; while no server answers, keep the last one.

        An answer that names no leader does not count: it is about the copy of one server, which may be cut off.
        """
        manager = JetStreamManager(self._client)
        while True:
            with suppress(Error, OSError):
                await self._look(manager)
            await asyncio.sleep(WATCH_SECONDS)

    async def _look(self, manager: JetStreamManager) -> None:
        try:
            info = await manager.stream_info(self._settings.name)
        except NotFoundError:  # says the leader of all servers, so this one is not cut off; the reader acts on it
            self._led = time.monotonic()
            return
        if has_leader(info):
            self._stored = stored_stream(info)
            self._answered = self._led = time.monotonic()
            if self._reader is not None:
                self._reader.expect(self._stored.last)

    async def _leave(self) -> None:
        """Leave a server that is cut off from the others: it answers pings, and names no leader of the stream.

        Abort a connection that the client cannot close because its last data does not get through: the client would
        wait some minutes for TCP. Fail if the client has given up for good, as it does when a server ends the
        connection with an error.
        """
        left, was_closing = time.monotonic(), False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            client, now = self._client, time.monotonic()
            if client.is_closed:
                error = client.last_error or ConnectionError("no reason was given")
                self._error = refusal(error) or f"a server ended the connection ({error})"
                self._fail(self._error)
                return
            closing = client.is_reconnecting and not self._closed
            if closing and was_closing:
                abort(client)
            elif client.is_connected and len(client.servers) > 1 and now - max(left, self._led) > SILENT_SECONDS:
                left = now
                await self._note(ConnectionError("the server names no leader of the stream"))
                await client.force_reconnect()
            was_closing = closing

    async def _connect(self, options: dict[str, Any]) -> None:
        """Connect; from then on the client itself connects again."""
        await self._retry(
            lambda: self._client.connect(
                name=self._settings.name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=2,
                no_echo=True,
                error_cb=self._refused,
                disconnected_cb=self._disconnected,
                reconnected_cb=self._reconnected,
                **options,
            )
        )
        self._refusals = None
        logger.info("the stream is connected", server=server_of(self._client))

    async def _retry(self, attempt: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await attempt()
            except (Error, OSError) as error:
                await self._note(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._error = ""
                return

    async def _repeat(self) -> None:
        """Send again what does not come back."""
        while True:
            await self._send_again()
            self._repeats = False
            self._has_reconnected.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_reconnected.wait(), CHECK_SECONDS)
            self._repeats = self._has_reconnected.is_set() or self._unconfirmed.is_overdue(time.monotonic())

    async def _send_again(self) -> None:
        """Send all until the server has answered that they are in the stream, one after another."""
        while self._repeats and (data := self._unconfirmed.first()) is not None:
            self._waiting = waiting = asyncio.timeout(None)
            try:
                async with waiting:
                    answer = await self._context.publish(self._subject, data, ACK_SECONDS, self._settings.name)
            except (Error, OSError) as error:
                if not waiting.expired():
                    await self._note(error)
                    await asyncio.sleep(RETRY_SECONDS)
            else:
                self._error = ""
                self._unconfirmed.came(data, answer.seq)

    def _stop_waiting(self) -> None:
        """Wait no longer for an answer: the batch came back, or the answer was lost with the connection."""
        if self._waiting is not None:
            with suppress(RuntimeError):  # it is over
                self._waiting.reschedule(0.0)

    async def _note(self, error: Exception) -> None:
        text = describe(error, self._settings)
        if text != self._error:
            logger.warning("the stream is disturbed", error=text)
        self._error = text

    async def _refused(self, error: Exception) -> None:
        """Note what the client says; raise `UnfitStream` once all servers have refused the first connection."""
        reason = refusal(error)
        await self._note(error if reason is None else ConnectionError(reason))
        if self._refusals is None or reason is None:
            return
        self._refusals += 1
        if self._refusals >= len(self._settings.urls):
            raise UnfitStream(reason)

    async def _disconnected(self) -> None:
        self._closed = True
        await self._note(ConnectionError("there is no connection to a server of the stream"))

    async def _reconnected(self) -> None:
        self._error, self._closed = "", False
        self._reconnects += 1
        self._has_reconnected.set()
        self._stop_waiting()
        logger.info("the stream is connected again")
        if self._reader is not None:
            self._reader.restart()
