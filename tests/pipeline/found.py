"""What any session finds in the tables of a warehouse, of Spark itself or of Spark Connect."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.schemas import TABLES

WORD = "hi"


def found(spark: SparkSession) -> dict[str, Any]:
    """The rows of each table: their number, and a hash that does not depend on their order; and what a search finds."""
    told: dict[str, Any] = {}
    for spec in TABLES:
        name = spec.name.rpartition("/")[2]
        rows = spark.table(name).select(F.xxhash64(*spec.schema.fieldNames()).alias("hash"))
        told[name] = [*rows.agg(F.count("hash"), F.sum(F.col("hash").cast("decimal(38)")).cast("string")).collect()[0]]
    searched = spark.sql(f"SELECT seq, content FROM search('{WORD}') ORDER BY seq").collect()
    return told | {"search": [[*row] for row in searched]}
