"""Counts and latencies of deliveries from protocol to protocol, for the `counts` facts of the log.

A delivery is counted when its message is queued for a session. Its latency is sampled a few times a second for each
flow: from the moment the message is queued until the outbox is handed to the wire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Any

from .histogram import Histogram

SAMPLES_PER_SECOND = 10  # of each flow, a second
# Upper bounds of the histogram's cells, in microseconds; slower deliveries are in none.
BOUNDS_US = tuple(step * 10**power for power in range(1, 8) for step in (1, 2, 5))


class Flow:
    """The deliveries from one protocol to another since the start, and those that no fact contains yet."""

    __slots__ = ("_reported", "_reported_cells", "delivered", "latency", "samples", "undelivered")

    def __init__(self) -> None:
        self.delivered = 0
        self.undelivered = 0
        self.samples = SAMPLES_PER_SECOND  # that may still be taken this second
        self.latency = Histogram(BOUNDS_US)  # of the samples, in microseconds
        self._reported = (0, 0)
        self._reported_cells = self.latency.cells.copy()

    def sample(self) -> Callable[[], None]:
        """Begin to measure a delivery; call what is returned when it is handed to the wire."""
        self.samples -= 1
        begin = perf_counter_ns()

        def end() -> None:
            self.latency.observe((perf_counter_ns() - begin) / 1000)

        return end

    def take_counts(self) -> dict[str, Any] | None:
        """The counts since the last call of this; None if there are none."""
        (delivered, undelivered), self._reported = self._reported, (self.delivered, self.undelivered)
        if self._reported == (delivered, undelivered):
            return None
        cells = [now - before for now, before in zip(self.latency.cells, self._reported_cells, strict=True)]
        self._reported_cells = self.latency.cells.copy()
        return {
            "delivered": self.delivered - delivered,
            "undelivered": self.undelivered - undelivered,
            "latency": _histogram(cells),
        }


class Flows:
    """All flows, by destination and origin; their number is bounded by that of protocols."""

    def __init__(self) -> None:
        self._to: defaultdict[str, defaultdict[str, Flow]] = defaultdict(partial(defaultdict, Flow))

    def to_protocol(self, protocol: str) -> defaultdict[str, Flow]:
        """The flows to *protocol*, by the protocol that they come from."""
        return self._to[protocol]

    def tick(self) -> None:
        """Allow samples again; call this once a second."""
        for flows in self._to.values():
            for flow in flows.values():
                flow.samples = SAMPLES_PER_SECOND

    def latencies(self) -> Iterator[tuple[str, str, Histogram]]:
        """The latencies (in microseconds) of each flow since the start, with its origin and its destination."""
        for to, flows in self._to.items():
            for origin, flow in flows.items():
                yield origin, to, flow.latency

    def totals(self) -> list[dict[str, Any]]:
        """The counts since the start."""
        return [
            {
                "from": origin,
                "to": to,
                "delivered": flow.delivered,
                "undelivered": flow.undelivered,
                "latency": _histogram(flow.latency.cells),
            }
            for to, flows in self._to.items()
            for origin, flow in flows.items()
            if flow.delivered or flow.undelivered
        ]

    def take_counts(self) -> list[dict[str, Any]]:
        """The counts since the last call of this, as a `counts` fact has them."""
        counted = [(origin, to, flow.take_counts()) for to, flows in self._to.items() for origin, flow in flows.items()]
        return [{"from": origin, "to": to, **counts} for origin, to, counts in counted if counts is not None]


def _histogram(cells: list[int]) -> list[list[int]]:
    return [[bound, count] for bound, count in zip(BOUNDS_US, cells, strict=False) if count]
