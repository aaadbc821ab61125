"""Computes latencies from protocol to protocol, from the log's `counts` facts.

A fact has `minute` (its start, ms) and `flows`, a list of objects with `from`, `to`, `delivered`, `undelivered`
and `latency`, a histogram: `[[bound, count], ...]`, where *count* deliveries took at most *bound* microseconds and
more than the bound before. A minute may have several facts (a restart, several gateways): they add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from pipeline.schemas import LATENCY_MINUTE

from .stats import minute

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FACT: Final = (
    "minute bigint, flows array<struct<`from`: string, `to`: string, delivered: bigint, undelivered: bigint,"
    " latency: array<array<bigint>>>>"
)
QUANTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
_FLOW: Final = ("window", "from_protocol", "to_protocol")


def latency_minute(messages: DataFrame) -> DataFrame:
    """Make `gold/latency_minute` of `bronze/messages`."""
    found = latency(messages, minute("minute")).withColumnRenamed("window", "minute")
    return found.select(*LATENCY_MINUTE.schema.fieldNames())


def latency(messages: DataFrame, window: Column) -> DataFrame:
    """Return counts and quantiles by window, `from_protocol` and `to_protocol`.

    *window* is made of the column `minute` (ms) and never null. Quantiles are in ms, interpolated linearly between two
    bounds of the histogram, whose samples of all minutes of the window are added.
    """
    facts = messages.where("kind = 'counts'").select(F.from_json("fact", FACT).alias("counts"))
    flows = facts.select("counts.minute", F.explode("counts.flows").alias("flow")).select(
        window.alias("window"),
        F.col("flow.from").alias("from_protocol"),
        F.col("flow.to").alias("to_protocol"),
        F.coalesce("flow.delivered", F.lit(0)).alias("delivered"),
        F.coalesce("flow.undelivered", F.lit(0)).alias("undelivered"),
        F.col("flow.latency").alias("latency"),
    )
    sums = flows.groupBy(*_FLOW).agg(F.sum("delivered").alias("n"), F.sum("undelivered").alias("undelivered"))
    return sums.join(_quantiles(flows), list(_FLOW), "left")


def _quantiles(flows: DataFrame) -> DataFrame:
    cells = flows.select(*_FLOW, F.explode("latency").alias("cell")).select(
        *_FLOW, F.col("cell")[0].alias("bound"), F.col("cell")[1].alias("count")
    )
    merged = cells.where("count > 0").groupBy(*_FLOW, "bound").agg(F.sum("count").alias("count"))
    up = Window.partitionBy(*_FLOW).orderBy("bound")
    placed = merged.withColumns(
        {
            "upto": F.sum("count").over(up.rowsBetween(Window.unboundedPreceding, 0)),
            "total": F.sum("count").over(Window.partitionBy(*_FLOW)),
            "below": F.coalesce(F.lag("bound").over(up), F.lit(0)),
        }
    )
    return placed.groupBy(*_FLOW).agg(*(_quantile(share).alias(name) for name, share in QUANTILES.items()))


def _quantile(share: float) -> Column:
    """Return the quantile at *share* (of 1), interpolated in the first cell whose running total reaches it."""
    rank = F.col("total") * F.lit(share)
    into = (rank - (F.col("upto") - F.col("count"))) / F.col("count")
    value = (F.col("below") + into * (F.col("bound") - F.col("below"))) / 1000
    return F.min_by(value, F.when(F.col("upto") >= rank, F.col("bound")))
