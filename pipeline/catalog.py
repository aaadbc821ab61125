"""The tables of a warehouse by name, for SQL and for programs of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .schemas import TABLES
from .sinks.delta import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, warehouse: Path | str) -> list[str]:
    """Make a view of each table in *warehouse*, as it is now, in the session *spark*; return the names.

    A view has the last part of its table's name (`messages` for `bronze/messages`), and no rows if the table does not
    exist yet. *spark* may be a session of Spark Connect whose server sees *warehouse* at the same path.
    """
    names = []
    for spec in TABLES:
        name = spec.name.rpartition("/")[2]
        # A view of the files themselves could be written to.
        Table(Path(warehouse), spec).frame(spark).where("true").createOrReplaceTempView(name)
        names.append(name)
    return names
