"""A gateway's log over HTTP: `GET /v1/log` as a Python data source, in pieces that are read side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from gateway.message import Message
from gateway.record import BadRecord, decode
from gateway.segments import trusted
from pipeline import spans
from pipeline.config import HttpSource
from pipeline.errors import PipelineError

from .records import parsed
from .segments import reject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "trellis_log"
BATCH = 100_000  # records that become one batch
PIECE = 10_000  # records that one task reads, with one request
SECONDS = 60.0  # for an answer to begin, or to go on


class Pieces(InputPartition):
    """The records after *after*, up to *until*."""

    def __init__(self, after: int, until: int) -> None:
        super().__init__(None)
        self.after, self.until = after, until


class LogReader(DataSourceReader):
    """Reads lines; each task asks for one piece."""

    def __init__(self, options: dict[str, str]) -> None:
        self._url, self._key = options["url"], options.get("key")
        self._after, self._until = int(options["after"]), int(options["until"])

    def partitions(self) -> Sequence[InputPartition]:
        """Pieces of the range."""
        return [Pieces(after, min(after + PIECE, self._until)) for after in range(self._after, self._until, PIECE)]

    def read(self, partition: Any) -> Iterator[tuple[str, int, bytes]]:
        """The lines of one piece: where they are from, their number in it, and themselves."""
        address = f"{self._url}/v1/log"
        asked = {"after": partition.after, "limit": partition.until - partition.after}
        with httpx.stream("GET", address, params=asked, headers=headers(self._key), timeout=SECONDS) as answer:
            _check(answer, address)
            number, rest = partition.after, b""
            for data in answer.iter_bytes():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    number += 1
                    if not _beyond(line, partition.until):
                        yield address, number, line
            if rest:
                raise PipelineError(f"{address} broke off in the middle of a record")


class LogSource(DataSource):
    """`spark.read.format("trellis_log").options(url=, after=, until=, key=)`."""

    @classmethod
    def name(cls) -> str:
        """What `format` is told."""
        return NAME

    def schema(self) -> str:
        """A line, and where it was."""
        return "file string, line bigint, value binary"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002  (Spark passes it)
        """A reader for the options that were given."""
        return LogReader(dict(self.options))


def plan(source: HttpSource, covered: Callable[[str], spans.Spans]) -> dict[str, Any] | None:
    """The next records of the gateway at *source* to read; *covered* says which ones of it are known already."""
    try:
        with httpx.Client(base_url=source.url, headers=headers(source.key), timeout=SECONDS) as client:
            gateway, last = _gateway(client), _last(client)
    except httpx.TransportError as error:
        raise PipelineError(f"{source.url} cannot be reached: {error}") from None
    if gateway is None:
        return None
    left = spans.minus([[1, last]], covered(gateway))
    if not left:
        return None
    first, end = left[0]
    return {"gateway": gateway, "after": first - 1, "until": min(end, first - 1 + BATCH)}


def lines(spark: SparkSession, source: HttpSource, plan: dict[str, Any]) -> DataFrame:
    """The lines of a plan: `file`, `line`, `value`."""
    spark.dataSource.register(LogSource)
    options = {"url": source.url, "after": plan["after"], "until": plan["until"]}
    reader = spark.read.format(NAME).options(**options)
    return (reader if source.key is None else reader.option("key", source.key)).load()


def rows(lines: DataFrame) -> DataFrame:
    """*lines* as `records.parsed` has them."""
    return parsed(lines.withColumn("value", F.col("value").cast("string"))).drop("file", "line")


def rejects(lines: DataFrame) -> list[tuple[Any, ...]]:
    """Those of *lines* that are no records."""
    bad = parsed(lines.select("*", F.col("value").alias("raw")).withColumn("value", F.col("value").cast("string")))
    told = []
    for row in bad.where("not good").select("file", "line", "raw").collect():
        raw = bytes(row.raw) + b"\n"
        try:
            trusted(raw)
            decode(raw)
            reason = "corrupt: Spark cannot read it"
        except BadRecord as error:
            reason = str(error)
        told.append(reject(row.file, row.line, reason, raw))
    return told


def headers(key: str | None) -> dict[str, str]:
    """What identifies whoever has the API key *key*."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _gateway(client: httpx.Client) -> str | None:
    """Whose log it is: what the first record says; None while there is none."""
    answer = client.get("/v1/log", params={"after": 0, "limit": 1})
    _check(answer, str(answer.url))
    if not answer.content:
        return None
    entry = decode(answer.content)
    if isinstance(entry, Message) or entry.kind != "start":
        raise PipelineError(f"{answer.url}: the first record does not say whose log it is")
    return str(entry.fields["gateway"])


def _last(client: httpx.Client) -> int:
    answer = client.get("/v1/stats")
    _check(answer, str(answer.url))
    return int(answer.json()["sequence"])


def _check(answer: httpx.Response, address: str) -> None:
    if answer.status_code != 200:
        answer.read()
        raise PipelineError(f"{address} answers {answer.status_code}: {answer.text[:300]}")


def _beyond(line: bytes, until: int) -> bool:
    """Whether a record comes after *until*: retention leaves gaps, and the limit counts records."""
    try:
        return trusted(line + b"\n")[0] > until
    except BadRecord:
        return False
