"""`python -m benchmarks.streamr_resend --data DIR STREAM`: how a resend of a whole stream delays live messages.

A gateway is started on DIR, whose log has the messages of STREAM (as many as are to be resent). A publisher says one
message each `GAP` to one subscriber of another stream, for a while without and then with a resend under way, in turns;
it prints the median time from publishing to delivery, and the memory that the resend took.
Exit codes: 0 done, 1 the gateway did not start, or stalled.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from .servers import ServiceAddress, running, trellis_addresses, wait_until_ready
from .sockets import connect_websocket, text_frame
from .streamr_load import request
from .workload import LoadError

GAP = 0.002  # seconds between two messages
STREAM = "talk"


class Resend:
    """A connection that asks for everything and reads it, in a process of its own."""

    def __init__(self, at: ServiceAddress, stream: str) -> None:
        self._bytes = multiprocessing.Value("Q", 0)
        self._process = multiprocessing.Process(target=_read, args=(at, stream, self._bytes))
        self._process.start()

    @property
    def bytes(self) -> int:
        """How many came so far."""
        return int(self._bytes.value)

    @property
    def over(self) -> bool:
        """Whether its outcome came."""
        return not self._process.is_alive()

    def close(self) -> None:
        """Hang up."""
        self._process.terminate()
        self._process.join()


def _read(at: ServiceAddress, stream: str, count: Any) -> None:
    wire, tail = connect_websocket(at), b""
    wire.settimeout(None)
    wire.sendall(text_frame(json.dumps([2, 12, "all", stream, 0, [0, 0], None, None]).encode()))
    while b'[2,5,"all"' not in tail and (data := wire.recv(1 << 20)):
        count.value += len(data)
        tail = (tail + data)[-200:]


class Talk:
    """A publisher and a subscriber."""

    def __init__(self, at: ServiceAddress) -> None:
        self._publisher, self._subscriber = connect_websocket(at), connect_websocket(at)
        self._subscriber.sendall(text_frame(json.dumps([2, 9, "s", STREAM, 0, None]).encode()))
        self._subscriber.recv(4096)
        self._next = int(time.time() * 1000)

    def latencies(self, seconds: float) -> list[float]:
        """How long each message took, in microseconds."""
        found = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._next += 1
            frame = text_frame(request(self._next, 0, stream=STREAM, signed=False))
            time.sleep(GAP)
            start = time.perf_counter()
            self._publisher.sendall(frame)
            if not self._subscriber.recv(4096):
                raise LoadError("the gateway hung up")
            found.append((time.perf_counter() - start) * 1e6)
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streamr_resend")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("stream")
    options = parser.parse_args(argv)
    command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--sprout-port", "0"]
    work = options.data.parent / "resend-work"
    with running("resend", [*command, "--data", str(options.data)], work, TRELLIS_LIMITS__RATES="off") as (
        process,
        log,
    ):
        ready = wait_until_ready(process, log)
        at = trellis_addresses(ready["http"], ready["sprout"])["streamr"]
        talk, memory = Talk(at), psutil.Process(process.pid)
        talk.latencies(1.0)
        before = memory.memory_info().rss
        compare_latencies(at, talk, options.stream, options.rounds, options.seconds)
        start = time.monotonic()
        resend = Resend(at, options.stream)
        while not resend.over:
            time.sleep(0.1)
        grown, seconds = memory.memory_info().rss - before, time.monotonic() - start
        sys.stdout.write(f"all of it with nobody talking: {resend.bytes / 1e6:.0f} MB in {seconds:.0f} s;\n")
        sys.stdout.write(f"the process grew by {grown / 1e6:.1f} MB in all\n")
    return 0


def compare_latencies(at: ServiceAddress, talk: Talk, stream: str, rounds: int, seconds: float) -> None:
    """Print the median latency of live messages without and with a resend of *stream*, in turns."""
    medians: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds):
        medians["without"].append(median(talk.latencies(seconds)))
        resend = Resend(at, stream)
        time.sleep(0.5)
        bytes_before = resend.bytes
        medians["with"].append(median(talk.latencies(seconds)))
        rate = (resend.bytes - bytes_before) / seconds
        sys.stdout.write(f"resent {rate / 1e6:.2f} MB/s meanwhile, over: {resend.over}\n")
        resend.close()
        time.sleep(0.5)
    without, during = (median(medians[name]) for name in ("without", "with"))
    sys.stdout.write(f"p50 without {without:.0f} us, with {during:.0f} us: {during / without - 1:+.0%}\n")


if __name__ == "__main__":
    sys.exit(main())
