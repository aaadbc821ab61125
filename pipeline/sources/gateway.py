"""Reads a gateway's log over HTTP: `GET /v1/log` as a Python data source, in ranges that are read in parallel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pipeline import spans
from pipeline.config import HttpSource
from pipeline.errors import Unreachable

from .requests import ROWS, extent, ranges, read_range
from .stream import LogStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "trellis_log"
BATCH_RECORDS = 100_000  # records in one batch
_UNREACHABLE: Final = re.compile(rf"\b{Unreachable.__name__}: (.*)")


class LogReader(DataSourceReader):
    """Reads lines of the log; each task requests one range."""

    def __init__(self, options: dict[str, str]) -> None:
        self._source = HttpSource(options["url"].rstrip("/"), options.get("key"))
        self._gateway = options.get("gateway")
        self._after, self._until = int(options.get("after", 0)), int(options.get("until", 0))

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges that the tasks read."""
        gateway, until = self._gateway, self._until
        if gateway is None:
            gateway, until = extent(self._source)
        return [] if gateway is None else ranges(gateway, self._after, until)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range as rows of the table; a line that is not a record has a reason instead."""
        return read_range(self._source, partition)


class RemoteLog(DataSource):
    """`spark.read.format("trellis_log")` and `spark.readStream`, with `option("url", ...)` and `option("key", ...)`.

    A stream has the options of `LogStream`; a frame has `after`, and with `gateway` also `until`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of `bronze/messages`, and `reason`, a row of `bronze/rejects`."""
        return ROWS

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002  (Spark passes it)
        """Return a reader for the given options."""
        return LogReader(dict(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002  (Spark passes it)
        """Return a reader for Structured Streaming."""
        return LogStream(self.options)


def plan_batch(source: HttpSource, covered: Callable[[str], spans.Spans]) -> dict[str, Any] | None:
    """Plan the next records to read from the gateway at *source*, except those in *covered*; None if none are left."""
    gateway, last = extent(source)
    if gateway is None:
        return None
    left = spans.minus([[1, last]], covered(gateway))
    if not left:
        return None
    first, end = left[0]
    return {"gateway": gateway, "after": first - 1, "until": min(end, first - 1 + BATCH_RECORDS)}


def read_rows(spark: SparkSession, source: HttpSource, plan: dict[str, Any]) -> DataFrame:
    """Read the lines of *plan* as rows of `bronze/messages`; `reason` is set in those that are not records."""
    spark.dataSource.register(RemoteLog)
    options = {"url": source.url, **{name: plan[name] for name in ("gateway", "after", "until")}}
    reader = spark.read.format(NAME).options(**options)
    return (reader if source.key is None else reader.option("key", source.key)).load()


@contextmanager
def raise_worker_errors() -> Iterator[None]:
    """Raise `Unreachable` also where a worker did, whose error comes as the text of an exception of Spark's."""
    try:
        yield
    except Exception as error:
        if found := _UNREACHABLE.search(str(error)):
            raise Unreachable(found[1]) from None
        raise


def select_rejects(rows: DataFrame) -> DataFrame:
    """Return the rows of `bronze/rejects` in *rows*."""
    return rows.where("reason is not null").select("reason.*")
