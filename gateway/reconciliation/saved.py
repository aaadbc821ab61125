"""Sets of messages in files, so that they need not be read from the log again after a restart.

Laws of this file. A file is never trusted: its checksum has to be right, the log has to have the messages that the file
names as its witnesses, and the index has to have as many messages as the file. Otherwise the log is read. Call all of
it in a thread.

A file is a line of JSON (`_Header`), the sums and the items of the blocks, and the SHA-256 of all that.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from gateway.core.errors import Unavailable
from gateway.core.jsontext import dumps
from gateway.storage.segments import Segments

from .items import ITEM_SIZE, ItemSet, seq_of
from .reading import read_items
from .wire import ID_SIZE

FORMAT: Final = 1
WITNESSES: Final = 16  # messages that are read again, beside the newest one
MAX_FILES: Final = 2
FREE: Final = 4  # a file is written if the disk has room for as many of its size; the log needs the rest
DIGEST_SIZE: Final = 32
COUNT: Final = (
    "SELECT count(*) FROM messages WHERE channel IN (SELECT value FROM json_each(?)) AND seq >= ? AND seq <= ?"
)

logger = logging.getLogger(__name__)


@dataclass
class MessageSet:
    """The messages of some channels up to the sequence *level*, without those that retention had removed then."""

    items: ItemSet = field(default_factory=ItemSet)
    level: int = 0
    first_kept: int = 0
    newest: int = 0  # the sequence of the last message
    unsaved: int = 0  # messages that were added since it was saved

    def add(self, items: list[bytes]) -> None:
        """Add *items*, which are in the order of the log."""
        self.items.add(items)
        self.unsaved += len(items)
        if items:
            self.newest = max(self.newest, seq_of(items[-1]))

    def remove_below(self, first_kept: int) -> None:
        """Remove what retention has removed: everything with a sequence below *first_kept*."""
        if first_kept > self.first_kept:
            self.items.remove_below(first_kept)
            self.first_kept = first_kept


class _Header(msgspec.Struct):
    format: int
    level: int
    first_kept: int
    newest: int
    witnesses: list[int]  # sequences
    counts: list[int]  # of the items in each block
    channels: list[str]


_HEADER: Final = msgspec.json.Decoder(_Header)


class SavedSets:
    """The files in *folder*; *index* is the file of the index."""

    def __init__(self, folder: Path, index: Path, segments: Segments) -> None:
        self._folder = folder
        self._index = index
        self._segments = segments

    def save(self, channels: Collection[str], kept: MessageSet) -> None:
        """Write the set of *channels*, and remove the files that were not written for the longest time.

        An error is logged, and the set is read from the log after the next start.
        """
        items = kept.items
        kept.unsaved = 0
        ranks = range(0, len(items), max(1, len(items) // WITNESSES))
        witnesses = {kept.newest, *(seq_of(items.item(rank)) for rank in ranks)}
        blocks, sums = items.blocks()
        counts = [len(block) // ITEM_SIZE for block in blocks]
        header = _Header(FORMAT, kept.level, kept.first_kept, kept.newest, sorted(witnesses), counts, sorted(channels))
        pieces = [dumps(msgspec.to_builtins(header)) + b"\n", *(each.to_bytes(ID_SIZE) for each in sums), *blocks]
        try:
            self._folder.mkdir(exist_ok=True)
            if shutil.disk_usage(self._folder).free >= FREE * items.size:
                self._write(self._path(channels), pieces)
            for path in sorted(self._folder.glob("*.set"), key=lambda each: each.stat().st_mtime_ns)[:-MAX_FILES]:
                path.unlink()
        except OSError as error:
            logger.warning("what a comparison with another gateway has read cannot be kept: %s", error)

    def load(
        self, channels: frozenset[str], beyond: int, level: int, first_kept: int
    ) -> tuple[frozenset[str], MessageSet] | None:
        """The set of *channels*, or of the most of them that a file has, with those that it has.

        None if no file with more than *beyond* of them fits. *level* and *first_kept* say what the index has.
        """
        found: list[tuple[frozenset[str], Path]] = []
        with suppress(OSError):
            for path in self._folder.glob("*.set"):
                header = _header_of(path)
                if header is not None and channels.issuperset(header.channels) and len(header.channels) > beyond:
                    found.append((frozenset(header.channels), path))
        for names, path in sorted(found, key=lambda each: len(each[0]), reverse=True):
            with suppress(OSError, ValueError, Unavailable, sqlite3.Error):
                if (kept := _parse(path.read_bytes())) is not None and self._fits(names, *kept, level, first_kept):
                    return names, kept[0]
            logger.warning("%s does not agree with the log, which is read instead", path)
        return None

    def _fits(
        self, channels: frozenset[str], kept: MessageSet, witnesses: list[int], level: int, first_kept: int
    ) -> bool:
        """Whether *kept*, of which retention may remove more, is what this log has."""
        if kept.level > level or kept.first_kept > first_kept:
            return False
        kept.remove_below(first_kept)
        with closing(sqlite3.connect(f"{self._index.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            bounds = (dumps(sorted(channels)).decode(), first_kept, kept.level)
            ((count,),) = connection.execute(COUNT, bounds)
        if len(kept.items) > count:
            return False
        read = [item for seq in witnesses if seq >= first_kept for item in self._items(channels, seq)]
        return kept.newest in map(seq_of, read) and all(kept.items.has(item) for item in read)

    def _items(self, channels: frozenset[str], seq: int) -> Iterator[bytes]:
        for chunk in read_items(self._index, self._segments, channels, seq - 1, seq):
            yield from chunk

    def _path(self, channels: Collection[str]) -> Path:
        return self._folder / f"{sha256(dumps(sorted(channels))).hexdigest()[:DIGEST_SIZE]}.set"

    def _write(self, path: Path, pieces: Iterable[bytes]) -> None:
        temporary, digest = path.with_suffix(".new"), sha256()
        try:
            with temporary.open("wb") as file:
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
                file.write(digest.digest())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _header_of(path: Path) -> _Header | None:
    try:
        with path.open("rb") as file:
            return _HEADER.decode(file.readline())
    except (OSError, ValueError):
        return None


def _parse(data: bytes) -> tuple[MessageSet, list[int]] | None:
    """The set in *data*, and its witnesses; None if it is damaged or of another format."""
    whole = memoryview(data)[:-DIGEST_SIZE]
    if sha256(whole).digest() != data[-DIGEST_SIZE:]:
        return None
    at = data.index(b"\n") + 1
    header = _HEADER.decode(whole[:at])
    if header.format != FORMAT:
        return None
    sums, blocks = [], []
    for _ in header.counts:
        sums.append(int.from_bytes(whole[at : at + ID_SIZE]))
        at += ID_SIZE
    for count in header.counts:
        blocks.append(bytes(whole[at : at + count * ITEM_SIZE]))
        at += count * ITEM_SIZE
    items = ItemSet.of_blocks(blocks, sums)
    return MessageSet(items, header.level, header.first_kept, header.newest), header.witnesses
