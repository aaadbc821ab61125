"""Requests of a gateway's log over HTTP, and what it answers as rows of `bronze/messages`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import httpx
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from gateway.core.message import Message
from gateway.storage.record import BadRecord, decode
from gateway.storage.segments import verify_line
from pipeline.config import HttpSource, bearer, is_temporary
from pipeline.errors import PipelineError, Unreachable
from pipeline.schemas import MESSAGES, REJECTS

from .records import SCHEMA, batch, parse_lines

ROWS: Final = StructType([*MESSAGES.schema, StructField("reason", REJECTS.schema)])  # `reason`: it is not a record
TASK_RECORDS = 10_000  # records that one task reads, with one request
FIRST_RECORDS = 100  # one of which names the gateway: the second in a cluster, else the first
TIMEOUT_SECONDS = 60.0  # for a response to begin, or to continue
_REASON: Final = to_arrow_type(REJECTS.schema)


class SequenceRange(InputPartition):
    """The records of *gateway* with sequences above *after*, up to *until*."""

    def __init__(self, gateway: str, after: int, until: int) -> None:
        super().__init__(None)
        self.gateway, self.after, self.until = gateway, after, until


def ranges(gateway: str, after: int, until: int) -> list[InputPartition]:
    """Return the ranges that the tasks read of the records above *after*, up to *until*."""
    return [
        SequenceRange(gateway, first, min(first + TASK_RECORDS, until)) for first in range(after, until, TASK_RECORDS)
    ]


def read_range(source: HttpSource, piece: SequenceRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of one range as rows of `ROWS`; a line that is not a record has a reason instead."""
    address = f"{source.url}/v1/log"
    lines = _lines(source, piece)
    for parsed in parse_lines(lines, address, piece.gateway, piece.after + 1, piece.until + 1):
        yield _with_reason(parsed.records, pa.nulls(parsed.records.num_rows, _REASON))
        if parsed.rejects:
            names = [field.name for field in _REASON]
            reasons = pa.array([dict(zip(names, reject, strict=True)) for reject in parsed.rejects], _REASON)
            yield _with_reason(batch([(None,) * len(SCHEMA)] * len(parsed.rejects)), reasons)


def extent(source: HttpSource) -> tuple[str | None, int]:
    """Return the id of the gateway at *source*, None if it has no record yet, and the sequence of its last record."""
    try:
        with httpx.Client(base_url=source.url, headers=bearer(source.key), timeout=TIMEOUT_SECONDS) as client:
            return _gateway(client), _last(client)
    except httpx.TransportError as error:
        raise Unreachable(f"{source.url} cannot be reached: {error}") from None


def _lines(source: HttpSource, piece: SequenceRange) -> Iterator[tuple[int, bytes]]:
    address = f"{source.url}/v1/log"
    asked = {"after": piece.after, "limit": piece.until - piece.after}
    try:
        with httpx.stream("GET", address, params=asked, headers=bearer(source.key), timeout=TIMEOUT_SECONDS) as answer:
            _check(answer, address)
            for number, line in enumerate(_whole_lines(answer, address), piece.after + 1):
                if not _comes_after(line, piece.until):
                    yield number, line + b"\n"
    except httpx.TransportError as error:
        raise Unreachable(f"{address} broke off: {error}") from None


def _whole_lines(answer: httpx.Response, address: str) -> Iterator[bytes]:
    rest = b""
    for data in answer.iter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    if rest:
        raise Unreachable(f"{address} broke off in the middle of a record")


def _with_reason(records: pa.RecordBatch, reasons: pa.Array) -> pa.RecordBatch:
    names = [*SCHEMA.names, "reason"]
    return pa.RecordBatch.from_arrays([*records.columns, reasons], names)


def _gateway(client: httpx.Client) -> str | None:
    """Return the id of the gateway, which one of the first records names; None if no record does yet."""
    read = 0
    with client.stream("GET", "/v1/log", params={"after": 0, "limit": FIRST_RECORDS}) as answer:
        address = str(answer.url)
        _check(answer, address)
        for line in _whole_lines(answer, address):
            read += 1
            with suppress(BadRecord):
                entry = decode(line + b"\n")
                if not isinstance(entry, Message) and entry.kind == "start":
                    return str(entry.fields["gateway"])
    if read == FIRST_RECORDS:
        raise PipelineError(f"{address}: none of the first {read:,} records names its gateway")
    return None


def _last(client: httpx.Client) -> int:
    answer = client.get("/v1/stats")
    _check(answer, str(answer.url))
    return int(answer.json()["sequence"])


def _check(answer: httpx.Response, address: str) -> None:
    if answer.status_code != 200:
        answer.read()
        kind = Unreachable if is_temporary(answer.status_code) else PipelineError
        raise kind(f"{address} answers {answer.status_code}: {answer.text[:300]}")


def _comes_after(line: bytes, until: int) -> bool:
    """Whether the record on *line* comes after *until*: retention leaves gaps, and the limit counts records."""
    try:
        return verify_line(line + b"\n")[0] > until
    except BadRecord:
        return False
