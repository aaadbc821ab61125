"""The sealed segments of a log: which are new, and what is in them.

The fast way lets Spark read the lines, check their checksums and take them apart, all inside the JVM. A file in which
it stumbles over a single line is read again by the gateway's own reader (`gateway.record`), line by line, which is
the judge of what is a record and what is not, and why.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F

from gateway.message import Message
from gateway.record import BadRecord, decode
from gateway.segments import NEVER, OPEN, firsts, paths, trusted
from pipeline.errors import PipelineError
from pipeline.sinks.parquet import literal

from .records import REJECT, parsed, typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TAIL = 1 << 16  # bytes at the end of a segment that usually hold its last record
MAX_RAW = 4096  # characters of an unreadable line that are kept


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a log: its records are from *first* to *last*, all below *end*, where the next segment begins.

    *whole* says that its last line ends.
    """

    path: str
    first: int
    last: int
    end: int
    size: int
    whole: bool

    @classmethod
    def load(cls, told: dict[str, Any]) -> Segment:
        """The segment that `dump` wrote down."""
        return cls(**told)

    def dump(self) -> dict[str, Any]:
        """For a plan."""
        return asdict(self)


def sealed(directory: Path, known: Container[int] = ()) -> Iterator[Segment]:
    """The segments in *directory* that will not change any more and are not *known* by their first, in order."""
    for first, end in pairwise([*firsts(directory), NEVER]):
        path = next((path for path in paths(directory, first) if path.exists()), None)
        if first in known or path is None or path.name.startswith(OPEN):
            continue
        with suppress(FileNotFoundError):  # retired between two looks: its facts are there the next time
            yield _look(path, first, end)


def new(directory: Path, known: Container[int], limit_bytes: int, limit_segments: int) -> list[Segment]:
    """The first segments that are not *known*, as many as the limits allow and at least one if there is one."""
    chosen: list[Segment] = []
    size = 0
    for segment in sealed(directory, known):
        size += segment.size
        if chosen and (size > limit_bytes or len(chosen) >= limit_segments):
            break
        chosen.append(segment)
    return chosen


def again(told: dict[str, Any]) -> Segment | None:
    """The segment of an old plan; retention may have left only its facts since, or nothing at all."""
    segment = Segment.load(told)
    path = Path(segment.path)
    if path.exists():
        return segment
    facts = paths(path.parent, segment.first)[2]
    return _look(facts, segment.first, segment.end) if facts.exists() else None


def gateway_id(directory: Path) -> str | None:
    """Whose log is in *directory*: what its first `start` fact says, None while there is nothing sealed."""
    found = False
    for segment in sealed(directory):
        found = True
        with Path(segment.path).open("rb") as file:
            for line in file:
                try:
                    entry = decode(line)
                except BadRecord:
                    continue
                if not isinstance(entry, Message) and entry.kind == "start":
                    return str(entry.fields["gateway"])
    if found:
        raise PipelineError(f"nothing in {directory} says whose log it is: there is no record of kind start")
    return None


def read_fast(spark: SparkSession, segments: list[Segment]) -> tuple[DataFrame, Observation]:
    """The lines of *segments* as `records.parsed` has them, with `file`; a line of another segment is not good.

    What is observed while they are read: `lines`, and of those that are good how many (`good`), the `first` and the
    `last` sequence, and their `sum`. The observation is also a wall: Spark would else push a filter by `good` below
    the parsing, and parse every line once for each column that decides about it.
    """
    bounds = [(Path(s.path).name, s.first, s.end) for s in segments]
    lines = spark.read.text([literal(s.path) for s in segments], lineSep="\n")
    lines = lines.select("value", F.col("_metadata.file_name").alias("file"))
    places = F.broadcast(spark.createDataFrame(bounds, "file string, first bigint, end bigint"))
    rows = parsed(lines).join(places, "file")
    within = (F.col("seq") >= F.col("first")) & (F.col("seq") < F.col("end"))
    rows = rows.withColumn("good", F.col("good") & F.coalesce(within, F.lit(False))).drop("first", "end")
    seen, seq = Observation(), F.when(F.col("good"), F.col("seq"))
    watched = rows.observe(
        seen,
        F.count(F.lit(1)).alias("lines"),
        F.count(seq).alias("good"),
        F.min(seq).alias("first"),
        F.max(seq).alias("last"),
        F.sum(seq.cast("decimal(38,0)")).alias("sum"),
    )
    return watched, seen


def read_slowly(spark: SparkSession, segments: list[Segment], gateway: str) -> Any:
    """The rows of *segments*, those of `bronze/messages` and of `bronze/rejects` side by side, an RDD of tuples.

    Each is (row, None) or (None, reject).
    """
    told = [segment.dump() for segment in segments]
    return spark.sparkContext.parallelize(told, max(len(told), 1)).flatMap(lambda one: judge(one, gateway))


def judge(told: dict[str, Any], gateway: str) -> Iterator[tuple[Any, Any]]:
    """Every line of a segment, by the gateway's own rules: (row, None), or (None, reject) with line and reason."""
    segment = Segment.load(told)
    due = segment.first
    with Path(segment.path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                seq, _ = trusted(line)
                if not segment.first <= seq < segment.end:
                    raise BadRecord(f"foreign: record {seq} does not belong into this segment")
                if seq < due:
                    raise BadRecord(f"duplicate: record {seq} stands in this segment already")
                row = typed(line, gateway)
            except BadRecord as error:
                yield None, reject(segment.path, number, str(error), line)
            else:
                due = seq + 1
                yield row, None


def reject(file: str, line: int | None, reason: str, raw: bytes) -> tuple[Any, ...]:
    """A row of `bronze/rejects`; *reason* begins with one word of `REJECT`."""
    kind = next((kind for words, kind in REJECT.items() if words in reason), "corrupt")
    text = raw.rstrip(b"\n").decode(errors="backslashreplace").replace("\0", "\\x00")[:MAX_RAW]
    if kind == "torn" and not text.startswith('{"seq":'):
        kind = "foreign"
    told = reason if reason.startswith(f"{kind}:") else f"{kind}: {reason}"
    return file, line, told, text


def _look(path: Path, first: int, end: int) -> Segment:
    """What *path* is, by its size and its last lines."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for tail in (TAIL, size):
            file.seek(max(0, size - tail))
            lines = file.readlines()
            last = next((seq for line in reversed(lines) if first <= (seq := _seq(line)) < end), 0)
            if last:
                break
    return Segment(str(path), first, last or first, end, size, not lines or lines[-1].endswith(b"\n"))


def _seq(line: bytes) -> int:
    try:
        return trusted(line)[0]
    except BadRecord:
        return 0
