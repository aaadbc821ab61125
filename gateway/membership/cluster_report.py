"""The state of a member of a cluster: for `GET /v1/stats`, `trellis cluster status`, the console and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.cluster.batch import NOBODY, name_of
from gateway.cluster.log_comparison import LogComparison, records_of
from gateway.cluster.roster import MemberInfo
from gateway.jetstream.status import JetStreamStatus, Replica
from gateway.monitoring.metrics import Metrics

from .membership import Membership


def report(membership: Membership, cluster: str) -> dict[str, Any]:
    """Return everything about *membership* in the *cluster* of that name, as JSON."""
    turn, status = membership.turn, membership.transport.status()
    holder = turn.position.holder
    lag, signalling = membership.lag, membership.signalling
    holders, newest = signalling.holders, membership.comparison.newest
    return {
        "name": cluster,
        "member": name_of(turn.me),
        "accepts": turn.is_mine,
        "turn": None if holder == NOBODY else name_of(holder),
        "trouble": membership.trouble,
        "batch": turn.position.number,
        "ignoredBatches": turn.ignored,
        "reconnects": status.reconnects,
        "unsentBytes": status.unsent,
        "lag": {"batches": lag.batches, "records": lag.records, "seconds": round(lag.seconds, 1)},
        "log": {"last": records_of(newest.block)[1], "digest": newest.digest} if newest.block else None,
        "stream": _stream(status),
        "links": [{"link": link.partition("?")[0], "holder": name_of(holders.holder(link))} for link in holders.links],
        "members": [
            _member(info, signalling.agreement.differences, membership.comparison) for info in signalling.members()
        ],
    }


def _stream(status: JetStreamStatus) -> dict[str, Any]:
    stored = status.stored
    return {
        "server": status.server,
        "connected": status.connected,
        "position": status.position,
        "first": stored and stored.first,
        "last": stored and stored.last,
        "bytes": stored and stored.bytes,
        "replicas": [_replica(each) for each in stored.replicas] if stored else [],
    }


def _replica(replica: Replica) -> dict[str, Any]:
    return {"name": replica.name, "leads": replica.leads, "current": replica.current, "lag": replica.lag}


def _member(info: MemberInfo, differences: Mapping[str, list[str]], logs: LogComparison) -> dict[str, Any]:
    member = f"{info.name}@{info.epoch}"
    differs = list(differences.get(member, ()))
    if block := logs.differing.get(member):
        differs.append("the log, records {:,} to {:,}".format(*records_of(block)))
    return {
        "name": info.name,
        "version": info.version,
        "started": info.epoch,
        "heardSeconds": round(info.heard, 1),
        "sequence": max(0, info.next_seq - 1),
        "position": info.place,
        "accepts": info.is_accepting,
        "sameTo": records_of(logs.same[member])[1] if member in logs.same else None,
        "differs": differs,
    }


def gauges(membership: Membership | None) -> Mapping[str, Callable[[], float]]:
    """Return what Prometheus gets, by the names in `gateway.monitoring.metrics`; all 0 if the gateway runs alone."""
    if membership is None:
        return dict.fromkeys(_GAUGES, lambda: 0)

    def reading(read: Callable[[Membership], float]) -> Callable[[], float]:
        return lambda: read(membership)

    return {name: reading(read) for name, read in _GAUGES.items()}


def count(metrics: Metrics, membership: Membership) -> None:
    """Let *metrics* have the counters; called once a second."""
    metrics.counts["cluster_ignored_batches"][()] = membership.turn.ignored
    metrics.counts["cluster_ignored_signals"][()] = membership.signalling.ignored
    metrics.counts["cluster_lost_signals"][()] = membership.transport.lost
    metrics.counts["cluster_refused_values"][()] = membership.transport.refused
    metrics.counts["cluster_reconnects"][()] = membership.transport.status().reconnects


def _current(membership: Membership) -> int:
    stored = membership.transport.status().stored
    return sum(replica.current for replica in stored.replicas) if stored else 0


_GAUGES: Mapping[str, Callable[[Membership], float]] = {
    "cluster_members": lambda membership: len(membership.signalling.members()),
    "cluster_accepts": lambda membership: membership.turn.is_mine,
    "cluster_connected": lambda membership: membership.transport.status().connected,
    "cluster_replicas_current": _current,
    "cluster_last_batch": lambda membership: membership.turn.position.number,
    "cluster_differing_members": lambda membership: len(
        membership.signalling.agreement.differences.keys() | membership.comparison.differing.keys()
    ),
    "cluster_lag_records": lambda membership: membership.lag.records,
    "cluster_lag_seconds": lambda membership: membership.lag.seconds,
    "cluster_unsent_bytes": lambda membership: membership.transport.status().unsent,
}
