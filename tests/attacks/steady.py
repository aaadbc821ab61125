"""Mixed traffic for an hour, with churn and slow readers: the gateway's use of resources must not grow.

`python -m tests.attacks.steady --minutes 60` plays rounds against one gateway with default settings, beside the honest
peers. A round is a random program of connections (`fuzz_connections`), or two attacks at once. When everybody but the
honest peers has left, the memory, descriptors, threads and tasks of the gateway are read: a leak of each round shows
here. The log is small, so old messages are retired meanwhile.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import psutil

from gateway.system.machine import TRIM_SECONDS

from .client_frames import http
from .fuzz_connections import Found, Program
from .measure import MIB
from .stage import Stage, run_attack
from .table import BY_NAME
from .target import Target
from .unread import community_of, fill
from .wire import Raw

ROUND = 5.0  # seconds that an attack goes on
STEPS = 20  # moves of a program
SETTLE = TRIM_SECONDS + 1.0  # seconds after which what was freed has gone back to the system
FILLING = 6  # channels of 50 messages of 60 kB that Arbor asks for first: its 16 MiB of kept lines are full then
WARM = 0.25  # of the rounds come before the comparison: caches fill, the log reaches its size
ROOM: Final = {"memory": 16.0, "descriptors": 8.0, "threads": 2.0, "tasks": 4.0}  # that a median may wander

MIXED = (
    *("unread-relay", "unread-streamr", "unread-sprout", "unread-events", "unread-resends", "unread-data"),
    *("slowly", "churn", "flood-relay", "flood-streamr", "flood-sprout", "flood-rest", "flood-questions"),
    *("garbage-relay", "garbage-streamr", "garbage-sprout", "garbage-rest", "pings", "bomb"),
)
LOG = {"TRELLIS_LOG__KEEP_BYTES": str(256 * MIB), "TRELLIS_LOG__SEGMENT_BYTES": str(16 * MIB)}


@dataclass(frozen=True)
class Resources:
    """What the gateway holds between two rounds: memory in MiB."""

    memory: float
    descriptors: int
    threads: int
    tasks: int


@dataclass(frozen=True)
class LoadRound:
    """What was played, what was held afterwards, how long an honest peer waited at most meanwhile, in ms, and lost."""

    what: str
    held: Resources
    longest: float
    kind: str
    lost: dict[str, int]


class SteadyLoad:
    """Rounds of attacks against one gateway, which follow from *seed*.

    *settle* is how long it rests after each, in seconds; *filling* is how many channels are filled and read before.
    """

    def __init__(
        self,
        data: Path,
        seed: int,
        on_round: Callable[[LoadRound], None] = lambda _round: None,
        settle: float = SETTLE,
        filling: int = FILLING,
    ) -> None:
        self.rounds: list[LoadRound] = []
        self.lost = self.sent = 0
        self.found: list[str] = []
        self._on_round = on_round
        self._settle = settle
        self._filling = filling
        self._chance = random.Random(seed)
        self._stage = Stage(data, env=LOG)
        self._process = psutil.Process(self._stage.server.pid)

    def run(self, seconds: float) -> None:
        """Play rounds; the gateway has to stop afterwards when it is told to, and to have logged no traceback."""
        with self._stage:
            for number in range(self._filling):
                self._fill(f"filling/{number}")
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                what = self._round()
                self._stage.rest()
                time.sleep(self._settle)
                self.rounds.append(LoadRound(what, self._held(), *self._wait()))
                self._on_round(self.rounds[-1])

    def _round(self) -> str:
        target = self._stage.target
        if self._chance.random() < 0.5:
            what = f"program {(seed := self._chance.randrange(1_000_000))}"
            try:
                Program(target, seed).run(STEPS)
            except Found as found:
                self.found.append(f"{what}: {found}")
            return what
        names = self._chance.sample(MIXED, 2)
        with ThreadPoolExecutor(2) as pool:
            reports = pool.map(lambda name: run_attack(BY_NAME[name], target, ROUND), names)
            for name, report in zip(names, reports, strict=True):
                self.found += [f"{name}: {broken}" for broken in report.broken]
        return ", ".join(names)

    def _fill(self, channel: str) -> None:
        """Publish 3 MB on *channel*, and request all of it by Sprout."""
        target = self._stage.target
        fill(target, channel, 50)
        peer = Raw(target.sprout, greeting=f"leaves_of 1 {community_of(target, channel)} 1024\n".encode())
        peer.send(b"list 2 1 1\n")
        peer.receive_until(b"response 2 ")
        peer.socket.close()

    def _held(self) -> Resources:
        process = self._process
        memory = round(process.memory_info().rss / MIB, 1)
        return Resources(memory, process.num_fds(), process.num_threads(), tasks_of(self._stage.target))

    def _wait(self) -> tuple[float, str, dict[str, int]]:
        """The longest wait of an honest peer since the last time, in ms, and of which kind; what was lost, by kind."""
        samples = self._stage.honest.take()
        self.sent += len(samples)
        lost = Counter(kind for kind, _, seconds, _ in samples if seconds is None)
        self.lost += lost.total()
        waits = [(round(seconds * 1000), kind) for kind, _, seconds, _ in samples if seconds is not None]
        return *max(waits, default=(0, "")), lost

    def faults(self) -> list[str]:
        """Return what grew, what programs found, and what honest peers lost."""
        lost = [f"{self.lost} of {self.sent} honest messages were lost"] * bool(self.lost)
        return [*self.found, *lost, *grown([each.held for each in self.rounds])]


def tasks_of(target: Target) -> int:
    """Return the gateway's number of tasks, from its metrics; ask again while it refuses this address."""
    while True:
        answer = http(target, "/metrics")
        if found := re.search(rb"^trellis_tasks (\d+)", answer, re.MULTILINE):
            return int(found[1])
        time.sleep(0.2)


def grown(held: Sequence[Resources]) -> list[str]:
    """Return what has a higher median in the last third of *held*, after the warm-up, than in the first third."""
    warm = held[int(len(held) * WARM) :]
    third = len(warm) // 3
    found = []
    for field in fields(Resources) if third else ():
        first, last = (
            statistics.median(getattr(each, field.name) for each in part) for part in (warm[:third], warm[-third:])
        )
        if last - first > ROOM[field.name]:
            found.append(f"{field.name} grew from {first:g} to {last:g}")
    return found


def _show(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _show_round(each: LoadRound) -> None:
    held = ", ".join(f"{value} {name}" for name, value in vars(each.held).items())
    lost = f"; lost: {dict(each.lost)}" if each.lost else ""
    _show(f"{each.what}: {held}; the longest wait {each.longest:.0f} ms ({each.kind}){lost}")


def main() -> int:
    """Play rounds and print what was held; return 1 if that grew or something was lost, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.steady", description="Mixed traffic, and its cost.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trellis-") as folder:
        load = SteadyLoad(Path(folder), arguments.seed, _show_round)
        begin = time.monotonic()
        load.run(arguments.minutes * 60)
        minutes = (time.monotonic() - begin) / 60
    longest = max(each.longest for each in load.rounds)
    lines = [f"{len(load.rounds)} rounds of seed {arguments.seed} in {minutes:.0f} minutes"]
    lines.append(f"honest peers: {load.lost} of {load.sent} messages lost, the longest wait {longest:.0f} ms")
    lines += load.faults() or ["nothing grew, nothing was lost"]
    _show("\n".join(lines))
    return int(bool(load.faults()))


if __name__ == "__main__":
    sys.exit(main())
