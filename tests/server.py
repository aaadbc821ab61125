"""A real gateway for tests: `trellis serve` in a process of its own, on free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.forked import Forked

START_SECONDS = 30


class Server:
    """A running gateway. `http` and `sprout` are addresses; `log` is what it wrote to standard error.

    It is forked (`tests.forked`); with *fresh*, it is started by the command itself, which takes a second longer.
    *descriptors* is how many it may open, where that is not what this process may. *constants* are values of module
    constants, by their dotted names, for a forked one.
    """

    def __init__(
        self,
        data: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        descriptors: int | None = None,
        fresh: bool = False,
        constants: Mapping[str, object] | None = None,
    ) -> None:
        self.data = data
        arguments = ["serve", "--data", str(data), "--port", "0", "--sprout-port", "0", *flags]
        environment = {**os.environ, "TRELLIS_LIMITS__RATES": "off", **(env or {})}
        self.process: Forked | subprocess.Popen[str]
        if fresh or descriptors is not None:
            assert not constants
            self.process = subprocess.Popen(
                [*_with(descriptors), sys.executable, "-m", "gateway", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        else:
            self.process = Forked(arguments, environment, constants)
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self.ready = self._ready()
        self.http: str = self.ready["http"]
        self.sprout: str = self.ready.get("sprout", "")
        self.pid: int = self.ready["pid"]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    @property
    def log(self) -> str:
        """What the gateway wrote to standard error so far."""
        return "".join(self._errors)

    def stop(self, seconds: float = 20) -> int:
        """Stop it as an operator would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self._wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> int:
        """Stop it as a power cut would."""
        self.process.kill()
        return self._wait(10)

    def _wait(self, seconds: float) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def _ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        timer = threading.Timer(START_SECONDS, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            self.kill()
            raise RuntimeError(f"the gateway did not start:\n{self.log}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line)


def _with(descriptors: int | None) -> list[str]:
    """The beginning of a command that may open so many; prlimit(1) belongs to every Linux."""
    return [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
