"""`python -m benchmarks.growth`: what a gateway's work costs as there is more of everything.

- deliveries of one Streamr publisher to 10 up to 10,000 subscribers (on the topic relay everybody is told of each new
  peer, so ten thousand that join are fifty million messages);
- messages of one topic relay publisher to one subscriber, over 1 up to 10,000 channels in turns, one alone and 64 at
  once (which on one channel are one run);
- REST's history, with a log of 1,000 up to 1,000,000 records or more (`--records`): the newest page, a page in the
  middle, one from a time on, and a message by its id;
- starting with such a log, with its index and without it.

Costs are CPU time of the gateway, of all its threads, since other programs change that least. Beside each figure stand
its ratio to the smallest size, and the load average of the machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from gateway.access.authorization import write_secret
from gateway.identity import FILE

from . import pipeline_log
from .__main__ import exit_on_sigterm
from .catalogue import STREAM, fan
from .page import facts, number, table
from .rounds import cpu_seconds, in_turn
from .servers import BenchmarkServer, running, trellis, trellis_addresses, wait_until_ready
from .sockets import SocketListener, connect_websocket, read_until, text_frame
from .workload import MARK, ROOT, Bench, LoadError

SUBSCRIBERS, CHANNELS, RECORDS = (10, 100, 1_000, 10_000), (1, 100, 10_000), (1_000, 100_000, 1_000_000)
WINDOW = 4  # messages in flight to the subscribers
BURST = 64  # messages over channels that are sent at once
PAGE, ASKED, STARTS = 5, 200, 3  # messages of a page; queries of a kind; starts with an index
CHANNEL = 7  # of the logs: 20 messages of 1,000 records
PATIENCE_SECONDS = 1_200.0  # for an index to be made
MANY = {"TRELLIS_LIMITS__CONNECTIONS_PER_ADDRESS": "20000"}


@dataclass(frozen=True)
class Sizes:
    """How much of everything; each begins with the smallest, and the others are compared with it."""

    subscribers: Sequence[int] = SUBSCRIBERS
    channels: Sequence[int] = CHANNELS
    records: Sequence[int] = RECORDS


class GrowthFigure(NamedTuple):
    """A figure: *what* took so much CPU time with *size* of something, and *seconds* by the clock where these count."""

    what: str
    size: int
    cpu: float  # microseconds
    seconds: float | None = None
    load: float = 0.0


def deliveries(bench: Bench, counts: Sequence[int]) -> Iterator[GrowthFigure]:
    """What a delivery costs, to so many subscribers."""
    costs: dict[int, list[float]] = {count: [] for count in counts}
    with trellis(bench, "growth", settings=MANY) as server:
        for turn in range(bench.rounds):
            for count in in_turn(counts, turn):
                settle(server)  # ten thousand connections may just have ended
                with fan(count, WINDOW, STREAM).open(server, bench) as go:
                    settle(server)
                    before = cpu_seconds(server.pid)
                    result = go()
                    if not result.exact:
                        raise LoadError(f"not every delivery arrived exactly once: {result}")
                    costs[count].append((cpu_seconds(server.pid) - before) / result.items * 1e6)
    yield from _rows("a delivery; subscribers", costs)


def messages(bench: Bench, counts: Sequence[int], number_sent: int = 6_400) -> Iterator[GrowthFigure]:
    """What a message to one subscriber costs, if so many channels have them in turns."""
    with ExitStack() as stack:
        spread = {}
        for count in counts:
            server = stack.enter_context(trellis(bench, f"growth-{count}"))
            traffic = stack.enter_context(closing(Spread(server, count)))
            traffic.play(-(-count // BURST), BURST)  # the first message of a channel has its Arbor community signed
            spread[count] = server, traffic
            settle(server)
        for burst, what in ((1, "a message alone"), (BURST, f"a message of {BURST} at once")):
            costs: dict[int, list[float]] = {count: [] for count in counts}
            for turn in range(bench.rounds):
                for count in in_turn(counts, turn):
                    server, traffic = spread[count]
                    before = cpu_seconds(server.pid)
                    traffic.play(number_sent // burst, burst)
                    costs[count].append((cpu_seconds(server.pid) - before) / (number_sent // burst * burst) * 1e6)
            yield from _rows(f"{what}; channels", costs)


def _rows(what: str, costs: dict[int, list[float]]) -> Iterator[GrowthFigure]:
    for size, each in costs.items():
        yield GrowthFigure(what, size, statistics.median(each), load=os.getloadavg()[0])


class Spread:
    """A publisher and a subscriber of *count* channels on the topic relay."""

    def __init__(self, server: BenchmarkServer, count: int) -> None:
        self._publisher, wire = (connect_websocket(server.addresses["relay"]) for _ in range(2))
        self._frames = []
        for at in range(count):
            topic = f"channel-{at}"
            wire.sendall(text_frame(json.dumps({"type": 2, "topic": topic}).encode()))
            read_until(wire, b'"peers"')
            said = {"type": 6, "topic": topic, "text": f"{MARK.decode()}{'x' * 50}"}
            self._frames.append(text_frame(json.dumps(said, separators=(",", ":")).encode()))
        self._listener = SocketListener(wire)
        self._next = 0

    def play(self, times: int, burst: int) -> None:
        """Send *burst* messages so many times, each time once those before have arrived."""
        for _ in range(times):
            some = [self._frames[(self._next + at) % len(self._frames)] for at in range(burst)]
            self._next += burst
            self._publisher.sendall(b"".join(some))
            while self._listener.heard < self._next:
                self._listener.take()

    def close(self) -> None:
        """Hang up."""
        self._publisher.close()
        self._listener.socket.close()


def settle(server: BenchmarkServer) -> None:
    """Wait until the gateway is idle."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        before = cpu_seconds(server.pid)
        time.sleep(0.2)
        if cpu_seconds(server.pid) - before < 0.01:
            return


def histories(bench: Bench, sizes: Sequence[int]) -> Iterator[GrowthFigure]:
    """What starting, and queries of the history, cost with logs of so many records."""
    for size in sizes:
        data = bench.folder / "servers" / f"records-{size}"
        shutil.rmtree(data, ignore_errors=True)
        (data / "keys").mkdir(parents=True)
        identity = {"id": pipeline_log.GATEWAY, "secret": "5e" * 32}
        write_secret(data / "keys" / FILE, json.dumps(identity).encode())
        with get_context("spawn").Pool(os.cpu_count()) as pool:
            pipeline_log.write(pool, data / "log", size)
        yield from _with_log(bench, data, size)
        shutil.rmtree(data)


def _with_log(bench: Bench, data: Path, size: int) -> Iterator[GrowthFigure]:
    with started(bench, data) as begin:
        first = begin
    begins = []
    for _ in range(STARTS):
        with started(bench, data) as begin:
            begins.append(begin)
    cpu, seconds = (statistics.median(getattr(each, name) for each in begins) for name in ("cpu", "seconds"))
    yield GrowthFigure("start, index in place; records", size, cpu * 1e6, seconds, os.getloadavg()[0])
    more = max(first.cpu - cpu, 0) * 1e6, max(first.seconds - seconds, 0)
    yield GrowthFigure("what an index to make adds; records", size, *more, os.getloadavg()[0])
    with started(bench, data) as begin:
        settle(begin.server)
        with closing(History(begin.server, size)) as history:
            for what, targets in history.targets().items():
                yield GrowthFigure(
                    f"{what}; records", size, history.cost(targets, bench.rounds), load=os.getloadavg()[0]
                )


class Begin(NamedTuple):
    """A gateway that has just started, and what that took."""

    server: BenchmarkServer
    seconds: float
    cpu: float  # seconds


@contextmanager
def started(bench: Bench, data: Path) -> Iterator[Begin]:
    """A gateway that serves *data*, once it is ready."""
    command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--sprout-port", "0"]
    began = time.monotonic()
    with running(
        "records", [*command, "--data", str(data)], bench.folder / "servers", ROOT, TRELLIS_LIMITS__RATES="off"
    ) as (process, log):
        ready = wait_until_ready(process, log, PATIENCE_SECONDS)
        seconds, cpu = time.monotonic() - began, cpu_seconds(process.pid)
        yield Begin(
            BenchmarkServer("records", process.pid, trellis_addresses(ready["http"], ready["sprout"])), seconds, cpu
        )


class History:
    """Queries of a channel's history in a log of *size* records, over one connection."""

    def __init__(self, server: BenchmarkServer, size: int) -> None:
        self._server = server
        self._rest = http.client.HTTPConnection(server.http, timeout=60)
        self._middles = [size // 2 - 50 * at for at in range(8)]  # sequences: one place alone would stay in caches

    def targets(self) -> dict[str, list[str]]:
        """What is asked for, by what it is called."""
        pages = [f"?after={seq}&limit={PAGE}" for seq in self._middles]
        times = [f"?from={pipeline_log.BEGIN + 5 * seq}&limit={PAGE}" for seq in self._middles]
        ids = [f"/{self.ask(page)['messages'][0]['id']}" for page in pages]
        newest = [f"?order=desc&limit={PAGE}"]
        for each in (*newest, *pages, *times):
            if len(self.ask(each)["messages"]) != PAGE:
                raise LoadError(f"{each}: not {PAGE} messages")
        found = {"newest page": newest, "page in the middle": pages, "page from a time on": times}
        return {**found, "message by its id": ids}

    def cost(self, targets: Sequence[str], rounds: int) -> float:
        """Ask for all *targets* in turns; return the CPU time (us) of a query, the median of *rounds*."""
        costs = []
        for _ in range(rounds):
            before = cpu_seconds(self._server.pid)
            for at in range(ASKED):
                self.ask(targets[at % len(targets)])
            costs.append((cpu_seconds(self._server.pid) - before) / ASKED * 1e6)
        return statistics.median(costs)

    def ask(self, target: str) -> Any:
        """Return the answer."""
        self._rest.request("GET", f"/v1/channels/channel%20{CHANNEL}/messages{target}")
        response = self._rest.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise LoadError(f"{target}: {response.status} {answer!r}")
        return json.loads(answer)

    def close(self) -> None:
        """Hang up."""
        self._rest.close()


def measure(bench: Bench, sizes: Sizes) -> list[GrowthFigure]:
    """Measure everything, and say each figure on standard error."""
    found = []
    for rows in (
        deliveries(bench, sizes.subscribers),
        messages(bench, sizes.channels),
        histories(bench, sizes.records),
    ):
        for row in rows:
            sys.stderr.write(f"{row}\n")
            found.append(row)
    return found


def report(rows: Sequence[GrowthFigure]) -> str:
    """Return the table as Markdown, the rows of a kind together."""
    smallest: dict[str, GrowthFigure] = {}
    for row in rows:
        smallest.setdefault(row.what, row)
    body = [_cells(row, smallest[row.what]) for what in smallest for row in rows if row.what == what]
    return "\n".join(table(("what", "with", "CPU time", "to the smallest", "by the clock", "load"), body))


def _cells(row: GrowthFigure, smallest: GrowthFigure) -> Sequence[str]:
    what, _, unit = row.what.partition("; ")
    ratio = f"{row.cpu / smallest.cpu:.2f}" if smallest.cpu else ""
    clock = "" if row.seconds is None else f"{row.seconds:.2f} s"
    if what.endswith("adds") and row.cpu:
        clock += f", {number(row.size / row.cpu * 1e6)} records a CPU-second"
    return what, f"{row.size:,} {unit}", _time(row.cpu), ratio, clock, f"{row.load:.0f}"


def _time(microseconds: float) -> str:
    return f"{microseconds / 1e6:.2f} s" if microseconds >= 100_000 else f"{microseconds:.1f} us"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a round")
    parser.add_argument("--subscribers", type=int, nargs="*", default=SUBSCRIBERS)
    parser.add_argument("--channels", type=int, nargs="*", default=CHANNELS)
    parser.add_argument("--records", type=int, nargs="*", default=RECORDS, help="at least 1,000; 10,000,000 take 4 GB")
    parser.add_argument("--out", type=Path, default=Bench().folder, help="where files are kept")
    options = parser.parse_args()
    exit_on_sigterm()
    bench = Bench(options.out.resolve(), rounds=options.rounds, seconds=options.seconds)
    run_facts = facts()
    rows = measure(bench, Sizes(options.subscribers, options.channels, options.records))
    sys.stdout.write(
        f"{run_facts.date:%Y-%m-%d %H:%M} UTC, commit {run_facts.commit}, {run_facts.machine}\n\n{report(rows)}\n"
    )


if __name__ == "__main__":
    main()
