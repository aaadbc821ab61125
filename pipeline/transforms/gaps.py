"""What is missing in the chains of stream messages.

Each message names the one before it (prevMsgRef). In one window over each chain, in its own order, that is compared
with the message that stands there; a duplicate sorts beside its original and is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from pipeline.schemas import GAPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHAIN: Final = ("stream", "partition", "publisher", "chain")
KEY: Final = ("key", "key2")
BEFORE: Final = (Window.unboundedPreceding, -1)

OPEN: Final = "open"  # the message before it is not in the log
FILLED: Final = "filled"  # it is, but came later
UNKNOWN_BEFORE: Final = "unknown before"  # the first message of a chain says that there was one before it
FORK: Final = "fork"  # it follows an older one, which is in the log, than the one that stands before it


def gaps(streamr: DataFrame) -> DataFrame:
    """The messages in `silver/streamr` whose predecessor is not, or was not, where it should be: `audit/gaps`."""
    rows = _keyed(streamr).select(
        *KEY, "ts", "seq", "log_seq", F.col("prev_ts").alias("want_ts"), F.col("prev_seq").alias("want_seq")
    )
    order = Window.partitionBy(*KEY).orderBy("ts", "seq", "log_seq")
    here, before, wanted = F.struct("ts", "seq"), F.struct("have_ts", "have_seq"), F.struct("want_ts", "want_seq")
    # A row that is the first of its place came first to it; both windows need one and the same sorting.
    first = F.col("have_ts").isNull() | (before != here)
    placed = (
        rows.withColumns({"have_ts": F.lag("ts").over(order), "have_seq": F.lag("seq").over(order)})
        .withColumn("came", F.when(first, F.col("log_seq")))
        .withColumn("have_came", F.last("came", ignorenulls=True).over(order.rowsBetween(*BEFORE)))
    )
    state = (
        F.when(F.col("have_ts").isNull(), UNKNOWN_BEFORE)
        .when(before < wanted, OPEN)
        .when(before > wanted, FORK)
        .when(F.col("have_came") > F.col("came"), FILLED)
    )
    told = placed.where("came is not null and want_ts is not null").withColumn("state", state)
    # The rows that are left are few, and looked at three times: the windows are not.
    few = told.where("state is not null").drop("came", "have_came", "log_seq").localCheckpoint(eager=False)
    names = _keyed(streamr).select(*KEY, *CHAIN).distinct()
    return _forks(few, streamr).join(names, list(KEY)).select(*GAPS.schema.fieldNames())


def _keyed(streamr: DataFrame) -> DataFrame:
    """The good rows, each chain with a key of 128 bits, which moves and sorts faster than four names."""
    keys = {"key": F.xxhash64(*CHAIN), "key2": F.xxhash64(F.lit(1), *CHAIN)}
    return streamr.where("fault is null").withColumns(keys)


def _forks(told: DataFrame, streamr: DataFrame) -> DataFrame:
    """*told*, where a fork from a message that is not in the log is open."""
    forks = told.where(F.col("state") == FORK)
    there = _keyed(streamr).select(*KEY, F.col("ts").alias("want_ts"), F.col("seq").alias("want_seq"))
    place = [*KEY, "want_ts", "want_seq"]
    held = F.broadcast(forks.select(*place).distinct())
    present = there.join(held, place, "left_semi").distinct().withColumn("present", F.lit(True))
    judged = forks.join(present, place, "left")
    judged = judged.withColumn("state", F.when(F.col("present"), FORK).otherwise(OPEN)).drop("present")
    return told.where(F.col("state") != FORK).unionByName(judged)
