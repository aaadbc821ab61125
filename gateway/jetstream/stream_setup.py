"""The stream of a cluster on NATS servers: it is created by the first member, and checked by each."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from nats.aio.client import Client
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError
from nats.js.manager import JetStreamManager

from .connecting import JetStreamSettings, UnfitStream
from .subjects import stream_subject

MAX_AGE_SECONDS: Final = 7 * 86_400.0  # of what the stream keeps: a gateway that was away for longer needs a peer's log
MIN_PAYLOAD: Final = 8 << 20  # bytes that the server has to take


async def ensure_stream(client: Client, settings: JetStreamSettings, *, create: bool) -> None:
    """Check the stream, and with *create* make it if there is none; raises `UnfitStream`, or an error of nats-py."""
    manager = JetStreamManager(client)
    try:
        info = await manager.stream_info(settings.name)
    except NotFoundError:
        if not create:
            return  # the reader looks for some time whether it is lost, and says so
        with suppress(BadRequestError):  # another gateway was faster
            await manager.add_stream(_configuration(settings))
        info = await manager.stream_info(settings.name)
    _check(info.config.description or "", client.max_payload, settings)


def _configuration(settings: JetStreamSettings) -> StreamConfig:
    return StreamConfig(
        name=settings.name,
        subjects=[stream_subject(settings.name)],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        num_replicas=settings.replicas,
        max_age=MAX_AGE_SECONDS,
        deny_delete=True,
        deny_purge=True,
        description=settings.about or None,
    )


def _check(about: str, max_payload: int, settings: JetStreamSettings) -> None:
    """Raise `UnfitStream` if the members have something else in common, or the server takes too little."""
    if about != settings.about:
        raise UnfitStream(
            f"the members of this cluster have {about!r} in common, and this gateway has {settings.about!r}: "
            "copy the folder `keys` of a member, and enable the same protocols"
        )
    if max_payload < MIN_PAYLOAD:
        raise UnfitStream(f"max_payload of the server is {max_payload:,}; it has to be {MIN_PAYLOAD:,}")
