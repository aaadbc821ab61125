"""`python -m benchmarks.sprout_bridge`: what is said on the topic relay becomes signed nodes, as many as there can be.

A relay peer says so many messages at once, or at a rate, and an Arbor subscriber counts the nodes. Meanwhile two other
relay peers, on a topic of their own, measure how long a message takes from one to the other: first alone, then while
nodes are signed. Exit codes: 0 done, 1 the gateway did not start or stalled.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import NamedTuple

from .rest_load import community
from .rounds import cpu_seconds
from .servers import BenchmarkServer, ServiceAddress, trellis
from .sockets import PATIENCE_SECONDS, connect_websocket, read_until, text_frame
from .sprout_load import SproutLoadConnection, hear, hear_silence, subscribe
from .workload import Bench, LoadError, Unavailable

PROBES = 500  # messages a second that measure
ALONE_SECONDS = 2.0
CHUNK = 64  # messages that are sent together at a rate


class BridgeRound(NamedTuple):
    """Nodes a second of the clock and of the gateway's CPU time; the relay's median (us) alone and meanwhile."""

    per_second: float
    per_cpu_second: float
    alone: float
    meanwhile: float


class RelayPeer:
    """A peer of the topic relay on a raw socket."""

    def __init__(self, at: ServiceAddress, topic: str) -> None:
        self.socket = connect_websocket(at)
        self.topic = topic
        self.socket.sendall(text_frame(json.dumps({"type": 2, "topic": topic}).encode()))
        read_until(self.socket, b'"peers"')

    def broadcast(self, **content: object) -> bytes:
        """The frame of a message to the topic."""
        packet = {"type": 6, "topic": self.topic, **content}
        return text_frame(json.dumps(packet, separators=(",", ":")).encode())


def probe(at: ServiceAddress, report: Connection) -> None:
    """Measure until told to stop; report when (`perf_counter`) and how long (us)."""
    speaker, listener = RelayPeer(at, "probe"), RelayPeer(at, "probe")
    data, found = speaker.broadcast(text="x" * 60), []
    while not report.poll():
        begin = time.perf_counter()
        speaker.socket.sendall(data)
        while not listener.socket.recv(1 << 16).count(b"xxx"):
            pass
        found.append((begin, (time.perf_counter() - begin) * 1e6))
        time.sleep(1 / PROBES)
    report.send(found)


@contextmanager
def probing(at: ServiceAddress) -> Iterator[Connection]:
    """A process that measures."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=probe, args=(at, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.join(PATIENCE_SECONDS)


def measure(server: BenchmarkServer, count: int, rate: float) -> BridgeRound:
    """Let *count* messages be signed, *rate* a second or all at once."""
    topic = f"bridge{time.time_ns()}"
    speaker = RelayPeer(server.addresses["relay"], topic)
    with closing(SproutLoadConnection(server.sprout)) as listener, probing(server.addresses["relay"]) as report:
        subscribe([listener], community(server, topic))
        speaker.socket.sendall(speaker.broadcast(text="first"))
        hear([listener], [1])
        hear_silence([listener])  # the community and the identity of who speaks may come with it
        frames = [speaker.broadcast(n=n, text="x" * 80) for n in range(count)]
        time.sleep(1.0 + ALONE_SECONDS)  # the process that measures has begun
        before, cpu, begin = listener.nodes, cpu_seconds(server.pid), time.perf_counter()
        _say(speaker, frames, rate)
        hear([listener], [before + count])
        end, spent = time.perf_counter(), cpu_seconds(server.pid) - cpu
        report.send(None)
        found: list[tuple[float, float]] = report.recv()
    alone = [took for at, took in found if begin - ALONE_SECONDS <= at < begin]
    meanwhile = [took for at, took in found if begin <= at < end]
    return BridgeRound(count / (end - begin), count / spent, median(alone), median(meanwhile))


def _say(speaker: RelayPeer, frames: Sequence[bytes], rate: float) -> None:
    if not rate:
        speaker.socket.sendall(b"".join(frames))
        return
    begin = time.perf_counter()
    for at in range(0, len(frames), CHUNK):
        time.sleep(max(0.0, begin + at / rate - time.perf_counter()))
        speaker.socket.sendall(b"".join(frames[at : at + CHUNK]))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sprout_bridge", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--rate", type=float, default=0.0, help="messages a second; all at once without")
    parser.add_argument("--out", type=Path, default=Bench().folder, help="where results are written")
    options = parser.parse_args(argv)
    rounds: list[BridgeRound] = []
    try:
        for _ in range(options.rounds):
            with trellis(Bench(options.out), "trellis") as server:
                rounds.append(measure(server, options.messages, options.rate))
            each = rounds[-1]
            sys.stderr.write(
                f"{each.per_second:7.0f} nodes a second  {each.per_cpu_second:7.0f} a CPU-s  relay p50"
                f" {each.alone:6.0f} us alone, {each.meanwhile:6.0f} us meanwhile\n"
            )
    except (Unavailable, LoadError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    text = table(rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"sprout-bridge-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.md").write_text(text)
    sys.stdout.write(text)
    return 0


def table(rounds: Sequence[BridgeRound]) -> str:
    """The best and the median of each figure."""
    lines = ["| what | best | median |", "|---|---|---|"]
    for name, values, best in (
        ("bridged nodes a second", [each.per_second for each in rounds], max),
        ("bridged nodes a CPU-second", [each.per_cpu_second for each in rounds], max),
        ("relay p50 alone, us", [each.alone for each in rounds], min),
        ("relay p50 meanwhile, us", [each.meanwhile for each in rounds], min),
        ("moved by, %", [100 * (each.meanwhile / each.alone - 1) for each in rounds], min),
    ):
        lines.append(f"| {name} | {best(values):,.0f} | {median(values):,.0f} |")
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    sys.exit(main())
