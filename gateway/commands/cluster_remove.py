"""`trellis cluster remove`: end the membership of a gateway that will not come back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cluster.batch import NAME, name_of
from gateway.cluster.removal import encode_removal
from gateway.cluster.signals import BadSignal, Heartbeat, decode_signal
from gateway.settings.settings import ClusterSettings

from .common import AsJson, CommandError, ConfigFile, load_settings, show

if TYPE_CHECKING:
    from gateway.jetstream.connecting import JetStreamSettings  # nats-py is an extra

LISTEN_SECONDS = 3.0  # for heartbeats, of which there is one each second


def remove(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in the cluster (cluster.gateway).")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Remove a gateway that will not come back from its cluster.

    If it had the turn to accept, the others do not wait for it any longer. Should it come back, it does not take part
    and says why. A gateway that sends heartbeats is not removed: stop it first. The configuration names the NATS
    servers, as that of any member does; the command needs nothing else.

    \b
    Example:
      trellis cluster remove berlin --config /etc/trellis/trellis.toml
    """
    cluster = load_settings(context, config, {}).cluster
    if not cluster.url:
        raise CommandError("no cluster is configured (cluster.url); name a member's configuration with --config")
    if NAME.fullmatch(name) is None:
        raise CommandError(f"{name!r} is not a name of a gateway")
    position = asyncio.run(remove_from(cluster, name))
    show({"removed": name, "position": position}, as_json, f"{name} is removed from the cluster {cluster.name}")


async def remove_from(cluster: ClusterSettings, name: str) -> int:
    """Append the removal of the gateway *name* to the stream, and return its position there."""
    from gateway.jetstream.connecting import UnfitStream  # nats-py is an extra
    from gateway.jetstream.short_connection import append, collect_signals, short_connection

    try:
        async with short_connection(_settings(cluster)) as client:
            if name in alive(await collect_signals(client, cluster.name, LISTEN_SECONDS)):
                raise CommandError(f"{name} is alive: stop it first")
            return await append(client, cluster.name, encode_removal(name))
    except UnfitStream as error:
        raise CommandError(f"nothing was removed: the NATS servers do not answer ({error})") from None


def _settings(cluster: ClusterSettings) -> JetStreamSettings:
    from gateway.jetstream.connecting import JetStreamSettings

    return JetStreamSettings(cluster.name, cluster.url, cluster.replicas, cluster.authorities, cluster.credentials)


def alive(heard: list[bytes]) -> set[str]:
    """The names of the gateways whose heartbeats are in what was *heard*."""
    found: set[str] = set()
    for data in heard:
        with suppress(BadSignal):
            signal = decode_signal(data)
            if isinstance(signal, Heartbeat):
                found.add(name_of(signal.member))
    return found
