"""Sets of names in bounded memory, for compaction: the names that are referenced, and the subjects of facts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

FILTER_BITS: Final = 1 << 27  # 16 MiB


class NameFilter:
    """The referenced names, as a Bloom filter with one hash: it may contain a few more than were added."""

    def __init__(self) -> None:
        self._bits = bytearray(FILTER_BITS // 8)

    def add(self, names: Iterable[str]) -> None:
        """Add *names*."""
        for name in names:
            place = hash(name) % FILTER_BITS
            self._bits[place >> 3] |= 1 << (place & 7)

    def any(self, names: Iterable[str]) -> bool:
        """Whether any of *names* may have been added."""
        return any(self._bits[(place := hash(name) % FILTER_BITS) >> 3] >> (place & 7) & 1 for name in names)


class SubjectSet:
    """The subjects of later facts; SQLite moves them to disk when they outgrow its cache."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # a private file, gone once it is closed
        self._database.execute("PRAGMA cache_size = -4096")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE seen (subject BLOB PRIMARY KEY) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def add(self, subject: str) -> bool:
        """Add *subject*; return whether it is new."""
        digest = blake2b(subject.encode(errors="surrogatepass"), digest_size=16).digest()
        return self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount > 0

    def close(self) -> None:
        """Discard the set."""
        self._database.close()
