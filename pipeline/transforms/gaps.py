"""Finds missing messages in the chains of stream messages.

Each message names its predecessor (prevMsgRef). One window over each chain, in its order, compares that reference with
the message that precedes it there. Only the few rows that differ are joined with more: whether an earlier copy of the
preceding message exists, whether the named predecessor is in the log, and the names of the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F

from pipeline.schemas import GAPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHAIN: Final = ("stream", "partition", "publisher", "chain")
KEY: Final = ("key", "key2")
MOST_BROADCAST: Final = 100_000  # forks that are sent to all workers whole; a publisher can make as many as it likes

OPEN: Final = "open"  # the named predecessor is not in the log
FILLED: Final = "filled"  # the named predecessor is in the same gateway's log, but was logged later
UNKNOWN_BEFORE: Final = "unknown before"  # the first message of the chain in the log names a predecessor
FORK: Final = "fork"  # the named predecessor is in the log, but older than the message that precedes it in the chain
_COPY: Final = "copy"  # the same message was logged before

# Single columns are compared, because comparing structs costs more.
_STATE: Final = f"""case
when have_ts = ts and have_seq = seq then '{_COPY}'
when want_ts is null then null
when have_ts is null then '{UNKNOWN_BEFORE}'
when have_ts < want_ts or have_ts = want_ts and have_seq < want_seq then '{OPEN}'
when have_ts > want_ts or have_seq > want_seq then '{FORK}'
when have_log_seq > log_seq and have_log = log then '{FILLED}'
end"""


def gaps(streamr: DataFrame) -> DataFrame:
    """Return the messages in `silver/streamr` whose predecessor is missing, late or another one: `audit/gaps`."""
    good = streamr.where("fault is null")
    # The checkpoint keeps the few remaining rows, which are read several times, so that the window runs once.
    # They are kept twice, because a worker that ends would take them along.
    few = _stated(good).where("state is not null").localCheckpoint(False, StorageLevel.MEMORY_AND_DISK_2)
    states = few.where(F.col("state") != _COPY)
    names = _keyed(good.select(*CHAIN).distinct())
    return _forks(_filled(states, few), good).join(names, list(KEY)).select(*GAPS.schema.fieldNames())


def _stated(good: DataFrame) -> DataFrame:
    """Return the rows with their state, as far as it follows from the row that precedes each."""
    want = (F.col("prev_ts").alias("want_ts"), F.col("prev_seq").alias("want_seq"))
    rows = _keyed(good).select(*KEY, "ts", "seq", "log_seq", F.xxhash64("gateway_id").alias("log"), *want)
    order = Window.partitionBy(*KEY).orderBy("ts", "seq", "log_seq", "log")
    placed = rows.withColumns({f"have_{name}": F.lag(name).over(order) for name in ("ts", "seq", "log_seq", "log")})
    return placed.withColumn("state", F.expr(_STATE))


def _keyed(rows: DataFrame) -> DataFrame:
    """Add a key of 128 bits for the chain to each of *rows*, which moves and sorts faster than four names."""
    return rows.withColumns({"key": F.xxhash64(*CHAIN), "key2": F.xxhash64(F.lit(1), *CHAIN)})


def _filled(states: DataFrame, few: DataFrame) -> DataFrame:
    """Remove those of *states* whose predecessor was logged before them, and only a copy of it later."""
    place = [*KEY, "have_ts", "have_seq", "have_log"]
    first = few.where(F.col("state") == _COPY).groupBy(*place).agg(F.min("have_log_seq").alias("came"))
    judged = states.where(F.col("state") == FILLED).join(first, place, "left")
    filled = judged.where("coalesce(came, have_log_seq) > log_seq").drop("came")
    return states.where(F.col("state") != FILLED).unionByName(filled)


def _forks(states: DataFrame, good: DataFrame) -> DataFrame:
    """Change forks in *states* from messages that are not in the log to `OPEN`."""
    forks = states.where(F.col("state") == FORK)
    there = _keyed(good).select(*KEY, F.col("ts").alias("want_ts"), F.col("seq").alias("want_seq"))
    place = [*KEY, "want_ts", "want_seq"]
    held = forks.select(*place).distinct()
    if forks.limit(MOST_BROADCAST + 1).count() <= MOST_BROADCAST:
        held = F.broadcast(held)
    present = there.join(held, place, "left_semi").distinct().withColumn("present", F.lit(True))
    judged = forks.join(present, place, "left")
    judged = judged.withColumn("state", F.when(F.col("present"), FORK).otherwise(OPEN)).drop("present")
    return states.where(F.col("state") != FORK).unionByName(judged)
