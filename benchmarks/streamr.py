"""`python -m benchmarks.streamr`: Streamr, side by side with a Node broker on the genuine libraries (node/streamr.cjs).

Each round measures how many deliveries a second of the server's CPU time buys. The servers take turns. `node` hands on
as the genuine broker does, which serialises each message for each subscriber; `node-once` does that once.
Exit codes: 0 done, 1 a server did not start or stalled.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from .measure import cpu_seconds
from .servers import NODE_FOLDER, ROOT, Places, Server, Unavailable, _program, _ready, _running
from .servers import trellis as gateway
from .streamr_load import Load, Stalled, messages

AGE = 300_000  # ms, of the first message: so that none lies in the future, however fast a server is
WARMUP = 0.2  # of the messages, before what is measured


@dataclass(frozen=True)
class Work:
    """What is published, to how many, with how many in flight; *must* is the ratio to the Node broker to reach."""

    title: str
    signed: bool
    listeners: int
    count: int
    window: int
    must: float


# fmt: off
WORKS = {
    "signed1":     Work("signed, to 1 subscriber",       True,    1, 20_000, 64, 2.5),
    "unsigned1":   Work("unsigned, to 1 subscriber",     False,   1, 40_000, 64, 1.0),
    "unsigned100": Work("unsigned, to 100 subscribers",  False, 100, 10_000, 64, 5.0),
    "signed100":   Work("signed, to 100 subscribers",    True,  100,  5_000, 64, 1.0),
}
# fmt: on


@dataclass(frozen=True)
class Round:
    """One server under one workload, once."""

    work: str
    server: str
    deliveries: int
    cpu_seconds: float
    seconds: float

    @property
    def per_cpu_second(self) -> float:
        """What is compared."""
        return self.deliveries / self.cpu_seconds


@contextmanager
def node(places: Places, *options: str) -> Iterator[Server]:
    """The broker on the genuine libraries."""
    if not (places.node / "node_modules" / "streamr-client-protocol").is_dir():
        raise Unavailable(f"streamr-client-protocol is not installed in {places.node}: run npm ci there")
    name = "-".join(("node", *options))
    command = [_program("node"), str(Path(__file__).parent / "node" / "streamr.cjs"), str(places.node), *options]
    with _running(f"streamr-{name}", command, places.work) as (process, log):
        yield _ready(name, process, log, "/")


SERVERS: dict[str, Callable[[Places], AbstractContextManager[Server]]] = {
    "trellis": gateway,
    "node": node,
    "node-once": lambda places: node(places, "once"),
}
REFERENCE = "node"


class Timestamps:
    """Where the messages of each round begin (ms): behind all before, or they would be repeated ones."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> int:
        """A beginning for *count* messages, ten of which have the same timestamp."""
        start = max(self._next, int(time.time() * 1000) - AGE)
        self._next = start + count // 10 + 1
        return start


def measure(server: Server, name: str, timestamps: Timestamps) -> Round:
    """One round."""
    work = WORKS[name]
    frames = messages(work.count, signed=work.signed, start=timestamps.take(work.count))
    load = Load(f"{server.target.host}:{server.target.port}", work.listeners)
    load.begin(frames[0])
    warm = int(WARMUP * work.count)
    load.run(frames[1:warm], work.window)
    before = cpu_seconds(server.pid)
    seconds = load.run(frames[warm:], work.window)
    time.sleep(0.3)  # what is done late counts too
    spent = cpu_seconds(server.pid) - before
    load.close()
    return Round(name, server.name, (work.count - warm) * work.listeners, spent, seconds)


def show(rounds: Sequence[Round]) -> str:
    """The medians, and their ratios to the reference."""
    lines = []
    for name, work in WORKS.items():
        figures = {
            server: median(each.per_cpu_second for each in rounds if (each.work, each.server) == (name, server))
            for server in dict.fromkeys(each.server for each in rounds if each.work == name)
        }
        base = figures.get(REFERENCE)
        for server, figure in figures.items():
            ratio = f"{figure / base:6.2f}x" if base else ""
            lines.append(f"{work.title:32} {server:10} {figure / 1000:8.1f} k deliveries per CPU-s {ratio}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streamr", description=__doc__.partition("\n")[0])
    parser.add_argument("--work", action="append", choices=WORKS)
    parser.add_argument("--server", action="append", choices=SERVERS)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    options = parser.parse_args(argv)
    places = Places(options.out / "servers", NODE_FOLDER)
    rounds: list[Round] = []
    timestamps = Timestamps()
    try:
        with ExitStack() as stack:
            servers = [stack.enter_context(SERVERS[name](places)) for name in options.server or SERVERS]
            for name in options.work or WORKS:
                for number in range(options.rounds):
                    for server in servers if number % 2 == 0 else reversed(servers):
                        rounds.append(measure(server, name, timestamps))
                        sys.stderr.write(
                            f"{name:12} {server.name:10} {rounds[-1].per_cpu_second / 1000:8.1f} k per CPU-s,"
                            f" {rounds[-1].deliveries / rounds[-1].seconds / 1000:8.1f} k per s\n"
                        )
    except (Unavailable, Stalled) as reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    sys.stdout.write(show(rounds) + "\n")
    path = options.out / f"streamr-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps([asdict(each) for each in rounds], indent=1) + "\n")
    sys.stdout.write(f"Written to {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
