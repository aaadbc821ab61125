"""Finds the place of every Arbor node: its root, the number of its children, and whether its depth is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from pipeline.schemas import FOREST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPLY: Final = 2
NULL_ID: Final = "NullHash_B0__"


def forest(nodes: DataFrame, shown: DataFrame) -> DataFrame:
    """Make `gold/forest` of `silver/arbor_nodes`.

    *shown* has the ids (`node_id`) under which bridged messages were shown to Arbor: such a parent is present, but its
    depth is not known.
    """
    whole = nodes.where("fault is null").dropDuplicates(["node_id"])
    is_reply = F.col("type") == REPLY
    parents = whole.select(
        F.col("node_id").alias("parent"), F.col("depth").alias("parent_depth"), F.lit(True).alias("held")
    )
    bridged = shown.select(F.col("node_id").alias("parent")).distinct().withColumn("bridged", F.lit(True))
    children = whole.where(is_reply).groupBy(F.col("parent").alias("node_id")).agg(F.count(F.lit(1)).alias("children"))
    # A thread is a conversation and everything in it; a node that is not a reply is in no thread.
    thread = F.when(
        is_reply, F.when(F.col("conversation") == NULL_ID, F.col("node_id")).otherwise(F.col("conversation"))
    )
    named = whole.withColumn("thread", thread)
    sizes = named.where("thread is not null").groupBy("thread").agg(F.count(F.lit(1)).alias("thread_size"))
    joined = (
        named.join(parents, "parent", "left")
        .join(bridged, "parent", "left")
        .join(children, "node_id", "left")
        .join(sizes, "thread", "left")
    )
    present = F.coalesce("held", F.lit(False)) | F.coalesce("bridged", F.lit(False))
    depth_ok = F.when(~is_reply, F.col("depth") == 0).when(F.col("held"), F.col("depth") == F.col("parent_depth") + 1)
    columns = {
        "root": F.when(is_reply, F.col("community")).otherwise(F.col("node_id")),
        "depth_ok": depth_ok,
        "parent_present": F.when(is_reply, present).otherwise(F.lit(True)),
        "children": F.coalesce("children", F.lit(0)),
        "is_leaf": F.col("children").isNull(),
        "thread_size": F.col("thread_size"),
    }
    return joined.select("node_id", *(column.alias(name) for name, column in columns.items())).select(
        *FOREST.schema.fieldNames()
    )


def shown(messages: DataFrame) -> DataFrame:
    """Return the node ids in the `form` facts of `bronze/messages`."""
    forms = messages.where("kind = 'form' and protocol = 'sprout'")
    return forms.select(F.get_json_object("fact", "$.native.sprout").alias("node_id")).where("node_id is not null")
