"""The workloads, and the load generator (load.c): built when needed, run once for each round."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

SOURCES = Path(__file__).parent
PACKET_SIZE = 100  # bytes of text, as the reference figures have it


class LoadError(Exception):
    """The load generator could not be built, or gave up; the text is what it said."""


@dataclass(frozen=True)
class Workload:
    """Who talks to whom; the words are those of load.c. *must* is the ratio to the Node server to reach."""

    title: str
    shape: str
    peers: int
    topics: int
    window: int
    must: float


# fmt: off
WORKLOADS = {
    "fan10":    Workload("1 to 10, 16 in flight",       "fan",     10,  1, 16,  3.5),
    "fan100":   Workload("1 to 100, 16 in flight",      "fan",    100,  1, 16, 10.0),
    "fan1000":  Workload("1 to 1000, 4 in flight",      "fan",   1000,  1,  4,  3.0),
    "fan10w1":  Workload("1 to 10, 1 in flight",        "fan",     10,  1,  1,  1.2),
    "fan100w1": Workload("1 to 100, 1 in flight",       "fan",    100,  1,  1,  1.2),
    "m2m":      Workload("100 peers, 10 topics",        "mesh",   100, 10,  1,  4.0),
    "dm1":      Workload("direct, 1 pair",              "pairs",    2,  1,  1,  1.1),
    "dm50":     Workload("direct, 50 pairs",            "pairs",  100, 50,  1,  1.1),
}
# fmt: on


@dataclass(frozen=True)
class Target:
    """Where a server listens, and the wire it speaks there: "ws" or "nats"."""

    wire: str
    host: str
    port: int
    path: str = "/"

    def speaks(self, workload: Workload) -> bool:
        """Whether *workload* exists on this wire: NATS has no direct messages."""
        return not (self.wire == "nats" and workload.shape == "pairs")


@dataclass(frozen=True)
class Result:
    """What the generator counted. Latencies are from publish to arrival, in microseconds, over all arrivals."""

    sent: int
    deliveries: int
    lost: int
    repeated: int
    stray: int
    seconds: float
    load_cpu_seconds: float
    p50_us: float
    p99_us: float

    @property
    def exact(self) -> bool:
        """Whether every delivery arrived exactly once, where it should."""
        return self.deliveries > 0 and self.lost == self.repeated == self.stray == 0


def build(folder: Path) -> Path:
    """Compile load.c into *folder*, unless that was done since it last changed; `LoadError` without a compiler."""
    binary = folder / "load"
    newest = max((SOURCES / name).stat().st_mtime for name in ("load.c", "wire.h"))
    if binary.exists() and binary.stat().st_mtime > newest:
        return binary
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LoadError("no C compiler (cc or gcc) to build the load generator with")
    folder.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-o", str(binary), str(SOURCES / "load.c")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise LoadError(made.stderr)
    return binary


class Load:
    """A running generator: connected and warmed up on entering, still connected after `run`, gone on leaving."""

    def __init__(self, binary: Path, target: Target, work: Workload, warmup: float, seconds: float) -> None:
        parts = (
            *(target.wire, target.host, target.port, target.path),
            *(work.shape, work.peers, work.topics, work.window, PACKET_SIZE, warmup, seconds),
        )
        self._command = [str(binary), *map(str, parts)]

    def __enter__(self) -> Load:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        try:
            self._line()  # it says that it is ready
        except LoadError:
            self.__exit__(None, None, None)
            raise
        return self

    def run(self) -> Result:
        """Let it talk for the agreed time and take the result; `LoadError` if it gave up."""
        stdin = _pipe(self._process.stdin)
        stdin.write("\n")
        stdin.flush()
        return Result(**json.loads(self._line()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def _line(self) -> str:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise LoadError(_pipe(self._process.stderr).read().strip())
        return line


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # Popen was given PIPE
    return pipe
