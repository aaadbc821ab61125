"""Lines of the log as rows of `bronze/messages`: in bulk by Spark's own functions, or one by one in Python.

The two ways agree on every line that both take; the fast one leaves out whatever it is not sure of. It relies on the
order in which the gateway writes the fields of a record (docs/log.md), and cuts the content out as it stands, so that
no digit of it changes: strings in JSON hold no bare quote, so the first `,"content":` is the field's own, and so is
the last occurrence of each field behind it, taken in order from the end.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from gateway.jsontext import dumps, loads
from gateway.message import Message
from gateway.record import CRC, FACTS, BadRecord, checked, decode
from pipeline.schemas import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Words of the reasons for which a line is no record, and what kind of fault that is.
REJECT: Final = {
    "foreign:": "foreign",
    "duplicate:": "duplicate",
    "torn": "torn",
    "checksum": "checksum",
}

# The fields behind the content, from the end to the content.
_AFTER: Final = ("wire", "undelivered", "refs", "key", "ids", "native", "parent")
_TAIL: Final = len(CRC) + len('12345678"}')
_LONGS: Final = ("seq", "time", "peer", "timestamp")
_LISTS: Final = ("ids", "undelivered")
_FIELDS: Final = (*_LONGS, *_LISTS, "kind", "channel", "id", "protocol", "sender", "parent", "native", "key", "refs")
_RECORD: Final = StructType(
    [StructField(name, LongType()) for name in _LONGS]
    + [StructField(name, ArrayType(StringType())) for name in _LISTS]
    + [StructField(name, StringType()) for name in (*_FIELDS[len(_LONGS) + len(_LISTS) :], "wire")]
)
# What stands in the text t before the last m, counted in bytes, which is quicker than in characters.
_BEFORE_LAST: Final = (
    "cast(substring(cast(t as binary), 1, octet_length(t) - octet_length(substring_index(t, m, -1)) - octet_length(m))"
    " as string)"
)
_MAX_SAFE: Final = 1 << 62


def parsed(lines: DataFrame) -> DataFrame:
    """*lines* (columns `value`, and whatever else) with the columns of `bronze/messages` and `good`.

    `gateway_id` is left to the caller. Where `good` is false the other columns mean nothing.
    """
    value = F.col("value")
    taken = lines.select(
        "*",
        value.cast("binary").alias("_bytes"),
        F.octet_length(value).alias("_size"),
        F.from_json(value, _RECORD, {"mode": "PERMISSIVE"}).alias("_r"),
    )
    body = F.expr(f"substring(_bytes, 1, _size - {_TAIL})")
    said = F.expr(f"cast(substring(_bytes, _size - {_TAIL - 1}, {_TAIL}) as string)")
    crc = F.lower(F.lpad(F.hex(F.crc32(body)), 8, "0"))
    sound = said == F.concat(F.lit(CRC.decode()), crc, F.lit('"}'))
    cut = _content(taken.withColumns({"_crc": crc, "_sound": sound}))
    is_message = F.col("_r.kind") == "message"
    named = F.col("_r.seq").isNotNull() & F.col("_r.time").isNotNull() & F.col("_r.time").between(0, 253402300799999)
    whole = F.expr("startswith(value, concat('{\"seq\":', _r.seq, ',\"time\":', _r.time, ','))")
    needed = ("_content", "_r.id", "_r.channel", "_r.peer", "_r.protocol")
    said_all = reduce(and_, (F.col(name).isNotNull() for name in needed))
    good = F.col("_sound") & F.is_valid_utf8(value) & named & whole & ((is_message & said_all) | _is_fact())
    when_message: dict[str, Column] = {name: F.when(is_message, F.col(f"_r.{name}")) for name in (*_FIELDS, "wire")}
    columns = {
        **when_message,
        "seq": F.col("_r.seq"),
        "time": F.col("_r.time"),
        "kind": F.col("_r.kind"),
        "day": F.to_date(F.timestamp_millis(F.col("_r.time"))),
        "protocol": F.col("_r.protocol"),
        "timestamp": F.when(is_message, F.coalesce("_r.timestamp", "_r.time")),
        "content": F.when(is_message, F.col("_content")),
        "fact": F.when(~is_message, F.expr("concat(cast(substring(_bytes, 1, _size - 18) as string), '}')")),
        "crc": F.col("_crc"),
    }
    kept = [name for name in lines.columns if name != "value"]
    chosen = [columns[name].alias(name) for name in MESSAGES.schema.fieldNames() if name != "gateway_id"]
    return cut.select(*kept, F.coalesce(good, F.lit(False)).alias("good"), *chosen)


def _is_fact() -> Column:
    """Whether a record is of a kind of facts and has the fields of that kind."""
    kinds = []
    for kind, names in FACTS.items():
        has = [F.contains("value", F.lit(f',"{name}":')) for name in names]
        kinds.append(reduce(and_, has, F.col("_r.kind") == kind))
    return reduce(or_, kinds)


def _content(lines: DataFrame) -> DataFrame:
    """*lines* with `_content`, the text of the field, null where it is not where it should be.

    What the record has behind it is cut off from the end, one field after the other, inside one `aggregate`: nested
    expressions would be copied into each other by Spark's optimizer, and grow beyond all bounds.
    """
    there = [F.when(F.col(f"_r.{name}").isNotNull(), F.lit(f',"{name}":')) for name in _AFTER]
    text = F.expr(f"aggregate(_marks, cast(substring(_bytes, 1, _size - {_TAIL}) as string), (t, m) -> {_BEFORE_LAST})")
    lines = lines.withColumn("_marks", F.array_compact(F.array(*there))).withColumn("_text", text)
    mark = ',"content":'
    before = F.octet_length(F.substring_index("_text", mark, 1)) + len(mark)
    found = F.col("_text").cast("binary").substr(before + 1, F.octet_length("_text") - before).cast("string")
    return lines.withColumn("_content", F.when(F.octet_length(found) > 0, found))


def typed(line: bytes, gateway: str) -> tuple[Any, ...]:
    """A line as a row of `bronze/messages`; `BadRecord` where it is none."""
    entry = decode(line)
    if not 0 < entry.seq < _MAX_SAFE or not 0 <= entry.time < 253402300800000:
        raise BadRecord("a sequence or a time beyond all bounds")
    body = checked(line)
    row: dict[str, Any] = dict.fromkeys(MESSAGES.schema.fieldNames())
    row |= {
        "gateway_id": gateway,
        "seq": entry.seq,
        "time": entry.time,
        "day": datetime.fromtimestamp(entry.time // 1000, UTC).date(),
        "crc": line.rstrip(b"\n")[-10:-2].decode(),
        "protocol": entry.protocol or None,
    }
    if isinstance(entry, Message):
        if not all(type(value) is int for value in (entry.sender.number, entry.timestamp)):
            raise BadRecord("a number and a timestamp are whole numbers")
        if not all(type(value) is str for value in (entry.channel, entry.id, entry.protocol)):
            raise BadRecord("a channel, an id and a protocol are texts")
        row |= _message(entry, body)
    else:
        row |= {"kind": entry.kind, "fact": (body + b"}").decode()}
    return tuple(row.values())


def _message(entry: Message, body: bytes) -> dict[str, Any]:
    told = loads(body + b"}", 1 << 10)
    return {
        "kind": "message",
        "channel": _plain(entry.channel),
        "id": _plain(entry.id),
        "peer": entry.sender.number,
        "sender": _plain(entry.sender.identity),
        "timestamp": entry.timestamp,
        "content": entry.content.decode(),
        "parent": _plain(entry.parent),
        "native": None if entry.native is None else dumps(entry.native).decode(),
        "ids": [_plain(id) for id in told["ids"]] if "ids" in told else None,
        "key": _plain(entry.key),
        "refs": None if entry.refs is None else dumps(entry.refs).decode(),
        "undelivered": list(entry.undelivered) or None,
        "wire": None if entry.wire is None else entry.wire.decode(),
    }


def _plain(text: Any) -> Any:
    """*text* without half characters, which no table holds."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text
