"""Gathers the numbers of the report from the tables: a few hundred rows, however large the tables are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pipeline.run import Run
from pipeline.schemas import (
    BATCHES,
    CHANNEL_MINUTE,
    FOREST,
    GAPS,
    INTEGRITY,
    LATENCY_MINUTE,
    MESSAGES,
    REJECTS,
    TableSpec,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS = 120  # bars in the traffic chart
TOP = 20  # number of channels listed

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ReportData:
    """All numbers on the page.

    `traffic` has (start of the bar, protocol, n), a bar for each `bucket_minutes`; `channels` (channel, n, bytes);
    `flows` (from, to, n, undelivered, p50, p95, p99), with the quantiles of the worst minute; `integrity` (check,
    verdict, n); `gaps` (state, n); `rejects` (reason, n); `batches` (job, batches, rows in, rows out, seconds). Times
    are ms.
    """

    gateways: list[str]
    records: int
    messages: int
    first_time: int | None
    last_time: int | None
    first_seq: int | None
    last_seq: int | None
    bucket_minutes: int
    protocols: Rows
    traffic: Rows
    channels: Rows
    channel_count: int
    flows: Rows
    integrity: Rows
    gaps: Rows
    forest: dict[str, int]
    rejects: Rows
    batches: Rows


def gather(run: Run) -> ReportData:
    """Read the tables of *run*'s warehouse; a table that does not exist yet is empty."""
    minutes = _frame(run, CHANNEL_MINUTE)
    records = _frame(run, MESSAGES)
    ends = records.agg(
        F.count(F.lit(1)).alias("records"),
        F.count_if(F.col("kind") == "message").alias("messages"),
        F.min("time").alias("first_time"),
        F.max("time").alias("last_time"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
    ).collect()[0]
    bucket, traffic = _traffic(minutes)
    by_channel = minutes.groupBy("channel").agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes"))
    return ReportData(
        gateways=[row[0] for row in records.select("gateway_id").distinct().orderBy("gateway_id").collect()],
        **ends.asDict(),
        bucket_minutes=bucket,
        protocols=_rows(minutes.groupBy("protocol").agg(F.sum("n"), F.sum("bytes")).orderBy("protocol")),
        traffic=traffic,
        channels=_rows(by_channel.orderBy(F.desc("n"), "channel").limit(TOP)),
        channel_count=by_channel.count(),
        flows=_flows(_frame(run, LATENCY_MINUTE)),
        integrity=_counted(_frame(run, INTEGRITY), "check", "verdict"),
        gaps=_counted(_frame(run, GAPS), "state"),
        forest=_forest(_frame(run, FOREST)),
        rejects=_counted(_frame(run, REJECTS).withColumn("kind", F.substring_index("reason", ":", 1)), "kind"),
        batches=_batches(_frame(run, BATCHES)),
    )


def _frame(run: Run, spec: TableSpec) -> DataFrame:
    return run.table(spec).frame(run.spark)


def _rows(frame: DataFrame) -> Rows:
    return [tuple(row) for row in frame.collect()]


def _counted(frame: DataFrame, *names: str) -> Rows:
    return _rows(frame.groupBy(*names).agg(F.count(F.lit(1))).orderBy(*names))


def _traffic(minutes: DataFrame) -> tuple[int, Rows]:
    """Return the number of minutes in one bar, and the bars."""
    at = (F.unix_seconds("minute") / 60).cast("bigint")
    low, high = minutes.agg(F.min(at), F.max(at)).collect()[0]
    if low is None:
        return 1, []
    bucket = -(-(high - low + 1) // BUCKETS)
    place = F.floor((at - F.lit(low)) / bucket) * bucket + F.lit(low)
    bars = minutes.groupBy((place * 60_000).alias("time"), "protocol").agg(F.sum("n"))
    return bucket, _rows(bars.orderBy("time", "protocol"))


def _flows(latency: DataFrame) -> Rows:
    worst = [F.max(name) for name in ("p50", "p95", "p99")]
    pairs = latency.groupBy("from_protocol", "to_protocol").agg(F.sum("n"), F.sum("undelivered"), *worst)
    return _rows(pairs.orderBy("from_protocol", "to_protocol"))


def _forest(forest: DataFrame) -> dict[str, int]:
    told = forest.agg(
        F.count(F.lit(1)).alias("nodes"),
        F.count_if("is_leaf").alias("leaves"),
        F.count_if(~F.col("parent_present")).alias("orphans"),
        F.count_if(~F.col("depth_ok")).alias("at a wrong depth"),
        F.coalesce(F.max("thread_size"), F.lit(0)).alias("in the largest thread"),
    )
    return {str(name): int(value) for name, value in told.collect()[0].asDict().items()}


def _batches(batches: DataFrame) -> Rows:
    sums = [F.sum(name) for name in ("rows_in", "rows_out", "seconds")]
    return _rows(batches.groupBy("job").agg(F.count(F.lit(1)), *sums).orderBy("job"))
