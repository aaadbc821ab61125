"""Runs the process: an ASGI server on asyncio or trio, signals, the ready line, and a clean stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn

from gateway.access.origins import is_local
from gateway.core.errors import OperatorError
from gateway.core.networks import network
from gateway.http.fast_publish import DirectPublisher
from gateway.listeners.proxies import TrustedProxies
from gateway.monitoring import logs
from gateway.settings.settings import Settings
from gateway.shells.tcp_server import Handshakes
from gateway.shells.tls import TlsServer
from gateway.shells.uvicorn_http import FastHttp
from gateway.shells.uvicorn_websocket import FastWebSocket
from gateway.shells.websocket_parser import MAX_MESSAGE
from gateway.system import machine, systemd
from gateway.system.stop_signal import StopSignal

from . import identity
from .app import create_app, unusable
from .reload import on_hangup
from .runtime import Gateway
from .welcome import welcome

if TYPE_CHECKING:
    import hypercorn.config
    from fastapi import FastAPI

BACKLOG = 4096
OF_PORT = (errno.EADDRINUSE, errno.EACCES)  # why the port cannot be used; anything else is about the address
SERVERS = ("uvicorn.error", "hypercorn.error")  # the servers' loggers, which report a failed start with a traceback
STOP_SECONDS = 5  # for connections to end after `goodbye`
# Seconds after which a thread that waits for the interpreter gets it. A busy event loop releases the interpreter in
# each turn and takes it back before a waiting thread is awake; only a thread that has waited for this long without
# interruption certainly gets it. With the default of 5 ms, longer than a turn, the log's thread waited up to two
# seconds.
SWITCH_SECONDS = 0.00025
# New objects, and collections of the generation before, until a generation is collected: seldom, because reference
# counts free nearly everything. With Python's own values a fifth of the time of building an index was collections.
COLLECT_AFTER = (50_000, 20, 50)


class CannotStart(OperatorError):
    """The service cannot start; the text says why, and what to do about it."""


def run(settings: Settings, again: Callable[[], Settings] | None = None, *, adopt: bool = False) -> None:
    """Serve until SIGTERM or SIGINT; raise an `OperatorError` if that is impossible.

    *again* reads the configuration at each SIGHUP; without it, only keys and certificates are read again. With *adopt*
    a log that another gateway began is served as this gateway's own, from now on.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until `on_hangup` handles it
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `StopSignal` handles it; Python's own prints a traceback
    logs.configure(settings.log_format, settings.log_level)
    machine.raise_descriptors()
    machine.limit_arenas()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*COLLECT_AFTER)
    with _bind(settings.host, settings.port, "--port") as listener:
        try:
            _check_origin(settings, adopt=adopt)
            app = create_app(settings)
        except OperatorError:
            raise
        except (OSError, ValueError) as error:
            raise CannotStart(unusable(settings.data, error)) from None
        _check_reach(app, settings)
        _check_ports(app, settings)
        serve = _serve_trio if settings.loop == "trio" else _serve_asyncio
        options = {"use_uvloop": True} if settings.loop == "asyncio" else {}
        for name in SERVERS:
            logging.getLogger(name).addFilter(lambda _: app.state.failure is None)  # `CannotStart` has the reason
        try:
            about = app, settings, again or (lambda: settings), listener
            anyio.run(serve, *about, backend=settings.loop, backend_options=options)
            _check_membership(app.state.gateway)
        except BaseException:  # its type depends on the server, and it may be in an exception group
            if app.state.failure is None:
                raise
            raise CannotStart(app.state.failure) from None


def _check_origin(settings: Settings, *, adopt: bool) -> None:
    """Raise `CannotStart` if another gateway began the log in the data directory, unless it is to *adopt* it."""
    if (origin := identity.foreign_origin(settings.data)) is None:
        return
    if not adopt:
        raise CannotStart(
            f"another gateway ({origin}) began the log in {settings.data}, and its keys are not there: it would get "
            "another Arbor identity and no API keys. Restore a backup of that gateway (`trellis restore`), or serve "
            "the log as a new gateway's own from now on with --adopt"
        )
    identity.adopt(settings.data, origin, version("trellis-gateway"))


def _check_membership(gateway: Gateway) -> None:
    """Raise `CannotStart` if *gateway*, which has stopped, did so because it could not be in its cluster any more."""
    if gateway.membership is not None and gateway.membership.failure is not None:
        raise CannotStart(gateway.membership.failure)


def _bind(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno not in OF_PORT:
            setting = setting.replace("port", "host") if "." in setting else "--host"
        reason = str(error.strerror).partition(" (while")[0]  # Python adds the address
        raise CannotStart(f"cannot listen on {host}:{port} ({reason}); choose another with {setting}") from None


def _check_reach(app: FastAPI, settings: Settings) -> None:
    """Raise `CannotStart` if other machines can reach a gateway without a key, unless that is what is wanted."""
    if not is_local(settings.host) and not app.state.gateway.access.enabled and not settings.open_to_all:
        raise CannotStart(
            f"{settings.host} can be reached from other machines and there is no key yet: make one with "
            "`trellis key add NAME`, or serve everybody with --open-to-all"
        )


def _check_ports(app: FastAPI, settings: Settings) -> None:
    """Raise `CannotStart` if an adapter's port is in use; a server that finds out later prints a traceback."""
    for adapter in app.state.gateway.adapters:
        for listener in adapter.listeners():
            if not listener.tls or settings.tls_cert is not None:
                _bind(settings.host, listener.port, f"--{listener.name.replace('_', '-')}-port").close()
    if settings.metrics.port is not None:
        _bind(settings.metrics.host, settings.metrics.port, "metrics.port").close()


def _freeze_garbage_collector() -> None:
    """Exempt what exists now from garbage collection."""
    gc.collect()
    gc.freeze()


def _announce(app: FastAPI, listener: socket.socket) -> None:
    """Write the ready line for programs and the welcome for people, once every listener is open."""
    _freeze_garbage_collector()
    host, port = listener.getsockname()[:2]
    http = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    gateway = app.state.gateway
    if gateway.settings.log_format == "console":
        tls = gateway.settings.tls_cert is not None
        sys.stderr.write(welcome(gateway.adapters, http, app.state.listening, tls=tls) + "\n")
        sys.stderr.flush()
    ready = {"event": "ready", "http": http, **app.state.listening, "pid": os.getpid()}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    systemd.notify(systemd.READY, f"STATUS=serves {http}")


class _Server(uvicorn.Server):
    """uvicorn with Trellis's signal handling, ready line and goodbye."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, listener: socket.socket) -> None:
        super().__init__(config)
        self._app = app
        self._listener = listener
        self._tls: TlsServer | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start and announce it; with a certificate, `gateway.shells.tls` accepts the connections."""
        gateway: Gateway = self._app.state.gateway
        context = gateway.certificate.context(gateway.settings)
        await super().startup(sockets if context is None else [])
        if context is not None:
            seconds, pacer = gateway.settings.limits.handshake_seconds, gateway.bus.read_pacer
            handshakes = Handshakes(context, gateway.admission, seconds, pacer, _network_behind(gateway.proxies))
            self._tls = TlsServer(self._listener, handshakes, self._protocol)
        _announce(self._app, self._listener)

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        made: asyncio.Protocol = make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say goodbye to every peer in its protocol before the server closes the remaining connections."""
        for server in self.servers:
            server.close()
        if self._tls is not None:
            await self._tls.close()
        self._app.state.gateway.goodbye()
        await anyio.sleep(0)
        await super().shutdown(sockets)


def _network_behind(proxies: TrustedProxies) -> Callable[[str, int], str]:
    """Return the network that a connection counts for, by its address and number: of its own if a proxy made it."""
    return lambda address, number: network(proxies.connection(address, number))


async def _serve_asyncio(
    app: FastAPI, settings: Settings, again: Callable[[], Settings], listener: socket.socket
) -> None:
    gateway: Gateway = app.state.gateway
    of_gateway = {"gateway": gateway, "publisher": DirectPublisher(gateway)}
    config = uvicorn.Config(
        app,
        lifespan="on",
        http=type("Http", (FastHttp,), {"head_seconds": settings.limits.handshake_seconds} | of_gateway),
        ws=FastWebSocket,
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        ws_ping_interval=60,
        ws_ping_timeout=60,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # `gateway.listeners.proxies` takes them, from trusted ones only
        server_header=False,
        timeout_keep_alive=settings.limits.keep_alive_seconds,  # type: ignore[arg-type]  # a float works
        backlog=BACKLOG,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server, stop_signal = _Server(config, app, listener), StopSignal(lambda: gateway.ready)

    async def stop() -> None:
        await stop_signal.wait()
        server.should_exit = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        tasks.start_soon(on_hangup, gateway, again)
        await server._serve([listener])
        tasks.cancel_scope.cancel()


def _hypercorn_config(gateway: Gateway, settings: Settings, listener: socket.socket) -> hypercorn.config.Config:
    """Configure hypercorn to accept on *listener*, with the gateway's certificate as it is at each handshake."""
    import hypercorn.config

    class Config(hypercorn.config.Config):
        def create_sockets(self) -> hypercorn.config.Sockets:
            secure = [listener] if self.ssl_enabled else []
            return hypercorn.config.Sockets(secure, [] if secure else [listener], [])

        def create_ssl_context(self) -> ssl.SSLContext | None:
            context = super().create_ssl_context()
            return None if context is None else gateway.certificate.follow(context)

    config = Config()
    config.backlog = BACKLOG
    config.graceful_timeout = STOP_SECONDS
    config.websocket_max_message_size = MAX_MESSAGE
    config.include_server_header = False
    config.ssl_handshake_timeout = settings.limits.handshake_seconds
    config.loglevel = "WARNING"
    if settings.tls_cert is not None and settings.tls_key is not None:
        config.certfile, config.keyfile = str(settings.tls_cert), str(settings.tls_key)
    return config


async def _insist(gateway: Gateway) -> None:
    """Close the log and exit: hypercorn shields its writes, so it cannot drop a peer that does not read.

    Its last line and its exit code are what they would have been without that peer.
    """
    await anyio.sleep(2 * STOP_SECONDS)
    gateway.stop()
    try:
        _check_membership(gateway)
    except CannotStart as failed:
        sys.stderr.write(f"trellis: {failed}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


async def _serve_trio(app: FastAPI, settings: Settings, again: Callable[[], Settings], listener: socket.socket) -> None:
    import hypercorn.trio
    import trio

    from gateway.shells.hypercorn_http import patch_connections
    from gateway.shells.hypercorn_websocket import disable_compression

    gateway: Gateway = app.state.gateway
    disable_compression()
    patch_connections(gateway)
    config, stop_signal = _hypercorn_config(gateway, settings, listener), StopSignal(lambda: gateway.ready)

    async def until_stopped() -> None:
        await stop_signal.wait()
        gateway.goodbye()
        nursery.start_soon(_insist, gateway)

    async def serve(task_status: Any) -> None:
        run: Any = hypercorn.trio.serve
        await run(app, config, shutdown_trigger=until_stopped, task_status=task_status)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(on_hangup, gateway, again)
        await nursery.start(serve)
        if app.state.listening is not None:  # hypercorn continues for a moment if the application did not start
            _announce(app, listener)
