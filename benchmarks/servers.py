"""The servers that are compared: each is started on a free loopback port and stopped by its process id."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .generator import Target

ROOT = Path(__file__).parent.parent
NODE_FOLDER = ROOT / "tests" / "interop" / "node"
HOST = "127.0.0.1"
PATIENCE_SECONDS = 20.0


class Unavailable(Exception):
    """This server cannot be run on this machine; the text says why."""


@dataclass(frozen=True)
class Server:
    """A server that is up: whom to talk to, and whose CPU time to take."""

    name: str
    pid: int
    target: Target


@dataclass(frozen=True)
class Places:
    """Where servers may write (*work*), and which folder holds the node_modules of the reference server."""

    work: Path
    node: Path = NODE_FOLDER


@contextmanager
def node(places: Places) -> Iterator[Server]:
    """The topic relay's reference server, `@yume-chan/koshare-router` from npm, on Node."""
    if not (places.node / "node_modules" / "@yume-chan" / "koshare-router").is_dir():
        raise Unavailable(f"@yume-chan/koshare-router is not installed in {places.node}: run npm ci there")
    command = [_program("node"), str(Path(__file__).parent / "node" / "relay.cjs"), str(places.node)]
    with _running("node", command, places.work) as (process, log):
        yield _ready("node", process, log, "/")


@contextmanager
def trellis(places: Places) -> Iterator[Server]:
    """This gateway as a user starts it, with its log on disk, but without rate limits."""
    data = places.work / "trellis-data"
    shutil.rmtree(data, ignore_errors=True)
    program = _program("trellis", str(Path(sys.executable).parent))
    command = [program, "serve", "--port", "0", "--sprout-port", "0", "--data", str(data)]
    with _running("trellis", command, places.work, TRELLIS_LIMITS__RATES="off") as (process, log):
        yield _ready("trellis", process, log, "/relay")
    shutil.rmtree(data, ignore_errors=True)


@contextmanager
def nats(places: Places) -> Iterator[Server]:
    """A nats-server, the strongest general-purpose broker at hand; it speaks its own protocol."""
    ports = places.work / "nats-ports"
    shutil.rmtree(ports, ignore_errors=True)
    ports.mkdir(parents=True)
    command = [_program("nats-server"), "--addr", HOST, "--port", "-1", "--ports_file_dir", str(ports)]
    with _running("nats", command, places.work) as (process, log):
        told = ports / f"nats-server_{process.pid}.ports"
        _wait_until(lambda: told.exists() and bool(told.read_text()), process, log)
        port = int(json.loads(told.read_text())["nats"][0].rpartition(":")[2])
        yield Server("nats", process.pid, Target("nats", HOST, port))


SERVERS: dict[str, Callable[[Places], AbstractContextManager[Server]]] = {
    "node": node,
    "trellis": trellis,
    "nats": nats,
}
REFERENCE = "node"  # ratios are to this one


def _program(name: str, path: str | None = None) -> str:
    """The full path of *name*; Debian keeps servers in /usr/sbin, which is not on everybody's PATH."""
    search = path or os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
    found = shutil.which(name, path=search)
    if found is None:
        raise Unavailable(f"{name} is not installed")
    return found


@contextmanager
def _running(
    name: str, command: list[str], work: Path, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run *command* with its standard error in a file; on leaving, SIGTERM, and SIGKILL if that does not do."""
    work.mkdir(parents=True, exist_ok=True)
    log = work / f"{name}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **environment})
    with process:
        try:
            yield process, log
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(name: str, process: subprocess.Popen[bytes], log: Path, path: str) -> Server:
    """Wait for the line of JSON that says where the server listens."""
    stdout = process.stdout
    assert stdout is not None  # it is a pipe
    line = stdout.readline() if select.select([stdout], [], [], PATIENCE_SECONDS)[0] else b""
    if not line:
        raise Unavailable(_last_words(log))
    host, _, port = json.loads(line)["http"].rpartition(":")
    return Server(name, process.pid, Target("ws", host, int(port), path))


def _wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unavailable(_last_words(log))
        time.sleep(0.05)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"it did not start: {lines[-1] if lines else 'it said nothing'} (see {log})"
