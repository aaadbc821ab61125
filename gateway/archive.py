"""The log from outside: verified, exported, imported.

Verifying and exporting change no file, and may be done while the gateway runs; importing may not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from . import modes
from .message import Message, Peer
from .peers import BLOCK
from .record import BadRecord, Entry, Fact, decode, encode, examine
from .retention import is_fact
from .segments import FACTS, NEVER, OPEN, Fault, Segments, firsts, paths, sync_directory, trusted

SEGMENT = 64 << 20  # bytes of a segment that an import writes
DAY = 86_400_000  # ms

# Facts that are about the other gateway and its run, not about what was said: an import leaves them behind.
OTHERS = ("start", "counts", "form")

# The gateway that the first record of a folder names whose messages nobody has said yet: `trellis pipeline import`.
UNSAID = "unsaid"


@dataclass
class Report:
    """How many records were good (or taken), how many were passed over, and everything that is wrong."""

    records: int = 0
    skipped: int = 0
    first: int = 0
    last: int = 0
    faults: list[Fault] = field(default_factory=list)


Check = Callable[[Entry], str | None]


def _no_flaw(_entry: Entry) -> str | None:
    return None


def verify(directory: Path, check: Check = _no_flaw) -> Report:
    """Look at every record in the log at *directory*: checksums, sequences without gaps, times that never decrease.

    *check* says what else is wrong with an entry, None if nothing. What is just being written is left alone.
    """
    report, due, before = Report(), 0, 0
    for path, first, end in _files(directory):
        if first != due and due:
            report.faults.append(Fault(path.name, 0, f"it begins with record {first}, but {due} comes next"))
        due, retired = first, path.name.endswith(FACTS)
        for offset, line in _lines(path, end):
            try:
                trusted(line)
                entry = examine(line)
            except BadRecord as error:
                report.faults.append(Fault(path.name, offset, str(error)))
                due += 1
                continue
            if wrong := _order(entry, due, before, retired) or check(entry):
                report.faults.append(Fault(path.name, offset, wrong))
            _count(report, entry.seq)
            due, before = entry.seq + 1, max(before, entry.time)
        if retired:
            due = end  # its messages are gone, and were to go
    return report


def _order(entry: Entry, due: int, before: int, gaps: bool) -> str | None:
    """What is wrong with where *entry* stands, if anything."""
    if entry.seq < due or (entry.seq > due and not gaps):
        return f"record {entry.seq} stands where {due} comes next"
    return f"record {entry.seq} is older than the one before it" if entry.time < before else None


def export(directory: Path, out: BinaryIO, after: int = 0, until: int = NEVER) -> Report:
    """Write the lines of the records after sequence *after*, up to *until*, as they are, to *out*.

    Lines that cannot be trusted are left out and reported.
    """
    report = Report()
    for path, first, end in _files(directory):
        if end - 1 <= after or first > until:
            continue
        for offset, line in _lines(path, end):
            try:
                seq, _ = trusted(line)
            except BadRecord as error:
                report.faults.append(Fault(path.name, offset, str(error)))
                continue
            if after < seq <= until:
                out.write(line)
                _count(report, seq)
    return report


def import_(lines: Iterable[bytes], data: Path, now: int, check: Check = _no_flaw) -> Report:
    """Put exported *lines* into the log of the data directory *data*, in which no gateway runs; *now* is in ms.

    *check* is as for `verify`, and is shown what is in the log before. What it finds fault with is refused, and so is
    what cannot be: accepted later than a day from now, by a number or at an address that is somebody else's.

    Into an empty log they go as they are. Otherwise messages, entities and durable peers are appended: with new
    sequences, with peer numbers of this gateway, accepted now; messages whose id is known are passed over.
    """
    directory = data / "log"
    if directory.is_dir() and firsts(directory):
        return _append(lines, Segments(directory), now, check)
    modes.folder(directory)
    return _copy(lines, directory, now, check)


def segments(directory: Path) -> list[Path]:
    """The files of the segments in *directory* that will not change any more, in order."""
    return [path for path, _, _ in sealed(directory)]


def sealed(directory: Path) -> Iterator[tuple[Path, int, int]]:
    """The same, each with the sequence it begins with, and where the next begins."""
    return (found for found in _files(directory) if not found[0].name.startswith(OPEN))


def unsaid(files: list[Path]) -> bool:
    """Whether *files* begin with the record that says that no gateway has taken what follows."""
    with suppress(BadRecord, IndexError), files[0].open("rb") as file:
        entry = decode(file.readline())
        return isinstance(entry, Fact) and entry.fields.get("gateway") == UNSAID
    return False


def _files(directory: Path) -> Iterator[tuple[Path, int, int]]:
    """The file that counts for each segment, the sequence it begins with, and where the next begins."""
    for first, end in pairwise([*firsts(directory), NEVER]):
        for path in paths(directory, first):
            if path.exists():
                yield path, first, end
                break


def _lines(path: Path, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a segment; of one that is open only what is whole and not given up."""
    offset = 0
    is_open = path.name.startswith(OPEN)
    with path.open("rb") as file:
        for line in file:
            if is_open and (not line.endswith(b"\n") or _beyond(line, end)):
                return
            yield offset, line
            offset += len(line)


def _beyond(line: bytes, end: int) -> bool:
    try:
        return trusted(line)[0] >= end
    except BadRecord:
        return False


def _count(report: Report, seq: int) -> None:
    report.records += 1
    report.first = report.first or seq
    report.last = seq


# Into an empty log


def _copy(lines: Iterable[bytes], directory: Path, now: int, check: Check) -> Report:
    """Write *lines* as segments: dense ones, and what retention once left as facts with gaps."""
    report, before, known = Report(), 0, _Known()
    with ExitStack() as stack:
        segment: _Segment | None = None
        for offset, line, entry in _trusted(lines, report, check):
            seq = entry.seq
            if wrong := _misplaced(entry, report.last, before, now) or known.conflict(entry):
                report.faults.append(Fault("", offset, wrong))
                continue
            known.learn(entry)
            before = entry.time
            if segment is None or not segment.takes(seq, line):
                if segment is not None:
                    segment.seal()
                segment = stack.enter_context(_Segment(directory, seq))
            segment.write(seq, line)
            _count(report, seq)
        if segment is not None:
            if known.highest >= known.next_number:  # a part of a log: what gave the numbers away is not in it
                given = Fact("peer", {"first": known.highest, "count": 1}, report.last + 1, before)
                segment.write(given.seq, encode(given))
            segment.seal()
    return report


def _misplaced(entry: Entry, last: int, before: int, now: int) -> str | None:
    """What is wrong with where *entry* stands: behind record *last*, which was accepted at *before*."""
    if entry.seq <= last:
        return f"record {entry.seq} comes after record {last}"
    if entry.time < before:
        return f"record {entry.seq} is older than the one before it"
    return f"record {entry.seq} was accepted in the future" if entry.time > now + DAY else None


class _Segment:
    """A segment that is being copied; it becomes a facts file if there are gaps in it."""

    def __init__(self, directory: Path, first: int) -> None:
        self._open, self._sealed, self._facts = paths(directory, first)
        self._file = created(self._open)
        self._next = first
        self._size = 0
        self._only_facts = True
        self._gaps = False

    def __enter__(self) -> _Segment:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def takes(self, seq: int, line: bytes) -> bool:
        """Whether *line* can stand in this segment."""
        gaps = self._gaps or seq != self._next
        return self._size < SEGMENT and (not gaps or (self._only_facts and is_fact(line)))

    def write(self, seq: int, line: bytes) -> None:
        self._gaps = self._gaps or seq != self._next
        self._only_facts = self._only_facts and is_fact(line)
        self._file.write(line)
        self._size += len(line)
        self._next = seq + 1

    def seal(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._open.rename(self._facts if self._gaps else self._sealed)
        sync_directory(self._open.parent)


def _trusted(lines: Iterable[bytes], report: Report, check: Check) -> Iterator[tuple[int, bytes, Entry]]:
    """The good ones of *lines*, where each stands and what it says; the others are reported."""
    offset = 0
    for given in lines:
        line = given if given.endswith(b"\n") else given + b"\n"
        try:
            trusted(line)
            entry = examine(line)
            wrong = check(entry)
        except BadRecord as error:
            wrong = str(error)
        if wrong is not None:
            report.faults.append(Fault("", offset, wrong))
        else:
            yield offset, line, entry
        offset += len(given)


def created(path: Path) -> BinaryIO:
    """A new file that nobody else may read."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, modes.FILE), "wb")


# Into a log that has something already


def _append(lines: Iterable[bytes], segments: Segments, now: int, check: Check) -> Report:
    report = Report()
    appender = _Appender(segments, max(now, segments.last_time), check)
    try:
        for offset, _, entry in _trusted(lines, report, check):
            try:
                seq = appender.take(entry)
            except BadRecord as error:
                report.faults.append(Fault("", offset, str(error)))
                continue
            if seq:
                _count(report, seq)
            else:
                report.skipped += 1
        appender.seal()
    finally:
        segments.close()
    return report


class _Appender:
    """Writes what a log has not got yet into new segments of it."""

    def __init__(self, segments: Segments, now: int, check: Check) -> None:
        self._segments = segments
        self._now = now
        self._seq = segments.next_seq
        self._file: BinaryIO | None = None
        self._first = 0
        self._numbers: dict[int, int] = {}  # of mere connections: there and here
        self._left = 0  # numbers of the last block that nobody has yet
        self._known = _Known()
        for line in segments.scan():
            with suppress(BadRecord):  # a checksum alone makes no sense of it
                entry = decode(line.data)
                if isinstance(entry, Message) or check(entry) is None:
                    self._known.learn(entry)

    def take(self, entry: Entry) -> int:
        """Append *entry* and return its sequence; 0 if it is known or of no use here."""
        if isinstance(entry, Fact) and (entry.kind in OTHERS or "first" in entry.fields):
            return 0
        if self._known.has(entry):
            return 0
        if isinstance(entry, Message):
            sender = replace(entry.sender, number=self._number(entry.sender))
            return self._write(replace(entry, sender=sender))
        if entry.kind == "peer":
            fields = entry.fields
            return self._durable(Peer(0, fields["protocol"], fields["sender"], fields.get("name")))
        if entry.kind == "channel":
            entry.fields["addresses"] = self._known.free(entry.fields["addresses"])
        return self._write(entry)

    def seal(self) -> None:
        """Finish the segment that is being written."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self._segments.seal(self._first)

    def _number(self, sender: Peer) -> int:
        """The number that *sender* has here."""
        if sender.identity is None:
            if sender.number not in self._numbers:
                self._numbers[sender.number] = self._new_number()
            return self._numbers[sender.number]
        if (sender.protocol, sender.identity) not in self._known.numbers:
            self._durable(sender)
        return self._known.numbers[sender.protocol, sender.identity]

    def _durable(self, peer: Peer) -> int:
        fields = {"peer": self._new_number(), "protocol": peer.protocol, "sender": peer.identity}
        return self._write(Fact("peer", fields | ({} if peer.name is None else {"name": peer.name})))

    def _new_number(self) -> int:
        if not self._left:
            self._write(Fact("peer", {"first": self._known.next_number, "count": BLOCK}))
            self._left = BLOCK
        self._left -= 1
        return self._known.next_number - self._left - 1

    def _write(self, entry: Entry) -> int:
        entry.seq, entry.time = self._seq, self._now
        line = encode(entry)
        decode(line)  # what comes from elsewhere may have a good checksum and still be no JSON
        if self._file is None:
            self._first = self._seq
            self._file = created(self._segments.open_path(self._first))
        self._file.write(line)
        self._known.learn(entry)
        self._seq += 1
        if self._file.tell() >= SEGMENT:
            self.seal()
        return entry.seq


class _Known:
    """What a log holds: ids of messages, entities, channels and addresses, durable peers, numbers handed out."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], int] = {}
        self.identities: dict[int, tuple[str, str]] = {}
        self.addresses: dict[tuple[str, str], str] = {}
        self.next_number = 0
        self.highest = -1  # of the numbers that said something
        self._ids: set[str] = set()
        self._things: set[tuple[str, str, str]] = set()

    def learn(self, entry: Entry) -> None:
        """Remember *entry*."""
        if isinstance(entry, Message):
            self.highest = max(self.highest, entry.sender.number)
            self._ids.update(_ids(entry))
            return
        self._things.update(_things(entry))
        match entry.kind, entry.fields:
            case "peer", {"first": first, "count": count}:
                self.next_number = max(self.next_number, first + count)
            case "peer", {"peer": number, "protocol": protocol, "sender": identity}:
                self.numbers[protocol, identity] = number
                self.identities[number] = protocol, identity
            case "channel", {"channel": name, "addresses": addresses}:
                self.addresses |= dict.fromkeys(addresses.items(), name)

    def conflict(self, entry: Entry) -> str | None:
        """Why *entry* cannot be true beside what is known, None if it can."""
        if isinstance(entry, Message):
            who = entry.sender.protocol, entry.sender.identity
            if entry.sender.identity is not None and self.identities.get(entry.sender.number, who) != who:
                return f"peer {entry.sender.number} is somebody else"
            return None
        match entry.kind, entry.fields:
            case "peer", {"peer": number, "protocol": protocol, "sender": identity}:
                other = self.identities.get(number, (protocol, identity)) != (protocol, identity)
                if other or self.numbers.get((protocol, identity), number) != number:
                    return f"peer {number} is somebody else"
            case "channel", {"channel": name, "addresses": addresses}:
                if any(self.addresses.get(item, name) != name for item in addresses.items()):
                    return f"an address of the channel {name!r} is another's"
        return None

    def has(self, entry: Entry) -> bool:
        """Whether *entry* is a copy of something in the log."""
        if isinstance(entry, Message):
            return not self._ids.isdisjoint(_ids(entry))
        return any(thing in self._things for thing in _things(entry)[:1])

    def free(self, addresses: dict[str, str]) -> dict[str, str]:
        """Those of *addresses* that no channel has."""
        return {name: address for name, address in addresses.items() if ("address", name, address) not in self._things}


def _ids(message: Message) -> tuple[str, ...]:
    return message.id, *message.ids, *(() if message.key is None else (message.key,))


def _things(fact: Fact) -> list[tuple[str, str, str]]:
    """What *fact* is about; the first of them is what it is."""
    match fact.kind, fact.fields:
        case "channel", {"channel": name, "addresses": addresses}:
            return [("channel", "", name), *(("address", protocol, a) for protocol, a in addresses.items())]
        case "entity", {"protocol": protocol, "native": native}:
            return [("entity", protocol, str(native))]
        case "peer", {"protocol": protocol, "sender": identity}:
            return [("peer", protocol, identity)]
    return []
