"""What goes from protocol to protocol, and how long that takes: for the `counts` facts of the log.

A delivery is counted when its message was handed to a session. How long it took is measured on samples, a few of
each flow a second: from the moment the message was taken until the outbox it went to was given to the wire.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

SAMPLES = 10  # of each flow a second
# Bounds of the histogram's cells, in microseconds; what takes longer than the last is in none.
BOUNDS = tuple(step * 10**power for power in range(1, 8) for step in (1, 2, 5))


class Flow:
    """The deliveries from one protocol to another since the start, and those of the minute that is not told yet."""

    __slots__ = ("_cells", "_told", "delivered", "samples", "undelivered")

    def __init__(self) -> None:
        self.delivered = 0
        self.undelivered = 0
        self.samples = SAMPLES  # that may still be taken this second
        self._told = (0, 0)
        self._cells = [0] * (len(BOUNDS) + 1)

    def sample(self) -> Callable[[], None]:
        """Begin to measure a delivery; call what is returned when it is on its way."""
        self.samples -= 1
        begin = perf_counter_ns()

        def end() -> None:
            self._cells[bisect_left(BOUNDS, (perf_counter_ns() - begin) / 1000)] += 1

        return end

    def tell(self) -> dict[str, Any] | None:
        """What was counted since this was asked last; None if that is nothing."""
        (delivered, undelivered), self._told = self._told, (self.delivered, self.undelivered)
        if self._told == (delivered, undelivered):
            return None
        cells, self._cells = self._cells, [0] * (len(BOUNDS) + 1)
        return {
            "delivered": self.delivered - delivered,
            "undelivered": self.undelivered - undelivered,
            "latency": [[bound, count] for bound, count in zip(BOUNDS, cells, strict=False) if count],
        }


class Flows:
    """All flows there are, by where they go and where they come from; their number is bounded by that of protocols."""

    def __init__(self) -> None:
        self._to: defaultdict[str, defaultdict[str, Flow]] = defaultdict(partial(defaultdict, Flow))

    def to(self, protocol: str) -> defaultdict[str, Flow]:
        """The flows to *protocol*, by the protocol that they come from."""
        return self._to[protocol]

    def tick(self) -> None:
        """A second has passed: samples may be taken again."""
        for flows in self._to.values():
            for flow in flows.values():
                flow.samples = SAMPLES

    def totals(self) -> list[dict[str, Any]]:
        """What was counted since the start."""
        return [
            {"from": origin, "to": to, "delivered": flow.delivered, "undelivered": flow.undelivered}
            for to, flows in self._to.items()
            for origin, flow in flows.items()
            if flow.delivered or flow.undelivered
        ]

    def tell(self) -> list[dict[str, Any]]:
        """What was counted since this was asked last, as a `counts` fact has it."""
        told = [(origin, to, flow.tell()) for to, flows in self._to.items() for origin, flow in flows.items()]
        return [{"from": origin, "to": to, **counts} for origin, to, counts in told if counts is not None]
