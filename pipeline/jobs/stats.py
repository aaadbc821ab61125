"""Counts traffic and latency (`gold/channel_minute`, `gold/latency_minute`), and publishes both on the bus."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pipeline import spans
from pipeline.derive import rebuild
from pipeline.locks import JobLock
from pipeline.run import Run
from pipeline.schemas import CHANNEL_MINUTE, LATENCY_MINUTE, MESSAGES, TableSpec
from pipeline.sinks import bus
from pipeline.sinks.files import write_json
from pipeline.transforms.latency import latency_minute
from pipeline.transforms.stats import MINUTE, channel_minute

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB = "stats"
# How much later than its end a minute is published (ms): the gateway logs latencies in the next minute, not at once.
LATER = {CHANNEL_MINUTE: 0, LATENCY_MINUTE: MINUTE}


def run(run: Run) -> int:
    """Rebuild the tables if there are new records, and publish complete minutes; return 1 if rebuilt, else 0."""
    done = rebuild(
        run,
        JOB,
        [MESSAGES],
        {
            CHANNEL_MINUTE: lambda run: channel_minute(run.table(MESSAGES).frame(run.spark)),
            LATENCY_MINUTE: lambda run: latency_minute(run.table(MESSAGES).frame(run.spark)),
        },
    )
    if run.options.publish is not None:
        publish(run, run.options.publish)
    return done


def publish(run: Run, url: str) -> int:
    """Publish the complete minutes that the gateway at *url* does not have yet; return the number of messages."""
    with JobLock(run.options.warehouse, "publish") as lock:
        published = lock.note()
        since, until = published.get(url), watermark(run)
        if until is None or (since is not None and since >= until):
            return 0
        rows = [list(_rows(run, spec, (since or 0) - later, until - later)) for spec, later in LATER.items()]
        count = bus.publish(url, run.options.key, (message for _, message in bus.messages(*rows)))
        write_json(lock.path / "note.json", published | {url: until})
    if count:
        run.say(f"{JOB}: {count:,} messages on {bus.CHANNEL}")
    return count


def watermark(run: Run) -> int | None:
    """Return the minute (ms) before which the tables are complete; None without records.

    Records have increasing times, so up to the first missing one nothing older than the newest can follow.
    """
    ends: list[int] = []
    messages = run.table(MESSAGES)
    for gateway, ranges in messages.state().spans.items():
        whole = spans.union(ranges)[0]
        holding = messages.holding({gateway: [whole]})
        rows = messages.frame(run.spark, holding).where((F.col("gateway_id") == gateway) & (F.col("seq") <= whole[1]))
        newest = rows.agg(F.max("time")).collect()[0][0]
        if newest is not None:
            ends.append(newest // MINUTE * MINUTE)
    return min(ends, default=None)


def _rows(run: Run, spec: TableSpec, since: int, until: int) -> Iterator[Any]:
    at = F.unix_millis("minute")
    rows = run.table(spec).frame(run.spark).where((at < until) & (at >= since))
    order = ["minute", "channel"] if spec is CHANNEL_MINUTE else ["minute"]
    # Convert to text and back, because `collect` would return times in this machine's time zone.
    collected = rows.withColumn("minute", F.date_format("minute", "yyyy-MM-dd HH:mm")).orderBy(*order).collect()
    for row in collected:
        minute = datetime.strptime(row.minute, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
        yield type(row)(**{**row.asDict(), "minute": minute})
