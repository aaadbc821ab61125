"""A damaged or missing index is rebuilt from the log."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.errors import Unavailable
from gateway.storage import index as index_module
from gateway.storage import index_file as tables_module
from gateway.storage.segments import Segments

if TYPE_CHECKING:
    from tests.conftest import Core

MakeCore = Callable[..., "Core"]
COUNT = 300


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index gathers nothing: what it applies is the same, a moment earlier."""
    monkeypatch.setattr(index_module, "GATHER_SECONDS", 0)


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


def test_a_missing_index_is_rebuilt(core: Core, make_core: MakeCore) -> None:
    index(core).unlink()
    check(make_core())


def test_a_missing_index_beside_an_old_journal_is_rebuilt(core: Core, make_core: MakeCore) -> None:
    index(core).unlink()
    for suffix in ("-wal", "-shm"):
        index(core).with_name(index(core).name + suffix).write_bytes(b"old" * 1000)
    check(make_core())


def test_an_unfinished_index_file_is_rebuilt(core: Core, make_core: MakeCore) -> None:
    unfinished = index(core).with_name("index.sqlite.new")
    index(core).rename(unfinished)
    check(make_core())
    assert not unfinished.exists()


def test_a_built_index_has_the_tables_and_indexes_of_one_that_grew(core: Core, make_core: MakeCore) -> None:
    grown = schema(index(core))
    index(core).unlink()
    check(make_core())
    assert schema(index(core)) == grown


def schema(path: Path) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return set(connection.execute("SELECT name, sql FROM sqlite_schema"))


def test_a_failed_build_is_started_again(core: Core, make_core: MakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core()
    tables = core.index._tables
    finish, left = tables.finish_build, [2]

    def fail() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise sqlite3.OperationalError("database or disk is full")
        finish()

    monkeypatch.setattr(index_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(tables, "finish_build", fail)
    core.index.rebuild()
    core.settle()
    assert (core.index.rebuilds, len(core.disk_faults)) == (3, 2)
    check(core)


def test_a_stop_interrupts_a_build(core: Core, make_core: MakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "STEPS", 1)
    tables = tables_module.Tables(index(core), "")
    tables.begin_build(lambda: True)()
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        tables.finish_build()
    tables.close()
    assert not index(core).exists()
    check(make_core())


@pytest.mark.parametrize("contents", [b"", b"SQLite format 3\0", b"nothing of the kind" * 1000, b"\0" * 8192])
def test_an_invalid_index_file_is_rebuilt(core: Core, make_core: MakeCore, contents: bytes) -> None:
    index(core).write_bytes(contents)
    check(make_core())


@pytest.mark.parametrize("kept", [100, 4096, 10_000, -1000])
def test_a_truncated_index_is_rebuilt(core: Core, make_core: MakeCore, kept: int) -> None:
    index(core).write_bytes(index(core).read_bytes()[:kept])
    check(make_core())


def test_an_index_with_another_schema_is_rebuilt(core: Core, make_core: MakeCore) -> None:
    with closing(sqlite3.connect(index(core))) as connection, connection:
        connection.execute("UPDATE meta SET value = 'CREATE TABLE old (x)' WHERE key = 'schema'")
    check(make_core())


def test_a_foreign_database_is_replaced(core: Core, make_core: MakeCore) -> None:
    index(core).unlink()
    with closing(sqlite3.connect(index(core))) as connection, connection:
        connection.execute("CREATE TABLE meta (id INTEGER)")
    check(make_core())


def test_an_index_without_a_schema_mark_is_rebuilt(core: Core, make_core: MakeCore) -> None:
    with closing(sqlite3.connect(index(core))) as connection, connection:
        connection.execute("DELETE FROM meta WHERE key = 'schema'")
    check(make_core())


def test_an_index_behind_the_log_catches_up(core: Core, make_core: MakeCore) -> None:
    with closing(sqlite3.connect(index(core))) as connection, connection:
        for table in ("records", "ids", "aliases"):
            connection.execute(f"DELETE FROM {table} WHERE seq > 100")
        connection.execute("UPDATE meta SET value = 100 WHERE key = 'applied'")
    after = make_core()
    assert after.applied == COUNT + 3 - 100  # a block of numbers, a peer and a channel
    check(after)


def test_an_index_ahead_of_the_log_is_rebuilt(core: Core, make_core: MakeCore) -> None:
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


def test_an_index_of_a_missing_log_is_emptied(core: Core, make_core: MakeCore) -> None:
    for path in (core.data / "log").iterdir():
        path.unlink()
    after = make_core()
    assert (after.log.next_seq, after.index.history("lobby"), after.index.peers()) == (1, [], [])
    assert after.index.next_number == 0


@pytest.mark.parametrize("seed", range(8))
def test_wrong_offsets_return_no_wrong_messages(core: Core, make_core: MakeCore, seed: int) -> None:
    chance = random.Random(seed)
    with closing(sqlite3.connect(index(core))) as connection, connection:
        for seq in range(1, COUNT + 3):
            connection.execute("UPDATE records SET offset = ? WHERE seq = ?", (chance.randrange(1 << 20), seq))
    check(make_core())


def test_a_wrong_channel_in_the_index_reveals_no_messages(core: Core, make_core: MakeCore) -> None:
    with closing(sqlite3.connect(index(core))) as connection, connection:
        connection.execute("UPDATE records SET channel = 'open to all' WHERE seq > 10")
    assert make_core().index.history("open to all") == []


def damage(path: Path, chance: random.Random) -> str:
    """Do something to the files of the index that a bad disk or a power cut may do; what it was."""
    data = bytearray(path.read_bytes())
    page = 4096
    kind = chance.choice(["flip", "flip many", "cut", "swap", "blank", "old page", "journal"])
    if kind == "cut":
        del data[chance.randrange(len(data)) :]
    elif kind in ("swap", "blank", "old page"):
        one, other = (chance.randrange(len(data) // page) * page for _ in range(2))
        a, b = data[one : one + page], data[other : other + page]
        data[one : one + page] = bytes(page) if kind == "blank" else b
        if kind == "swap":
            data[other : other + page] = a
    elif kind == "journal":
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).write_bytes(chance.randbytes(chance.randrange(40_000)))
    else:
        for _ in range(1 if kind == "flip" else 200):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return kind


@pytest.mark.parametrize("seed", range(120))
def test_the_gateway_starts_with_any_damaged_index(core: Core, make_core: MakeCore, seed: int) -> None:
    chance = random.Random(seed)
    if chance.random() < 0.3:  # the numbers and names, which are less than everything else
        data = bytearray(index(core).read_bytes())
        for name in (b"applied", b"next_number", b"alice", b"LOBBY"):
            if (at := data.find(name)) >= 0:
                data[at + len(name)] ^= 1 << chance.randrange(8)
        index(core).write_bytes(data)
    else:
        damage(index(core), chance)
    after = make_core()
    said = after.say(b'"more"')
    after.settle()
    texts = {b"%d" % number for number in range(COUNT)} | {b'"more"'}
    try:
        found = after.index.history("lobby", newest_first=True)
    except Unavailable:  # the start did not find the damage, this read did: the index is rebuilt
        after.settle()
        found = after.index.history("lobby", newest_first=True)
    assert found[0].seq == said.seq
    assert {message.content for message in found} <= texts
    assert after.peers.identity("toy", "carol").number >= 1024 or after.applied in (0, COUNT + 3)
    assert after.index.trouble is None


def scribble(core: Core, start: int) -> None:
    """Overwrite the file from *start* on under a running gateway, which has no page of it in memory."""
    size = index(core).stat().st_size
    with index(core).open("r+b") as file:
        file.seek(start)
        file.write(random.Random(1).randbytes(size - start))
    for connection in (core.index._tables._write, core.index._tables._read):
        connection.execute("PRAGMA wal_checkpoint")
        connection.execute("PRAGMA shrink_memory")


def test_an_index_damaged_in_use_is_rebuilt(core: Core, make_core: MakeCore) -> None:
    core = make_core()
    scribble(core, 0)
    core.say(b'"before"', "elsewhere")
    core.settle()
    assert core.index.trouble is None
    assert core.disk_faults
    check(core)
    core.stop()
    core = make_core()
    assert (core.applied, len(core.index.history("lobby", after=COUNT))) == (0, 4)


def test_a_read_that_finds_damage_triggers_a_rebuild(core: Core, make_core: MakeCore) -> None:
    core = make_core()
    core.settle()
    scribble(core, 4096)
    with pytest.raises(Unavailable):
        core.index.find("id 7")
    core.settle()
    assert core.index.trouble is None
    assert core.index.trouble is None
    check(core)


def test_an_unwritable_index_is_reported_until_it_recovers(
    core: Core, make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core()
    tables = core.index._tables
    put, left = tables.put, [3]

    def refuse(rows: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise sqlite3.OperationalError("database or disk is full")
        put(rows)

    monkeypatch.setattr(index_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(tables, "put", refuse)
    core.say()
    unready_reasons: list[str | None] = []
    core.index.on_fault = lambda _error: unready_reasons.append(core.index.trouble)
    core.settle()
    assert unready_reasons[0] == "the index cannot be written: database or disk is full"
    assert core.index.trouble is None


def test_each_record_is_applied_once_whenever_it_stops(make_core: MakeCore) -> None:
    for _ in range(5):
        core = make_core()
        core.say()
        core.sync()
        core.stop()
    core = make_core()
    assert len(core.index.history("lobby")) == 5
    assert len(list(Segments(core.data / "log").scan())) == core.log.next_seq - 1
