"""How much was said: by minute, protocol and channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from pipeline.schemas import CHANNEL_MINUTE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OWN: Final = "gateway/"  # channels that are the gateway's own, and are not counted
MINUTE: Final = 60_000  # ms


def channel_minute(messages: DataFrame) -> DataFrame:
    """`gold/channel_minute` of `bronze/messages`.

    `bytes` are those of the text as it was received, `senders` are different ones (durable identities, else
    connections), `undelivered` counts messages that some protocol did not get.
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
    """The minute that the column *name* (ms) lies in."""
    return F.timestamp_millis(F.floor(F.col(name) / MINUTE) * MINUTE)
