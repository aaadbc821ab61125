"""The contents of `GET /v1/stats`: what was counted since the start, and what the pipeline last wrote."""

from __future__ import annotations

import json
from heapq import nlargest, nsmallest
from itertools import islice
from pathlib import Path
from typing import Any

from gateway.runtime import Gateway, clock

from . import pipeline_report

COST = 20  # requests that one request for statistics counts as
MAX_CHANNELS = 256  # listed: the busiest ones
MAX_TABLES = 64  # of the pipeline that are read
MAX_COMMIT = 16 << 20  # bytes of a commit that is read
COMMITS = 8  # that are read to find one of the pipeline
RATES = ("address", "peer", "channel", "bytes")  # of `[limits]`
DELTA_LOG = "*/*/_delta_log"  # of each table, below the warehouse (docs/pipeline.md)
STATE = "trellis"  # the pipeline's record in the metadata of a commit


def report(gateway: Gateway) -> dict[str, Any]:
    """Return everything that is counted, except by the pipeline."""
    return {
        "version": gateway.version,
        "uptimeSeconds": (clock() - gateway.started) // 1000,
        "sequence": gateway.log.synced_seq,
        "factsBytes": gateway.retention.facts_bytes,
        "connections": gateway.bus.session_count,
        "channelCount": gateway.channels.count,
        "protocols": _protocols(gateway),
        "channels": _channels(gateway),
        "flows": gateway.bus.flows.totals(),
        "refusals": _refusals(gateway),
        "backlog": _backlog(gateway),
        "limits": _limits(gateway),
        "reports": {each.name: report for each in gateway.adapters if (report := each.report())},
        "links": [link.report() for link in gateway.links],
        "cluster": gateway.cluster_report(),
        "faults": {kind: value for (kind,), value in gateway.metrics.counts["faults"].items()},
    }


def pipeline_tables(warehouse: Path) -> dict[str, Any] | None:
    """Return what the pipeline last wrote below *warehouse*, or None if there are no tables; reads files."""
    tables = [found for path in sorted(warehouse.glob(DELTA_LOG))[:MAX_TABLES] if (found := _table(warehouse, path))]
    if not tables:
        return None
    return {"warehouse": str(warehouse), "tables": tables, "report": pipeline_report.written(warehouse)}


def _protocols(gateway: Gateway) -> dict[str, dict[str, int]]:
    rows: dict[str, dict[str, int]] = {}
    for name, counter in gateway.metrics.counts.items():
        for labels, value in counter.items():
            if labels and name != "faults":  # some counters have no label
                row = rows.setdefault(labels[0], {})
                row[name] = row.get(name, 0) + value
    return rows


def _refusals(gateway: Gateway) -> list[dict[str, Any]]:
    """Return how many requests, nodes and messages were refused since the start, by protocol and reason."""
    counted = gateway.metrics.counts["refused"].items()
    return [{"protocol": protocol, "reason": reason, "count": count} for (protocol, reason), count in counted]


def _backlog(gateway: Gateway) -> dict[str, int]:
    """Return what waits now: records for the disk and for the index, bytes for peers, requests for a turn."""
    log, index = gateway.log, gateway.index
    return {
        "unsynced": log.next_seq - 1 - log.synced_seq,
        "unindexed": max(0, index.synced_seq - index.level),
        "heldBytes": gateway.budget.held,
        "longAnswers": gateway.answer_scheduler.progress.waiting,
    }


def _limits(gateway: Gateway) -> dict[str, Any]:
    """Return the limits that the settings name, in the shape of `[limits]`, and of connections and memory the use."""
    limits, budget = gateway.settings.limits, gateway.budget
    rates = {name: {"rate": each.rate, "burst": each.burst} for name in RATES for each in (getattr(limits, name),)}
    return {
        "rates": rates if gateway.throttle is not None else None,
        "connections": {"used": gateway.bus.session_count, "limit": limits.connections},
        "connectionsPerAddress": limits.connections_per_address,
        "subscriptions": limits.subscriptions,
        "memory": {"used": budget.held, "limit": budget.limit},
        "channels": {"used": gateway.channels.counted, "limit": gateway.settings.channels.limit},
    }


def _channels(gateway: Gateway) -> list[dict[str, Any]]:
    """Return the busiest channels since the start, then other channels that have listeners."""
    counts = dict(gateway.metrics.channels.items())
    busiest = nsmallest(MAX_CHANNELS, counts, key=lambda name: (-counts[name][0], name))
    silent = (name for name in gateway.bus.active_channels() if name not in counts)
    names = [*busiest, *sorted(islice(silent, MAX_CHANNELS - len(busiest)))]
    rows = []
    for name in names:
        messages, deliveries = counts.get(name, (0, 0))
        members = gateway.bus.listener_count(name)
        rows.append({"name": name, "messages": messages, "deliveries": deliveries, "members": members})
    return rows


def _table(warehouse: Path, log: Path) -> dict[str, Any] | None:
    """Return what the newest commit of the pipeline in *log* says of its table; None if there is none."""
    for path in nlargest(COMMITS, log.glob(f"{'[0-9]' * 20}.json")):
        try:
            about = path.stat()
            if about.st_size > MAX_COMMIT:
                return None
            for line in path.read_text().splitlines():
                if (state := json.loads(line).get("commitInfo", {}).get(STATE)) is not None:
                    name, written = log.parent.relative_to(warehouse).as_posix(), about.st_mtime_ns // 1_000_000
                    return {"table": name, "batch": state["batch"], "rows": state["rows"], "written": written}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # the pipeline itself reports what is wrong with it
    return None
