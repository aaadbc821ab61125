"""Gateways in processes of their own, started quickly.

Most of a start is importing. One process, the fork server, has imported everything; each gateway is forked from it and
runs what `python -m gateway` runs, with the fault layer below it.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from .frequent_retention import retain_frequently
from .shim import Control, library

START_SECONDS = 30.0
STOP_SECONDS = 20.0
REAP_SECONDS = 0.02  # between checks for gateways that have ended
ASK_WHERE = signal.SIGUSR2  # a gateway that gets it writes where each of its threads is
PR_SET_PDEATHSIG = 1
MODULES = (
    *("gateway.app", "gateway.cli", "gateway.service", "adapters", "uvloop", "uvicorn.loops.uvloop", "httptools"),
    "tests.made_ready",
)


class DidNotStart(Exception):
    """The gateway ended before it was ready; its text is what it wrote."""


@dataclass
class GatewayProcess:
    """A gateway that runs. *log* is the file it writes its messages to."""

    pid: int
    http: str
    sprout: str
    log: Path
    control: Control

    @property
    def output(self) -> str:
        """Its messages so far."""
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with signal 9."""
        self.signal(signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until it has ended."""
        while _alive(self.pid):
            await asyncio.sleep(0.01)

    async def where(self) -> None:
        """Let it write down a few times where each of its threads is."""
        for _ in range(3):
            self.signal(ASK_WHERE)
            await asyncio.sleep(0.1)

    def stop(self) -> None:
        """Ask it to stop, as an operator would."""
        self.signal(signal.SIGTERM)


class ForkServer:
    """The process that gateways are forked from."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.faults.harness.fork_server"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"LD_PRELOAD": str(library())},
        )
        self._codes: dict[int, int] = {}  # of gateways that have ended, by process
        self._lock = threading.Lock()
        self._started = SimpleQueue[int]()
        self._last = 0  # the process that was started last
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        self._process.stdout.close()

    async def start(
        self, data: Path, place: Path, settings: dict[str, str], control: Control, *, retain_often: bool = False
    ) -> GatewayProcess:
        """Start a gateway on *data*; what it writes goes below *place*. `DidNotStart` where it ends instead.

        With *retain_often* it retires and compacts all the time (`frequent_retention`).
        """
        place.mkdir()
        order = {"data": str(data), "place": str(place), "control": str(control.path), "settings": settings}
        order |= {"retain_often": "yes" if retain_often else ""}
        pid = await asyncio.to_thread(self._order, order)
        end = time.monotonic() + START_SECONDS
        while not (line := (place / "stdout").read_text() if (place / "stdout").exists() else "").endswith("\n"):
            if time.monotonic() > end or not _alive(pid):
                if _alive(pid):
                    os.kill(pid, signal.SIGKILL)
                code = await self.ended(pid=pid)
                raise DidNotStart(f"it ended with {code}: {(place / 'stderr').read_text(errors='replace')}")
            await asyncio.sleep(0.01)
        ready = json.loads(line)
        return GatewayProcess(pid, ready["http"], ready["sprout"], place / "stderr", control)

    async def ended(self, seconds: float = STOP_SECONDS, pid: int | None = None) -> int:
        """Wait for the end of the gateway with that *pid*, or that was started last; its exit code.

        It is negative for a signal. `TimeoutError` if the gateway does not end.
        """
        pid = self._last if pid is None else pid
        async with asyncio.timeout(seconds):
            while pid not in self._codes:
                await asyncio.sleep(0.01)
        return self._codes[pid]

    def _order(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            self._last = self._started.get(timeout=START_SECONDS)
            return self._last

    def _read(self) -> None:
        """Read what becomes of the gateways."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told: dict[str, int] = json.loads(line)
            if "code" in told:
                self._codes[told["pid"]] = told["code"]
            else:
                self._started.put(told["pid"])


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# In the process that forks


def main() -> None:
    """Import the gateway; then fork one for each line of standard input, and report how each ended."""
    _end_with_parent()
    for name in MODULES:
        importlib.import_module(name)
    children, rest = set[int](), b""
    while True:
        if select.select([0], [], [], REAP_SECONDS if children else None)[0]:
            if not (data := os.read(0, 1 << 16)):
                return
            *orders, rest = (rest + data).split(b"\n")
            for order in orders:
                if (pid := os.fork()) == 0:
                    _become(json.loads(order))
                    return
                children.add(pid)
                _tell(pid=pid)
        for pid in [*children]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                children.discard(pid)
                _tell(pid=pid, code=os.waitstatus_to_exitcode(status))


def _tell(**what: int) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201  # that is how it answers


def _end_with_parent() -> None:
    """End when the parent ends, which may be killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _become(order: dict[str, Any]) -> None:
    """Be the gateway of *order*."""
    _end_with_parent()
    os.setsid()
    place = Path(order["place"])
    for descriptor, path, flags in (
        (0, Path(os.devnull), os.O_RDONLY),
        (1, place / "stdout", os.O_WRONLY | os.O_CREAT),
        (2, place / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(order["settings"])
    if order["retain_often"]:
        retain_frequently()
    faulthandler.register(ASK_WHERE)
    ctypes.CDLL(None).faults_attach(order["control"].encode(), order["data"].encode())
    sys.argv = ["gateway", "serve", "--data", order["data"], "--port", "0", "--sprout-port", "0"]
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
