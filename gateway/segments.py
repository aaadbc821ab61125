"""The files of the log: a directory of segments, each named after its first sequence number.

`.open-N.jsonl` is being written; `N.jsonl` is sealed and never changes; `N.facts.jsonl` is what retention left of a
segment. A name is never used twice, a visible file is never appended to. See design/interface.md, "The log".
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .record import BadRecord, checked

OPEN = ".open-"
SUFFIX = ".jsonl"
FACTS = ".facts.jsonl"
MAX_READERS = 64  # file descriptors kept for reading
NEVER = 1 << 63
TAIL = 4 << 20  # bytes at the end of a segment that hold a whole record, unless they are damaged
MAX_LINE = 1 << 20  # far beyond the largest record: a message of 65,535 bytes, three times over


class Fault(NamedTuple):
    """A line of the log that cannot be trusted, or a tail that was cut."""

    file: str
    offset: int
    reason: str


class Line(NamedTuple):
    """Where a record stands: in the segment that begins with *first*, at *offset*."""

    first: int
    offset: int
    data: bytes


def sync_directory(path: Path) -> None:
    """Make renames and new names in *path* durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Segments:
    """Finds and reads records; opened once, before anything is written, it repairs what a crash left.

    `next_seq` is one more than the last record's. `faults` lists what was cut or cannot be trusted.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.faults: list[Fault] = []
        self._readers: OrderedDict[int, int] = OrderedDict()
        self._seal_leftovers()
        self.firsts = sorted(self._first(path) for path in directory.glob(f"[0-9]*{SUFFIX}"))
        self.next_seq = self._end() + 1

    def path(self, first: int) -> Path:
        """The file that holds the records from *first* on."""
        sealed = self.directory / f"{first:020d}{SUFFIX}"
        for path in (sealed, self.open_path(first), self.directory / f"{first:020d}{FACTS}"):
            if path.exists():
                return path
        return sealed

    def open_path(self, first: int) -> Path:
        """The file that the records from *first* on are written to before it is sealed."""
        return self.directory / f"{OPEN}{first:020d}{SUFFIX}"

    def seal(self, first: int) -> None:
        """Give the finished segment its name; its bytes are on disk already."""
        self.open_path(first).rename(self.directory / f"{first:020d}{SUFFIX}")
        sync_directory(self.directory)

    def read(self, seq: int, offset: int) -> bytes:
        """The line of record *seq*, which stands at *offset* of its segment; `BadRecord` where there is none."""
        first = self.firsts[bisect_right(self.firsts, seq) - 1]
        descriptor = self._reader(first)
        line, size = b"", 4096
        while not line.endswith(b"\n"):
            line = os.pread(descriptor, size, offset)
            if (end := line.find(b"\n")) >= 0:
                line = line[: end + 1]
            elif len(line) < size or size > MAX_LINE:
                raise BadRecord(f"no record at {offset} of segment {first}")
            size *= 8
        checked(line)
        return line

    def scan(self, after: int = 0, offset: int = 0) -> Iterator[Line]:
        """Every line of the records after sequence *after*, in order; *offset* is where the first of them stands.

        Lines that cannot be trusted are left out; each is in `faults` afterwards.
        """
        start = max(bisect_right(self.firsts, after + 1) - 1, 0)
        firsts = self.firsts[start:]
        for first, end in zip(firsts, [*firsts, NEVER][1:], strict=True):
            for line in self._lines(first, offset):
                try:
                    seq = _seq(line.data)
                    if seq >= end:
                        break  # the segment was given up here
                    if seq > after:
                        checked(line.data)
                        yield line
                except BadRecord as error:
                    self._fault(Fault(self.path(first).name, line.offset, str(error)))
            offset = 0

    def forget(self, first: int) -> None:
        """Drop the cached reader of a segment whose file has been replaced."""
        if (descriptor := self._readers.pop(first, None)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of all files."""
        for first in list(self._readers):
            self.forget(first)

    def _fault(self, fault: Fault) -> None:
        if fault not in self.faults:
            self.faults.append(fault)

    def _lines(self, first: int, offset: int = 0) -> Iterator[Line]:
        with self.path(first).open("rb") as file:
            file.seek(offset)
            for data in file:
                yield Line(first, offset, data)
                offset += len(data)

    def _reader(self, first: int) -> int:
        descriptor = self._readers.get(first)
        if descriptor is None:
            descriptor = self._readers[first] = os.open(self.path(first), os.O_RDONLY)
            if len(self._readers) > MAX_READERS:
                self.forget(next(iter(self._readers)))
        return descriptor

    @staticmethod
    def _first(path: Path) -> int:
        return int(path.name.removeprefix(OPEN).split(".")[0])

    def _seal_leftovers(self) -> None:
        """Cut the torn tail of every segment that a crash left open, then seal it; what holds nothing goes."""
        leftovers = sorted(self.directory.glob(f"{OPEN}*{SUFFIX}"), key=self._first)
        ends = [*map(self._first, leftovers), NEVER][1:]
        for path, end in zip(leftovers, ends, strict=True):
            good = self._good_end(path, end)
            with path.open("r+b") as file:
                if (size := file.seek(0, os.SEEK_END)) > good:
                    self._fault(Fault(path.name, good, f"{size - good} bytes of a torn tail were cut"))
                    file.truncate(good)
                os.fsync(file.fileno())
            if good:
                self.seal(self._first(path))
            else:
                path.unlink()
                sync_directory(self.directory)

    def _good_end(self, path: Path, end: int) -> int:
        """Where the last good record below sequence *end* ends: what follows was never promised to anybody."""
        good = offset = 0
        with path.open("rb") as file:
            for data in file:
                offset += len(data)
                try:
                    checked(data)
                except BadRecord:
                    continue
                if _seq(data) >= end:
                    break
                good = offset
        return good

    def _end(self) -> int:
        """The sequence of the last record that the files hold."""
        for first in reversed(self.firsts):
            for size in (TAIL, 1 << 62):
                if last := self._last_in(first, size):
                    return last
        return 0

    def _last_in(self, first: int, size: int) -> int:
        """The sequence of the last good record within the last *size* bytes of a segment, or 0."""
        with self.path(first).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            for data in reversed(file.readlines()):
                try:
                    checked(data)
                    return _seq(data)
                except BadRecord:
                    continue
        return 0


def _seq(line: bytes) -> int:
    """The sequence number of a record's line, read off its beginning."""
    digits = line[len(b'{"seq":') : line.find(b",", 7, 40)]
    if not line.startswith(b'{"seq":') or not digits.isdigit():
        raise BadRecord("it does not begin with its sequence number")
    return int(digits)
