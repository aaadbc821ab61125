"""What retention removed, and what it has to keep: read out of the files that the fault layer kept, and of the index.

Whatever was removed from `DATA/log` is in `DATA.gone`, under its last name.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from adapters import ADAPTERS
from gateway.core.message import MessageIds
from gateway.runtime import Gateway
from gateway.settings.settings import settings_model
from tests.still import Posted

from .checks import OPEN, Record, records
from .ledger import LATE, token_of

SEGMENT = re.compile(r"\d{20}\.jsonl")
HELD = dict.fromkeys(("ids", "aliases", "sprout_forms"), "WHERE seq IN (SELECT seq FROM records)")
UNLIKE = ("meta", "streamr_publishers", "streamr_authors")  # publishers stay known until the index is rebuilt
COLUMNS = {"records": "seq, channel, sender, at"}  # an offset may be a hint


def removed_files_of(data: Path) -> Path:
    """Where the files are that were removed from the log in *data*."""
    return data.with_name(data.name + ".gone")


class RetentionAudit:
    """Finds the sequence of each message, in the log or in a segment that retention has removed."""

    def __init__(self, data: Path) -> None:
        self._places = (data / "log", removed_files_of(data))  # what is sealed goes from one to the other
        self._places[1].mkdir(parents=True)
        self._read: set[str] = set()
        self._positions: dict[str, int] = {}
        self.records: dict[tuple[str, int], bool] = {}  # by channel and sequence, whether it came late

    def forget(self) -> None:
        """The files may have changed: a life begins."""
        self._read.clear()
        self._positions.clear()
        self.records.clear()

    def positions(self) -> dict[str, int]:
        """The last sequence of each message, by token, whether it is there or retention took it."""
        opened: list[Record] = []
        for path in self._places[0].glob(f"{OPEN}*.jsonl"):  # first: it may be sealed while we look
            with suppress(FileNotFoundError):
                opened += records([path])
        for place in self._places:
            for path in place.iterdir() if place.exists() else ():
                if SEGMENT.fullmatch(path.name) and path.name not in self._read:
                    with suppress(FileNotFoundError):
                        self._look(path)
                        self._read.add(path.name)
        return _positions(opened, self._positions)

    def _look(self, path: Path) -> None:
        found = records([path])
        self._positions = _positions(found, self._positions)
        for record in found:
            if token_of(record.fields.get("content")):
                late = record.fields.get("timestamp", record.time) < record.time - LATE
                self.records[record.fields["channel"], record.seq] = late


def _positions(found: list[Record], before: dict[str, int]) -> dict[str, int]:
    """The last sequence of each message, by token, of those *found* and of those that were placed *before*."""
    positions = dict(before)
    for record in found:
        if token := token_of(record.fields.get("content")):
            positions[token] = max(record.seq, positions.get(token, 0))
    return positions


def index_differences(data: Path, place: Path) -> list[str]:
    """What differs between the index in *data*, brought level with the log, and one that is made anew from it.

    The gateway is down; it is looked at in copies below *place*.
    """
    found: list[dict[str, list[Any]]] = []
    for name in ("level", "anew"):
        copy = place / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(data, copy)
        if name == "anew":
            for path in copy.glob("index.sqlite*"):
                path.unlink()
        _catch_up(copy)
        found.append(_tables(copy / "index.sqlite"))
        shutil.rmtree(copy)
    level, anew = found
    return [
        f"the index has in {name} {_short(rows, anew[name])}; one made anew has {_short(anew[name], rows)}"
        for name, rows in level.items()
        if rows != anew[name]
    ]


def _short(rows: list[Any], other: list[Any]) -> list[Any]:
    return [row for row in rows if row not in other][:3]


def _catch_up(data: Path) -> None:
    """Bring the index level, as a start does, and log nothing."""
    gateway = Gateway(settings_model(ADAPTERS)(data=data), ADAPTERS)
    gateway._open_storage(Posted().put, MessageIds(int(gateway.home.gateway_id, 16)))
    gateway.index.close()
    gateway.log.segments.close()


def _tables(path: Path) -> dict[str, list[Any]]:
    """What the tables hold; without ids of messages that are gone, which forms in the log still speak of."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            name: sorted(
                connection.execute(f"SELECT {COLUMNS.get(name, '*')} FROM {name} {HELD.get(name, '')}"), key=repr
            )
            for name in names
            if name not in UNLIKE
        }
