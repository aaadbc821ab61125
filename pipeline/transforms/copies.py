"""Finds and removes copies: rows of a silver table with the same key, logged twice or in two spellings.

Rows with a fault have no key and are all kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def without_copies(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return one row of *rows* for each *key*, the one that was logged first, and all rows with a fault."""
    order = Window.partitionBy(*key).orderBy("log_seq", "gateway_id")
    numbered = _good(rows).withColumn("copy", F.row_number().over(order))
    return numbered.where("copy = 1").drop("copy").unionByName(rows.where("fault is not null"))


def without_known(rows: DataFrame, known: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return those of *rows* whose *key* is not in *known*, and all rows with a fault."""
    new = _good(rows).join(_good(known).select(*key), list(key), "left_anti")
    return new.select(*rows.columns).unionByName(rows.where("fault is not null"))


def copied(rows: DataFrame, known: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return a row for each *key* of *rows* that is there twice or in *known* as well.

    Hashes of 128 bits are compared, which move faster than the key itself; two keys with equal hashes can add a row for
    a key without a copy.
    """
    both = _hashed(rows, key, new=1).unionByName(_hashed(known, key, new=0))
    counted = both.groupBy("one", "two").agg(F.count(F.lit(1)).alias("n"), F.sum("new").alias("new"))
    return counted.where("n > 1 and new > 0")


def _good(rows: DataFrame) -> DataFrame:
    return rows.where("fault is null")


def _hashed(rows: DataFrame, key: Sequence[str], new: int) -> DataFrame:
    hashes = F.xxhash64(*key).alias("one"), F.xxhash64(F.lit(1), *key).alias("two")
    return _good(rows).select(*hashes, F.lit(new).alias("new"))
