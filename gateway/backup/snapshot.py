"""A consistent view of a data directory, while a gateway writes to it or not.

Laws of this file. The files of the log are opened first and together: a segment never changes once it is sealed, and
one that is retired meanwhile can still be read. Of the segment that is being written, the complete records are copied
at once: everything that was acknowledged before is among them, because it was written before. Secrets are read after
the log, so everything that the log needs is there. Databases (the webhooks, and the index, if it is wanted) and other
files (how far the log of a member of a cluster is in the stream) are copied before the log, each as of one moment, so
no position in them is beyond it: the next start adds what they lack.
"""

from __future__ import annotations

import io
import os
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from gateway.storage.layout import OPEN_PREFIX, Layout
from gateway.storage.record import BadRecord
from gateway.storage.segments import good_end, verify_line

from .errors import BackupError

ATTEMPTS = 100  # to open all files of the log between two changes of their names
INDEX = "index.sqlite"
PIECE = 1 << 20  # bytes that are copied at once
TAIL_BYTES = 4 << 20  # at the end of a file; the last record is in them


class Source(NamedTuple):
    """A file for the backup: its name there, its content, which does not change any more, and its size in bytes."""

    name: str
    file: BinaryIO
    size: int


def take(data: Path, outside: Mapping[str, Path], stack: ExitStack, scratch: Path, *, index: bool) -> list[Source]:
    """Return everything that is kept in *data*, and the files *outside* it by the names that they get.

    Temporary files are made in the folder *scratch*; *stack* closes everything. Raises `BackupError`, `OSError` or
    `sqlite3.Error`.
    """
    if not (data / "keys" / "gateway.json").is_file() or not (data / "log").is_dir():
        raise BackupError(f"no gateway has run with {data} yet; name its directory with --data")
    copied = [_database(f"index/{INDEX}", data / INDEX, stack, scratch)] if index else []
    databases = [path for path in sorted(data.glob("*.sqlite")) if path.name != INDEX]
    copied += [_database(f"files/{path.name}", path, stack, scratch) for path in databases]
    covered = (".", INDEX, *(path.name for path in databases))  # with their journals
    others = [path for path in sorted(data.iterdir()) if path.is_file() and not path.name.startswith(covered)]
    positions = [_small(f"files/{path.name}", path) for path in others]
    log = _log(data / "log", stack, scratch)
    secrets = [path for path in sorted((data / "keys").iterdir()) if path.is_file() and not path.name.startswith(".")]
    named = [(f"keys/{path.name}", path) for path in secrets]
    small = [_small(name, path) for name, path in (*named, *outside.items())]
    return [*small, *positions, *log, *copied]


def last_seq(sources: list[Source]) -> int:
    """The sequence of the last record in *sources*; 0 if there is none."""
    for _, file, size in reversed([source for source in sources if source.name.startswith("log/")]):
        file.seek(max(0, size - TAIL_BYTES))
        for line in reversed(file.read(TAIL_BYTES).splitlines(keepends=True)):
            try:
                return verify_line(line)[0]
            except BadRecord:
                continue
    return 0


def _log(directory: Path, stack: ExitStack, scratch: Path) -> list[Source]:
    """The files of the log that count, all of one moment."""
    for _ in range(ATTEMPTS):
        layout = Layout.read(directory)
        with ExitStack() as opened:
            try:
                paths = [layout.file(directory, place) for place in range(len(layout.first_seqs))]
                files = [opened.enter_context(path.open("rb")) for path in paths]
            except FileNotFoundError:  # it was sealed or retired meanwhile
                continue
            now = Layout.read(directory)
            if now.front != layout.front or now.first_seqs[: len(paths)] != layout.first_seqs:
                continue  # facts were compacted
            stack.push(opened.pop_all())
            ends = [layout.end(place) for place in range(len(paths))]
            found = [_segment(*each, stack, scratch) for each in zip(paths, files, ends, strict=True)]
            return [source for source in found if source.size]
    raise BackupError(f"the files in {directory} change too fast; try again")


def _segment(path: Path, file: BinaryIO, end: int, stack: ExitStack, scratch: Path) -> Source:
    """The file at *path*; one that is being written is copied as far as its records are complete."""
    if not path.name.startswith(OPEN_PREFIX):
        return Source(f"log/{path.name}", file, os.fstat(file.fileno()).st_size)
    size = good_end(file, end)
    file.seek(0)
    copy = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile(dir=scratch)))  # noqa: SIM115
    left = size
    while left and (piece := file.read(min(PIECE, left))):
        left -= copy.write(piece)
    if left:
        raise BackupError(f"{path} was truncated while it was copied: the disk fails; try again")
    return Source(f"log/{path.name.removeprefix(OPEN_PREFIX)}", copy, size)


def _database(name: str, path: Path, stack: ExitStack, scratch: Path) -> Source:
    """A copy of the SQLite file at *path*, of one moment."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(dir=scratch, prefix=".trellis-backup-"))
    copy = Path(folder) / path.name
    with (
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    file = stack.enter_context(copy.open("rb"))
    return Source(name, file, copy.stat().st_size)


def _small(name: str, path: Path) -> Source:
    data = path.read_bytes()
    return Source(name, io.BytesIO(data), len(data))
