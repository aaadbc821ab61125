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

OPEN: Final = "open"  # the message before it is not in the log
FILLED: Final = "filled"  # it is, but came later
UNKNOWN_BEFORE: Final = "unknown before"  # the first message of a chain says that there was one before it
FORK: Final = "fork"  # it follows an older one, which is in the log, than the one that stands before it


def gaps(streamr: DataFrame) -> DataFrame:
    """The messages in `silver/streamr` whose predecessor is not, or was not, where it should be: `audit/gaps`."""
    chain = Window.partitionBy(*CHAIN)
    order = chain.orderBy("ts", "seq", "log_seq")
    same = Window.partitionBy(*CHAIN, "ts", "seq")
    here, before, wanted = F.struct("ts", "seq"), F.struct("have_ts", "have_seq"), F.struct("want_ts", "want_seq")
    placed = (
        streamr.where("fault is null")
        .select(*CHAIN, "ts", "seq", F.col("prev_ts").alias("want_ts"), F.col("prev_seq").alias("want_seq"), "log_seq")
        .withColumn("arrived", F.min("log_seq").over(same))
        .withColumns(
            {
                "have_ts": F.lag("ts").over(order),
                "have_seq": F.lag("seq").over(order),
                "have_arrived": F.lag("arrived").over(order),
            }
        )
    )
    twice = F.col("have_ts").isNotNull() & (before == here)
    state = (
        F.when(F.col("have_ts").isNull(), UNKNOWN_BEFORE)
        .when(before < wanted, OPEN)
        .when(before > wanted, FORK)
        .when(F.col("have_arrived") > F.col("arrived"), FILLED)
    )
    told = placed.where(F.col("want_ts").isNotNull() & ~twice).withColumn("state", state).where("state is not null")
    # The rows that are left are few, and looked at twice: the window is not.
    return _forks(told.localCheckpoint(eager=False), streamr).select(*GAPS.schema.fieldNames())


def _forks(told: DataFrame, streamr: DataFrame) -> DataFrame:
    """*told*, where a fork from a message that is not in the log is open."""
    forks = told.where(F.col("state") == FORK)
    there = streamr.where("fault is null").select(*CHAIN, F.col("ts").alias("want_ts"), F.col("seq").alias("want_seq"))
    held = F.broadcast(forks.select(*CHAIN, "want_ts", "want_seq").distinct())
    present = (
        there.join(held, [*CHAIN, "want_ts", "want_seq"], "left_semi").distinct().withColumn("present", F.lit(True))
    )
    judged = forks.join(present, [*CHAIN, "want_ts", "want_seq"], "left")
    judged = judged.withColumn("state", F.when(F.col("present"), FORK).otherwise(OPEN)).drop("present")
    return told.where(F.col("state") != FORK).unionByName(judged)
