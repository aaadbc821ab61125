"""Verifies and exports a log from outside the gateway.

Neither operation changes a file, and both may run beside the gateway, even while it retires messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .layout import BEYOND_ALL, FACTS_SUFFIX, OPEN_PREFIX, walk
from .record import BadRecord, Entry, Fact, decode, decode_untrusted_body
from .segments import Fault, parse_header, verify_line

# The gateway named by the first record of a folder that `trellis pipeline import` made: nobody has published it yet.
UNPUBLISHED = "unsaid"


@dataclass
class LogReport:
    """How many records were valid (or imported), how many were skipped, and every fault."""

    records: int = 0
    skipped: int = 0
    first: int = 0
    last: int = 0
    faults: list[Fault] = field(default_factory=list)

    def count(self, seq: int) -> None:
        """Count the valid record *seq*."""
        self.records += 1
        self.first = self.first or seq
        self.last = seq


EntryCheck = Callable[[Entry], str | None]


def accept_entry(_entry: Entry) -> str | None:
    """Accept every entry."""
    return None


def verify(directory: Path, check: EntryCheck = accept_entry) -> LogReport:
    """Check every record in the log at *directory*: checksums, sequences without gaps, times that never decrease.

    *check* returns what else is wrong with an entry, or None. A line that is being written is not checked.
    """
    report, due, before = LogReport(), 0, 0
    for part in _open_files(directory):
        path, first = part.path, part.first
        if first != due and due:
            report.faults.append(Fault(path.name, 0, f"it begins with record {first}, but {due} comes next"))
        due, retired = first, path.name.endswith(FACTS_SUFFIX)
        for offset, line in _lines(part):
            try:
                _, _, body = verify_line(line)
                entry = decode_untrusted_body(body)
            except BadRecord as error:
                report.faults.append(Fault(path.name, offset, str(error)))
                due += 1
                continue
            if wrong := _order_error(entry, due, before, retired) or check(entry):
                report.faults.append(Fault(path.name, offset, wrong))
            report.count(entry.seq)
            due, before = entry.seq + 1, max(before, entry.time)
        if retired:
            due = part.end  # its messages were retired
    return report


def _order_error(entry: Entry, due: int, before: int, gaps: bool) -> str | None:
    """Why *entry* is out of order; None if it is not."""
    if entry.seq < due or (entry.seq > due and not gaps):
        return f"record {entry.seq} stands where {due} comes next"
    return f"record {entry.seq} is older than the one before it" if entry.time < before else None


def export(directory: Path, out: BinaryIO, after: int = 0, until: int = BEYOND_ALL) -> LogReport:
    """Write the lines of the records after sequence *after*, up to *until*, to *out*, unchanged.

    Damaged lines are skipped and reported.
    """
    report = LogReport()
    for part in _open_files(directory):
        if part.end - 1 <= after or part.first > until:
            continue
        for offset, line in _lines(part):
            try:
                seq, _, _ = verify_line(line)
            except BadRecord as error:
                report.faults.append(Fault(part.path.name, offset, str(error)))
                continue
            if after < seq <= until:
                out.write(line)
                report.count(seq)
    return report


def sealed_files(directory: Path) -> list[Path]:
    """The files of the sealed segments in *directory*, in order; they do not change any more."""
    return [path for path, _, _ in sealed_segments(directory)]


def sealed_segments(directory: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield the same files, each with its first sequence and that of the next file."""
    for _, path, first, end in walk(directory, Path.stat):
        if not path.name.startswith(OPEN_PREFIX):
            yield path, first, end


def is_unpublished(files: list[Path]) -> bool:
    """Whether *files* begin with the record which says that no gateway has published the rest."""
    with suppress(BadRecord, IndexError), files[0].open("rb") as file:
        entry = decode(file.readline())
        return isinstance(entry, Fact) and entry.fields.get("gateway") == UNPUBLISHED
    return False


class _OpenFile(NamedTuple):
    """An open file with the records from *first* on, below *end*."""

    file: BinaryIO
    path: Path
    first: int
    end: int


def _open_files(directory: Path) -> Iterator[_OpenFile]:
    for file, path, first, end in walk(directory, lambda path: path.open("rb")):
        with file:
            yield _OpenFile(file, path, first, end)


def _lines(part: _OpenFile) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their offsets; of a segment that is being written only complete, valid ones."""
    offset = 0
    is_open, is_left = part.path.name.startswith(OPEN_PREFIX), part.path.name.endswith(FACTS_SUFFIX)
    for line in part.file:
        if is_open and (not line.endswith(b"\n") or _is_beyond(line, part.end)):
            return
        if not (is_left and _is_before(line, part.first)):
            yield offset, line
        offset += len(line)


def _is_before(line: bytes, first: int) -> bool:
    """Whether a record was read already, in a file that the front has replaced meanwhile."""
    try:
        return parse_header(line)[0] < first
    except BadRecord:
        return False


def _is_beyond(line: bytes, end: int) -> bool:
    try:
        return verify_line(line)[0] >= end
    except BadRecord:
        return False
