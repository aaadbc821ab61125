"""One value that several programs share, in a stream that keeps only the newest one.

Each program asks for it every few seconds, so one that was away gets it too. A program replaces only the version that
it has seen (compare and set).

An older version than was seen before is not believed at once: a server that is cut off from the others, and led them,
goes on answering for some seconds. A stream that was lost, and made anew, says so for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from nats.aio.client import Client
from nats.errors import Error
from nats.js.api import Header, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError
from nats.js.manager import JetStreamManager

ASK_SECONDS = 1.5  # between two questions
ACK_SECONDS = 5.0
OLDER_SECONDS = 30.0  # for which every answer has an older version, after which that counts


class SharedValue:
    """The value in the stream *name* on so many *replicas*; *receive* gets each version (0: none) and its value."""

    def __init__(self, client: Client, name: str, replicas: int, receive: Callable[[int, bytes], None]) -> None:
        self._client = client
        self._name = name
        self._replicas = replicas
        self._receive = receive
        self._version = -1  # that was received
        self._newest = -1  # that was seen
        self._older_since: float | None = None
        self._put: tuple[bytes, int] | None = None  # what is to be put, in place of which version
        self._wake = asyncio.Event()

    def put(self, data: bytes, version: int) -> None:
        """Replace the value by *data* if its version is still *version*; *receive* gets the value in any case."""
        self._put = data, version
        self._wake.set()

    async def run(self) -> None:
        """Poll the value until cancelled."""
        while True:
            with suppress(Error, OSError):
                await self._exchange()
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    await self._wake.wait()

    async def _exchange(self) -> None:
        self._wake.clear()
        put, self._put = self._put, None
        older_since, self._older_since = self._older_since, None  # also if nobody answers
        if put is not None:
            data, version = put
            self._version = -1  # the result is received in any case
            header = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(version)}
            with suppress(BadRequestError):  # another program was faster
                await self._client.jetstream().publish(self._subject, data, ACK_SECONDS, headers=header)
        version, data = await self._last()
        if version < self._newest:
            now = monotonic()
            self._older_since = now if older_since is None else older_since
            if now - self._older_since < OLDER_SECONDS:
                return
        self._newest, self._older_since = version, None
        if version != self._version:
            self._version = version
            self._receive(version, data)

    @property
    def _subject(self) -> str:
        return f"trellis-value.{self._name}"

    async def _last(self) -> tuple[int, bytes]:
        manager = JetStreamManager(self._client)
        try:
            found = await manager.get_last_msg(self._name, self._subject)
        except NotFoundError:
            config = StreamConfig(
                name=self._name, subjects=[self._subject], max_msgs_per_subject=1, num_replicas=self._replicas
            )
            with suppress(BadRequestError):  # it exists, and is empty, or another gateway was faster
                await manager.add_stream(config)
            return 0, b""
        return found.seq or 0, found.data or b""
