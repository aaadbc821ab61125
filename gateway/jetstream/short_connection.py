"""A short connection to a stream, for commands: it receives the signals of members, and can append to the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error

from .connecting import JetStreamSettings, UnfitStream, prepare, refusal
from .stream import CLOSE_SECONDS
from .subjects import signal_subject, stream_subject

CONNECT_SECONDS = 5
APPEND_SECONDS = 15.0  # an election of a leader takes as long


@asynccontextmanager
async def short_connection(settings: JetStreamSettings) -> AsyncIterator[Client]:
    """A connection for a moment; raises `UnfitStream` if no server answers, or one refuses."""
    client = Client()
    options = prepare(client, settings)
    try:
        await client.connect(allow_reconnect=False, connect_timeout=CONNECT_SECONDS, error_cb=_raised, **options)
        yield client
    except (Error, OSError) as error:
        raise UnfitStream(refusal(error) or str(error) or type(error).__name__) from None
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.close()


async def _raised(_error: Exception) -> None:
    """Log nothing: errors are raised as well."""


async def collect_signals(client: Client, name: str, seconds: float) -> list[bytes]:
    """The signals that the members of the cluster *name* send within so many *seconds*."""
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    await client.subscribe(signal_subject(name), cb=hear)
    await asyncio.sleep(seconds)
    return heard


async def append(client: Client, name: str, data: bytes) -> int:
    """Append *data* to the stream *name*; return its position there."""
    return (await client.jetstream().publish(stream_subject(name), data, APPEND_SECONDS, name)).seq
