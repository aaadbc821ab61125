"""Imports an exported log: unchanged into an empty log, as new records into another.

No gateway may run meanwhile. Records that the gateway itself would refuse are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from gateway.core.message import Message, Peer
from gateway.core.peers import BLOCK
from gateway.system.directories import sync_directory

from . import permissions
from .archive import EntryCheck, LogReport, accept_entry
from .layout import SEGMENT_BYTES, first_seqs, paths
from .record import BadRecord, Entry, Fact, decode, decode_body, decode_untrusted_body, encode
from .retention import is_fact
from .segments import Fault, Segments, verify_line

DAY = 86_400_000  # ms

# Facts about the run of the other gateway, not about its messages: an import skips them.
RUN_FACTS = ("start", "counts", "form")


def import_log(lines: Iterable[bytes], data: Path, now: int, check: EntryCheck = accept_entry) -> LogReport:
    """Import exported *lines* into the log of the data directory *data*, in which no gateway runs; *now* is in ms.

    *check* is as for `verify`; it is also called with the entries that the log has already. An entry is refused if
    *check* finds fault with it, if it was accepted later than a day from now, or if its peer number or an address
    belongs to another.

    An empty log gets the lines unchanged. Otherwise messages, entities and durable peers are appended, with new
    sequences, peer numbers of this gateway, and the time *now*; messages whose id is known are skipped.
    """
    directory = data / "log"
    if directory.is_dir() and first_seqs(directory):
        return _append(lines, Segments(directory), now, check)
    permissions.make_directory(directory)
    return _copy(lines, directory, now, check)


# Into an empty log


def _copy(lines: Iterable[bytes], directory: Path, now: int, check: EntryCheck) -> LogReport:
    """Write *lines* as segments: without gaps, or, where retention once left only facts, as files of facts."""
    report, before, contents = LogReport(), 0, _LogContents()
    with ExitStack() as stack:
        segment: _SegmentCopy | None = None
        for offset, line, entry in _trusted(lines, report, check):
            seq = entry.seq
            if wrong := _placement_error(entry, report.last, before, now) or contents.conflict(entry):
                report.faults.append(Fault("", offset, wrong))
                continue
            contents.learn(entry)
            before = entry.time
            if segment is None or not segment.takes(seq, line):
                if segment is not None:
                    segment.seal(seq)
                segment = stack.enter_context(_SegmentCopy(directory, seq))
            segment.write(seq, line)
            report.count(seq)
        if segment is not None:
            if contents.highest >= contents.next_number:  # a part of a log, without the facts that assigned numbers
                block = Fact("peer", {"first": contents.highest, "count": 1}, report.last + 1, before)
                segment.write(block.seq, encode(block))
            segment.seal(None)
    return report


def _placement_error(entry: Entry, last: int, before: int, now: int) -> str | None:
    """Why *entry* cannot follow record *last*, which was accepted at *before* (ms); None if it can."""
    if entry.seq <= last:
        return f"record {entry.seq} comes after record {last}"
    if entry.time < before:
        return f"record {entry.seq} is older than the one before it"
    return f"record {entry.seq} was accepted in the future" if entry.time > now + DAY else None


class _SegmentCopy:
    """A segment that is being copied; it becomes a file of facts if it has gaps."""

    def __init__(self, directory: Path, first: int) -> None:
        self._open, self._sealed, self._facts = paths(directory, first)
        self._file = create_file(self._open)
        self._next = first
        self._size = 0
        self._only_facts = True
        self._gaps = False

    def __enter__(self) -> _SegmentCopy:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def takes(self, seq: int, line: bytes) -> bool:
        """Whether *line* can stand in this segment."""
        gaps = self._gaps or seq != self._next
        return self._size < SEGMENT_BYTES and (not gaps or (self._only_facts and is_fact(line)))

    def write(self, seq: int, line: bytes) -> None:
        self._gaps = self._gaps or seq != self._next
        self._only_facts = self._only_facts and is_fact(line)
        self._file.write(line)
        self._size += len(line)
        self._next = seq + 1

    def seal(self, following: int | None) -> None:
        """Sync and rename it; the next segment begins with the sequence *following*, if there is one."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        gap_behind = self._only_facts and following not in (None, self._next)
        self._open.rename(self._facts if self._gaps or gap_behind else self._sealed)
        sync_directory(self._open.parent)


def _trusted(lines: Iterable[bytes], report: LogReport, check: EntryCheck) -> Iterator[tuple[int, bytes, Entry]]:
    """Yield the valid *lines* with their offsets and entries; report the others."""
    offset = 0
    for given in lines:
        line = given if given.endswith(b"\n") else given + b"\n"
        try:
            _, _, body = verify_line(line)
            entry = decode_untrusted_body(body)
            wrong = check(entry)
        except BadRecord as error:
            wrong = str(error)
        if wrong is not None:
            report.faults.append(Fault("", offset, wrong))
        else:
            yield offset, line, entry
        offset += len(given)


def create_file(path: Path) -> BinaryIO:
    """A new file that nobody else may read."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, permissions.FILE_MODE), "wb")


# Into a log that has something already


def _append(lines: Iterable[bytes], segments: Segments, now: int, check: EntryCheck) -> LogReport:
    report = LogReport()
    appender = _Appender(segments, max(now, segments.last_time), check)
    try:
        for offset, _, entry in _trusted(lines, report, check):
            try:
                seq = appender.append(entry)
            except BadRecord as error:
                report.faults.append(Fault("", offset, str(error)))
                continue
            if seq:
                report.count(seq)
            else:
                report.skipped += 1
        appender.seal()
    finally:
        segments.close()
    return report


class _Appender:
    """Appends entries that a log does not have yet, in new segments."""

    def __init__(self, segments: Segments, now: int, check: EntryCheck) -> None:
        self._segments = segments
        self._now = now
        self._seq = segments.next_seq
        self._file: BinaryIO | None = None
        self._first = 0
        self._numbers: dict[int, int] = {}  # the number of a connection there, and here
        self._unused_numbers = 0  # numbers of the last block that nobody has yet
        self._contents = _LogContents()
        for line in segments.scan():
            with suppress(BadRecord):  # its checksum is right, which does not make it valid
                entry = decode_body(line.body)
                if isinstance(entry, Message) or check(entry) is None:
                    self._contents.learn(entry)

    def append(self, entry: Entry) -> int:
        """Append *entry* and return its sequence; 0 if it is known or not imported."""
        if isinstance(entry, Fact) and (entry.kind in RUN_FACTS or "first" in entry.fields):
            return 0
        if self._contents.has(entry):
            return 0
        if isinstance(entry, Message):
            sender = replace(entry.sender, number=self._number(entry.sender))
            return self._write(replace(entry, sender=sender))
        if entry.kind == "peer":
            fields = entry.fields
            return self._append_peer(Peer(0, fields["protocol"], fields["sender"], fields.get("name")))
        if entry.kind == "channel":
            entry.fields["addresses"] = self._contents.unused(entry.fields["addresses"])
        return self._write(entry)

    def seal(self) -> None:
        """Sync and seal the segment that is being written."""
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
        if (sender.protocol, sender.identity) not in self._contents.numbers:
            self._append_peer(sender)
        return self._contents.numbers[sender.protocol, sender.identity]

    def _append_peer(self, peer: Peer) -> int:
        fields = {"peer": self._new_number(), "protocol": peer.protocol, "sender": peer.identity}
        return self._write(Fact("peer", fields | ({} if peer.name is None else {"name": peer.name})))

    def _new_number(self) -> int:
        if not self._unused_numbers:
            self._write(Fact("peer", {"first": self._contents.next_number, "count": BLOCK}))
            self._unused_numbers = BLOCK
        self._unused_numbers -= 1
        return self._contents.next_number - self._unused_numbers - 1

    def _write(self, entry: Entry) -> int:
        entry.seq, entry.time = self._seq, self._now
        line = encode(entry)
        decode(line)  # an imported entry may have a good checksum and still not be valid JSON
        if self._file is None:
            self._first = self._seq
            self._file = create_file(self._segments.open_path(self._first))
        self._file.write(line)
        self._contents.learn(entry)
        self._seq += 1
        if self._file.tell() >= SEGMENT_BYTES:
            self.seal()
        return entry.seq


class _LogContents:
    """What a log contains: ids of messages, entities, channels and addresses, durable peers, assigned numbers."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], int] = {}
        self.identities: dict[int, tuple[str, str]] = {}
        self.addresses: dict[tuple[str, str], str] = {}
        self.next_number = 0
        self.highest = -1  # of the peer numbers that messages have
        self._ids: set[str] = set()
        self._subjects: set[tuple[str, str, str]] = set()

    def learn(self, entry: Entry) -> None:
        """Add *entry*."""
        if isinstance(entry, Message):
            self.highest = max(self.highest, entry.sender.number)
            self._ids.update(_ids(entry))
            return
        self._subjects.update(_subjects(entry))
        match entry.kind, entry.fields:
            case "peer", {"first": first, "count": count}:
                self.next_number = max(self.next_number, first + count)
            case "peer", {"peer": number, "protocol": protocol, "sender": identity}:
                self.numbers[protocol, identity] = number
                self.identities[number] = protocol, identity
            case "channel", {"channel": name, "addresses": addresses}:
                self.addresses |= dict.fromkeys(addresses.items(), name)

    def conflict(self, entry: Entry) -> str | None:
        """Why *entry* contradicts the log; None if it does not."""
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
        """Whether the log has *entry* already."""
        if isinstance(entry, Message):
            return not self._ids.isdisjoint(_ids(entry))
        return any(subject in self._subjects for subject in _subjects(entry)[:1])

    def unused(self, addresses: dict[str, str]) -> dict[str, str]:
        """Those of *addresses* that no channel of the log has."""
        return {
            name: address for name, address in addresses.items() if ("address", name, address) not in self._subjects
        }


def _ids(message: Message) -> tuple[str, ...]:
    return message.id, *message.ids, *(() if message.key is None else (message.key,))


def _subjects(fact: Fact) -> list[tuple[str, str, str]]:
    """The things that *fact* is about; the first of them identifies it."""
    match fact.kind, fact.fields:
        case "channel", {"channel": name, "addresses": addresses}:
            return [("channel", "", name), *(("address", protocol, a) for protocol, a in addresses.items())]
        case "entity", {"protocol": protocol, "native": native}:
            return [("entity", protocol, str(native))]
        case "peer", {"protocol": protocol, "sender": identity}:
            return [("peer", protocol, identity)]
    return []
