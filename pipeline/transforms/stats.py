"""Counts messages by minute, protocol and channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from pipeline.schemas import CHANNEL_MINUTE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OWN: Final = "gateway/"  # prefix of the gateway's own channels, which are not counted
MINUTE: Final = 60_000  # ms


def channel_minute(messages: DataFrame) -> DataFrame:
    """Make `gold/channel_minute` of `bronze/messages`.

    `bytes` is the size of the texts as they were received, `senders` the number of different senders (durable
    identities, else connections), `undelivered` the number of messages that some protocol did not get.
    """
    said = messages.where((F.col("kind") == "message") & ~F.startswith("channel", F.lit(OWN)))
    who = F.coalesce("sender", F.concat(F.lit("#"), F.col("peer").cast("string")))
    shaped = said.select(
        minute("time").alias("minute"),
        "protocol",
        "channel",
        F.octet_length(F.coalesce("wire", "content")).alias("bytes"),
        who.alias("who"),
        F.when(F.size("undelivered") > 0, 1).otherwise(0).alias("missed"),
    )
    counted = shaped.groupBy("minute", "protocol", "channel").agg(
        F.count(F.lit(1)).alias("n"),
        F.sum("bytes").alias("bytes"),
        F.countDistinct("who").alias("senders"),
        F.sum("missed").alias("undelivered"),
    )
    return counted.select(*CHANNEL_MINUTE.schema.fieldNames())


def minute(name: str) -> Column:
    """Return the minute of the column *name* (ms)."""
    return F.timestamp_millis(F.floor(F.col(name) / MINUTE) * MINUTE)
