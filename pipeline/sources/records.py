"""Lines of the log as rows of `bronze/messages`, by the gateway's own reader, and rows as Arrow batches.

What is a record is said by `gateway.storage.record`, which cuts the content out as it stands, so that no digit of it
changes; here is only the shape of the row. Usual lines are read by `usual`, which finds the same in them in a third of
the time. Spark's workers run this in batches: the costs are those of the checksum, of one reading of the JSON, and of
filling the columns (docs/pipeline.md says how much).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from gateway.core.jsontext import dumps
from gateway.storage.record import BadRecord, decode_fields
from pipeline.schemas import MESSAGES

from .usual import MAX_TIME, Row, day, usual

# Words of the reasons for which a line is no record, and what kind of fault that is.
REJECT: Final = {
    "foreign:": "foreign",
    "duplicate:": "duplicate",
    "torn": "torn",
    "checksum": "checksum",
}
PLACES: Final = {
    "foreign": "does not belong into this segment",
    "duplicate": "stands in this segment already",
}
MAX_RAW: Final = 4096  # characters of an unreadable line that are kept
BATCH: Final = 2_500  # records that become one batch: as many as a processor has close by
SCHEMA: Final = to_arrow_schema(MESSAGES.schema)
_WIRE: Final = SCHEMA.names.index("wire")  # the one text that is what it is or nothing, as the gateway has it
_UNFIT: Final = (pa.ArrowException, UnicodeEncodeError, TypeError, OverflowError)

Odd = dict[int, tuple[int, bytes]]  # rows that are none of the usual ones, by their place: number and line


class Taken(NamedTuple):
    """What came of some lines: rows of `bronze/messages` as a batch, and rows of `bronze/rejects`."""

    records: pa.RecordBatch
    rejects: list[Row]


def take(lines: Iterable[tuple[int, bytes]], file: str, gateway: str, first: int, end: int) -> Iterator[Taken]:
    """What the numbered *lines* of *file* are: records from *first* on, below *end*, in rising order; and what is none.

    Answers come for about `BATCH` records each; memory holds one of them.
    """
    due = first
    rows: list[Row] = []
    odd: Odd = {}
    rejects: list[Row] = []
    for number, line in lines:
        try:
            if (row := usual(line, gateway)) is None:
                row = typed(line, gateway)
                odd[len(rows)] = number, line
            seq: int = row[1]
            if not due <= seq < end:
                raise BadRecord(f"{_why(seq, first, end)}: record {seq} {PLACES[_why(seq, first, end)]}")
        except BadRecord as error:
            odd.pop(len(rows), None)
            rejects.append(reject(file, number, str(error), line))
            continue
        due = seq + 1
        rows.append(row)
        if len(rows) == BATCH:
            yield _taken(rows, odd, rejects, file)
            rows, odd, rejects = [], {}, []
    yield _taken(rows, odd, rejects, file)


def _why(seq: int, first: int, end: int) -> str:
    return "duplicate" if first <= seq < end else "foreign"


def _taken(rows: list[Row], odd: Odd, rejects: list[Row], file: str) -> Taken:
    """*rows* as a batch; where a column cannot hold a value, it is found out which of the *odd* rows it is."""
    try:
        return Taken(batch(rows), rejects)
    except _UNFIT:
        good = []
        for place, row in enumerate(rows):
            if place not in odd:
                good.append(row)
                continue
            try:
                batch([fit := (*map(_plain, row[:_WIRE]), *row[_WIRE:])])
                good.append(fit)
            except _UNFIT as error:
                rejects.append(reject(file, odd[place][0], f"corrupt: {error}", odd[place][1]))
        return Taken(batch(good), rejects)


def typed(line: bytes, gateway: str) -> Row:
    """A line, newline included, as a row of `bronze/messages`; `BadRecord` where it is none."""
    if not line.endswith(b"\n"):
        raise BadRecord("torn: the line does not end")
    record, body = decode_fields(line)
    seq, time, protocol = record["seq"], record["time"], record.get("protocol")
    if not line.startswith(b'{"seq":%d,"time":%d,' % (seq, time)):
        raise BadRecord("it does not begin with its sequence and its time")
    if time >= MAX_TIME:
        raise BadRecord("a time beyond all bounds")
    crc = line[-11:-3].decode()
    if record["kind"] == "message":
        return (gateway, seq, time, day(time), "message", *_message(record), None, crc)
    return (gateway, seq, time, day(time), record["kind"], *_fact(protocol), (body + b"}").decode(), crc)


def _message(record: dict[str, Any]) -> Row:
    """The columns from `channel` to `wire`."""
    get = record.get
    native, refs = get("native"), get("refs")
    try:
        content = record["content"].decode()
        row = (
            record["channel"],
            record["id"],
            record["protocol"],
            record["peer"],
            get("sender"),
            get("sender_protocol"),
            get("timestamp", record["time"]),
            content,
            get("parent"),
            None if native is None else dumps(native).decode(),
            get("ids"),
            get("key"),
            None if refs is None else dumps(refs).decode(),
            get("undelivered"),
            get("wire"),
        )
    except (ValueError, KeyError) as error:
        raise BadRecord(f"not a record: {error}") from None
    return row


def _fact(protocol: str | None) -> Row:
    """The columns from `channel` to `wire` of what is no message."""
    return (None, None, protocol, None, None, None, None, None, None, None, None, None, None, None, None)


def batch(rows: list[Row]) -> pa.RecordBatch:
    """*rows* as columns."""
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def reject(file: str, line: int, reason: str, raw: bytes) -> Row:
    """A row of `bronze/rejects`; *reason* begins with one word of `REJECT`."""
    kind = next((kind for words, kind in REJECT.items() if words in reason), "corrupt")
    text = raw.rstrip(b"\n").decode(errors="backslashreplace").replace("\0", "\\x00")[:MAX_RAW]
    if kind == "torn" and not text.startswith('{"seq":'):
        kind = "foreign"
    told = reason if reason.startswith(f"{kind}:") else f"{kind}: {reason}"
    return file, line, told, text


def _plain(value: Any) -> Any:
    """*value* without half characters, which no table holds."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
