"""Signals stop a gateway at any time, and leave no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from gateway.system.stop_signal import STOP_SIGNALS, StopSignal
from tests.ports import reserved_port
from tests.waiting import until

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield
    for number, handler in zip(STOP_SIGNALS, before, strict=True):
        signal.signal(number, handler)


@LOOPS
def test_the_first_signal_counts_and_others_are_ignored(loop: str) -> None:
    async def main() -> None:
        stop = StopSignal(lambda: True)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with anyio.fail_after(5):
            await stop.wait()

    anyio.run(main, backend=loop)
    os.kill(os.getpid(), signal.SIGINT)


@LOOPS
def test_a_signal_after_the_loop_has_ended_is_ignored(loop: str) -> None:
    """As after an error that ended the gateway."""

    async def main() -> None:
        StopSignal(lambda: True)

    anyio.run(main, backend=loop)
    os.kill(os.getpid(), signal.SIGTERM)


@LOOPS
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_gateway_that_joins_a_cluster_that_does_not_answer_ends_at_once(
    tmp_path: Path, loop: str, number: signal.Signals
) -> None:
    url = f'["nats://127.0.0.1:{reserved_port()}"]'
    environment = {**os.environ, "TRELLIS_CLUSTER__URL": url, "TRELLIS_CLUSTER__GATEWAY": "one"}
    command = [
        sys.executable,
        "-m",
        "gateway",
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--port",
        "0",
        "--sprout-port",
        "0",
    ]
    log = tmp_path / "output"
    with (
        log.open("w") as file,
        subprocess.Popen([*command, "--loop", loop], env=environment, stdout=file, stderr=file) as process,
    ):
        until(lambda: "the stream is disturbed" in log.read_text())
        process.send_signal(number)
        begun = time.monotonic()
        assert process.wait(20) == -number
    assert time.monotonic() - begun < 5, "it would wait for the cluster for a minute"
    assert "Traceback" not in log.read_text()
