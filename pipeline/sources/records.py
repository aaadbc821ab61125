"""Turns lines of the log into rows of `bronze/messages`, and rows into Arrow batches.

`gateway.storage.record` decides what is a record, and returns the content verbatim, so that no digit of it changes;
this file arranges it as a row. `fast_decoder` reads most lines, with the same result in a third of the time. Spark's
workers run this in batches; the costs are the checksum, parsing the JSON once, and filling the columns
(docs/pipeline.md has the figures).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from gateway.core.jsontext import dumps
from gateway.storage.record import BadRecord, decode_fields
from pipeline.schemas import MESSAGES

from .fast_decoder import MAX_TIME, Row, day, decode_fast

# Words in the reasons for which a line is not a record, and the kind of each fault.
REJECT_KINDS: Final = {
    "foreign:": "foreign",
    "duplicate:": "duplicate",
    "torn": "torn",
    "checksum": "checksum",
}
ORDER_FAULTS: Final = {
    "foreign": "does not belong in this segment",
    "duplicate": "is in this segment already",
}
MAX_RAW: Final = 4096  # characters of an unreadable line that are kept
BATCH_ROWS: Final = 2_500  # records in one batch, which fits the processor's cache
SCHEMA: Final = to_arrow_schema(MESSAGES.schema)
_WIRE: Final = SCHEMA.names.index("wire")  # kept verbatim or rejected, as in the gateway; other texts may be repaired
_CONVERSION_ERRORS: Final = (pa.ArrowException, UnicodeEncodeError, TypeError, OverflowError)

SlowRows = dict[int, tuple[int, bytes]]  # rows that `decode_fast` did not decode, by index: line number and line


class ParsedLines(NamedTuple):
    """The result of some lines: rows of `bronze/messages` as a batch, and rows of `bronze/rejects`."""

    records: pa.RecordBatch
    rejects: list[Row]


def parse_lines(
    lines: Iterable[tuple[int, bytes]], file: str, gateway: str, first: int, end: int
) -> Iterator[ParsedLines]:
    """Decode the numbered *lines* of *file*: records from *first* on, below *end*, in rising order; reject the others.

    Each result has about `BATCH_ROWS` records or rejects; one of them is in memory at a time.
    """
    due = first
    rows: list[Row] = []
    slow: SlowRows = {}
    rejects: list[Row] = []
    for number, line in lines:
        try:
            if (row := decode_fast(line, gateway)) is None:
                row = decode_row(line, gateway)
                slow[len(rows)] = number, line
            seq: int = row[1]
            if not due <= seq < end:
                fault = _order_fault(seq, first, end)
                raise BadRecord(f"{fault}: record {seq} {ORDER_FAULTS[fault]}")
        except BadRecord as error:
            slow.pop(len(rows), None)
            rejects.append(reject(file, number, str(error), line))
        else:
            due = seq + 1
            rows.append(row)
        if BATCH_ROWS in (len(rows), len(rejects)):
            yield _parsed(rows, slow, rejects, file)
            rows, slow, rejects = [], {}, []
    yield _parsed(rows, slow, rejects, file)


def _order_fault(seq: int, first: int, end: int) -> str:
    return "duplicate" if first <= seq < end else "foreign"


def _parsed(rows: list[Row], slow: SlowRows, rejects: list[Row], file: str) -> ParsedLines:
    """Convert *rows* to a batch; if a column cannot hold a value, repair or reject the *slow* rows that have one."""
    try:
        return ParsedLines(batch(rows), rejects)
    except _CONVERSION_ERRORS:
        good = []
        for place, row in enumerate(rows):
            if place not in slow:
                good.append(row)
                continue
            try:
                batch([fit := (*map(_without_surrogates, row[:_WIRE]), *row[_WIRE:])])
                good.append(fit)
            except _CONVERSION_ERRORS as error:
                rejects.append(reject(file, slow[place][0], f"corrupt: {error}", slow[place][1]))
        return ParsedLines(batch(good), rejects)


def decode_row(line: bytes, gateway: str) -> Row:
    """Decode a line, with its newline, into a row of `bronze/messages`; raise `BadRecord` if it is not a record."""
    if not line.endswith(b"\n"):
        raise BadRecord("torn: the line does not end")
    record, body = decode_fields(line)
    seq, time, protocol = record["seq"], record["time"], record.get("protocol")
    if not line.startswith(b'{"seq":%d,"time":%d,' % (seq, time)):
        raise BadRecord("it does not begin with its sequence and its time")
    if time >= MAX_TIME:
        raise BadRecord("its time is after the year 9999")
    crc = line[-11:-3].decode()
    if record["kind"] == "message":
        return (gateway, seq, time, day(time), "message", *_message(record), None, crc)
    return (gateway, seq, time, day(time), record["kind"], *_fact(protocol), (body + b"}").decode(), crc)


def _message(record: dict[str, Any]) -> Row:
    """Return the columns from `channel` to `wire` of a message."""
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
    """Return the columns from `channel` to `wire` of a record that is not a message."""
    return (None, None, protocol, None, None, None, None, None, None, None, None, None, None, None, None)


def batch(rows: list[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Convert *rows* to a batch of columns."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def reject(file: str, line: int, reason: str, raw: bytes) -> Row:
    """Make a row of `bronze/rejects`; the prefix of its reason is a kind of `REJECT_KINDS`, else `corrupt`."""
    kind = next((kind for words, kind in REJECT_KINDS.items() if words in reason), "corrupt")
    text = raw.rstrip(b"\n").decode(errors="backslashreplace").replace("\0", "\\x00")[:MAX_RAW]
    if kind == "torn" and not text.startswith('{"seq":'):
        kind = "foreign"
    full_reason = reason if reason.startswith(f"{kind}:") else f"{kind}: {reason}"
    return file, line, full_reason, text


def _without_surrogates(value: Any) -> Any:
    """Replace lone surrogates in *value*, which UTF-8 and so Parquet cannot encode."""
    if isinstance(value, list):
        return [_without_surrogates(one) for one in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
