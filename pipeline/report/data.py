"""Gathers the numbers of the report from the tables: a few hundred rows, however large the tables are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pipeline.run import Run
from pipeline.schemas import (
    ANSWER_TIMES,
    ANSWERS,
    BATCHES,
    CHANNEL_MINUTE,
    FAULTS,
    FOREST,
    GAPS,
    INTEGRITY,
    LATENCY_MINUTE,
    MESSAGES,
    PUBLISHERS,
    REJECTS,
    RETENTION,
    STORAGE,
    THREADS,
    TableSpec,
)
from pipeline.transforms.latency import QUANTILES, latency

from .axes import round_period

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKETS = 120  # most periods of time in a picture
TOP = 20  # number of channels listed
TOP_FLOWS = 12  # pairs of protocols whose latency has a picture
WEEKS = 12  # weeks of retention
DEPTHS = 12  # depths of threads listed
PAIR = ("from_protocol", "from_sender", "to_protocol", "to_sender", "answers")
SIZE = "content_bytes + wire_bytes + reference_bytes"
MINUTE_MS = 60_000

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ReportData:
    """All numbers on the page.

    Pictures have one place for each period of `bucket_minutes`, from the period `begin` to the period `end`. `traffic`
    has (start of the period, protocol, n); `channels` (channel, n, bytes); `flows` (from, to, n, undelivered, p50, p95,
    p99), with the percentiles over everything; `latency` (from, to, start of the period, p50, p95, p99) of the
    `TOP_FLOWS` pairs with most deliveries; `integrity` (check, verdict, n); `gaps` (state, n); `rejects` (reason, n);
    `batches` (job, batches, rows in, rows out, seconds). `answers` (from, to, n) by protocol; `pairs`
    (protocol, sender, protocol, sender, n) and `answer_times` (channel, answered, half ms, most ms) where most is
    answered; `retention` (first week as text, weeks later, senders) of the last `WEEKS`; `threads` (depth, messages,
    threads no deeper, half ms) of the first `DEPTHS`, and `deepest` is the greatest; `faults` (what, cause, n), most
    first; `storage` (channel, messages, bytes of contents, of what was received, of references) of the largest;
    `publishers` (publisher, protocol, messages, missing, bad) of those with faults, most first. Times and latencies are
    ms.
    """

    gateways: list[str]
    records: int
    messages: int
    first_time: int | None
    last_time: int | None
    first_seq: int | None
    last_seq: int | None
    bucket_minutes: int
    begin: int
    end: int
    protocols: Rows
    traffic: Rows
    channels: Rows
    channel_count: int
    flows: Rows
    latency: Rows
    integrity: Rows
    gaps: Rows
    forest: dict[str, int]
    rejects: Rows
    batches: Rows
    answers: Rows
    pairs: Rows
    answer_times: Rows
    retention: Rows
    threads: Rows
    deepest: int
    faults: Rows
    storage: Rows
    publishers: Rows


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
    bucket, begin, end = _periods(minutes, _frame(run, LATENCY_MINUTE))
    flows = _flows(records)
    by_channel = minutes.groupBy("channel").agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes"))
    return ReportData(
        gateways=[name for (name,) in _sorted(records.select("gateway_id").distinct())],
        **ends.asDict(),
        bucket_minutes=bucket,
        begin=begin,
        end=end,
        protocols=_sorted(minutes.groupBy("protocol").agg(F.sum("n"), F.sum("bytes"))),
        traffic=_traffic(minutes, bucket, begin),
        channels=_rows(by_channel.orderBy(F.desc("n"), "channel").limit(TOP)),
        channel_count=by_channel.count(),
        flows=flows,
        latency=_latency(records, flows, bucket, begin, end),
        integrity=_counted(_frame(run, INTEGRITY), "check", "verdict"),
        gaps=_counted(_frame(run, GAPS), "state"),
        forest=_forest(_frame(run, FOREST)),
        rejects=_counted(_frame(run, REJECTS).withColumn("kind", F.substring_index("reason", ":", 1)), "kind"),
        batches=_batches(_frame(run, BATCHES)),
        **_questions(run),
    )


def _questions(run: Run) -> dict[str, Any]:
    """Read the tables of the jobs `questions` and `publishers`."""
    answers, threads = _frame(run, ANSWERS), _frame(run, THREADS)
    return {
        "answers": _sorted(_by_protocol(answers)),
        "pairs": _rows(answers.select(*PAIR).orderBy(F.desc("answers"), *PAIR).limit(TOP)),
        "answer_times": _rows(_frame(run, ANSWER_TIMES).orderBy(F.desc("answered"), "channel").limit(TOP)),
        "retention": _retention(_frame(run, RETENTION)),
        "threads": _rows(threads.orderBy("depth").limit(DEPTHS)),
        "deepest": threads.agg(F.coalesce(F.max("depth"), F.lit(0))).collect()[0][0],
        "faults": _rows(_frame(run, FAULTS).orderBy(F.desc("n"), "what", "cause").limit(TOP)),
        "publishers": _publishers(_frame(run, PUBLISHERS)),
        "storage": _rows(_frame(run, STORAGE).orderBy(F.desc(F.expr(SIZE)), "channel").limit(TOP)),
    }


def _frame(run: Run, spec: TableSpec) -> DataFrame:
    return run.table(spec).frame(run.spark)


def _rows(frame: DataFrame) -> Rows:
    return [tuple(row) for row in frame.collect()]


def _sorted(frame: DataFrame) -> Rows:
    """Collect a few rows that differ in their first columns, sorted; Spark would find out how to sort them in a job."""
    return sorted(_rows(frame))


def _counted(frame: DataFrame, *names: str) -> Rows:
    return _sorted(frame.groupBy(*names).agg(F.count(F.lit(1))))


def _periods(*tables: DataFrame) -> tuple[int, int, int]:
    """Return the minutes in a period, a round number, and the first and the last period (ms), over all of *tables*."""
    at = F.unix_millis("minute")
    ends = [tuple(table.agg(F.min(at), F.max(at)).collect()[0]) for table in tables]
    known = [(low, high) for low, high in ends if low is not None]
    if not known:
        return 1, 0, 0
    low, high = min(low for low, _ in known), max(high for _, high in known)
    step = round_period(low, high, BUCKETS)
    return step // MINUTE_MS, low // step * step, high // step * step


def _period(ms: Column, bucket: int, begin: int) -> Column:
    """Return the start of the period of the time *ms*."""
    step = bucket * MINUTE_MS
    return F.floor((ms - F.lit(begin)) / step) * step + F.lit(begin)


def _traffic(minutes: DataFrame, bucket: int, begin: int) -> Rows:
    time = _period(F.unix_millis("minute"), bucket, begin).alias("time")
    return _sorted(minutes.groupBy(time, "protocol").agg(F.sum("n")))


def _flows(records: DataFrame) -> Rows:
    pairs = latency(records, F.lit(0)).select("from_protocol", "to_protocol", "n", "undelivered", *QUANTILES)
    return _sorted(pairs)


def _latency(records: DataFrame, flows: Rows, bucket: int, begin: int, end: int) -> Rows:
    """Return the percentiles over time of the pairs of *flows* with most deliveries."""
    busiest = {row[:2] for row in sorted(flows, key=lambda row: (-row[2], row))[:TOP_FLOWS]}
    found = latency(records, _period(F.col("minute"), bucket, begin)).where(
        F.col("p50").isNotNull() & F.col("window").between(begin, end)
    )
    rows = _rows(found.select("from_protocol", "to_protocol", "window", *QUANTILES))
    return sorted((row for row in rows if row[:2] in busiest), key=lambda row: row[:3])


def _forest(forest: DataFrame) -> dict[str, int]:
    counts = forest.agg(
        F.count(F.lit(1)).alias("nodes"),
        F.count_if("is_leaf").alias("nodes that nothing answers"),
        F.count_if(~F.col("parent_present")).alias("nodes whose parent is missing"),
        F.count_if(~F.col("depth_ok")).alias("nodes with a wrong depth"),
        F.coalesce(F.max("thread_size"), F.lit(0)).alias("nodes of the largest conversation"),
    )
    return {str(name): int(value) for name, value in counts.collect()[0].asDict().items()}


def _by_protocol(answers: DataFrame) -> DataFrame:
    protocols = ("from_protocol", "to_protocol")
    return answers.groupBy(*protocols).agg(F.sum("answers"))


def _publishers(publishers: DataFrame) -> Rows:
    faulty = publishers.where("missing + bad > 0").orderBy(F.desc(F.expr("missing + bad")), "protocol", "publisher")
    return _rows(faulty.select("publisher", "protocol", "messages", "missing", "bad").limit(TOP))


def _retention(retention: DataFrame) -> Rows:
    """Return the rows of the last weeks in which somebody came for the first time, the oldest first."""
    weeks = retention.select("first_week").distinct().orderBy(F.desc("first_week")).limit(WEEKS)
    rows = retention.join(F.broadcast(weeks), "first_week").where(F.col("weeks_later") < WEEKS)
    shown = rows.select(F.date_format("first_week", "yyyy-MM-dd").alias("week"), "weeks_later", "senders")
    return _sorted(shown)


def _batches(batches: DataFrame) -> Rows:
    sums = [F.sum(name) for name in ("rows_in", "rows_out", "seconds")]
    return _sorted(batches.groupBy("job").agg(F.count(F.lit(1)), *sums))
