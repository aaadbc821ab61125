"""Decodes `bronze/messages` into the messages of each protocol, with the gateway's own codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline import codecs
from pipeline.rowwise import rowwise
from pipeline.schemas import ARBOR_NODES, STREAMR, TOPIC_PACKETS, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def streamr(messages: DataFrame) -> DataFrame:
    """Return every message that a Streamr publisher sent: `silver/streamr`."""
    found = rowwise(codecs.stream, _fields(STREAMR, codecs.StreamFields._fields))
    rows = messages.where("kind = 'message' and protocol = 'streamr' and wire is not null")
    wide = rows.select("gateway_id", F.col("seq").alias("log_seq"), found("wire", "content").alias("found"))
    return wide.select("gateway_id", "log_seq", "found.*").select(*STREAMR.schema.fieldNames())


def arbor_nodes(messages: DataFrame) -> DataFrame:
    """Return every node in the log (replies, identities, communities, conversations): `silver/arbor_nodes`."""
    found = rowwise(codecs.node, _fields(ARBOR_NODES, codecs.NodeFields._fields))
    nodes = node_texts(messages)
    wide = nodes.select("gateway_id", F.col("seq").alias("log_seq"), "node_id", found("text").alias("found"))
    return wide.select("gateway_id", "log_seq", "node_id", "found.*").select(*ARBOR_NODES.schema.fieldNames())


def node_texts(messages: DataFrame) -> DataFrame:
    """Return the encoded nodes in the log: `gateway_id`, `seq`, `node_id` as the log has it (unverified), `text`."""
    of_message = F.col("kind") == "message"
    text = F.when(of_message, F.col("wire")).otherwise(_of_fact("$.wire"))
    native = F.when(of_message, F.get_json_object("native", "$.sprout")).otherwise(_of_fact("$.native.sprout"))
    rows = messages.where("protocol = 'sprout' and kind in ('message', 'entity')")
    return rows.select("gateway_id", "seq", native.alias("node_id"), text.alias("text")).where(
        "node_id is not null and text is not null"
    )


def topic_packets(messages: DataFrame) -> DataFrame:
    """Return every packet that a peer of the topic relay broadcast: `silver/topic_packets`."""
    found = rowwise(codecs.packet, _fields(TOPIC_PACKETS, codecs.PacketFields._fields))
    rows = messages.where("kind = 'message' and protocol = 'topic_relay' and wire is not null")
    wide = rows.select("gateway_id", "seq", F.col("peer").alias("src"), found("wire").alias("found"))
    return wide.select("gateway_id", "seq", "src", "found.*").select(*TOPIC_PACKETS.schema.fieldNames())


def _of_fact(path: str) -> Column:
    return F.get_json_object("fact", path)


def _fields(spec: TableSpec, names: tuple[str, ...]) -> StructType:
    return StructType([spec.schema[name] for name in names])
