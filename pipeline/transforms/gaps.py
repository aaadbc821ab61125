"""What is missing in the chains of stream messages.

Each message names the one before it (prevMsgRef). In one window over each chain, in its own order, that is compared
with the message that stands there. What more has to be known is known of few: whether the message before it had come
in a copy already, whether what it names instead is in the log, and what its chain is called.
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

OPEN: Final = "open"  # the message before it is not in the log
FILLED: Final = "filled"  # it is, but came later
UNKNOWN_BEFORE: Final = "unknown before"  # the first message of a chain says that there was one before it
FORK: Final = "fork"  # it follows an older one, which is in the log, than the one that stands before it
_COPY: Final = "copy"  # it stands beside one that came earlier

# Columns are compared one by one: structs cost more.
_STATE: Final = f"""case
when have_ts = ts and have_seq = seq then '{_COPY}'
when want_ts is null then null
when have_ts is null then '{UNKNOWN_BEFORE}'
when have_ts < want_ts or have_ts = want_ts and have_seq < want_seq then '{OPEN}'
when have_ts > want_ts or have_seq > want_seq then '{FORK}'
when have_log_seq > log_seq then '{FILLED}'
end"""


def gaps(streamr: DataFrame) -> DataFrame:
    """The messages in `silver/streamr` whose predecessor is not, or was not, where it should be: `audit/gaps`."""
    good = streamr.where("fault is null")
    # The rows that are left are few, and looked at several times: the window is not.
    few = _stated(good).where("state is not null").localCheckpoint(eager=False)
    told = few.where(F.col("state") != _COPY)
    names = _keyed(good.select(*CHAIN).distinct())
    return _forks(_filled(told, few), good).join(names, list(KEY)).select(*GAPS.schema.fieldNames())


def _stated(good: DataFrame) -> DataFrame:
    """The rows with their state as far as the one that stands before each of them tells it."""
    want = (F.col("prev_ts").alias("want_ts"), F.col("prev_seq").alias("want_seq"))
    rows = _keyed(good).select(*KEY, "ts", "seq", "log_seq", *want)
    order = Window.partitionBy(*KEY).orderBy("ts", "seq", "log_seq")
    placed = rows.withColumns({f"have_{name}": F.lag(name).over(order) for name in ("ts", "seq", "log_seq")})
    return placed.withColumn("state", F.expr(_STATE))


def _keyed(rows: DataFrame) -> DataFrame:
    """*rows*, each chain with a key of 128 bits, which moves and sorts faster than four names."""
    return rows.withColumns({"key": F.xxhash64(*CHAIN), "key2": F.xxhash64(F.lit(1), *CHAIN)})


def _filled(told: DataFrame, few: DataFrame) -> DataFrame:
    """*told* without those whose predecessor had come already, and only a copy of it came later."""
    place = [*KEY, "have_ts", "have_seq"]
    first = few.where(F.col("state") == _COPY).groupBy(*place).agg(F.min("have_log_seq").alias("came"))
    judged = told.where(F.col("state") == FILLED).join(first, place, "left")
    filled = judged.where("coalesce(came, have_log_seq) > log_seq").drop("came")
    return told.where(F.col("state") != FILLED).unionByName(filled)


def _forks(told: DataFrame, good: DataFrame) -> DataFrame:
    """*told*, where a fork from a message that is not in the log is open."""
    forks = told.where(F.col("state") == FORK)
    there = _keyed(good).select(*KEY, F.col("ts").alias("want_ts"), F.col("seq").alias("want_seq"))
    place = [*KEY, "want_ts", "want_seq"]
    held = F.broadcast(forks.select(*place).distinct())
    present = there.join(held, place, "left_semi").distinct().withColumn("present", F.lit(True))
    judged = forks.join(present, place, "left")
    judged = judged.withColumn("state", F.when(F.col("present"), FORK).otherwise(OPEN)).drop("present")
    return told.where(F.col("state") != FORK).unionByName(judged)
