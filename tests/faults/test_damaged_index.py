"""The index can be thrown away: whatever is wrong with it, it is made again from the log."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.segments import Segments

if TYPE_CHECKING:
    from tests.conftest import Core

MakeCore = Callable[..., "Core"]
COUNT = 300


@pytest.fixture
def core(make_core: MakeCore) -> Core:
    """A gateway that said something, and stopped."""
    core = make_core()
    core.peers.identity("toy", "alice")
    for number in range(COUNT):
        core.say(b"%d" % number, ids=(f"id {number}",))
    core.settle()
    core.stop()
    return core


def check(core: Core) -> None:
    """Everything is found."""
    history = core.index.history("lobby", newest_first=True, limit=COUNT)
    assert [m.content for m in history] == [b"%d" % number for number in range(COUNT - 1, COUNT - 257, -1)]
    assert all(core.index.find(f"id {number}") is not None for number in range(COUNT))
    assert core.index.peer("toy", "alice") is not None
    assert core.index.applied_seq == core.log.next_seq - 1
    core.say(b'"more"')
    core.settle()
    assert core.index.history("lobby", newest_first=True, limit=1)[0].content == b'"more"'


def index(core: Core) -> Path:
    return core.data / "index.sqlite"


def test_a_missing_index(core: Core, make_core: MakeCore) -> None:
    index(core).unlink()
    check(make_core())


def test_a_missing_index_beside_an_old_journal(core: Core, make_core: MakeCore) -> None:
    index(core).unlink()
    for suffix in ("-wal", "-shm"):
        index(core).with_name(index(core).name + suffix).write_bytes(b"old" * 1000)
    check(make_core())


@pytest.mark.parametrize("contents", [b"", b"SQLite format 3\0", b"nothing of the kind" * 1000, b"\0" * 8192])
def test_a_file_that_is_no_index(core: Core, make_core: MakeCore, contents: bytes) -> None:
    index(core).write_bytes(contents)
    check(make_core())


@pytest.mark.parametrize("kept", [100, 4096, 10_000, -1000])
def test_a_file_that_was_cut(core: Core, make_core: MakeCore, kept: int) -> None:
    index(core).write_bytes(index(core).read_bytes()[:kept])
    check(make_core())


def test_an_index_of_another_make(core: Core, make_core: MakeCore) -> None:
    with closing(sqlite3.connect(index(core))) as connection, connection:
        connection.execute("UPDATE meta SET value = 'CREATE TABLE old (x)' WHERE key = 'schema'")
    check(make_core())


def test_a_database_of_somebody_else(core: Core, make_core: MakeCore) -> None:
    index(core).unlink()
    with closing(sqlite3.connect(index(core))) as connection, connection:
        connection.execute("CREATE TABLE meta (id INTEGER)")
    check(make_core())


def test_an_index_that_was_not_finished(core: Core, make_core: MakeCore) -> None:
    with closing(sqlite3.connect(index(core))) as connection, connection:
        connection.execute("DELETE FROM meta WHERE key = 'schema'")
    check(make_core())


def test_an_index_behind_the_log(core: Core, make_core: MakeCore) -> None:
    with closing(sqlite3.connect(index(core))) as connection, connection:
        for table in ("records", "ids", "aliases"):
            connection.execute(f"DELETE FROM {table} WHERE seq > 100")
        connection.execute("UPDATE meta SET value = 100 WHERE key = 'applied'")
    after = make_core()
    assert after.applied == COUNT + 3 - 100  # a block of numbers, a peer and a channel
    check(after)


def test_an_index_ahead_of_the_log(core: Core, make_core: MakeCore) -> None:
    (path,) = (core.data / "log").iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:50]))
    after = make_core()
    assert after.log.next_seq == 51
    assert after.index.applied_seq == 50
    assert [after.index.find(f"id {number}") is not None for number in (0, 46, 47, 299)] == [True, True, False, False]
    said = after.say(b'"new"')
    after.settle()
    assert [m.seq for m in after.index.history("lobby")] == [*range(4, 51), said.seq]


def test_an_index_of_a_log_that_is_gone(core: Core, make_core: MakeCore) -> None:
    for path in (core.data / "log").iterdir():
        path.unlink()
    after = make_core()
    assert (after.log.next_seq, after.index.history("lobby"), after.index.peers()) == (1, [], [])
    assert after.index.next_number == 0


@pytest.mark.parametrize("seed", range(8))
def test_wrong_offsets_serve_nothing_wrong(core: Core, make_core: MakeCore, seed: int) -> None:
    chance = random.Random(seed)
    with closing(sqlite3.connect(index(core))) as connection, connection:
        for seq in range(1, COUNT + 3):
            connection.execute("UPDATE records SET offset = ? WHERE seq = ?", (chance.randrange(1 << 20), seq))
    check(make_core())


def test_a_wrong_channel_shows_nothing_to_those_who_may_not_see_it(core: Core, make_core: MakeCore) -> None:
    with closing(sqlite3.connect(index(core))) as connection, connection:
        connection.execute("UPDATE records SET channel = 'open to all' WHERE seq > 10")
    assert make_core().index.history("open to all") == []


def test_each_record_is_applied_once_whenever_it_stops(make_core: MakeCore) -> None:
    for _ in range(5):
        core = make_core()
        core.say()
        core.sync()
        core.stop()
    core = make_core()
    assert len(core.index.history("lobby")) == 5
    assert len(list(Segments(core.data / "log").scan())) == core.log.next_seq - 1
