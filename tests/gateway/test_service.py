"""The service configures its process before it serves, and ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from gateway import service
from gateway.shells.turns import TURN_SECONDS
from tests.properties.in_process_gateway import InProcessGateway
from tests.server import Server

RUN = """
import sys
from adapters import ADAPTERS
from gateway.settings.settings import settings_model
from gateway.service import CannotStart, run
try:
    run(settings_model(ADAPTERS)(data=sys.argv[1], port=sys.argv[2]))
except CannotStart:
    print(sys.getswitchinterval())
"""


def test_a_thread_that_waits_for_the_interpreter_gets_it_within_a_turn_of_the_loop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-c", RUN, str(tmp_path), str(taken.getsockname()[1])]
        seconds = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert 0 < float(seconds) < TURN_SECONDS


@pytest.mark.parametrize(
    ("membership", "code", "said"),
    [(None, 0, ""), (SimpleNamespace(failure=None), 0, ""), (SimpleNamespace(failure="why"), 1, "trellis: why\n")],
)
def test_a_gateway_on_trio_exits_with_a_peer_that_does_not_read_as_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], membership: object, code: int, said: str
) -> None:
    """Systemd starts a gateway again that failed."""
    done: list[object] = []

    def leave(code: int) -> None:
        done.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    gateway = SimpleNamespace(stop=lambda: done.append("stopped"), membership=membership)
    with pytest.raises(SystemExit):
        trio.run(service._insist, gateway, clock=MockClock(autojump_threshold=0))  # type: ignore[arg-type]
    assert (done, capsys.readouterr().err) == (["stopped", code], said)


def test_a_gateway_may_be_stopped_twice(tmp_path: Path) -> None:
    """On trio its time may be over when it has just stopped."""
    instance = InProcessGateway(tmp_path)
    instance.stop()
    instance.gateway.stop()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_gateway_that_is_stopped_again_and_again_stops_in_order(tmp_path: Path, loop: str) -> None:
    """As by Ctrl-C twice."""
    gateway = Server(tmp_path, "--loop", loop)
    while gateway.process.poll() is None:
        gateway.process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    assert (gateway.stop(), gateway.log.count("stopped"), "Traceback" in gateway.log) == (0, 1, False)
