from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from gateway.core.message import Message
from gateway.storage import index as index_module
from gateway.storage.index_queries import PAGE
from gateway.storage.index_schema import KnownId, Row
from gateway.storage.record import Entry, Fact
from tests.still import PATIENCE

if TYPE_CHECKING:
    from tests.conftest import Core

MakeCore = Callable[..., "Core"]


def contents(messages: Iterable[Message]) -> list[bytes]:
    return [message.content for message in messages]


def test_ids_and_their_copies_survive_a_rebuild(make_core: MakeCore) -> None:
    core = make_core()
    said = core.say(ids=("theirs", "digest"), native={"toy": "theirs"}, key="k", id="not-ours", undelivered=("other",))
    core.stop()
    (core.data / "index.sqlite").unlink()
    again = make_core()
    for id in ("theirs", "digest", "k", "not-ours"):
        receipt = again.index.find(id)
        assert receipt is not None
        assert receipt == (said.seq, "not-ours", said.time, ("other",))
    assert again.index.find("another") is None


# Facts


def test_peers_channels_and_numbers_survive_a_restart(make_core: MakeCore) -> None:
    core = make_core()
    peer = core.peers.identity("toy", "alice", "Alice")
    core.peers.identity("toy", "bob")
    core.peers.identity("toy", "bob", "Bob")
    core.channels.register("lobby")
    core.channels.register("gone")
    core.channels.close("gone")
    again = make_core()
    assert again.index.peer("toy", "alice") == peer == again.index.peer_numbered(peer.number)
    assert [found.name for found in again.index.peers()] == ["Alice", "Bob"]
    assert [found.name for found in again.index.peers(peer.number)] == ["Bob"]
    assert list(again.index.channels()) == [("gone", {"toy": "GONE"}, False), ("lobby", {"toy": "LOBBY"}, True)]
    assert again.index.next_number == 1024
    assert again.index.last_time == core.clock.now
    assert again.index.peer("toy", "carol") is None


def test_all_channels_are_listed_over_several_pages(make_core: MakeCore) -> None:
    core = make_core()
    names = [f"channel {number:04d}" for number in range(2 * PAGE + 1)]
    for name in names:
        core.channels.register(name)
    assert [name for name, _, _ in make_core().index.channels()] == names


# An adapter's tables


class Words:
    """Finds messages by their content."""

    name = "toy"
    tables = "CREATE TABLE words (word TEXT, seq INTEGER, PRIMARY KEY (word, seq)) WITHOUT ROWID;"
    tables_by_record = ("words",)

    def address(self, _channel: str, _taken: Callable[[str], bool]) -> str | None:
        return None

    def channel(self, _address: str) -> str | None:
        return None

    def flaw(self, _entry: Entry) -> str | None:
        return None

    def rows(self, entries: Sequence[Entry]) -> Iterator[Row | KnownId]:
        for entry in entries:
            if isinstance(entry, Message):
                yield Row("words", (entry.content.decode(), entry.seq))
                yield KnownId(f"word:{entry.content.decode()}", entry.seq)


def test_an_adapters_rows_are_applied_with_the_rest_and_made_again(make_core: MakeCore) -> None:
    core = make_core(rules=(Words(),))
    said = [core.say(b"1"), core.say(b"2"), core.say(b"1")]
    core.settle()

    def words(core: Core) -> list[Any]:
        return core.index.rows("SELECT seq FROM words WHERE word = ? ORDER BY seq LIMIT 10", ("1",))

    assert words(core) == [(said[0].seq,), (said[2].seq,)]
    assert core.index.find("word:2") is not None
    core.stop()
    (core.data / "index.sqlite").unlink()
    assert words(make_core(rules=(Words(),))) == [(said[0].seq,), (said[2].seq,)]


def test_an_adapters_rows_go_with_their_records(make_core: MakeCore) -> None:
    core = make_core(rules=(Words(),))
    said = [core.say(b"%d" % number) for number in range(3)]
    core.settle()
    core.index._tables.prune(said[2].seq)
    assert core.index.rows("SELECT word, seq FROM words") == [("2", said[2].seq)]
    assert core.index.find("word:1") is None
    assert core.index.find("word:2") is not None


def test_other_tables_make_another_index(make_core: MakeCore) -> None:
    core = make_core()
    core.say(b"1")
    core.settle()
    assert make_core().applied == 0
    again = make_core(rules=(Words(),))
    assert again.applied == again.log.synced_seq
    assert again.index.one("SELECT word FROM words LIMIT 1") == ("1",)


# When the disk refuses


class Refusing:
    """A connection that fails a number of times."""

    def __init__(self, connection: sqlite3.Connection, times: int) -> None:
        self._connection = connection
        self.times = times

    def execute(self, *arguments: Any) -> Any:
        if self.times:
            self.times -= 1
            raise sqlite3.OperationalError("database or disk is full")
        return self._connection.execute(*arguments)

    def __enter__(self) -> None:
        self._connection.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)

    def close(self) -> None:
        self._connection.close()


def test_a_batch_that_cannot_be_applied_is_tried_again(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "RETRY_SECONDS", 0.01)
    core.index._tables._write = cast(sqlite3.Connection, Refusing(core.index._tables._write, 3))
    said = core.say()
    core.settle()
    assert core.index.applied_seq == said.seq
    assert [str(fault) for fault in core.disk_faults] == ["database or disk is full"] * 3


def test_an_index_that_cannot_be_written_does_not_keep_the_gateway_from_stopping(make_core: MakeCore) -> None:
    core = make_core()
    core.index._tables._write = cast(sqlite3.Connection, Refusing(core.index._tables._write, 1 << 30))
    said = core.say()
    core.sync()
    assert contents(core.index.history("lobby")) == [said.content]
    core.stop()
    assert contents(make_core().index.history("lobby")) == [said.content]


def test_pruning_takes_messages_and_their_ids(core: Core) -> None:
    said = [core.say(b"%d" % number, ids=(f"id{number}", f"digest{number}")) for number in range(10)]
    core.settle()
    done: list[bool] = []
    core.index.submit(lambda: core.index.prune(said[6].seq))
    core.index.submit(lambda: core.posted.put(lambda: done.append(True)))
    core.until(lambda: bool(done))
    assert contents(core.index.history("lobby")) == contents(said[6:])
    assert core.index.find("id5") is None
    assert core.index.find("id6") is not None
    assert core.index.find(said[5].id) is None
    assert isinstance(core.index.entry(1), Fact)
    kept = [(message.seq,) for message in said[6:]]
    for table in ("ids", "aliases"):
        assert core.index.rows(f"SELECT seq FROM {table} ORDER BY seq") == kept


def test_a_chore_waits_for_records_taken_during_an_earlier_batch(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()
    levels: list[int] = []
    apply = core.index._apply

    def slowly(batch: Any) -> None:
        began.set()
        assert go_on.wait(PATIENCE)
        apply(batch)

    monkeypatch.setattr(core.index, "_apply", slowly)
    core.say(b"1")
    core.sync()
    assert began.wait(PATIENCE)
    last = core.say(b"2")
    core.sync()
    core.index.submit(lambda: levels.append(core.index.level))
    go_on.set()
    core.until(lambda: bool(levels))
    assert levels[0] >= last.seq


def test_chores_run_after_records_taken_before_them(core: Core) -> None:
    order: list[int] = []
    for _ in range(3):
        core.say()
        core.sync()
        core.index.submit(
            lambda: order.append(core.index._tables._write.execute("SELECT max(seq) FROM records").fetchone()[0])
        )
    seqs = core.index.synced_seq
    core.settle()
    assert order[-1] == seqs
    assert order == sorted(order)


def test_a_core_in_a_folder_with_an_odd_name(core_class: type[Core], tmp_path: Path) -> None:
    core = core_class(tmp_path / "what? #1 100%").start()
    core.say()
    core.settle()
    assert len(core.index.history("lobby")) == 1
    core.stop()
