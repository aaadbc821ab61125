"""Starts processes quickly: each is forked from one that has imported the gateway, because most of a start is that.

It is the fork server of `multiprocessing`, one for each process that runs tests. A gateway that is started so differs
from `python -m gateway` in two things: more was done before it begins (`tests.made_ready`), and it ends without
`atexit`. What is tested about the process itself (its memory, its descriptors, its end) is tested with one that was
started by a command.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import IO

PRELOADED = (
    *("gateway.cli", "gateway.app", "gateway.service", "adapters", "tests.forked"),
    *("httptools", "hypercorn.trio", "trio", "uvicorn.lifespan.on", "uvicorn.loops.uvloop", "uvloop"),
    *("gateway.shells.hypercorn_http", "gateway.shells.hypercorn_websocket", "tests.made_ready"),
)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(PRELOADED))


def fork(run: Callable[..., object], *arguments: object) -> BaseProcess:
    """Start a process that does nothing but `run(*arguments)`; sockets and connections may be among the arguments."""
    process = _context.Process(target=run, args=arguments, daemon=True)
    process.start()
    return process


def duplex() -> tuple[Connection, Connection]:
    """Make a connection between this process and one that gets its second end."""
    return _context.Pipe()


class Forked:
    """A process that runs `python -m gateway` with *arguments*: what the tests use of `subprocess.Popen`.

    *constants* replaces module constants in it by their dotted names, as `monkeypatch` would in this process.
    """

    def __init__(
        self, arguments: list[str], env: Mapping[str, str], constants: Mapping[str, object] | None = None
    ) -> None:
        (out, out_of), (errors, errors_of) = _context.Pipe(duplex=False), _context.Pipe(duplex=False)
        self._process = fork(_run, arguments, dict(env), dict(constants or {}), out_of, errors_of)
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout, self.stderr = _reader(out), _reader(errors)
        out_of.close()
        errors_of.close()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raise `subprocess.TimeoutExpired` after *timeout* seconds."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("gateway", timeout or 0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its exit code has not arrived yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with signal 9."""
        self.send_signal(signal.SIGKILL)


def _reader(pipe: Connection) -> IO[str]:
    """Read *pipe* as text."""
    reader = os.fdopen(os.dup(pipe.fileno()))
    pipe.close()
    return reader


def _run(
    arguments: list[str], env: dict[str, str], constants: dict[str, object], out: Connection, errors: Connection
) -> None:
    """Become the gateway."""
    for descriptor, pipe in ((1, out), (2, errors)):
        os.dup2(pipe.fileno(), descriptor)
        pipe.close()
    sys.stdout = os.fdopen(1, "w", closefd=False)  # the inherited ones may stand for a file, where one can seek
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(env)
    for name, value in constants.items():
        path, _, constant = name.rpartition(".")
        module = import_module(path)
        assert hasattr(module, constant)
        setattr(module, constant, value)
    sys.argv = ["gateway", *arguments]
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)
