"""The servers that are compared: each is started on free loopback ports and stopped by its process id."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .sprout_forest import plant
from .workload import ROOT, Bench, Unavailable

HOST = "127.0.0.1"
PATIENCE_SECONDS = 30.0
PROGRAMS = Path(__file__).parent
STREAMR_PATH = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"


@dataclass(frozen=True)
class ServiceAddress:
    """Where a server listens, and the protocol it speaks there, in the words of the load generator."""

    protocol: str
    host: str
    port: int
    path: str = "/"

    def __str__(self) -> str:
        return f"{self.protocol}:{self.host}:{self.port}:{self.path}"


@dataclass(frozen=True)
class BenchmarkServer:
    """A server that is up: its process, whose CPU time is taken, and where it serves what."""

    name: str
    pid: int
    addresses: Mapping[str, ServiceAddress]

    @property
    def http(self) -> str:
        """HOST:PORT of REST."""
        return self._host_and_port("rest")

    @property
    def sprout(self) -> str:
        """HOST:PORT of Sprout."""
        return self._host_and_port("sprout")

    def _host_and_port(self, service: str) -> str:
        at = self.addresses[service]
        return f"{at.host}:{at.port}"


Start = Callable[[Bench, str], AbstractContextManager[BenchmarkServer]]


@contextmanager
def trellis(
    bench: Bench,
    name: str,
    *,
    root: Path = ROOT,
    python: str = sys.executable,
    planted: int = 0,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[BenchmarkServer]:
    """The gateway in *root* as a user starts it, with its log on disk, but without rate limits.

    *planted* is how many Arbor replies it holds from the beginning; *settings* are variables of its environment.
    """
    work = bench.folder / "servers"
    data = work / f"{name}-data"
    shutil.rmtree(data, ignore_errors=True)
    if planted:
        plant(data, planted)
    command = [python, "-m", "gateway", "serve", "--port", "0", "--sprout-port", "0", "--data", str(data)]
    with running(name, command, work, cwd=root, TRELLIS_LIMITS__RATES="off", **settings) as (process, log):
        ready = wait_until_ready(process, log)
        yield BenchmarkServer(name, process.pid, trellis_addresses(ready["http"], ready["sprout"]))
    shutil.rmtree(data, ignore_errors=True)


def trellis_addresses(http: str, sprout: str) -> dict[str, ServiceAddress]:
    """What a gateway at *http* and *sprout* (HOST:PORT) serves."""
    at, arbor = _split(http), _split(sprout)
    return {
        "relay": ServiceAddress("relay", *at, "/relay"),
        "streamr": ServiceAddress("streamr", *at, STREAMR_PATH),
        "rest": ServiceAddress("rest", *at),
        "events": ServiceAddress("events", *at),
        "sprout": ServiceAddress("sprout", *arbor),
    }


@contextmanager
def node(bench: Bench, name: str) -> Iterator[BenchmarkServer]:
    """The topic relay's reference server, `@yume-chan/koshare-router` from npm, on Node."""
    with _on_node(bench, name, "relay.cjs", "@yume-chan/koshare-router") as (pid, at):
        yield BenchmarkServer(name, pid, {"relay": ServiceAddress("relay", *at)})


@contextmanager
def streamr_broker(bench: Bench, name: str, *options: str) -> Iterator[BenchmarkServer]:
    """A Streamr broker on the genuine libraries, on Node."""
    with _on_node(bench, name, "streamr.cjs", "streamr-client-protocol", *options) as (pid, at):
        yield BenchmarkServer(name, pid, {"streamr": ServiceAddress("streamr", *at, STREAMR_PATH)})


@contextmanager
def _on_node(
    bench: Bench, name: str, script: str, package: str, *options: str
) -> Iterator[tuple[int, tuple[str, int]]]:
    if not (bench.node / "node_modules" / package).is_dir():
        raise Unavailable(f"{package} is not installed in {bench.node}: run npm ci there")
    command = [program("node"), str(PROGRAMS / "node" / script), str(bench.node), *options]
    with running(name, command, bench.folder / "servers") as (process, log):
        yield process.pid, _split(wait_until_ready(process, log)["http"])


@contextmanager
def nats(bench: Bench, name: str) -> Iterator[BenchmarkServer]:
    """A nats-server, the strongest general-purpose broker at hand; it speaks its own protocol."""
    ports = bench.folder / "servers" / "nats-ports"
    shutil.rmtree(ports, ignore_errors=True)
    ports.mkdir(parents=True)
    command = [program("nats-server"), "--addr", HOST, "--port", "-1", "--ports_file_dir", str(ports)]
    with running(name, command, bench.folder / "servers") as (process, log):
        ports_file = ports / f"nats-server_{process.pid}.ports"
        _wait_until(lambda: ports_file.exists() and bool(ports_file.read_text()), process, log)
        port = int(json.loads(ports_file.read_text())["nats"][0].rpartition(":")[2])
        yield BenchmarkServer(name, process.pid, {"relay": ServiceAddress("nats", HOST, port)})


@contextmanager
def sprout_relay(bench: Bench, name: str, flags: Sequence[str] = ()) -> Iterator[BenchmarkServer]:
    """The relay on the Go library, with its grove on disk; it watches that and logs, as the genuine one does."""
    work = bench.folder / "servers"
    work.mkdir(parents=True, exist_ok=True)
    binary, grove = work / "sprout-relay", work / "grove"
    build = [program("go"), "build", "-o", str(binary), "."]
    made = subprocess.run(build, cwd=PROGRAMS / "sprout_relay", capture_output=True, text=True, check=False)
    if made.returncode:
        raise Unavailable(made.stderr)
    shutil.rmtree(grove, ignore_errors=True)
    grove.mkdir(parents=True)
    with running(name, [str(binary), *flags, str(grove)], work) as (process, log):
        yield BenchmarkServer(
            name, process.pid, {"sprout": ServiceAddress("sprout", *_split(wait_until_ready(process, log)["sprout"]))}
        )
    shutil.rmtree(grove, ignore_errors=True)


SERVERS: dict[str, Start] = {
    "trellis": trellis,
    "trellis-batch": partial(trellis, settings={"TRELLIS_STREAMR__BATCH_VERIFICATION": "true"}),
    "trellis-50": partial(trellis, planted=50),
    "trellis-5k": partial(trellis, planted=5_000),
    "trellis-500k": partial(trellis, planted=500_000),
    "node": node,
    "nats": nats,
    "broker": streamr_broker,
    "broker-once": lambda bench, name: streamr_broker(bench, name, "once"),
    "go": sprout_relay,
    "go-lean": partial(sprout_relay, flags=["-lean"]),
}


def program(name: str) -> str:
    """Return the full path of *name*; Debian keeps servers in /usr/sbin, which is not on everybody's PATH."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))
    if found is None:
        raise Unavailable(f"{name} is not installed")
    return found


@contextmanager
def running(
    name: str, command: Sequence[str], work: Path, cwd: Path | None = None, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run *command* with its standard error in a file; on leaving, SIGTERM, and SIGKILL if that does not do."""
    work.mkdir(parents=True, exist_ok=True)
    log = work / f"{name}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, cwd=cwd, env={**os.environ, **environment}
        )
    with process:
        try:
            yield process, log
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(process: subprocess.Popen[bytes], log: Path, patience: float = PATIENCE_SECONDS) -> Any:
    """Return the line of JSON that says where the server listens; raise `Unavailable` if none comes in time."""
    stdout = process.stdout
    assert stdout is not None  # it is a pipe
    line = stdout.readline() if select.select([stdout], [], [], patience)[0] else b""
    if not line:
        raise Unavailable(_last_words(log))
    return json.loads(line)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unavailable(_last_words(log))
        time.sleep(0.05)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"it did not start: {lines[-1] if lines else 'it said nothing'} (see {log})"
