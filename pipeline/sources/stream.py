"""A gateway's log as a source of Structured Streaming: offsets, limits of a batch, and `availableNow`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pipeline.config import HttpSource
from pipeline.errors import PipelineError

from .requests import extent, ranges, read_range

MAX_RECORDS: Final = 100_000  # records in one batch, unless the option says otherwise

Offset = dict[str, Any]


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records that a gateway adds to its log, each once.

    An offset is the last sequence that was read (`after`) and the `gateway` that it is of; the checkpoint of a query
    cannot be continued with another gateway's log. *options* are `url`, `key`, `after` (0: from the first record on;
    `latest`: only new ones) and `maxRecordsPerTrigger`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._source = HttpSource(options["url"].rstrip("/"), options.get("key"))
        self._first = options.get("after", "0")
        self._limit = int(options.get("maxRecordsPerTrigger", MAX_RECORDS))
        self._end: int | None = None  # no record after it is read with `availableNow`

    def initialOffset(self) -> Offset:
        """Return the offset at which a new query begins."""
        gateway, last = self._extent()
        return {"gateway": gateway, "after": last if self._first == "latest" else int(self._first)}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the offset at which the batch ends that begins at *start*."""
        gateway, last = self._extent()
        if gateway != start["gateway"]:
            raise PipelineError(
                f"{self._source.url} has the log of gateway {gateway}, and the checkpoint is of {start['gateway']};"
                " use another checkpointLocation"
            )
        if self._end is not None:
            last = min(last, self._end)
        if isinstance(limit, ReadMaxRows):
            last = min(last, start["after"] + limit.max_rows)
        return {"gateway": gateway, "after": max(last, start["after"])}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch."""
        return ReadMaxRows(self._limit)

    def reportLatestOffset(self) -> Offset:
        """Return the end of the log, for the progress of the query."""
        gateway, last = self._extent()
        return {"gateway": gateway, "after": last}

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the end of the log, at which the query will end."""
        _, self._end = self._extent()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the ranges that the tasks read."""
        return ranges(start["gateway"], start["after"], end["after"])

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range."""
        return read_range(self._source, partition)

    def _extent(self) -> tuple[str, int]:
        gateway, last = extent(self._source)
        if gateway is None:
            raise PipelineError(f"{self._source.url} has no record yet; start the query when the gateway has started")
        return gateway, last
