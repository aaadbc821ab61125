"""Servers of the fast shell, and a check that nothing unexpected is logged."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from gateway.shells import connection, portable_shell, tcp_server
from tests.gateway.shells.fast_peers import FastShell, Service, running
from tests.gateway.shells.toys import PATIENCE


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def server(request: pytest.FixtureRequest) -> Iterator[FastShell]:
    options = {"use_uvloop": request.param == "uvloop"}
    with start_blocking_portal("asyncio", options) as portal:
        service = portal.call(Service)
        with portal.wrap_async_context_manager(running(service)) as port:
            yield FastShell(portal, service, port)


@pytest.fixture
def allowed(caplog: pytest.LogCaptureFixture) -> Iterator[set[str]]:
    """What a test allows to be in the log, which is nothing unless it says so."""
    caplog.set_level(logging.WARNING)
    messages: set[str] = set()
    yield messages
    assert {record.getMessage() for record in caplog.get_records("call")} <= messages


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        yield sock


@pytest.fixture(scope="module")
def _patience() -> Iterator[None]:
    """A farewell may take its time here; what LINGER_SECONDS itself does is tested where it is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portable_shell, "LINGER_SECONDS", PATIENCE)
        patch.setattr(tcp_server, "LINGER_SECONDS", PATIENCE)
        patch.setattr(connection, "LINGER_SECONDS", PATIENCE)
        yield


@pytest.fixture
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No peer, whatever it does, leaves anything in the log."""
    caplog.set_level(logging.WARNING)
    yield
    assert [record.getMessage() for record in caplog.get_records("call")] == []
