"""The lines of several files, read forward or backward with bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

BLOCK: Final = 1 << 20  # bytes read at once when reading backward


def lines_forward(files: Sequence[Path]) -> Iterator[bytes]:
    """Yield the lines of *files* in order, newlines included."""
    for path in files:
        with path.open("rb") as file:
            yield from file


def lines_backward(files: Sequence[Path]) -> Iterator[bytes]:
    """Yield the lines of *files* in reverse order, newlines included."""
    for path in reversed(files):
        with path.open("rb") as file:
            yield from _reversed(file)


def _reversed(file: BinaryIO) -> Iterator[bytes]:
    end, rest = file.seek(0, os.SEEK_END), b""
    while end:
        size = min(BLOCK, end)
        end -= size
        file.seek(end)
        rest, *lines = _split(file.read(size) + rest)
        yield from reversed(lines)
    if rest:
        yield rest


def _split(data: bytes) -> list[bytes]:
    *lines, last = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([last] if last else [])
