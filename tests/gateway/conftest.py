"""Gateways to test the REST face on: one without a loop, one on a thread of this process, one in its own process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import Request

from gateway.adapter import Adapter
from gateway.app import create_app
from gateway.core.message import Message
from gateway.http.callers import Caller
from gateway.http.events import EventSession
from gateway.http.fast_publish import DirectPublisher
from gateway.http.selection import Selection
from gateway.runtime import Gateway
from gateway.settings.settings import settings_model
from gateway.shells.uvicorn_http import FastHttp
from tests.gateway.commands.program import Run, trellis
from tests.gateway.operated import Operated
from tests.server import Server
from tests.still import PATIENCE, Posted


class Still:
    """A gateway on a real disk without an event loop: what its threads post waits for `drain` or `sync`."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.posted = Posted()
        self.gateway = Gateway(settings_model(())(data=data, **settings), ())
        self.gateway.start(self.posted.put)

    def drain(self) -> None:
        """Run what has been posted so far."""
        self.posted.drain()

    def sync(self) -> None:
        """Run what is posted until everything appended is on disk."""
        log = self.gateway.log
        self.posted.until_called(lambda done: log.when_synced(log.next_seq - 1, done))

    def caller(self) -> Caller:
        """Somebody without a key."""
        return Caller(self.gateway, Request({"type": "http", "headers": [], "client": ("127.0.0.1", 1)}))

    def listen(self, after: int | None = None, channel: str = "lobby") -> EventSession:
        """A stream of events that nobody carries anywhere."""
        return EventSession(self.gateway, self.caller(), Selection((channel,)), after)

    def say(self, content: bytes = b'"hi"', channel: str = "lobby") -> Message:
        """Publish something without a session."""
        return self.gateway.bus.publish(Message(channel, self.caller().who, "rest", content))

    def stop(self) -> None:
        """Stop cleanly."""
        self.gateway.stop()
        self.drain()


class Local:
    """A gateway behind uvicorn on a thread of this process; `url` is where."""

    def __init__(self, data: Path, adapters: tuple[type[Adapter], ...] = (), **settings: Any) -> None:
        app = create_app(settings_model(adapters)(data=data, **{"limits": {"rates": "off"}} | settings), adapters)
        self.gateway: Gateway = app.state.gateway
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                port=0,
                lifespan="on",
                http=type("Http", (FastHttp,), {"gateway": self.gateway, "publisher": DirectPublisher(self.gateway)}),
                ws="none",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=5,
            )
        )
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            self._thread.join(0.01)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def call(self, call: Callable[[], object]) -> None:
        """Run *call* on the gateway's loop, soon."""
        self._server.servers[0].get_loop().call_soon_threadsafe(call)

    def settle(self) -> None:
        """Wait until everything appended is on disk, and whoever waited for it was told."""
        log, settled = self.gateway.log, threading.Event()
        self.call(lambda: log.when_synced(log.next_seq - 1, lambda: self.call(settled.set)))
        assert settled.wait(PATIENCE)

    def stop(self) -> None:
        """Stop cleanly."""
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class Process(Server):
    """The service in a process of its own, to be stopped or killed; `url` is where, *settings* are by their keys."""

    def __init__(self, data: Path, **settings: Any) -> None:
        given = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
        super().__init__(data, env={f"TRELLIS_{key.upper().replace('.', '__')}": given[key] for key in given})
        self.url = f"http://{self.http}"

    def stop(self, seconds: float = PATIENCE) -> int:
        """As an operator would."""
        if self.process.poll() is None:
            assert super().stop(seconds) == 0
        return 0


def _maker(kind: Callable[..., Any], data: Path) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(**options: Any) -> Any:
        while made:
            made.pop().stop()
        made.append(kind(data, **options))
        return made[-1]

    yield make
    while made:
        made.pop().stop()


@pytest.fixture
def make_still(tmp_path: Path) -> Iterator[Callable[..., Still]]:
    """Makes a `Still`; a second one stops the first and begins where that ended."""
    yield from _maker(Still, tmp_path / "data")


@pytest.fixture
def make_local(tmp_path: Path) -> Iterator[Callable[..., Local]]:
    """Makes a `Local`; a second one stops the first and begins where that ended."""
    yield from _maker(Local, tmp_path / "data")


@pytest.fixture
def make_process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Makes a `Process`; a second one stops the first and begins where that ended."""
    yield from _maker(Process, tmp_path / "data")


@pytest.fixture
def still(make_still: Callable[..., Still]) -> Still:
    return make_still()


@pytest.fixture
def local(make_local: Callable[..., Local]) -> Local:
    return make_local()


@pytest.fixture
def still_class() -> type[Still]:
    return Still


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", params=["asyncio", "trio"])
def operated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """A gateway with everything that operators can ask for, on either loop."""
    made = Operated(tmp_path_factory.mktemp("operated"), request.param)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway in a process of its own, for the tests of a file."""
    with Server(tmp_path_factory.mktemp("gateway") / "data") as server:
        yield server


@pytest.fixture
def run(server: Server) -> Run:
    """`trellis` that talks to the server."""
    return lambda *arguments, **more: trellis(*arguments, TRELLIS_URL=f"http://{server.http}", **more)
