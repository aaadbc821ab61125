"""Finds the new sealed segments of a log, and writes their records to Parquet files.

Spark distributes the segments to its workers; each reads its share with the gateway's own reader (`records.py`) and
writes one Parquet file. Nothing passes through the JVM, which would cost twice as much as everything else
(docs/pipeline.md).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import to_arrow_schema

from gateway.core.message import Message
from gateway.storage import archive
from gateway.storage.layout import BEYOND_ALL, FACTS_SUFFIX, front_of, is_front, paths
from gateway.storage.record import BadRecord, decode
from gateway.storage.segments import verify_line
from pipeline import spans
from pipeline.errors import PipelineError
from pipeline.places import Place
from pipeline.schemas import MESSAGES, REJECTS, TableSpec
from pipeline.sinks.files import Writer

from .records import ParsedLines, batch, parse_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SPANS: Final[spans.Spans] = []
TAIL_BYTES = 1 << 16  # the last bytes of a segment, which usually hold its last record
TASKS = 2  # for each core, so that a core that finishes early takes another
_REJECTS: Final = to_arrow_schema(REJECTS.schema)


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a log: what it has of the sequences from *first* to *last*, all below *end*, where the next begins.

    Nothing else is in the log of these sequences: what a file lacks was retired, or its line is damaged. The key of a
    segment is *first*. The front (docs/log.md) is rewritten from time to time; its key is its *end* as a negative
    number.
    """

    path: str
    first: int
    last: int
    end: int
    size: int

    @property
    def key(self) -> int:
        """The key that manifests keep of a segment that was read."""
        return -self.end if is_front(Path(self.path)) else self.first

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Segment:
        """Restore the segment that `dump` wrote."""
        return cls(**saved)

    def dump(self) -> dict[str, Any]:
        """Return the segment as JSON for a plan."""
        return asdict(self)


def sealed(directory: Path, known: Container[int] = (), covered: spans.Spans = NO_SPANS) -> Iterator[Segment]:
    """Yield the sealed segments in *directory* that were not read, in order.

    A segment was read if its key is *known* and its sequences are *covered*: another gateway of a cluster may have one
    that begins at the same sequence and is longer. The front was read if its sequences are covered.
    """
    for path, first, end in archive.sealed_segments(directory):
        front = front_of(path)
        was_known, upto = front is not None or first in known, end - 1 if front is None else front.last
        if was_known and not spans.minus([[first, upto]], covered):
            continue
        with suppress(FileNotFoundError):  # retired meanwhile: the next run finds its facts
            segment = _inspect(path, first, end)
            if not was_known or spans.minus([[first, segment.last]], covered):
                yield segment


def find_new(
    directory: Path, known: Container[int], limit_bytes: int, limit_segments: int, covered: spans.Spans = NO_SPANS
) -> list[Segment]:
    """Return the first segments that were not read, as `sealed` finds them, within the limits but at least one."""
    chosen: list[Segment] = []
    size = 0
    for segment in sealed(directory, known, covered):
        size += segment.size
        if chosen and (size > limit_bytes or len(chosen) >= limit_segments):
            break
        chosen.append(segment)
    return chosen


def reload(saved: dict[str, Any]) -> Segment | None:
    """Return the segment of an old plan, or the file of its facts if retention has removed its messages since.

    Return None if compaction has moved the facts to the front, which is then read as a new segment.
    """
    segment = Segment.load(saved)
    path = Path(segment.path)
    if path.exists():
        return segment
    facts = paths(path.parent, segment.first)[2]
    return _inspect(facts, segment.first, segment.end) if facts.exists() else None


def gateway_id(directory: Path) -> str | None:
    """Return the gateway id in the first `start` fact of the log in *directory*; None if no segment is sealed yet."""
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
        raise PipelineError(f"nothing in {directory} names the log's gateway: there is no record of kind start")
    return None


def distribute(segments: list[Segment], count: int) -> list[list[Segment]]:
    """Distribute *segments* to at most *count* tasks, as evenly by size as whole segments allow; none is empty."""
    piles: list[list[Segment]] = [[] for _ in range(max(1, min(count, len(segments))))]
    sizes = [0] * len(piles)
    for segment in sorted(segments, key=lambda segment: -segment.size):
        least = sizes.index(min(sizes))
        piles[least].append(segment)
        sizes[least] += segment.size + 1
    return [sorted(pile, key=lambda segment: segment.first) for pile in piles if pile]


def write_records(spark: SparkSession, segments: list[Segment], gateway: str, folder: Place, rejected: Place) -> int:
    """Write the records of *segments* as Parquet files into *folder*, on all workers.

    Lines that are not records are written into the folder *rejected*, which is created for the first; return their
    number.
    """
    context = spark.sparkContext
    tasks = list(enumerate(distribute(segments, TASKS * context.defaultParallelism)))
    written = context.parallelize(tasks, max(1, len(tasks))).map(lambda task: _write(folder, rejected, gateway, *task))
    return sum(written.collect())


def _write(folder: Place, rejected: Place, gateway: str, number: int, segments: list[Segment]) -> int:
    """Run one task; return the number of rejects."""
    count, name = 0, f"part-{number:05d}.parquet"
    with ExitStack() as files:
        out, bad = files.enter_context(_writer(folder / name, MESSAGES)), None
        for parsed in chain.from_iterable(_parse(segment, gateway) for segment in segments):
            out.write(parsed.records)
            if parsed.rejects:
                bad = bad or files.enter_context(_writer(rejected / name, REJECTS))
                bad.write(batch(parsed.rejects, _REJECTS))
                count += len(parsed.rejects)
    return count


@contextmanager
def _writer(target: Place, spec: TableSpec) -> Iterator[Writer]:
    """Write a temporary file, and rename it to *target* once it is complete, so a task can be repeated.

    An object is written under its name at once: it is whole or absent, and a repeated task writes the same again.
    """
    temporary: Place = target
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.stem}.{uuid.uuid4().hex}")
    with Writer(temporary, spec) as out:
        yield out
    if isinstance(temporary, Path):
        temporary.rename(str(target))


def _parse(segment: Segment, gateway: str) -> Iterator[ParsedLines]:
    with Path(segment.path).open("rb") as file:
        yield from parse_lines(enumerate(file, 1), segment.path, gateway, segment.first, segment.end)


def _inspect(path: Path, first: int, end: int) -> Segment:
    """Find the size of the segment *path*, and the last sequence of which nothing is elsewhere."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for tail in (TAIL_BYTES, size):
            file.seek(max(0, size - tail))
            lines = file.readlines()
            found = ((seq, after) for after, line in enumerate(reversed(lines)) if first <= (seq := _seq(line)) < end)
            last, damaged = next(found, (first - 1, len(lines)))
            if last >= first:
                break
    if front := front_of(path):
        last = front.last
    elif end != BEYOND_ALL:
        # The messages of a file of facts were retired; a damaged line at the end of another file was a record.
        last = end - 1 if path.name.endswith(FACTS_SUFFIX) else min(last + damaged, end - 1)
    return Segment(str(path), first, max(first, last), end, size)


def _seq(line: bytes) -> int:
    try:
        return verify_line(line)[0]
    except BadRecord:
        return 0
