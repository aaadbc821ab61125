"""What people often ask of the messages: who answers whom, how soon, who comes back, what is wrong, what takes space.

The queries are Spark's SQL, of the tables that they name in braces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pipeline.schemas import (
    ANSWER_TIMES,
    ANSWERS,
    FAULTS,
    GAPS,
    INTEGRITY,
    MESSAGES,
    REJECTS,
    RETENTION,
    STORAGE,
    THREADS,
    TableSpec,
)

from .threads import threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What the queries read, by the names that they use.
SOURCES: Final = {"messages": MESSAGES, "rejects": REJECTS, "integrity": INTEGRITY, "gaps": GAPS}

QUERIES: Final = {
    # `parent` is an id of the message that is answered, whatever protocol either speaks; `ids` are all that it has.
    ANSWERS: """
WITH said AS (
    SELECT *, coalesce(sender_protocol, protocol) AS speaks, coalesce(sender, concat('peer ', peer)) AS who
    FROM {messages} WHERE kind = 'message'
), known AS (
    SELECT gateway_id, seq, speaks, who, explode(array_distinct(concat(array(id), coalesce(ids, array())))) AS known_as
    FROM said
)
SELECT said.speaks AS from_protocol, said.who AS from_sender, known.speaks AS to_protocol, known.who AS to_sender,
    count(DISTINCT said.gateway_id, said.seq) AS answers
FROM said JOIN known ON said.gateway_id = known.gateway_id AND said.parent = known.known_as AND said.seq > known.seq
GROUP BY ALL
""",
    ANSWER_TIMES: """
WITH asked AS (
    SELECT gateway_id, channel, seq, time,
        explode(array_distinct(concat(array(id), coalesce(ids, array())))) AS known_as
    FROM {messages} WHERE kind = 'message'
), first_answers AS (
    SELECT asked.channel, min(answer.time) - asked.time AS ms
    FROM asked JOIN {messages} answer
        ON asked.gateway_id = answer.gateway_id AND answer.parent = asked.known_as AND answer.seq > asked.seq
    WHERE answer.kind = 'message'
    GROUP BY asked.channel, asked.gateway_id, asked.seq, asked.time
)
SELECT channel, count(*) AS answered, percentile(ms, 0.5) AS half_ms, percentile(ms, 0.95) AS most_ms
FROM first_answers GROUP BY channel
""",
    RETENTION: """
WITH active AS (
    SELECT DISTINCT coalesce(sender_protocol, protocol) AS speaks, sender, trunc(day, 'week') AS week
    FROM {messages} WHERE kind = 'message' AND sender IS NOT NULL
), weeks AS (
    SELECT *, min(week) OVER (PARTITION BY speaks, sender) AS first_week FROM active
)
SELECT first_week, datediff(week, first_week) DIV 7 AS weeks_later, count(*) AS senders
FROM weeks GROUP BY ALL
""",
    # A copy is a message whose id its channel had before.
    FAULTS: """
WITH known AS (
    SELECT channel, id, count(*) - 1 AS copies, count(DISTINCT content) AS contents
    FROM {messages} WHERE kind = 'message' GROUP BY channel, id
), missed AS (
    SELECT explode(undelivered) AS protocol FROM {messages} WHERE kind = 'message'
)
SELECT 'line' AS what, substring_index(reason, ':', 1) AS cause, count(*) AS n FROM {rejects} GROUP BY ALL
UNION ALL
SELECT concat('check ', check), coalesce(reason, ''), count(*) FROM {integrity} WHERE verdict = 'bad' GROUP BY ALL
UNION ALL
SELECT 'chain', state, count(*) FROM {gaps} WHERE state IN ('open', 'fork') GROUP BY ALL
UNION ALL
SELECT 'copy', if(contents > 1, 'another content', 'the same content'), sum(copies)
FROM known WHERE copies > 0 GROUP BY ALL
UNION ALL
SELECT 'undelivered', protocol, count(*) FROM missed GROUP BY ALL
""",
    STORAGE: """
SELECT channel, count(*) AS messages, sum(octet_length(content)) AS content_bytes,
    sum(coalesce(octet_length(wire), 0)) AS wire_bytes,
    sum(coalesce(octet_length(native), 0) + coalesce(octet_length(refs), 0)) AS reference_bytes
FROM {messages} WHERE kind = 'message' GROUP BY channel
""",
}
TABLES: Final = (*QUERIES, THREADS)


def answer(spec: TableSpec, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Make the table *spec*, one of `TABLES`, of *tables*, which have the names of `SOURCES`."""
    messages, named = tables["messages"], dict[str, Any](tables)
    if spec is THREADS:
        return threads(messages)
    return messages.sparkSession.sql(QUERIES[spec], **named).select(*spec.schema.fieldNames())
