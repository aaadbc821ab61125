"""The load generator (load/*.c): built when needed, run once for each round."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .rest_load import community
from .servers import PATIENCE_SECONDS, BenchmarkServer
from .workload import Bench, Load, LoadError, Result

SOURCES = Path(__file__).parent / "load"
SIZE = 100  # bytes of a message, as the reference figures have it
TOPIC = "bench-0"  # what the generator calls the first topic


@dataclass(frozen=True)
class Group:
    """*count* peers on each topic, in a *role* of load/main.c, connected to a *service* of the server."""

    role: str
    count: int
    service: str


@dataclass(frozen=True)
class Traffic(Load):
    """Who talks to whom, and in what rhythm; the words are those of load/main.c."""

    groups: Sequence[Group]
    topics: int = 1
    window: int = 1
    rhythm: str = "judge"
    rate: float = 0.0
    gap_us: int = 0
    prepared: Callable[[], Sequence[bytes]] | None = None  # makes the messages of a round, the same for all servers

    def renew(self, bench: Bench) -> None:
        """Write the messages that have to be made before they are sent."""
        if self.prepared is not None:
            bench.folder.mkdir(parents=True, exist_ok=True)
            _prepared_file(bench).write_bytes(b"".join(line + b"\n" for line in self.prepared()))

    def runs_on(self, server: BenchmarkServer) -> bool:
        """Return whether *server* has all services; NATS knows no direct messages."""
        direct = any(group.role == "pair" for group in self.groups)
        at = [server.addresses.get(group.service) for group in self.groups]
        return all(address is not None and not (direct and address.protocol == "nats") for address in at)

    @contextmanager
    def open(self, server: BenchmarkServer, bench: Bench) -> Iterator[Callable[[], Result]]:
        """Start a generator, which is connected and warmed up when this yields, and gone when it is left."""
        command = [str(build(bench.folder)), *self._plan(server, bench)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                _line(process, PATIENCE_SECONDS)  # it says that it is ready
                yield lambda: _run(process, bench.seconds + PATIENCE_SECONDS)
            finally:
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=PATIENCE_SECONDS)  # ends its standard input
                process.kill()

    def _plan(self, server: BenchmarkServer, bench: Bench) -> list[str]:
        plan = {
            "topics": self.topics,
            "window": self.window,
            "rhythm": self.rhythm,
            "rate": self.rate,
            "gap": self.gap_us,
            "size": SIZE,
            "warmup": bench.warmup,
            "seconds": bench.seconds,
        }
        if any(group.service == "sprout" for group in self.groups):
            plan["community"] = community(server, TOPIC)
        if self.prepared is not None:
            plan["prepared"] = _prepared_file(bench)
        groups = [f"group={group.role}:{group.count}:{server.addresses[group.service]}" for group in self.groups]
        return [*(f"{name}={value}" for name, value in plan.items()), *groups]


def build(folder: Path) -> Path:
    """Compile the generator into *folder*, unless that was done since it last changed; `LoadError` if it fails."""
    binary = folder / "load"
    sources = sorted(SOURCES.glob("*.c"))
    newest = max(path.stat().st_mtime for path in [*sources, *SOURCES.glob("*.h")])
    if binary.exists() and binary.stat().st_mtime > newest:
        return binary
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LoadError("no C compiler (cc or gcc) to build the load generator with")
    folder.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-o", str(binary), *map(str, sources)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise LoadError(made.stderr)
    return binary


def _prepared_file(bench: Bench) -> Path:
    return bench.folder / "prepared"


def _run(process: subprocess.Popen[str], patience: float) -> Result:
    """Let it talk for the agreed time and return the result; raise `LoadError` if it gave up."""
    stdin = _pipe(process.stdin)
    stdin.write("\n")
    stdin.flush()
    return Result(**json.loads(_line(process, patience)))


def _line(process: subprocess.Popen[str], patience: float) -> str:
    """Return the next line that it writes, within *patience* seconds."""
    stdout = _pipe(process.stdout)
    if not select.select([stdout], [], [], patience)[0]:
        process.kill()
        raise LoadError(f"it did not end within {patience:.0f} s; something that was sent did not arrive")
    if not (line := stdout.readline()):
        raise LoadError(_pipe(process.stderr).read().strip())
    return line


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # Popen was given PIPE
    return pipe
