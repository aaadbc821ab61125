"""Counts for each publisher its messages, those that are missing in its chains, and its bad ids and signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from pipeline import codecs
from pipeline.schemas import PUBLISHERS

from .gaps import FORK, OPEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = ("protocol", "publisher")
IDENTITY: Final = 0  # the type of a node


def publishers(streamr: DataFrame, nodes: DataFrame, gaps: DataFrame, integrity: DataFrame) -> DataFrame:
    """Make `gold/publishers` of the silver and audit tables.

    A publisher is the address of a Streamr publisher in small letters, or the node id of an Arbor author's identity.
    `missing` counts the messages whose predecessor is not in the log or is not the message before, `newest_missing` is
    the greatest of their times (ms). `bad` counts records with a bad id or signature, copies of known messages among
    them, and `newest_bad` is the greatest of their sequences in the log.
    """
    # An identity names no author; it is its own.
    author = F.when(F.col("type") == IDENTITY, F.col("node_id")).otherwise(F.coalesce("author", "node_id"))
    said = _of("streamr", streamr.where("fault is null")).unionByName(
        _of("sprout", nodes.where("fault is null").withColumn("publisher", author))
    )
    lacking = _of("streamr", gaps.where(F.col("state").isin(OPEN, FORK)), F.col("ts").alias("at"))
    wrong = integrity.where(F.col("verdict") == codecs.BAD)
    is_stream = F.startswith("check", F.lit("eth"))
    # Rows that an older version wrote do not say whose signature it is.
    address = F.coalesce("publisher", F.lower(F.get_json_object("native_id", "$[4]")))
    record = ["gateway_id", "log_seq"]
    authors = nodes.where("fault is null").select(F.col("node_id").alias("native_id"), author.alias("author"))
    nodes_wrong = wrong.where(~is_stream).select(*record, "native_id", "publisher").distinct()
    signer = F.coalesce("publisher", "author", "native_id")
    bad = _of("streamr", wrong.where(is_stream).withColumn("publisher", address), *record).unionByName(
        _of("sprout", nodes_wrong.join(authors, "native_id", "left").withColumn("publisher", signer), *record)
    )
    counted = said.groupBy(*KEY).agg(F.count(F.lit(1)).alias("messages"))
    missing = lacking.groupBy(*KEY).agg(F.count(F.lit(1)).alias("missing"), F.max("at").alias("newest_missing"))
    failed = bad.groupBy(*KEY).agg(F.count(F.lit(1)).alias("bad"), F.max("log_seq").alias("newest_bad"))
    joined = counted.join(missing, [*KEY], "full").join(failed, [*KEY], "full")
    return joined.na.fill(0, ["messages", "missing", "bad"]).select(*PUBLISHERS.schema.fieldNames())


def _of(protocol: str, rows: DataFrame, *more: Column | str) -> DataFrame:
    return rows.where("publisher is not null").select(F.lit(protocol).alias("protocol"), "publisher", *more)
