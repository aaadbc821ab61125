"""The gateway's metrics: plain integers on the hot path, and gauges that are read when Prometheus asks.

Label values are protocols, verbs and reasons, never names of peers or channels: their number is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gateway.core.bounded import BoundedMap
from gateway.core.message import Message

# name: (help, labels)
COUNTERS = {
    "messages": ("Messages accepted onto the bus", ("protocol",)),
    "deliveries": ("Messages handed to a connection", ("protocol",)),
    "direct_messages": ("Direct messages handed over", ("protocol",)),
    "undeliverable": ("Messages that did not fit a protocol", ("protocol",)),
    "undecrypted": ("Encrypted messages whose key did not come: others got them as they are", ("protocol",)),
    "overflows": ("Connections closed because they read too slowly", ("protocol",)),
    "given_up": ("Connections closed because too much memory was held for all of them", ()),
    "refused": ("Requests, nodes or messages refused", ("protocol", "reason")),
    "connections": ("Connections accepted", ("protocol",)),
    "webhook_attempts": ("Attempts to deliver a message to a webhook", ("outcome",)),
    "faults": ("Things that should not happen: failed writes, damaged records, bugs", ("kind",)),
}

GAUGES = {
    "tasks": "Tasks of the event loop",
    "webhook_dead_letters": "Messages that receivers of webhooks refused, until somebody deletes or retries them",
    "webhooks_disabled": "Webhooks that are disabled",
}

MAX_CHANNELS = 10_000  # that are counted one by one; then the one that was heard of first is forgotten


class Metrics:
    """Counters by name and labels, and gauges that are asked for."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in COUNTERS}
        self.gauges: dict[str, Callable[[], float]] = {}  # by the names of `GAUGES`
        self.channels = BoundedMap[str, list[int]](
            MAX_CHANNELS
        )  # messages and deliveries; never in what Prometheus gets
        self._messages = self.counts["messages"]
        self._deliveries = self.counts["deliveries"]

    def published(self, run: Sequence[Message], deliveries: int) -> None:
        """A run of messages was accepted, and handed to sessions so many times."""
        first = run[0]
        self._messages[first.protocol,] += len(run)
        self._deliveries[first.protocol,] += deliveries
        row = self.channels.get(first.channel) or self._row(first.channel)
        row[0] += len(run)
        row[1] += deliveries

    def direct(self, message: Message, listeners: int) -> None:
        """A direct message was handed to *listeners* sessions."""
        self.counts["direct_messages"][message.protocol,] += listeners

    def undeliverable(self, message: Message) -> None:
        """A message did not fit the protocols that it names."""
        for unfit in message.undelivered:
            self.counts["undeliverable"][unfit,] += 1

    def overflow(self, protocol: str) -> None:
        """A session was closed because it read too slowly."""
        self.counts["overflows"][protocol,] += 1

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter of `COUNTERS`."""
        self.counts[name][labels] += by

    def _row(self, channel: str) -> list[int]:
        """A new row for *channel*."""
        row = self.channels[channel] = [0, 0]
        return row

    def exposition(self) -> bytes:
        """All metrics in the Prometheus text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self))
        return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for name, (text, labels) in COUNTERS.items():
            counter = CounterMetricFamily(f"trellis_{name}", text, labels=labels)
            for values, count in self._metrics.counts[name].items():
                counter.add_metric(values, count)
            yield counter
        for name, read in self._metrics.gauges.items():
            yield GaugeMetricFamily(f"trellis_{name}", GAUGES[name], read())
