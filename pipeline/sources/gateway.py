"""Reads a gateway's log over HTTP: `GET /v1/log` as a Python data source, in ranges that are read in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from gateway.core.message import Message
from gateway.storage.record import BadRecord, decode
from gateway.storage.segments import verify_line
from pipeline import spans
from pipeline.config import HttpSource, bearer
from pipeline.errors import PipelineError
from pipeline.schemas import MESSAGES, REJECTS

from .fast_decoder import Row
from .records import SCHEMA, batch, parse_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "trellis_log"
BATCH_RECORDS = 100_000  # records in one batch
TASK_RECORDS = 10_000  # records that one task reads, with one request
TIMEOUT_SECONDS = 60.0  # for a response to begin, or to continue
_REASON = to_arrow_type(REJECTS.schema)


class SequenceRange(InputPartition):
    """The records with sequences above *after*, up to *until*."""

    def __init__(self, after: int, until: int) -> None:
        super().__init__(None)
        self.after, self.until = after, until


class LogReader(DataSourceReader):
    """Reads lines of the log; each task requests one range."""

    def __init__(self, options: dict[str, str]) -> None:
        self._url, self._key = options["url"], options.get("key")
        self._gateway = options["gateway"]
        self._after, self._until = int(options["after"]), int(options["until"])

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges that the tasks read."""
        return [
            SequenceRange(after, min(after + TASK_RECORDS, self._until))
            for after in range(self._after, self._until, TASK_RECORDS)
        ]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range as rows of the table; a line that is not a record has a reason instead."""
        lines = self._lines(partition)
        for parsed in parse_lines(
            lines, f"{self._url}/v1/log", self._gateway, partition.after + 1, partition.until + 1
        ):
            yield _with_reason(parsed.records, pa.nulls(parsed.records.num_rows, _REASON))
            if parsed.rejects:
                names = [field.name for field in _REASON]
                told = pa.array([dict(zip(names, reject, strict=True)) for reject in parsed.rejects], _REASON)
                yield _with_reason(batch([(None,) * len(SCHEMA)] * len(parsed.rejects)), told)

    def _lines(self, piece: SequenceRange) -> Iterator[tuple[int, bytes]]:
        address = f"{self._url}/v1/log"
        asked = {"after": piece.after, "limit": piece.until - piece.after}
        with httpx.stream("GET", address, params=asked, headers=bearer(self._key), timeout=TIMEOUT_SECONDS) as answer:
            _check(answer, address)
            number, rest = piece.after, b""
            for data in answer.iter_bytes():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    number += 1
                    if not _comes_after(line, piece.until):
                        yield number, line + b"\n"
            if rest:
                raise PipelineError(f"{address} broke off in the middle of a record")


class RemoteLog(DataSource):
    """`spark.read.format("trellis_log").options(url=, gateway=, after=, until=, key=)`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of `bronze/messages`, and `reason`, a row of `bronze/rejects`."""
        return StructType([*MESSAGES.schema, StructField("reason", REJECTS.schema)])

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002  (Spark passes it)
        """Return a reader for the given options."""
        return LogReader(dict(self.options))


def _with_reason(records: pa.RecordBatch, reasons: pa.Array) -> pa.RecordBatch:
    names = [*SCHEMA.names, "reason"]
    return pa.RecordBatch.from_arrays([*records.columns, reasons], names)


def plan(source: HttpSource, covered: Callable[[str], spans.Spans]) -> dict[str, Any] | None:
    """Plan the next records to read from the gateway at *source*, except those in *covered*; None if none are left."""
    try:
        with httpx.Client(base_url=source.url, headers=bearer(source.key), timeout=TIMEOUT_SECONDS) as client:
            gateway, last = _gateway(client), _last(client)
    except httpx.TransportError as error:
        raise PipelineError(f"{source.url} cannot be reached: {error}") from None
    if gateway is None:
        return None
    left = spans.minus([[1, last]], covered(gateway))
    if not left:
        return None
    first, end = left[0]
    return {"gateway": gateway, "after": first - 1, "until": min(end, first - 1 + BATCH_RECORDS)}


def rows(spark: SparkSession, source: HttpSource, plan: dict[str, Any]) -> DataFrame:
    """Read the lines of *plan* as rows of `bronze/messages`; `reason` is set in those that are not records."""
    spark.dataSource.register(RemoteLog)
    options = {"url": source.url, **{name: plan[name] for name in ("gateway", "after", "until")}}
    reader = spark.read.format(NAME).options(**options)
    return (reader if source.key is None else reader.option("key", source.key)).load()


def rejects(rows: DataFrame) -> list[Row]:
    """Collect the rows of `bronze/rejects` in *rows*."""
    return [tuple(row) for row in rows.where("reason is not null").select("reason.*").collect()]


def _gateway(client: httpx.Client) -> str | None:
    """Return the id of the gateway, which the first record names; None if there is no record yet."""
    answer = client.get("/v1/log", params={"after": 0, "limit": 1})
    _check(answer, str(answer.url))
    if not answer.content:
        return None
    entry = decode(answer.content)
    if isinstance(entry, Message) or entry.kind != "start":
        raise PipelineError(f"{answer.url}: the first record does not name its gateway")
    return str(entry.fields["gateway"])


def _last(client: httpx.Client) -> int:
    answer = client.get("/v1/stats")
    _check(answer, str(answer.url))
    return int(answer.json()["sequence"])


def _check(answer: httpx.Response, address: str) -> None:
    if answer.status_code != 200:
        answer.read()
        raise PipelineError(f"{address} answers {answer.status_code}: {answer.text[:300]}")


def _comes_after(line: bytes, until: int) -> bool:
    """Whether the record on *line* comes after *until*: retention leaves gaps, and the limit counts records."""
    try:
        return verify_line(line + b"\n")[0] > until
    except BadRecord:
        return False
