"""`trellis healthcheck`: whether the gateway of this configuration is ready, for containers and scripts."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from contextlib import suppress
from typing import Annotated

import typer

from gateway.settings.settings import Settings

from .common import CommandError, ConfigFile, Data, load_settings

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # an address to call for one that means all of them


def healthcheck(
    context: typer.Context,
    alive: Annotated[bool, typer.Option("--alive", help="Only ask whether the process answers.")] = False,
    host: Annotated[str | None, typer.Option(help="The address, as for `serve`.")] = None,
    port: Annotated[int | None, typer.Option(help="The port, as for `serve`.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to wait for the answer.")] = 3.0,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Ask the gateway on this machine whether it is ready; exit with 0 if it is, else with 1 and the reason.

    The address and TLS are those of the configuration. The certificate is not checked, because it is for the name of
    the gateway and not for this machine; nothing secret is sent.

    \b
    Examples:
      trellis healthcheck
      trellis healthcheck --alive --config trellis.toml
    """
    settings = load_settings(context, config, {"host": host, "port": port, "data": data})
    try:
        status, text = _get(settings, "/healthz" if alive else "/readyz", seconds)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        where = f"{settings.host}:{settings.port}"
        advice = "is it running, and with this configuration?"
        raise CommandError(f"no gateway answers at {where}: {reason}; {advice}") from None
    if status != http.client.OK:
        raise CommandError(text)
    typer.echo(text)


def _get(settings: Settings, path: str, seconds: float) -> tuple[int, str]:
    """The status at *path* of the gateway with these *settings*, and what it says of itself."""
    host = EVERYWHERE.get(settings.host, settings.host)
    connection: http.client.HTTPConnection
    if settings.tls_cert is None:
        connection = http.client.HTTPConnection(host, settings.port, timeout=seconds)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, settings.port, timeout=seconds, context=context)
    connection.connect()
    timer = threading.Timer(seconds, _cut, (connection.sock,))  # the timeout of the socket begins anew with each byte
    timer.daemon = True
    timer.start()
    try:
        connection.request("GET", path, headers={"Host": "localhost"})
        response = connection.getresponse()
        body = response.read(1 << 16)
        try:
            return response.status, str(json.loads(body)["status"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return response.status, f"status {response.status}; is this a Trellis gateway?"
    finally:
        timer.cancel()
        connection.close()


def _cut(connected: socket.socket) -> None:
    """End a connection, even if somebody waits for it."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
