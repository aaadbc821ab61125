"""The gauges of `/metrics`, which are read from the running gateway only when Prometheus asks."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gateway.core.flows import BOUNDS_US
from gateway.core.histogram import Histogram
from gateway.core.subscriber import Subscriber
from gateway.membership import cluster_report
from gateway.monitoring.metrics import Histograms

from .runtime import Gateway

MICROSECONDS = 1e6  # in a second; flows are measured in microseconds


class DiskUsage:
    """The sizes of files, which `read` asks for in a thread: a slow disk must not hold up the event loop."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.free_bytes = 0
        self.log_bytes = 0

    def read(self) -> None:
        """Ask the disk; what cannot be read stays as it was."""
        with suppress(OSError):
            self.free_bytes = shutil.disk_usage(self._data).free
        total = 0
        with suppress(OSError):
            for path in (self._data / "log").iterdir():
                with suppress(FileNotFoundError):  # it was sealed or retired meanwhile
                    total += path.stat().st_size
            self.log_bytes = total


def install(gateway: Gateway) -> None:
    """Let the metrics of *gateway* have all gauges and histograms."""
    metrics, log, index, disk = gateway.metrics, gateway.log, gateway.index, DiskUsage(gateway.settings.data)
    build = (gateway.version, platform.python_version(), gateway.settings.loop)
    metrics.refresh = disk.read
    metrics.gauges |= {
        "ready": lambda: not gateway.unready_reasons(),
        "open_connections": lambda: _by_protocol(gateway, lambda _session: 1),
        "http_connections": lambda: gateway.admission.http_count,
        "channels": lambda: gateway.channels.count,
        "subscriptions": lambda: _by_protocol(gateway, lambda session: len(session.channels)),
        "outbox_bytes": lambda: _by_protocol(gateway, lambda session: session.waiting_bytes),
        "links": lambda: _links(gateway, up=False),
        "links_up": lambda: _links(gateway, up=True),
        "unsynced_bytes": lambda: log.unsynced_bytes,
        "index_lag_records": lambda: max(0, index.synced_seq - index.level),
        "log_bytes": lambda: disk.log_bytes,
        "log_last_sequence": lambda: log.synced_seq,
        "disk_free_bytes": lambda: disk.free_bytes,
        "build_info": lambda: {build: 1},
        **cluster_report.gauges(gateway.membership),
    }
    checks: Histograms = {
        (each.name,): found for each in gateway.adapters if (found := each.signature_checks()) is not None
    }
    metrics.histograms |= {
        "delivery_seconds": lambda: _latencies(gateway),
        "sync_seconds": lambda: {(): log.sync_seconds},
        "batch_records": lambda: {(): log.batch_records},
        "signature_check_seconds": lambda: checks,
    }


def _latencies(gateway: Gateway) -> Mapping[tuple[str, ...], Histogram]:
    """The latencies of all pairs of protocols, in seconds."""
    protocols = gateway.metrics.protocols
    bounds = tuple(bound / MICROSECONDS for bound in BOUNDS_US)
    shown: dict[tuple[str, ...], Histogram] = {
        (origin, to): Histogram(bounds) for origin in protocols for to in protocols
    }
    for origin, to, latency in gateway.bus.flows.latencies():
        if (histogram := shown.get((origin, to))) is not None:
            histogram.cells, histogram.sum = latency.cells, latency.sum / MICROSECONDS
    return shown


def _by_protocol(gateway: Gateway, size: Callable[[Subscriber], int]) -> Mapping[tuple[str, ...], float]:
    """The sum of the *size* of each session, by protocol."""
    found: dict[tuple[str, ...], float] = {(protocol,): 0 for protocol in gateway.metrics.protocols}
    for session in gateway.bus.sessions():
        key = (session.protocol,)
        found[key] = found.get(key, 0) + size(session)
    return found


def _links(gateway: Gateway, *, up: bool) -> Mapping[tuple[str, ...], float]:
    """How many links this gateway is to hold, or are *up*, by protocol."""
    found: dict[tuple[str, ...], float] = {(link.protocol,): 0 for link in gateway.links}
    for link in gateway.links:
        found[link.protocol,] += link.is_up or not (up or link.is_elsewhere)
    return found
