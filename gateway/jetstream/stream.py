"""A stream on NATS JetStream, which several gateways share.

It runs in a thread with an asyncio loop of its own, because the client of NATS needs one, whatever loop the gateway
runs on. The gateway submits bytes, and gets what all gateways submitted, in one order.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError
from nats.js.manager import JetStreamManager

from .reader import EntryReader, StreamEntry, StreamGap
from .window import SendWindow, SentBatch

ACK_SECONDS = 5.0  # after which a batch that the server has not acknowledged is sent again; an election takes as long
RETRY_SECONDS = 0.25  # before sending again, and between attempts to connect
RECONNECT_SECONDS = 1  # between attempts of the client to connect again
PING_SECONDS = 2  # between pings; a server that does not answer two is left
MAX_AGE_SECONDS = 7 * 86_400.0  # of what the stream keeps: a gateway that was away for longer needs a peer's log
STOP_SECONDS = 10.0
MIN_PAYLOAD = 8 << 20  # bytes that the server has to take

logger = structlog.get_logger("trellis")


class UnfitStream(Exception):
    """The stream, or the server, is not what a member needs; the text says why."""


class JetStreamSettings(NamedTuple):
    """Which stream: the *name* of the cluster, the *urls* of servers, how many *replicas*, TLS and credentials.

    *about* is what all members have in common; the stream has it as its description.
    """

    name: str
    urls: tuple[str, ...]
    replicas: int = 1
    authorities: Path | None = None
    credentials: Path | None = None
    about: str = ""


class JetStreamStatus(NamedTuple):
    """Whether there is a connection, the last position that was read, the bytes that are to be sent, and an error."""

    connected: bool
    position: int
    unsent: int
    error: str


class JetStream:
    """Sends to a stream, and reads it.

    *receive* gets entries in their order, without a gap, *hear* what others `tell`, and *fail* the reason if the stream
    cannot be used; they are called in the stream's thread.
    """

    def __init__(
        self,
        settings: JetStreamSettings,
        receive: Callable[[list[StreamEntry]], None],
        fail: Callable[[str], None],
        hear: Callable[[bytes], None] = lambda _data: None,
    ) -> None:
        self._settings = settings
        self._receive = receive
        self._fail = fail
        self._hear = hear
        self._tasks: asyncio.TaskGroup | None = None
        self._client = Client()
        self._window = SendWindow()
        self._wake = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="jetstream", daemon=True)
        self._reader: EntryReader | None = None
        self._main: asyncio.Task[None] | None = None
        self._error = ""

    # Called in any thread

    def start(self, after: int) -> None:
        """Connect, and read from behind the position *after*, 0 for all. What is submitted before is sent, too."""
        self._after = after
        self._thread.start()

    def submit(self, data: bytes) -> None:
        """Send *data*, behind what was submitted before, as often as it takes."""
        self._call(self._add, data)

    def tell(self, data: bytes) -> None:
        """Tell *data* to everybody who reads the stream now; perhaps it is lost, and it is not in the stream."""
        self._call(self._begin, data)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call *call*, in the stream's thread, after *seconds*."""
        self._call(self._loop.call_later, seconds, call)

    def took(self, position: int) -> None:
        """Everything up to *position* was taken: more may be read."""
        self._call(self._took, position)

    def stop(self) -> None:
        """End the connection; what is not in the stream yet is left out."""
        self._call(self._cancel)
        self._thread.join(STOP_SECONDS)

    def status(self) -> JetStreamStatus:
        """How it is doing."""
        reader = self._reader
        position = self._after if reader is None else reader.position
        return JetStreamStatus(self._client.is_connected, position, self._window.size, self._error)

    def _call(self, call: Callable[..., object], *args: Any) -> None:
        with suppress(RuntimeError):  # it has stopped
            self._loop.call_soon_threadsafe(call, *args)

    @property
    def end(self) -> int | None:
        """The last position when reading began; None if it has not."""
        return None if self._reader is None else self._reader.end

    # Called in the stream's thread

    def _begin(self, data: bytes) -> None:
        if self._tasks is not None:
            self._tasks.create_task(self._tell(data))

    async def _tell(self, data: bytes) -> None:
        with suppress(Error, OSError, TimeoutError):
            await self._client.publish(_aside(self._settings.name), data)

    async def _heard(self, message: Msg) -> None:
        self._hear(message.data)

    def _add(self, data: bytes) -> None:
        self._window.add(data)
        self._wake.set()

    def _took(self, position: int) -> None:
        if self._reader is not None:
            self._reader.took(position)

    def _cancel(self) -> None:
        if self._main is not None:
            self._main.cancel()

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
        try:
            await self._connect()
            await self._ensure()
            self._reader = EntryReader(self._client, self._settings.name, self._after, self._receive)
            await self._client.subscribe(_aside(self._settings.name), cb=self._heard)
            async with asyncio.TaskGroup() as self._tasks:
                tasks = self._tasks
                tasks.create_task(self._send(tasks))
                tasks.create_task(self._read(self._reader))
        finally:
            with suppress(Error, OSError):
                await self._client.close()

    async def _read(self, reader: EntryReader) -> None:
        try:
            await reader.run()
        except StreamGap as gap:
            self._error = str(gap)
            self._fail(str(gap))

    async def _connect(self) -> None:
        """Connect; from then on the client itself connects again."""
        settings = self._settings
        secure = settings.authorities is not None or any(url.startswith("tls:") for url in settings.urls)
        tls = ssl.create_default_context(cafile=settings.authorities) if secure else None
        options: dict[str, Any] = {} if tls is None else {"tls": tls}
        if settings.credentials is not None:
            options["user_credentials"] = str(settings.credentials)
        await self._retry(
            lambda: self._client.connect(
                list(settings.urls),
                name=settings.name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=2,
                error_cb=self._note,
                disconnected_cb=self._disconnected,
                reconnected_cb=self._reconnected,
                **options,
            )
        )
        logger.info("the stream is connected", server=self._client.connected_url and self._client.connected_url.netloc)

    async def _ensure(self) -> None:
        """Create the stream, if there is none."""
        name = self._settings.name
        manager = JetStreamManager(self._client)
        config = StreamConfig(
            name=name,
            subjects=[subject(name)],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=self._settings.replicas,
            max_age=MAX_AGE_SECONDS,
            deny_delete=True,
            deny_purge=True,
            description=self._settings.about or None,
        )

        async def ensure() -> None:
            try:
                await manager.stream_info(name)
            except NotFoundError:
                with suppress(BadRequestError):  # another gateway was faster
                    await manager.add_stream(config)
                await manager.stream_info(name)

        await self._retry(ensure)
        self._check((await manager.stream_info(name)).config.description or "")

    def _check(self, about: str) -> None:
        """Raise `UnfitStream` if the members have something else in common, or the server takes too little."""
        if about != self._settings.about:
            raise UnfitStream(
                f"the members of this cluster have {about!r} in common, and this gateway has {self._settings.about!r}: "
                "copy the folder `keys` of a member, and enable the same protocols"
            )
        if self._client.max_payload < MIN_PAYLOAD:
            raise UnfitStream(
                f"max_payload of the server is {self._client.max_payload:,}; it has to be {MIN_PAYLOAD:,}"
            )

    async def _retry(self, attempt: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await attempt()
            except (Error, OSError, TimeoutError) as error:
                await self._note(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._error = ""
                return

    async def _send(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            while (item := self._window.next()) is not None:
                tasks.create_task(self._publish(item))
            if self._window.is_stalled:
                await asyncio.sleep(RETRY_SECONDS)
                self._window.resume()
                continue
            self._wake.clear()
            await self._wake.wait()

    async def _publish(self, item: SentBatch) -> None:
        name = self._settings.name
        try:
            acknowledged = await self._client.jetstream().publish(subject(name), item.data, ACK_SECONDS, name)
        except (Error, OSError, TimeoutError) as error:
            await self._note(error)
            self._window.failed()
        else:
            self._error = ""
            self._window.acknowledged(item, acknowledged.seq)
        self._wake.set()

    async def _note(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if text != self._error:
            logger.warning("the stream is disturbed", error=text)
        self._error = text

    async def _disconnected(self) -> None:
        await self._note(ConnectionError("there is no connection to a server of the stream"))

    async def _reconnected(self) -> None:
        self._error = ""
        logger.info("the stream is connected again")
        if self._reader is not None:
            self._reader.restart()


def _aside(name: str) -> str:
    return f"trellis-aside.{name}"


def subject(name: str) -> str:
    """The subject to which the batches of the stream *name* are published."""
    return f"trellis.{name}"
