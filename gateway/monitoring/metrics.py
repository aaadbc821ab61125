"""The gateway's metrics: plain integers on the hot path; everything else is read when Prometheus asks.

Their names are a contract: dashboards and alerts are made of them. A test compares them with a list, and
docs/reference/metrics.md is made from the tables here. Label values are protocols, verbs and reasons, never names of
peers or channels: their number is bounded. Every counter is there from the start, at 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import anyio.to_thread
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.core.bounded_maps import BoundedMap
from gateway.core.histogram import Histogram
from gateway.core.message import REST, Message
from gateway.system.shared_result import SharedResult

INTERVAL = 0.25  # seconds between two expositions, each of which takes 8 ms of a thread


class Family(NamedTuple):
    """What a metric counts or measures, its labels, and when an operator should look at it."""

    help: str
    labels: tuple[str, ...] = ()
    watch: str = ""


# fmt: off
COUNTERS = {
    "messages": Family("Messages accepted", ("protocol",), "it stops growing although peers send"),
    "deliveries": Family("Messages delivered to a connection, by the protocol that they came from", ("protocol",),
                         "it stops growing although peers send"),
    "direct_messages": Family("Deliveries of direct messages to a connection", ("protocol",)),
    "undeliverable": Family("Messages that a protocol could not carry", ("protocol",),
                            "it grows: messages are too long for other protocols"),
    "undecrypted": Family("Encrypted messages that other protocols got undecrypted, because their key did not come",
                          ("protocol",), "it grows: publishers refuse their keys"),
    "overflows": Family("Connections closed because they read too slowly", ("protocol",),
                        "it grows: a slow network, or a peer that does not read"),
    "given_up": Family("Connections closed because all together held too much memory", (), "it grows at all"),
    "refused": Family("Requests, nodes or messages refused", ("protocol", "reason"),
                      "it grows: a client is faulty, or is probing"),
    "ids_taken": Family("Messages whose id at another gateway was in use here: they got another one",
                        ("protocol",), "it grows at all: somebody uses the ids of other messages; the log names them"),
    "handed_over": Family("Messages transferred from another gateway (`trellis sync`)", ("result",),
                          "`refused` grows; the answers to `/v1/sync/import` say why"),
    "connections": Family("Connections accepted", ("protocol",), "it grows much faster than usual"),
    "webhook_attempts": Family("Attempts to deliver a message to a webhook", ("outcome",),
                               "outcomes other than `delivered` grow: a receiver is down or faulty"),
    "faults": Family("Events that should never happen: failed writes, damaged records, bugs", ("kind",),
                     "it grows at all; the log has a line for each"),
    "cluster_ignored_batches": Family("Batches in the stream of the cluster that did not count, since the start", (),
                                      "it keeps growing: turns are claimed again and again"),
    "cluster_ignored_signals": Family("Signals of other members that were not valid", (),
                                      "it grows: the versions of members do not match, or somebody forges signals"),
    "cluster_lost_signals": Family("Signals of other members that were dropped because they came too fast", (),
                                   "it grows: the gateway is overloaded; presence may be late"),
    "cluster_refused_values": Family("Values shared by the members that could not be read", (),
                                     "it grows at all: the log says why"),
    "cluster_reconnects": Family("Reconnections to NATS servers", (),
                                 "it keeps growing: servers fail, or the network does"),
    "log_lines_left_out": Family("Lines left out of the program's log because there were too many",
                                 (), "it grows: something fails again and again"),
}

GAUGES = {
    "tasks": Family("Tasks of the event loop", (), "it grows while the number of connections does not"),
    "ready": Family("1 if the gateway is ready, as `GET /readyz` says, else 0", (), "it is 0"),
    "open_connections": Family("Open connections: WebSockets, TCP, event streams, links", ("protocol",)),
    "http_connections": Family("HTTP connections that are open and not counted in `trellis_open_connections`"),
    "channels": Family("Channels that exist or are listened to", (), "it comes near `channels.limit`"),
    "subscriptions": Family("Channels that connections listen to, counted for each connection", ("protocol",)),
    "outbox_bytes": Family("Bytes that wait for peers to read them", ("protocol",), "it grows and does not fall"),
    "links": Family("Links to other servers that this gateway is to keep connected", ("protocol",)),
    "links_up": Family("Links to other servers that are connected", ("protocol",), "it is less than `trellis_links`"),
    "unsynced_bytes": Family("Bytes of the log that are not on disk yet", (), "it stays beyond a few MB: a slow disk"),
    "index_lag_records": Family("Records that are on disk and not in the tables of the index yet", (),
                                "it grows and does not fall"),
    "log_bytes": Family("Bytes in the files of the log"),
    "log_last_sequence": Family("Sequence number of the last record that is on disk"),
    "disk_free_bytes": Family("Free bytes on the disk of the data directory", (), "the log will need them soon"),
    "webhook_dead_letters": Family("Messages that receivers refused, until they are deleted or retried",
                                   (), "it grows: `GET /v1/webhooks` names the webhook and its last error"),
    "webhooks_disabled": Family("Webhooks that are disabled", (), "it grows: repair the receiver, then enable it"),
    "cluster_members": Family("Gateways of the cluster that are alive, this one included; 0 if it runs alone", (),
                              "it is less than there should be"),
    "cluster_differing_members": Family("Members with another log, or another value of a setting that is compared", (),
                                        "it is not 0: `trellis cluster status` names what differs"),
    "cluster_accepts": Family("1 if it is this gateway's turn to accept"),
    "cluster_connected": Family("1 if there is a connection to a NATS server", (), "it is 0"),
    "cluster_replicas_current": Family("NATS servers that have the whole stream; 0 if one server keeps it alone", (),
                                       "it is less than `cluster.replicas`"),
    "cluster_last_batch": Family("Number of the last batch of the stream that counted"),
    "cluster_lag_records": Family("Records that other gateways have and this one does not have yet", (),
                                  "it grows and does not fall"),
    "cluster_lag_seconds": Family("How long this gateway has been behind", (), "it is more than a few seconds"),
    "cluster_unsent_bytes": Family("Bytes that wait for the stream", (), "it grows: the servers do not keep up"),
    "build_info": Family("1; the labels say which program runs", ("version", "python", "loop")),
}

HISTOGRAMS = {
    "delivery_seconds": Family("From the moment a message is published until it is handed to a receiver's connection, "
                               "sampled ten times a second for each pair of protocols", ("from", "to"),
                               "the 99th percentile grows"),
    "sync_seconds": Family("Calls of fdatasync for a batch of the log", (), "the 99th percentile grows: a slow disk"),
    "batch_records": Family("Records in a batch of the log: in one write and one sync"),
    "signature_check_seconds": Family("Checks of signatures, each of one signature or of one batch", ("protocol",)),
}
# fmt: on

# Label values that are there from the start, at 0; protocols are added when they are known.
FAULT_KINDS = (
    *("disk", "record", "index", "retention", "worker", "form", "request", "pin", "channel", "node", "stalled"),
    *("late", "tick", "webhook"),
)
OUTCOMES = ("delivered", "refused", "unreachable", "gone")  # of attempts to deliver to webhooks
HANDED_OVER = ("accepted", "known", "refused")  # what became of messages from another gateway
REFUSAL_REASONS = ("400", "401", "403", "404", "429", "503")

# The value of a gauge when Prometheus asks: a number, or one for each combination of label values.
Reading = float | Mapping[tuple[str, ...], float]
Histograms = Mapping[tuple[str, ...], Histogram]

MAX_CHANNELS = 10_000  # that are counted one by one; then the oldest is forgotten


class Metrics:
    """Counters by name and labels; gauges and histograms are asked for. *protocols* are those that it will count."""

    def __init__(self, protocols: Iterable[str] = ()) -> None:
        self.counts: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in COUNTERS}
        self.gauges: dict[str, Callable[[], Reading]] = {}  # by the names of `GAUGES`
        self.histograms: dict[str, Callable[[], Histograms]] = {}  # by the names of `HISTOGRAMS`
        self.refresh: Callable[[], None] = lambda: (
            None
        )  # reads what takes long; call it in a thread before `exposition`
        self.protocols = tuple(dict.fromkeys((*protocols, REST)))
        self.on_refused: Callable[[str, str, Mapping[str, object]], None] = lambda _protocol, _reason, _details: None
        self.channels = BoundedMap[str, list[int]](
            MAX_CHANNELS
        )  # messages and deliveries; never in what Prometheus gets
        self._messages = self.counts["messages"]
        self._deliveries = self.counts["deliveries"]
        self._exposition = SharedResult(self._make_exposition, INTERVAL)

    def published(self, run: Sequence[Message], deliveries: int) -> None:
        """Count a run of messages that was accepted, and its deliveries to sessions."""
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

    def id_taken(self, protocol: str) -> None:
        """A message came with an id of another gateway that belongs to something else."""
        self.counts["ids_taken"][protocol,] += 1

    def count(self, name: str, *labels: str) -> None:
        """Add 1 to a counter of `COUNTERS`."""
        self.counts[name][labels] += 1

    def refused(self, protocol: str, reason: str, **details: object) -> None:
        """Something was refused; *details* are for the log, and never secret."""
        self.counts["refused"][protocol, reason] += 1
        self.on_refused(protocol, reason, details)

    def _row(self, channel: str) -> list[int]:
        """A new row for *channel*."""
        row = self.channels[channel] = [0, 0]
        return row

    async def exposition(self) -> bytes:
        """All metrics in the Prometheus text format, read after this call; a thread writes the text."""
        return await self._exposition.get()

    async def _make_exposition(self) -> bytes:
        await anyio.to_thread.run_sync(self.refresh)
        return await anyio.to_thread.run_sync(_text, list(_Families(self).collect()))


def _text(families: list[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return generate_latest(registry)


class _Collected(Collector):
    """Metric families that have been collected already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


class _Families:
    """The metric families of a gateway, with their values at this moment."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._gauges()
        yield from self._histograms()
        yield from ProcessCollector(registry=None).collect()

    def _counters(self) -> Iterator[Metric]:
        for name, family in COUNTERS.items():
            counter = CounterMetricFamily(f"trellis_{name}", family.help, labels=family.labels)
            counts = dict.fromkeys(self._first(family.labels), 0) | self._metrics.counts[name]
            for values, count in counts.items():
                counter.add_metric(values, count)
            yield counter

    def _first(self, labels: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The label values that are there from the start."""
        known = {
            "protocol": self._metrics.protocols,
            "kind": FAULT_KINDS,
            "reason": REFUSAL_REASONS,
            "outcome": OUTCOMES,
            "result": HANDED_OVER,
        }
        return product(*(known[label] for label in labels))

    def _gauges(self) -> Iterator[Metric]:
        for name, read in self._metrics.gauges.items():
            family, found = GAUGES[name], read()
            gauge = GaugeMetricFamily(f"trellis_{name}", family.help, labels=family.labels)
            for values, value in (found if isinstance(found, Mapping) else {(): found}).items():
                gauge.add_metric(values, value)
            yield gauge

    def _histograms(self) -> Iterator[Metric]:
        for name, read in self._metrics.histograms.items():
            family = HISTOGRAMS[name]
            shown = HistogramMetricFamily(f"trellis_{name}", family.help, labels=family.labels)
            for values, histogram in read().items():
                bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
                shown.add_metric(values, list(zip(bounds, histogram.cumulative(), strict=True)), histogram.sum)
            yield shown
