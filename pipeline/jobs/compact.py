"""Merges small files, and removes messages that are too old; readers meanwhile see the old files or the new ones."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from pipeline import spans
from pipeline.checkpoint import Checkpoint
from pipeline.run import BatchCounts, Run
from pipeline.schemas import ARBOR_NODES, INTEGRITY, MESSAGES, REJECTS, STREAMR, TOPIC_PACKETS, TableSpec
from pipeline.sinks.parquet import Manifest, Part, Staged, Table, part_of, sweep

JOB = "compact"
TARGET_BYTES = 128 << 20  # size of a merged part
MIN_PARTS = 8  # fewer parts are not worth merging

# The tables that grow, and the job that writes each, whose lock is needed to change it.
GROWN: dict[TableSpec, str] = {
    MESSAGES: "ingest",
    REJECTS: "ingest",
    STREAMR: "decode",
    ARBOR_NODES: "decode",
    TOPIC_PACKETS: "decode",
    INTEGRITY: "integrity",
}


def run(run: Run) -> int:
    """Merge small parts of every table that grows; return the number of tables that were changed."""
    changed = 0
    with Checkpoint(run.options.warehouse, JOB):
        sweep(run.options.warehouse, JOB, run.options.grace_seconds)
        for spec, owner in GROWN.items():
            with Checkpoint(run.options.warehouse, owner):
                changed += _compact(run, run.table(spec, JOB))
    return changed


def _compact(run: Run, table: Table) -> bool:
    began = time.monotonic()
    manifest = table.manifest()
    oldest = _oldest(run, table.spec)
    new: dict[str, Staged] = {}
    kept: list[Part] = []
    for group in _groups(manifest.parts, everything=oldest is not None):
        merged = len(group) >= MIN_PARTS or oldest is not None
        if not merged:
            kept += group
            continue
        rows = table.frame(run.spark, group)
        if oldest is not None:
            rows = rows.where(f"kind != 'message' or day >= date'{oldest}'")
        staged = table.stage(rows.coalesce(max(1, sum(part.bytes for part in group) // TARGET_BYTES)))
        part = _merged(group, staged)
        if part.rows == sum(old.rows for old in group) and len(group) == 1:
            kept += group
            continue
        new[part.name] = staged
        kept.append(part)
    if not new:
        return False
    table.replace(new, Manifest(manifest.checkpoint, manifest.batch, kept, manifest.notes))
    counts = BatchCounts(JOB, 0, rows_in=sum(p.rows for p in manifest.parts), rows_out=sum(p.rows for p in kept))
    counts.seconds = time.monotonic() - began
    run.say(f"{counts} ({table.spec.name}: {len(manifest.parts)} parts became {len(kept)})")
    return True


def _oldest(run: Run, spec: TableSpec) -> str | None:
    """Return the first day whose messages are kept (ISO 8601); None if all are kept."""
    if run.options.keep_days is None or spec is not MESSAGES:
        return None
    return (datetime.now(UTC) - timedelta(days=run.options.keep_days)).date().isoformat()


def _groups(parts: list[Part], *, everything: bool) -> list[list[Part]]:
    """Group *parts* to merge: small neighbours of one gateway, up to `TARGET_BYTES` together.

    Without *everything* a part that is large already stays alone.
    """
    groups: list[list[Part]] = []
    size = 0
    for part in parts:
        alone = part.bytes >= TARGET_BYTES // 2 and not everything
        if not groups or groups[-1][-1].gateway != part.gateway or alone or size + part.bytes > TARGET_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size = TARGET_BYTES + 1 if alone else size + part.bytes  # nothing joins a large part, not even an empty one
    return groups


def _merged(group: list[Part], staged: Staged) -> Part:
    """Return the part that replaces *group*; its name contains the time, so no earlier name is used again."""
    gateways = {gateway for part in group for gateway in part.spans}
    covers = {gateway: spans.union(*(part.spans.get(gateway, []) for part in group)) for gateway in sorted(gateways)}
    segments = sorted(first for part in group for first in part.segments)
    name = f"{group[0].name.removeprefix('batch=')}+{time.time_ns()}"
    return part_of(name, staged, spans=covers, segments=segments, gateway=group[0].gateway)
