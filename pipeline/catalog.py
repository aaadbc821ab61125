"""The tables of a warehouse by name, and a search of the messages, for SQL and for programs of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .places import Place, place
from .schemas import TABLES
from .sinks.delta import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Words are letters and digits, so what is searched for is never a pattern.
SEARCH: Final = r"""
CREATE OR REPLACE TEMPORARY FUNCTION search(words STRING)
RETURNS TABLE (
    at TIMESTAMP, channel STRING, protocol STRING, sender STRING, content STRING, gateway_id STRING, seq BIGINT
)
RETURN
WITH asked AS (
    SELECT filter(split(lower(search.words), r'[^\p{L}\p{N}]+'), word -> word != '') AS each
), texts AS (
    SELECT *, lower(coalesce(get_json_object(content, '$'), content)) AS text FROM messages WHERE kind = 'message'
)
SELECT timestamp_millis(time), channel, protocol, sender, content, gateway_id, seq
FROM texts CROSS JOIN asked
WHERE size(each) > 0 AND forall(each, word -> contains(text, word))
    AND forall(each, word -> text RLIKE concat(r'(?<![\p{L}\p{N}])', word, r'(?![\p{L}\p{N}])'))
"""


def register(spark: SparkSession, warehouse: Place | str) -> list[str]:
    """Make a view of each table in *warehouse*, as it is now, in the session *spark*; return the names.

    A view has the last part of its table's name (`messages` for `bronze/messages`), and no rows if the table does not
    exist yet. `search('words')` is a table of the messages whose content has all of the words, in any case. *spark*
    may be a session of Spark Connect whose server sees *warehouse* at the same path.
    """
    at = place(warehouse) if isinstance(warehouse, str) else warehouse
    names = []
    for spec in TABLES:
        name = spec.name.rpartition("/")[2]
        # A view of the files themselves could be written to.
        Table(at, spec).frame(spark).where("true").createOrReplaceTempView(name)
        names.append(name)
    spark.sql(SEARCH)
    return names
