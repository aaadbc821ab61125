"""The words of the benchmarks: a workload, the load that it puts on a server, a round, and what came of it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .servers import BenchmarkServer

ROOT = Path(__file__).parent.parent
MARK = b"~bench~"  # stands once in each text: loads in Python count it
SETTLE_SECONDS = 0.1  # after the last item: what a server does late (a flush, say) counts too


class LoadError(Exception):
    """A load could not be put on a server: it stalled, hung up, or answered something else; the text says what."""


class Unavailable(Exception):
    """A server cannot be run on this machine; the text says why."""


@dataclass(frozen=True)
class Bench:
    """How long to measure, and where: each round has *warmup* and *seconds*; *folder* is for what is built and kept.

    *node* is the folder that has the node_modules of servers on Node.
    """

    folder: Path = ROOT / "build" / "bench"
    node: Path = ROOT / "tests" / "interop" / "node"
    rounds: int = 8
    seconds: float = 1.5
    warmup: float = 0.4


@dataclass(frozen=True)
class Result:
    """What a load counted: *items* within *seconds*, which end with the last item.

    Latencies (microseconds, over all items) are from publishing to arrival; on a schedule they are from the scheduled
    time, and *delay_us* is how much later than that 99 of 100 messages were sent at most.
    """

    items: int
    seconds: float
    sent: int = 0
    lost: int = 0
    repeated: int = 0
    stray: int = 0
    load_cpu_seconds: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    p999_us: float = 0.0
    delay_us: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether every item arrived exactly once, where it should."""
        return self.items > 0 and self.lost == self.repeated == self.stray == 0


class Load(ABC):
    """What is done to a server in a round."""

    def renew(self, bench: Bench) -> None:  # most have nothing to make
        """Make what all servers are sent alike in the next round."""

    def runs_on(self, server: BenchmarkServer) -> bool:  # noqa: ARG002
        """Return whether *server* can do it at all."""
        return True

    @abstractmethod
    def open(self, server: BenchmarkServer, bench: Bench) -> AbstractContextManager[Callable[[], Result]]:
        """Connect and warm up; yield the function that does what is measured. Raises `LoadError`."""


class CountedLoad(Load):
    """A load in Python, which is a fixed amount of work and says how many items that was."""

    @abstractmethod
    def prepare(self, server: BenchmarkServer) -> AbstractContextManager[Callable[[], int]]:
        """Connect and warm up; yield the function that does what is measured, and returns the number of items."""

    @contextmanager
    def open(self, server: BenchmarkServer, bench: Bench) -> Iterator[Callable[[], Result]]:  # noqa: ARG002
        """Measure how long `prepare`'s function takes."""
        with self.prepare(server) as run:
            yield lambda: _timed(run)


def _timed(run: Callable[[], int]) -> Result:
    start, cpu = time.perf_counter(), time.process_time()
    items = run()
    result = Result(items, time.perf_counter() - start, load_cpu_seconds=time.process_time() - cpu)
    time.sleep(SETTLE_SECONDS)
    return result


@dataclass(frozen=True)
class Workload:
    """A row of the report: a *load* on the gateway, and what it is compared with.

    That is other servers (*peers*) under the same load, of which the first is the reference; or the gateway itself
    under another load (*beside*), called *beside_title*. *must* is the ratio to the reference to reach, *must_rate* the
    number of *unit* a second. *fresh* means a server that has seen nothing, for each round.
    """

    section: str
    title: str
    load: Load
    peers: tuple[str, ...] = ()
    beside: Load | None = None
    beside_title: str = ""
    must: float | None = None
    must_rate: float | None = None
    unit: str = "deliveries"
    server: str = "trellis"
    fresh: bool = False


@dataclass(frozen=True)
class Round:
    """One contestant under one workload, once; *number* counts from 0.

    *others* is how many cores other programs kept busy meanwhile.
    """

    workload: str
    contestant: str
    number: int
    cpu_seconds: float
    result: Result
    others: float = 0.0

    @property
    def per_cpu_second(self) -> float:
        """The figure that is compared: a second of the server's CPU time buys so many items."""
        return self.result.items / self.cpu_seconds

    @property
    def per_second(self) -> float:
        """What the users of the server see."""
        return self.result.items / self.result.seconds
