"""Links are dialled, verified, dialled again and stopped, on both loops."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.tls import TLSListener
from typer.testing import CliRunner

from gateway.adapter import OutboundLink
from gateway.cli import app
from gateway.core.session import Session
from gateway.shells import links, portable_shell
from gateway.shells.input_turns import PORTION
from gateway.shells.links import Dialler
from gateway.shells.portable_shell import DISCONNECTED, StreamWire
from tests.ports import reserved_port

SECONDS = 20.0
BACKENDS = ("asyncio", "trio")

Scenario = Callable[[], Awaitable[None]]


@pytest.fixture(params=BACKENDS)
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Plays a scenario on a loop, for a while."""

    async def limited(scenario: Scenario) -> None:
        with anyio.fail_after(SECONDS):
            await scenario()

    return lambda scenario: anyio.run(limited, scenario, backend=request.param)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    result = CliRunner().invoke(app, ["dev-cert", "--folder", str(tmp_path / "certs")])
    assert result.exit_code == 0
    return tmp_path / "certs"


@pytest.fixture(autouse=True)
def _short_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of connections, for which neither side hurries here, wait less."""
    monkeypatch.setattr(portable_shell, "LINGER_SECONDS", 0.1)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between two tries."""
    monkeypatch.setattr(links, "MAX_RETRY_SECONDS", 0.01)


class Other:
    """What is dialled: it says hello to each connection and, unless it *stays*, hangs up."""

    def __init__(self, stays: bool, says: bytes = b"hello") -> None:
        self.stays = stays
        self.says = says
        self.connections = 0
        self.port = 0

    async def serve(self, stream: Any) -> None:
        self.connections += 1
        async with stream:
            await stream.send(self.says)
            if self.stays:
                await anyio.sleep(SECONDS)


@asynccontextmanager
async def other(*, stays: bool, certificates: Path | None = None, says: bytes = b"hello") -> AsyncIterator[Other]:
    listener: Any = await anyio.create_tcp_listener(local_host="127.0.0.1")
    place = Other(stays, says)
    place.port = listener.extra(SocketAttribute.local_port)
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
        listener = TLSListener(listener, context, standard_compatible=False)
        listener.handle_handshake_error = _nothing
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, place.serve)
        yield place
        tasks.cancel_scope.cancel()


async def _nothing(_error: BaseException, stream: SocketStream) -> None:
    await anyio.aclose_forcefully(stream)


@asynccontextmanager
async def dialled(dialler: Dialler) -> AsyncIterator[Dialler]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dialler.run)
        yield dialler
        tasks.cancel_scope.cancel()


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await anyio.sleep(0.01)


@pytest.fixture
def make(core: Any, toy_session: Any) -> Callable[..., Dialler]:
    """Makes a dialler of a port, whose sessions are toys."""

    class Ear(toy_session):  # type: ignore[misc]  # a fixture
        def handle(self, data: bytes) -> None:
            self.heard.append(data)

    def make(port: int, **options: Any) -> Dialler:
        def report(ear: Any) -> dict[str, Any]:
            return {"heard": ear.heard}

        link = OutboundLink("the other", "127.0.0.1", port, lambda: Ear(core.bus), report, **options)
        return Dialler("toy", link, core.clock)

    return make


def test_a_connected_link_reports_its_state(play: Any, make: Any) -> None:
    async def scenario() -> None:
        async with other(stays=True) as place, dialled(make(place.port, tls=False)) as link:
            await until(lambda: link.report().get("heard") == [b"hello"])
            report = link.report()
            assert (report["protocol"], report["address"], report["state"]) == ("toy", "the other", "connected")
            assert (report["connects"], report["failures"], report["error"]) == (1, 0, None)

    play(scenario)


def test_a_link_is_released_and_resumed_with_its_permission(play: Any, make: Any) -> None:
    async def scenario() -> None:
        async with other(stays=True) as place:
            link = make(place.port, tls=False)
            link.permit(False)
            async with dialled(link):
                await anyio.sleep(0)
                assert (link.report()["state"], link.report()["connects"]) == ("elsewhere", 0)
                for connects in (1, 2):
                    link.permit(True)
                    await until(lambda connects=connects: link.report()["connects"] == connects)  # type: ignore[misc]
                    await until(lambda: link.is_up)
                    link.permit(False)
                    await until(lambda: not link.is_up)
                    assert link.report()["state"] == "elsewhere"
                assert link.report()["failures"] == 0

    play(scenario)


def test_input_that_arrives_together_is_handled_in_portions(play: Any, core: Any, toy_session: Any) -> None:
    """A hostile peer sends 6,000 lines at once, which took a Sprout session 50 ms; an honest one loses nothing."""
    sent, heard = bytes(range(256)) * 100, []

    class Ear(toy_session):  # type: ignore[misc]
        def handle(self, data: bytes) -> None:
            heard.append((data, self.more_follows))

    async def scenario() -> None:
        async with other(stays=True, says=sent) as place:
            link = Dialler(
                "toy", OutboundLink("x", "127.0.0.1", place.port, lambda: Ear(core.bus), tls=False), core.clock
            )
            async with dialled(link):
                await until(lambda: sum(len(data) for data, _ in heard) == len(sent))

    play(scenario)
    assert b"".join(data for data, _ in heard) == sent
    assert max(len(data) for data, _ in heard) <= PORTION
    assert heard[0][1]
    assert not heard[-1][1]


@pytest.mark.usefixtures("short")
def test_a_link_that_ends_is_dialled_again(play: Any, make: Any, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with other(stays=False) as place, dialled(make(place.port, tls=False)) as link:
            await until(lambda: link.report()["failures"] >= 3)
            assert link.report()["connects"] >= 3
            assert place.connections >= 3
            monkeypatch.setattr(links, "STABLE_SECONDS", 0.0)
            await until(lambda: link.report()["failures"] == 1)
            place.stays = True
            await until(lambda: link.report()["state"] == "connected" and link.report()["failures"] == 1)

    play(scenario)
    assert not core.bus.sessions()


@pytest.mark.usefixtures("short")
def test_an_unreachable_address_is_reported_and_retried(play: Any, make: Any) -> None:
    async def scenario() -> None:
        async with dialled(make(reserved_port(), tls=False)) as link:
            await until(lambda: link.report()["failures"] >= 2)
            assert (link.report()["state"], link.report()["connects"]) == ("waiting", 0)
            assert "refused" in link.report()["error"].lower()

    play(scenario)


@pytest.mark.usefixtures("short")
def test_certificates_are_verified_unless_disabled(play: Any, make: Any, certificates: Path) -> None:
    async def scenario() -> None:
        async with other(stays=True, certificates=certificates) as place:
            async with dialled(make(place.port, authorities=certificates / "ca.pem")) as link:
                await until(lambda: link.report().get("heard") == [b"hello"])
            async with dialled(make(place.port, verify=False)) as link:
                await until(lambda: link.report().get("heard") == [b"hello"])
            async with dialled(make(place.port)) as link:
                await until(lambda: link.report()["failures"] >= 1)
                assert link.report()["error"].startswith("its certificate is not trusted: ")
                assert link.report()["connects"] == 0
        async with other(stays=True) as plain, dialled(make(plain.port)) as link:
            await until(lambda: link.report()["failures"] >= 1)
            assert link.report()["connects"] == 0

    play(scenario)


def test_a_stop_ends_a_link_that_waits_and_one_that_runs(play: Any, make: Any, core: Any) -> None:
    async def scenario() -> None:
        async with other(stays=True) as place:
            running, waiting = make(place.port, tls=False), make(place.port, tls=True)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(running.run)
                tasks.start_soon(waiting.run)
                await until(lambda: running.report()["state"] == "connected" and waiting.report()["failures"] == 1)
                for link in (running, waiting):
                    link.stop()
                for session in core.bus.sessions():
                    session.goodbye()
        assert not core.bus.sessions()

    play(scenario)


@pytest.fixture
def make_broken(core: Any, toy_session: Any) -> Callable[..., Dialler]:
    """Makes a dialler of a port, whose sessions fail by a bug."""

    class Broken(toy_session):  # type: ignore[misc]
        def handle(self, data: bytes) -> None:
            raise ZeroDivisionError(data)

    def open() -> Session:
        session: Session = Broken(core.bus)
        return session

    def make(port: int, name: str = "x") -> Dialler:
        return Dialler("toy", OutboundLink(name, "127.0.0.1", port, open, tls=False), core.clock)

    return make


@pytest.mark.usefixtures("short")
def test_a_fault_in_a_session_does_not_end_the_link(play: Any, core: Any, make_broken: Any) -> None:
    async def scenario() -> None:
        async with other(stays=True) as place, dialled(make_broken(place.port)) as link:
            await until(lambda: link.report()["connects"] >= 2)
            assert link.report()["failures"] >= 1

    play(scenario)
    assert not core.bus.sessions()


@pytest.mark.usefixtures("short")
def test_the_log_names_links_without_their_queries_which_may_hold_keys(
    play: Any, make_broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = set[tuple[str, str, str]]()

    def note(text: str, *, protocol: str, address: str, **_more: Any) -> None:
        said.add((text, protocol, address))

    async def scenario() -> None:
        async with other(stays=True) as place, dialled(make_broken(place.port, "ws://x.example/?key=secret")) as link:
            await until(lambda: link.report()["failures"] >= 1)
            link.permit(False)
            link.permit(True)

    monkeypatch.setattr(links, "logger", SimpleNamespace(info=note, warning=note, exception=note))
    play(scenario)
    held = "another member holds the link now", "this gateway holds the link now"
    texts = "a link is up", "a link failed; the others go on", "a link is down", *held
    assert said == {(text, "toy", "ws://x.example/") for text in texts}


def test_a_fault_while_the_gateway_stops_does_not_prevent_cancellation(play: Any, core: Any, toy_session: Any) -> None:
    scopes: list[anyio.CancelScope] = []

    class Broken(toy_session):  # type: ignore[misc]
        def handle(self, data: bytes) -> None:
            scopes[0].cancel()
            raise ZeroDivisionError(data)

    async def scenario() -> None:
        async with other(stays=True) as place:
            link = Dialler(
                "toy", OutboundLink("x", "127.0.0.1", place.port, lambda: Broken(core.bus), tls=False), core.clock
            )
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                await link.run()
            assert scope.cancelled_caught

    play(scenario)
    assert not core.bus.sessions()


def test_a_connection_that_broke_is_closed_without_a_fault() -> None:
    """uvloop says with a `RuntimeError` that a transport has gone by itself, as under load where a peer is killed."""

    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        stream = await anyio.connect_tcp(*listener.getsockname())
        other, _ = listener.accept()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a close is a reset
        other.close()
        listener.close()
        with suppress(*DISCONNECTED):
            while True:
                await stream.receive()
        await StreamWire(stream).close(1011, "it has gone")

    anyio.run(scenario, backend="asyncio", backend_options={"use_uvloop": True})
