"""The tables: for each its folder, its schema and its primary key.

Times are milliseconds since 1970, as in the log, in columns called `time`, `timestamp`, `ts` or `created`; `day` and
`minute` are Spark's date and timestamp, in UTC.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_LONG, _INT, _TEXT, _BYTES = LongType(), IntegerType(), StringType(), BinaryType()
_TEXTS, _FLAG, _REAL = ArrayType(StringType()), BooleanType(), DoubleType()


class TableSpec(NamedTuple):
    """A table: its path below the warehouse, its schema, the columns of its primary key, and the job that writes it."""

    name: str
    schema: StructType
    key: tuple[str, ...]
    job: str = ""


def _table(name: str, key: str, job: str, /, **columns: DataType) -> TableSpec:
    return TableSpec(name, StructType([StructField(c, kind) for c, kind in columns.items()]), tuple(key.split()), job)


# A record of the log. `content`, `native` and `refs` are JSON text; `fact` is the text of a record that is no message.
MESSAGES: Final = _table(
    "bronze/messages",
    "gateway_id seq",
    "ingest",
    gateway_id=_TEXT,
    seq=_LONG,
    time=_LONG,
    day=DateType(),
    kind=_TEXT,
    channel=_TEXT,
    id=_TEXT,
    protocol=_TEXT,
    peer=_LONG,
    sender=_TEXT,
    sender_protocol=_TEXT,
    timestamp=_LONG,
    content=_TEXT,
    parent=_TEXT,
    native=_TEXT,
    ids=_TEXTS,
    key=_TEXT,
    refs=_TEXT,
    undelivered=_TEXTS,
    wire=_TEXT,
    fact=_TEXT,
    crc=_TEXT,
)
REJECTS: Final = _table("bronze/rejects", "file line", "ingest", file=_TEXT, line=_LONG, reason=_TEXT, raw=_TEXT)
STREAMR: Final = _table(
    "silver/streamr",
    "stream partition publisher chain ts seq",
    "decode",
    gateway_id=_TEXT,
    log_seq=_LONG,
    stream=_TEXT,
    partition=_INT,
    publisher=_TEXT,
    chain=_TEXT,
    ts=_LONG,
    seq=_LONG,
    prev_ts=_LONG,
    prev_seq=_LONG,
    version=_INT,
    message_type=_INT,
    encryption_type=_INT,
    signature_type=_INT,
    content=_TEXT,
    signature=_TEXT,
    fault=_TEXT,
)
ARBOR_NODES: Final = _table(
    "silver/arbor_nodes",
    "node_id",
    "decode",
    gateway_id=_TEXT,
    log_seq=_LONG,
    node_id=_TEXT,
    type=_INT,
    parent=_TEXT,
    community=_TEXT,
    conversation=_TEXT,
    depth=_LONG,
    created=_LONG,
    author=_TEXT,
    raw=_BYTES,
    fault=_TEXT,
)
TOPIC_PACKETS: Final = _table(
    "silver/topic_packets",
    "gateway_id seq",
    "decode",
    gateway_id=_TEXT,
    seq=_LONG,
    type=_INT,
    topic=_TEXT,
    src=_LONG,
    extra=_TEXT,
    fault=_TEXT,
)
INTEGRITY: Final = _table(
    "audit/integrity",
    "gateway_id log_seq check",
    "integrity",
    gateway_id=_TEXT,
    log_seq=_LONG,
    native_id=_TEXT,
    check=_TEXT,
    verdict=_TEXT,
    reason=_TEXT,
    checked_at=_LONG,
    publisher=_TEXT,
)
GAPS: Final = _table(
    "audit/gaps",
    "stream partition publisher chain ts seq",
    "gaps",
    stream=_TEXT,
    partition=_INT,
    publisher=_TEXT,
    chain=_TEXT,
    ts=_LONG,
    seq=_LONG,
    want_ts=_LONG,
    want_seq=_LONG,
    have_ts=_LONG,
    have_seq=_LONG,
    state=_TEXT,
)
CHANNEL_MINUTE: Final = _table(
    "gold/channel_minute",
    "minute protocol channel",
    "stats",
    minute=TimestampType(),
    protocol=_TEXT,
    channel=_TEXT,
    n=_LONG,
    bytes=_LONG,
    senders=_LONG,
    undelivered=_LONG,
)
LATENCY_MINUTE: Final = _table(
    "gold/latency_minute",
    "minute from_protocol to_protocol",
    "stats",
    minute=TimestampType(),
    from_protocol=_TEXT,
    to_protocol=_TEXT,
    n=_LONG,
    p50=_REAL,
    p95=_REAL,
    p99=_REAL,
    undelivered=_LONG,
)
FOREST: Final = _table(
    "gold/forest",
    "node_id",
    "forest",
    node_id=_TEXT,
    root=_TEXT,
    depth_ok=_FLAG,
    parent_present=_FLAG,
    children=_LONG,
    is_leaf=_FLAG,
    thread_size=_LONG,
)
ANSWERS: Final = _table(
    "gold/answers",
    "from_protocol from_sender to_protocol to_sender",
    "questions",
    from_protocol=_TEXT,
    from_sender=_TEXT,
    to_protocol=_TEXT,
    to_sender=_TEXT,
    answers=_LONG,
)
ANSWER_TIMES: Final = _table(
    "gold/answer_times", "channel", "questions", channel=_TEXT, answered=_LONG, half_ms=_REAL, most_ms=_REAL
)
RETENTION: Final = _table(
    "gold/retention",
    "first_week weeks_later",
    "questions",
    first_week=DateType(),
    weeks_later=_LONG,
    senders=_LONG,
)
THREADS: Final = _table("gold/threads", "depth", "questions", depth=_LONG, messages=_LONG, threads=_LONG, half_ms=_REAL)
FAULTS: Final = _table("gold/faults", "what cause", "questions", what=_TEXT, cause=_TEXT, n=_LONG)
STORAGE: Final = _table(
    "gold/storage",
    "channel",
    "questions",
    channel=_TEXT,
    messages=_LONG,
    content_bytes=_LONG,
    wire_bytes=_LONG,
    reference_bytes=_LONG,
)
PUBLISHERS: Final = _table(
    "gold/publishers",
    "protocol publisher",
    "publishers",
    protocol=_TEXT,
    publisher=_TEXT,
    messages=_LONG,
    missing=_LONG,
    newest_missing=_LONG,
    bad=_LONG,
    newest_bad=_LONG,
)
BATCHES: Final = _table(
    "ops/batches",
    "job batch",
    "",
    job=_TEXT,
    batch=_LONG,
    first_seq=_LONG,
    last_seq=_LONG,
    rows_in=_LONG,
    rows_out=_LONG,
    rejected=_LONG,
    seconds=_REAL,
)

TABLES: Final = (
    MESSAGES,
    REJECTS,
    STREAMR,
    ARBOR_NODES,
    TOPIC_PACKETS,
    INTEGRITY,
    GAPS,
    CHANNEL_MINUTE,
    LATENCY_MINUTE,
    FOREST,
    ANSWERS,
    ANSWER_TIMES,
    RETENTION,
    THREADS,
    FAULTS,
    STORAGE,
    PUBLISHERS,
    BATCHES,
)
