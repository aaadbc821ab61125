"""`python -m benchmarks.cluster`: a cluster of three gateways and three NATS servers, beside one gateway.

The servers keep three replicas and sync always. Three things are measured, in turns with a gateway that runs alone:

- accepted messages a second over REST with 64 requests in flight, shared by the gateways, and their latency (p50, p99);
- the median latency with one request in flight at one gateway (`quiet`);
- deliveries of each gateway per second of its CPU time, when one peer of the topic relay publishes to 100 listeners at
  each gateway: 200 and 800 messages a second, and as many as go with 64 messages in flight, or with one. Only at a set
  rate do both do the same work: with messages in flight, a gateway alone passes on several times as many a second, and
  the more messages wait at once, the less each one costs.

All programs run on this machine: on two cores they compete, so the CPU time of each is what tells.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.commands.cluster_parts import CONFIGURATION, free_ports, nats_program

from .generator import Group, Traffic
from .rounds import cpu_seconds
from .servers import BenchmarkServer, running, trellis, trellis_addresses, wait_until_ready
from .workload import ROOT, Bench, Result

INEXACT = "loads in which something did not arrive exactly once"
NAMES = ("one", "two", "three")
IN_FLIGHT, LISTENERS, WINDOW = 64, 100, 64
RATES = (200, 800)  # messages a second
FANS = (*(f"{rate} a second" for rate in RATES), f"{WINDOW} in flight", "1 in flight")
RATIO = "deliveries per CPU-second, {}: ratio"
GOALS = {
    "accepted a second": 4_000.0,
    "accept p50, ms": 30.0,
    "quiet accept p50, ms": 6.0,
    **{RATIO.format(name): 0.8 for name in FANS},
}


@dataclass(frozen=True)
class ClusterTraffic(Traffic):
    """*kinds* are (role, count, service, gateway); the traffic goes to all gateways of a cluster at once."""

    kinds: Sequence[tuple[str, int, str, int]] = ()

    def at(self, gateways: Sequence[BenchmarkServer]) -> tuple[Traffic, BenchmarkServer]:
        """The same, with a service for each gateway, and one server that has them all."""
        addresses = {f"{service}{at}": gateways[at].addresses[service] for _, _, service, at in self.kinds}
        groups = [Group(role, count, f"{service}{at}") for role, count, service, at in self.kinds]
        return replace(self, groups=groups), replace(gateways[0], addresses=addresses)


def accepting(gateways: int, in_flight: int) -> ClusterTraffic:
    """REST publishers, so many over all gateways."""
    shares = [in_flight // gateways + (at < in_flight % gateways) for at in range(gateways)]
    kinds = [("publisher", share, "rest", at) for at, share in enumerate(shares) if share]
    return ClusterTraffic((), rhythm="answer", kinds=kinds)


def fanning(gateways: int, window: int = WINDOW) -> ClusterTraffic:
    """One publisher of the topic relay, with *window* messages in flight, and listeners at each gateway."""
    listeners = [("listener", LISTENERS, "relay", at) for at in range(gateways)]
    return ClusterTraffic((), window=window, kinds=[("publisher", 1, "relay", 0), *listeners])


def fans(gateways: int) -> dict[str, ClusterTraffic]:
    """The loads of one publisher and listeners at each gateway, by their names: at set rates, and in flight."""
    at_rates = [replace(fanning(gateways), rhythm="schedule", rate=float(rate)) for rate in RATES]
    return dict(zip(FANS, [*at_rates, fanning(gateways), fanning(gateways, 1)], strict=True))


@contextmanager
def nats_servers(bench: Bench) -> Iterator[list[tuple[str, int]]]:
    """Three NATS servers; yields the URL and the process of each."""
    work = bench.folder / "servers"
    ports, routes = free_ports(len(NAMES)), free_ports(len(NAMES))
    with ExitStack() as stack:
        found: list[tuple[str, int]] = []
        for name, port, route in zip(NAMES, ports, routes, strict=True):
            home = work / f"nats-{name}"
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            others = json.dumps([f"nats://127.0.0.1:{each}" for each in routes if each != route])
            text = CONFIGURATION.format(name=name, port=port, folder=home, route=route, routes=others)
            (home / "nats.conf").write_text(text)
            command = [nats_program(), "--config", str(home / "nats.conf")]
            process, _ = stack.enter_context(running(f"nats-{name}", command, work))
            found.append((f"nats://127.0.0.1:{port}", process.pid))
        yield found


@contextmanager
def members(bench: Bench, urls: Sequence[str]) -> Iterator[list[BenchmarkServer]]:
    """Three gateways of one cluster, with the keys of the first."""
    work = bench.folder / "servers"
    with ExitStack() as stack:
        found: list[BenchmarkServer] = []
        for name in NAMES:
            data = work / f"member-{name}"
            shutil.rmtree(data, ignore_errors=True)
            if found:
                shutil.copytree(work / f"member-{NAMES[0]}" / "keys", data / "keys")
            settings = {
                "TRELLIS_LIMITS__RATES": "off",
                "TRELLIS_CLUSTER__URL": json.dumps(list(urls)),
                "TRELLIS_CLUSTER__GATEWAY": name,
            }
            command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--sprout-port", "0"]
            process, log = stack.enter_context(
                running(f"member-{name}", [*command, "--data", str(data)], work, ROOT, **settings)
            )
            ready = wait_until_ready(process, log)
            found.append(BenchmarkServer(name, process.pid, trellis_addresses(ready["http"], ready["sprout"])))
        yield found


@dataclass(frozen=True)
class Measured:
    """What came of a round: the *result*, and the CPU time (s) of each process."""

    result: Result
    cpu: tuple[float, ...]


def measure(load: ClusterTraffic, gateways: Sequence[BenchmarkServer], pids: Sequence[int], bench: Bench) -> Measured:
    """Put *load* on *gateways*; CPU time is that of *pids*."""
    traffic, server = load.at(gateways)
    with traffic.open(server, bench) as go:
        time.sleep(0.2)
        before = [cpu_seconds(pid) for pid in pids]
        result = go()
        return Measured(result, tuple(cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True)))


def compare(bench: Bench) -> list[dict[str, float]]:
    """Measure in turns; one row of figures for each round."""
    rows = []
    with nats_servers(bench) as servers, ExitStack() as stack:
        several = stack.enter_context(members(bench, [url for url, _ in servers]))
        alone = [stack.enter_context(trellis(bench, "alone"))]
        everybody = [*(server.pid for server in several), *(pid for _, pid in servers)]
        one = [alone[0].pid]
        for number in range(bench.rounds):
            load = os.getloadavg()[0]
            busy = measure(accepting(3, IN_FLIGHT), several, everybody, bench)
            busy_alone = measure(accepting(1, IN_FLIGHT), alone, one, bench)
            quiet = measure(accepting(1, 1), several, everybody, bench)
            quiet_alone = measure(accepting(1, 1), alone, one, bench)
            both = {
                name: (measure(fan_alone, alone, one, bench), measure(fan, several, everybody, bench))
                for (name, fan_alone), fan in zip(fans(1).items(), fans(3).values(), strict=True)
            }
            rows.append(_row(load, busy, busy_alone, quiet, quiet_alone, both))
            sys.stderr.write(f"round {number}: {_line(rows[-1])}\n")
    return rows


def _row(
    load: float,
    busy: Measured,
    busy_alone: Measured,
    quiet: Measured,
    quiet_alone: Measured,
    both: Mapping[str, tuple[Measured, Measured]],
) -> dict[str, float]:
    """The figures of a round. *both* has each fan, by its name, alone and in the cluster."""
    measured = (busy, busy_alone, quiet, quiet_alone, *(each for pair in both.values() for each in pair))
    inexact = [each.result for each in measured if not each.result.exact]
    for result in inexact:
        sys.stderr.write(f"FAULT: {result}\n")
    accepted = busy.result.items
    row = {
        "accepted a second": accepted / busy.result.seconds,
        "accepted a second, alone": busy_alone.result.items / busy_alone.result.seconds,
        "accept p50, ms": busy.result.p50_us / 1e3,
        "accept p99, ms": busy.result.p99_us / 1e3,
        "accept p50 alone, ms": busy_alone.result.p50_us / 1e3,
        "accept p99 alone, ms": busy_alone.result.p99_us / 1e3,
        "quiet accept p50, ms": quiet.result.p50_us / 1e3,
        "quiet accept p50 alone, ms": quiet_alone.result.p50_us / 1e3,
        "CPU of the gateways, us a message": sum(busy.cpu[:3]) / accepted * 1e6,
        "CPU of the NATS servers, us a message": sum(busy.cpu[3:]) / accepted * 1e6,
        "CPU of one alone, us a message": busy_alone.cpu[0] / busy_alone.result.items * 1e6,
    }
    for name, (fan_alone, fan) in both.items():
        row |= _fan_figures(name, fan_alone, fan)
    return row | {INEXACT: len(inexact), "load": load}


def _fan_figures(name: str, alone: Measured, fan: Measured) -> dict[str, float]:
    """The figures of the fan *name*; each gateway of the cluster makes a third of its deliveries."""
    reference = alone.result.items / alone.cpu[0]
    ratios = [fan.result.items / 3 / cpu / reference for cpu in fan.cpu[:3]]
    return {
        RATIO.format(name): min(ratios),
        f"{RATIO.format(name)} where nobody publishes": statistics.mean(ratios[1:]),
        f"messages a second, {name}": fan.result.items / 3 / LISTENERS / fan.result.seconds,
        f"messages a second, {name}, alone": alone.result.items / LISTENERS / alone.result.seconds,
        f"CPU alone, {name}, us a message": LISTENERS / reference * 1e6,
    }


def _line(row: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:,.4g}" for name, value in row.items())


def report(rows: Sequence[Mapping[str, float]]) -> str:
    """The medians of *rows*, with the smallest and the largest, beside the goals."""
    lines = [f"{'':72} {'median':>10} {'from':>10} {'to':>10} {'goal':>8}"]
    for name in rows[0]:
        values = [row[name] for row in rows]
        figures = (statistics.median(values), min(values), max(values))
        goal = f"{GOALS[name]:8,.4g}" if name in GOALS else ""
        lines.append(f"{name:72} {' '.join(f'{value:10,.4g}' for value in figures)} {goal}".rstrip())
    return "\n".join(lines)


def main() -> int:
    """Measure and print; return 1 if a message was lost or came twice, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round")
    parser.add_argument("--out", type=Path, default=Bench().folder, help="where files are kept")
    options = parser.parse_args()
    bench = Bench(options.out.resolve(), rounds=options.rounds, seconds=options.seconds)
    rows = compare(bench)
    sys.stdout.write(report(rows) + "\n")
    return 1 if any(row[INEXACT] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
