"""Reads the files of the log in the running gateway: finds each record by its sequence.

Laws of this file. `gateway.storage.layout` knows the names of the files and which of them are valid, and
`gateway.storage.record` what a line says. `layout` is replaced as a whole, so that readers in other threads see one
state or the next.
"""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from gateway.core.bounded_maps import BoundedMap
from gateway.system.directories import sync_directory

from . import permissions
from .descriptors import DescriptorReserve, exhausted
from .layout import BEYOND_ALL, FACTS_SUFFIX, OPEN_PREFIX, Front, Layout, paths
from .record import BadRecord, verify_checksum
from .record_schema import MAX_SEQ, MAX_TIME

MAX_FAULTS = 1_000  # that are reported one by one: nobody repairs more by hand
MAX_READERS = 64  # file descriptors kept for reading
TAIL_BYTES = 4 << 20  # at the end of a segment; they hold a whole record, unless they are damaged

T = TypeVar("T")

_HEADER = re.compile(rb'\{"seq":(\d{1,18}),"time":(\d{1,18}),')


class Fault(NamedTuple):
    """A damaged line of the log, or a torn tail that was cut."""

    file: str
    offset: int
    reason: str


class LogLine(NamedTuple):
    """A line, and where it stands: in the segment that begins with *first*, at *offset*.

    *body* is what its checksum, which was verified, covers.
    """

    first: int
    offset: int
    data: bytes
    body: bytes


def parse_header(line: bytes) -> tuple[int, int]:
    """The sequence and the time of a record, from the beginning of its line; raises `BadRecord` if there are none."""
    if (match := _HEADER.match(line)) is None:
        raise BadRecord("it does not begin with its sequence and its time")
    seq, time = match.groups()  # in half the time of two subscripts
    return int(seq), int(time)


def verify_line(line: bytes) -> tuple[int, int, bytes]:
    """Verify the end and the checksum of *line*; return its sequence, its time and the bytes that the checksum covers.

    Raises `BadRecord`.
    """
    if not line.endswith(b"\n"):
        raise BadRecord("torn: the line does not end")
    body = verify_checksum(line)
    seq, time = parse_header(line)
    if seq > MAX_SEQ or time > MAX_TIME:
        raise BadRecord("its sequence or its time is beyond what there can be")
    return seq, time, body


class Segments:
    """Finds and reads records. Create it before anything is written: it repairs what a crash left.

    `next_seq` is one more than the last record's sequence, `last_time` that record's time. `first_kept` is the first
    sequence whose message retention has not removed, nor is about to remove. `faults` lists what was cut or is damaged;
    `on_fault` is called with each fault that is found later.
    """

    def __init__(self, directory: Path) -> None:
        permissions.make_directory(directory)
        self.directory = directory
        self.faults: list[Fault] = []
        self.on_fault: Callable[[Fault], None] = lambda _fault: None
        self.reserve = DescriptorReserve()
        self._readers = BoundedMap[int, int](MAX_READERS, lambda _first, descriptor: os.close(descriptor))
        self._remove_stale_files()
        self._seal_leftovers()
        self.layout = Layout.read(directory)  # replaced as a whole: readers in other threads take what they find
        self._adding = threading.Lock()
        self.next_seq, self.last_time = self._find_end()
        self.first_kept = self._find_first_kept()

    @property
    def first_seqs(self) -> list[int]:
        """The first sequence of every file, in order; callers must not change the list."""
        return self.layout.first_seqs

    def path(self, first: int) -> Path:
        """The file that holds the records from *first* on."""
        layout = self.layout
        return layout.file(self.directory, layout.place(first))

    def add(self, first: int) -> None:
        """Add a segment that begins with *first*, beyond all others."""
        with self._adding:
            if first not in self.layout.first_seqs:
                self.layout = self.layout._replace(first_seqs=[*self.layout.first_seqs, first])

    def use_front(self, front: Front) -> None:
        """Read what *front* covers from its file, and from no other. Call it on the loop, as `read`."""
        with self._adding:
            for first in list(self._readers):
                if first <= front.last:
                    self.close_reader(first)
            later = [first for first in self.layout.first_seqs if first > front.last]
            self.layout = Layout([front.first, *later], front)

    def retire(self, before: int) -> None:
        """Count the messages below sequence *before* as removed from now on."""
        self.first_kept = max(self.first_kept, before)

    def open_path(self, first: int) -> Path:
        """The file that the records from *first* on are written to before it is sealed."""
        return paths(self.directory, first)[0]

    def seal(self, first: int) -> None:
        """Rename the finished segment, whose bytes are on disk already, to its final name."""
        being_written, sealed, _ = paths(self.directory, first)
        being_written.rename(sealed)
        self.sync()

    def sync(self) -> None:
        """Make renames and new names durable."""
        self.reserve.run(partial(sync_directory, self.directory))

    def read(self, seq: int, offset: int) -> bytes:
        """What the checksum of record *seq* covers; it stands at *offset* of its segment.

        In a file that has only facts it may stand before that.

        Raises `BadRecord` if the record is damaged, which is reported, or retired; `OSError` if the file cannot be read
        now, which does not mean that the record is damaged.
        """
        first_seqs = self.first_seqs
        if not (place := bisect_right(first_seqs, seq)):
            raise BadRecord(f"the log begins after record {seq}")
        first = first_seqs[place - 1]
        try:
            descriptor = self._reader(first)
        except FileNotFoundError:
            self.report_damage(seq, offset, "the file is gone")
            raise BadRecord("the file is gone") from None
        line = _line_at(descriptor, offset)
        if not _has_seq(line, seq):
            line = _search_by_seq(descriptor, seq)
        try:
            return verify_line(line)[2]
        except BadRecord as error:
            if line or not self.path(first).name.endswith(FACTS_SUFFIX):  # else it was retired
                self.report_damage(seq, offset, str(error))
            raise

    def report_damage(self, seq: int, offset: int, reason: str) -> None:
        """Report that record *seq*, which stands at *offset*, is damaged."""
        first_seqs = self.first_seqs
        first = first_seqs[bisect_right(first_seqs, seq) - 1]
        self.report(Fault(self.path(first).name, offset, reason))

    def scan(self, after: int = 0, offset: int = 0) -> Iterator[LogLine]:
        """Yield the lines of the records after sequence *after*, in order; *offset* is a hint where the first stands.

        Damaged lines are skipped and added to `faults`. Lines that are not synced yet may be included.
        """
        newest = max(self.first_seqs, default=0)
        while (place := self._place(after, newest)) is not None:
            first, end = place
            try:
                yield from self._trusted_lines(first, end, after, offset)
            except FileNotFoundError:
                if first in self.first_seqs:
                    raise
                continue  # compaction merged it into the front meanwhile
            after, offset = max(after, end - 1), 0

    def _place(self, after: int, newest: int) -> tuple[int, int] | None:
        """The first sequence and the end of the file that holds what follows *after*; None beyond the file *newest*."""
        layout = self.layout
        place = layout.place(after + 1)
        if place >= len(layout.first_seqs) or layout.first_seqs[place] > newest or layout.end(place) <= after + 1:
            return None
        return layout.first_seqs[place], layout.end(place)

    def _trusted_lines(self, first: int, end: int, after: int, offset: int) -> Iterator[LogLine]:
        for start, data in self._lines(first, after + 1, offset):
            try:
                seq, _, body = verify_line(data)
            except BadRecord as error:
                self.report(Fault(self.path(first).name, start, str(error)))
                continue
            if seq >= end:
                return  # a failed write ended the segment here
            if seq > after:
                yield LogLine(first, start, data, body)

    def last_line(self, first: int) -> tuple[bytes, int]:
        """The last good line of a segment (empty without one), and the number of damaged lines after it."""
        with self._open(first) as file:
            size = file.seek(0, os.SEEK_END)
            for tail in (TAIL_BYTES, size):
                file.seek(max(0, size - tail))
                lines = file.readlines()
                for damaged, data in enumerate(reversed(lines)):
                    try:
                        verify_line(data)
                    except BadRecord:
                        continue
                    return data, damaged
        return b"", len(lines)

    def close_reader(self, first: int) -> None:
        """Close the cached reader of a segment whose file has been replaced."""
        if (descriptor := self._readers.pop(first)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all files."""
        for first in list(self._readers):
            self.close_reader(first)
        self.reserve.close()

    def report(self, fault: Fault) -> None:
        """Report a fault, once, and at most `MAX_FAULTS` in all."""
        if len(self.faults) < MAX_FAULTS and fault not in self.faults:
            self.faults.append(fault)
            self.on_fault(fault)

    def _lines(self, first: int, seq: int, offset: int) -> Iterator[tuple[int, bytes]]:
        with self._open(first) as file:
            file.seek(offset)
            if offset and not _has_seq(file.readline(), seq):
                offset = 0
            file.seek(offset)
            for data in file:
                if not data.endswith(b"\n") and Path(file.name).name.startswith(OPEN_PREFIX):
                    return  # it is just being written
                yield offset, data
                offset += len(data)

    def _open(self, first: int) -> BinaryIO:
        return self.opened(first, lambda path: path.open("rb"))

    def opened(self, first: int, open: Callable[[Path], T]) -> T:
        """Open the file of the segment *first* by *open*; it may be sealed or retired during the call."""
        *before, last = paths(self.directory, first)
        if (front := self.layout.front) is not None and front.first == first:
            before.insert(0, front.path(self.directory))
        for path in before:
            with suppress(FileNotFoundError):
                return open(path)
        return open(last)

    def _reader(self, first: int) -> int:
        descriptor = self._readers.get(first)
        if descriptor is None:
            descriptor = self._readers[first] = self._descriptor(first)
        return descriptor

    def _descriptor(self, first: int) -> int:
        """A descriptor for reading a segment; if none is left, another reader's or one of the reserve."""
        call = partial(self.opened, first, lambda path: os.open(path, os.O_RDONLY))
        try:
            return call()
        except OSError as error:
            if not exhausted(error):
                raise
        if self._readers:
            self._readers.drop_oldest()
        return self.reserve.run(call)

    def _remove_stale_files(self) -> None:
        """Remove the files that an interrupted compaction or retirement left behind."""
        for path in list(Layout.read(self.directory).stale(self.directory)):
            path.unlink()
        sync_directory(self.directory)

    def _seal_leftovers(self) -> None:
        """Cut the torn tail of every segment that a crash left open, then seal it; remove empty ones."""
        all_firsts = Layout.read(self.directory).first_seqs
        for first, end in zip(all_firsts, [*all_firsts, BEYOND_ALL][1:], strict=True):
            path = self.open_path(first)
            if not path.exists():
                continue
            with path.open("r+b") as file:
                good = good_end(file, end)
                if (size := file.seek(0, os.SEEK_END)) > good:
                    self.report(Fault(path.name, good, f"{size - good} bytes of a torn tail were cut"))
                    file.truncate(good)
                os.fsync(file.fileno())
            if good:
                self.seal(first)
            else:
                path.unlink()
                sync_directory(self.directory)

    def _find_first_kept(self) -> int:
        """The first sequence of a file with messages, else the next sequence."""
        first_seqs = self.first_seqs
        place = bisect_left(first_seqs, True, key=lambda first: not self.path(first).name.endswith(FACTS_SUFFIX))
        return first_seqs[place] if place < len(first_seqs) else self.next_seq

    def _find_end(self) -> tuple[int, int]:
        """The next sequence, and the time of the last record; damaged lines at the end keep their sequences."""
        front = self.layout.front
        next_seq = 1 if front is None else front.last + 1
        for first in reversed(self.first_seqs):
            line, damaged = self.last_line(first)
            seq, time = parse_header(line) if line else (first - 1, 0)
            next_seq = max(next_seq, seq + damaged + 1, first + 1)
            if line:
                return next_seq, time
        return next_seq, 0


def good_end(file: BinaryIO, end: int) -> int:
    """The offset where the last good record below sequence *end* ends: what follows was never confirmed."""
    good = offset = 0
    for data in file:
        offset += len(data)
        try:
            seq, _, _ = verify_line(data)
        except BadRecord:
            continue
        if seq >= end:
            break
        good = offset
    return good


def _has_seq(line: bytes, seq: int) -> bool:
    return line.startswith(b'{"seq":%d,' % seq)


def _line_at(descriptor: int, offset: int) -> bytes:
    """The rest of the line at *offset*, newline included; empty if no newline follows."""
    size = 4096
    while True:
        data = os.pread(descriptor, size, offset)
        if end := data.find(b"\n") + 1:
            return data[:end]
        if len(data) < size:
            return b""
        size *= 8


def _search_by_seq(descriptor: int, seq: int) -> bytes:
    """The line of record *seq*, by binary search in a file whose sequences rise; empty if there is none."""
    low, high = 0, os.fstat(descriptor).st_size
    while low < high:
        middle = (low + high) // 2
        start = middle + len(_line_at(descriptor, middle - 1)) - 1 if middle else 0
        line = _line_at(descriptor, start) if start >= middle else b""
        if _has_seq(line, seq):
            return line
        try:
            found, _ = parse_header(line)
        except BadRecord:
            found = BEYOND_ALL
        if found > seq or start >= high:
            high = middle
        else:
            low = start + len(line)
    return b""
