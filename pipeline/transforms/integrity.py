"""Recomputes the ids and verifies the signatures in the log, with the gateway's own code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pipeline import codecs
from pipeline.rowwise import columnwise, rowwise
from pipeline.schemas import INTEGRITY

from .decode import node_texts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def streamr(messages: DataFrame, now: int) -> DataFrame:
    """Return a verdict on the signature (ETH or ETH_LEGACY) of every stream message in *messages*; *now* is in ms."""
    found = columnwise(codecs.check_streams, _fields("check", "verdict", "reason", "publisher"))
    rows = messages.where("kind = 'message' and protocol = 'streamr' and wire is not null")
    verified = rows.select(
        "gateway_id",
        F.col("seq").alias("log_seq"),
        F.get_json_object("native", "$.streamr").alias("native_id"),
        found("wire").alias("found"),
    )
    return _shaped(verified.select("*", "found.*"), now)


def arbor(messages: DataFrame, identities: DataFrame, now: int) -> DataFrame:
    """Return two verdicts on every node in *messages*: on its id, and on its author's OpenPGP signature.

    *identities* has the identity nodes of all authors (`node_id`, `raw`); *now* is in ms.
    """
    binary = rowwise(codecs.node_bytes, BinaryType())
    check_id = rowwise(codecs.check_id, _fields("verdict", "reason"))
    check_node = rowwise(codecs.check_node, _fields("verdict", "reason"))
    author = rowwise(codecs.author_of, StringType())
    nodes = node_texts(messages).select("*", binary("text").alias("raw"))
    whole = nodes.where("raw is not null")
    broken = nodes.where("raw is null").select(
        *_head("node_id"),
        F.lit(None).cast("string").alias("author"),
        F.lit(codecs.BAD).alias("verdict"),
        F.lit("not base64url").alias("reason"),
    )
    known = identities.dropDuplicates(["node_id"]).select(
        F.col("node_id").alias("author"), F.col("raw").alias("identity")
    )
    authored = whole.select("*", author("node_id", "raw").alias("author"))
    ids = authored.select(*_head("node_id"), "author", check_id("node_id", "raw").alias("found"))
    held = authored.join(known, "author", "left")
    signed = held.select(*_head("openpgp"), "author", check_node("raw", "identity").alias("found"))
    checked = ids.unionByName(signed).select("*", "found.*").drop("found")
    return _shaped(checked.unionByName(broken).withColumnRenamed("author", "publisher"), now)


def _head(check: str) -> list[Column | str]:
    return [
        "gateway_id",
        F.col("seq").alias("log_seq"),
        F.col("node_id").alias("native_id"),
        F.lit(check).alias("check"),
    ]


def _fields(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def _shaped(rows: DataFrame, now: int) -> DataFrame:
    return rows.withColumn("checked_at", F.lit(now).cast("bigint")).select(*INTEGRITY.schema.fieldNames())
