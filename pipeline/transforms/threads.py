"""Measures threads, whatever protocols their messages came by: how deep they are, and how soon each depth follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from pipeline.schemas import THREADS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACE: Final = ("gateway_id", "top")


def threads(messages: DataFrame) -> DataFrame:
    """Make `gold/threads` of `bronze/messages`.

    A thread is a message that answers nothing in the log (depth 0), with its answers (1), the answers to those (2), and
    so on. `threads` counts those that are no deeper, `half_ms` is the median of the time from a message to its answer.
    """
    placed = climb(links(messages))
    below = placed.groupBy("depth").agg(
        F.count(F.lit(1)).alias("messages"), F.percentile("ms", F.lit(0.5)).alias("half_ms")
    )
    deepest = placed.groupBy(*PLACE).agg(F.max("depth").alias("depth"))
    ends = deepest.groupBy("depth").agg(F.count(F.lit(1)).alias("threads"))
    tops = deepest.agg(F.count(F.lit(1)).alias("messages")).where("messages > 0")
    first = tops.select(F.lit(0).cast("bigint").alias("depth"), "messages", F.lit(None).cast("double").alias("half_ms"))
    joined = first.unionByName(below).join(ends, "depth", "left").na.fill(0, ["threads"])
    return joined.select(*THREADS.schema.fieldNames())


def links(messages: DataFrame) -> DataFrame:
    """Return `gateway_id`, `seq`, `top`, `depth` (1) and `ms` for each answer: `top` is the message that it answers.

    A message is found by any of its ids; of several copies it is the one that was logged first.
    """
    said = messages.where("kind = 'message'")
    ids = F.array_distinct(F.concat(F.array("id"), F.coalesce("ids", F.array())))
    asked = said.select(
        "gateway_id", F.col("seq").alias("top"), F.col("time").alias("asked"), F.explode(ids).alias("parent")
    )
    answers = said.where("parent is not null").select("gateway_id", "seq", "time", "parent")
    found = answers.join(asked, ["gateway_id", "parent"]).where("top < seq")
    first = found.groupBy("gateway_id", "seq").agg(
        F.min("top").alias("top"), F.min_by(F.col("time") - F.col("asked"), "top").alias("ms")
    )
    return first.select("gateway_id", "seq", "top", F.lit(1).cast("bigint").alias("depth"), "ms")


def climb(answers: DataFrame) -> DataFrame:
    """Return *answers* with `top` at the top of the thread, and `depth` counted from there.

    Each round doubles the distance that each answer has climbed, so ten rounds are enough for a depth of 1,024. What a
    round found is kept twice, because a worker that ends would take it along.
    """
    while True:
        above = answers.select(
            "gateway_id", F.col("seq").alias("top"), F.col("top").alias("next"), F.col("depth").alias("more")
        )
        higher = answers.join(above, [*PLACE], "left").select(
            "gateway_id",
            "seq",
            F.coalesce("next", "top").alias("top"),
            (F.col("depth") + F.coalesce("more", F.lit(0))).alias("depth"),
            "ms",
            F.col("next").isNotNull().alias("climbed"),
        )
        higher = higher.localCheckpoint(storageLevel=StorageLevel.MEMORY_AND_DISK_2)
        answers = higher.drop("climbed")
        if higher.where("climbed").isEmpty():
            return answers
