from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import Unavailable
from gateway.core.message import Message, MessageIds, Peer
from gateway.storage.index_queries import PAGE
from gateway.storage.record import Fact

if TYPE_CHECKING:
    from tests.conftest import Core

MakeCore = Callable[..., "Core"]


def contents(messages: Iterable[Message]) -> list[bytes]:
    return [message.content for message in messages]


# History


def test_history_between_two_sequences(core: Core) -> None:
    said = [core.say(b"%d" % number, "lobby" if number % 3 else "other") for number in range(30)]
    core.settle()
    mine = [message for message in said if message.channel == "lobby"]
    history = core.index.history
    assert contents(history("lobby")) == contents(mine)
    assert contents(history("lobby", newest_first=True)) == contents(mine[::-1])
    assert contents(history("lobby", after=mine[3].seq, limit=4)) == contents(mine[4:8])
    assert contents(history("lobby", before=mine[3].seq)) == contents(mine[:3])
    assert contents(history("lobby", before=mine[9].seq, newest_first=True, limit=4)) == contents(mine[8:4:-1])
    assert contents(history("other", after=mine[5].seq)) == contents(m for m in said[0::3] if m.seq > mine[5].seq)
    assert history("nowhere") == []
    assert core.index.last_seq("lobby") == mine[-1].seq
    assert core.index.last_seq("nowhere") == 0


def test_last_sequences_are_found_without_reading_records(make_core: MakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core()
    said = [core.say(b"%d" % number, f"room {number % 3}") for number in range(9)]
    core.settle()
    monkeypatch.setattr(core.segments, "read", None)
    names = ["room 2", "room 0", "nowhere", "room 1"]
    expected = {"room 2": said[8].seq, "room 0": said[6].seq, "nowhere": 0, "room 1": said[7].seq}
    assert core.index.last_seqs(names) == expected
    assert core.index.last_seq("room 1") == said[7].seq
    assert core.index.last_seqs([]) == {}
    unsynced = core.say(b"10", "room 0")
    core.index._synced = unsynced.seq - 1
    assert core.index.last_seq("room 0") == said[6].seq  # what is not on disk is not shown
    core.index._synced = unsynced.seq
    assert core.index.last_seq("room 0") == unsynced.seq


@pytest.mark.parametrize("limit", [0, -1, -(1 << 70)])
def test_a_limit_below_one_returns_nothing(core: Core, limit: int) -> None:
    core.say()
    core.settle()
    assert core.index.history("lobby", limit=limit) == []


@pytest.mark.parametrize("number", [1 << 62, 1 << 63, 1 << 64, 10**40])
def test_numbers_beyond_every_column_are_not_found(core: Core, number: int) -> None:
    core.say()
    core.settle()
    assert core.index.history("lobby", after=number) == []
    assert len(core.index.history("lobby", before=number, after=-number)) == 1
    assert core.index.history("lobby", before=-number, newest_first=True) == []
    assert core.index.history("lobby", sender=number) == []
    assert core.index.peer_numbered(number) is None
    assert core.index.entry(number) is None


def test_a_page_is_bounded_and_the_next_continues_it(core: Core) -> None:
    said = [core.say(b"%d" % number) for number in range(PAGE + 10)]
    core.settle()
    page = core.index.history("lobby", limit=10_000)
    assert contents(page) == contents(said[:PAGE])
    assert contents(core.index.history("lobby", after=page[-1].seq)) == contents(said[PAGE:])


def test_history_of_one_sender(core: Core) -> None:
    a, b = Peer(5000, "toy"), Peer(5001, "toy")
    said = [core.say(b"%d" % number, sender=(a, b)[number % 2]) for number in range(10)]
    core.sync()
    assert contents(core.index.history("lobby", sender=5001)) == contents(said[1::2])
    core.settle()
    assert contents(core.index.history("lobby", sender=5001)) == contents(said[1::2])
    assert contents(core.index.history("lobby", sender=5000, newest_first=True, limit=2)) == [b"8", b"6"]


def test_damaged_records_are_skipped_in_history(core: Core) -> None:
    said = [core.say(b'"%d"' % number) for number in range(20)]
    core.settle()
    (path,) = (core.data / "log").iterdir()
    damaged = path.read_bytes()
    for number in (3, 4, 5, 11, 19):
        damaged = damaged.replace(b'"content":"%d"' % number, b'"content":"?%d' % number)
    path.write_bytes(damaged)
    good = [m for number, m in enumerate(said) if number not in (3, 4, 5, 11, 19)]
    assert contents(core.index.history("lobby", limit=7)) == contents(good[:7])
    assert contents(core.index.history("lobby")) == contents(good)
    assert contents(core.index.history("lobby", newest_first=True, limit=3)) == contents(good[:-4:-1])
    assert {fault.reason for fault in core.segments.faults} == {"the checksum does not agree"}
    assert core.index.find(said[3].id) is None


# Between the log and the tables


def test_messages_are_found_at_every_moment_between_append_and_apply(core: Core) -> None:
    """Each message is in the history exactly once as soon as it is synced, and found by its ids always."""

    def seen() -> list[bytes]:
        found = contents(core.index.history("lobby"))
        assert found == contents(core.index.history("lobby", newest_first=True))[::-1]
        return found

    def found(*ids: str) -> bool:
        return all((receipt := core.index.find(id)) is not None and receipt.seq == second.seq for id in ids)

    core.say(b"1")
    core.settle()
    assert seen() == [b"1"]
    second = core.say(b"2", ids=("theirs", "digest"), native={"toy": "theirs"}, key="alice:k")
    ids = (second.id, "theirs", "digest", "alice:k")
    assert seen() == [b"1"]
    assert found(*ids)
    assert core.index.message(second.id) is None  # not on disk
    assert core.index.entry(second.seq) is second
    core.sync()  # synced, taken; applied by the thread at any time from now on, but not told
    assert seen() == [b"1", b"2"]
    assert core.index.message("theirs") is second
    told = core.posted.get(timeout=60)
    assert core.index.applied_seq == second.seq
    assert seen() == [b"1", b"2"]  # applied and pending
    assert found(*ids)
    told()
    assert core.index.unapplied() == []
    assert vars(core.index._unapplied)["_ids"] == {}
    assert seen() == [b"1", b"2"]
    assert found(*ids)
    back = core.index.message("alice:k")
    assert back is not None
    assert (back.id, back.content, back.ids) == (second.id, b"2", ("theirs", "digest"))
    third, receipt = core.say(b"3", ids=("later",)), core.index.find("later")
    assert receipt is not None
    assert receipt.seq == third.seq, "also after others have gone to the tables"


def test_records_applied_during_a_listing_appear_once(core: Core) -> None:
    said = [core.say(b"%d" % number) for number in range(10)]
    core.settle()
    said += [core.say(b"%d" % number) for number in range(10, 20)]
    core.sync()
    listed = core.index.newest("lobby")
    first = [next(listed) for _ in range(3)]
    core.settle()
    assert contents([*first, *listed]) == contents(said[::-1])


def test_a_newer_message_with_the_same_key_is_not_forgotten_with_the_older(core: Core) -> None:
    core.say(b"1", key="k")
    core.sync()
    second = core.say(b"2", key="k")
    core.posted.get(timeout=60)()  # the first is applied
    receipt = core.index.find("k")
    assert receipt is not None
    assert receipt.seq == second.seq


def test_a_message_is_found_by_its_native_id_before_it_is_indexed(core: Core) -> None:
    said = core.say(ids=("theirs",))
    core.log.fact("form", {"protocol": "toy", "of": said.seq, "native": {"toy": "shown"}})
    core.log.fact("entity", {"protocol": "toy", "native": {"toy": "nothing said"}, "wire": ""})
    for id in ("shown", "theirs"):
        receipt = core.index.find(id)
        assert receipt is not None
        assert receipt.seq == said.seq
    assert core.index.find("nothing said") is None
    core.settle()
    assert vars(core.index._unapplied)["_ids"] == {}, "what shows it has put it there"
    assert core.index.rows("SELECT id FROM known") == [("theirs",)]


def test_an_id_of_two_messages_is_that_of_the_newer(core: Core) -> None:
    core.say(ids=("first", "second"))
    newer = core.say(ids=("other", "first"))
    for _ in range(2):  # before it is in the tables, and after
        receipt = core.index.find("first")
        assert receipt is not None
        assert receipt.seq == newer.seq
        core.settle()


# Ids


def test_ids_are_found_by_their_prefix(core: Core) -> None:
    said = core.say(ids=("there:9", "beside"))
    core.settle()
    assert core.index.indexed_seq("beside") == said.seq
    assert core.index.indexed_seq("there:") is None
    found = [core.index.has_id_beginning(prefix) for prefix in ("there:", "b", "beside", "there;", "besides", "a", "c")]
    assert found == [True, True, True, False, False, False, False]


def test_senders_in_a_channel_are_known_before_and_after_indexing(core: Core) -> None:
    said = core.say()
    number = said.sender.number
    for _ in range(2):
        assert core.index.has_message_by(number, "lobby")
        assert not core.index.has_message_by(number + 1, "lobby")
        assert not core.index.has_message_by(number, "elsewhere")
        core.settle()


def test_the_id_of_this_gateway_needs_no_row(core: Core) -> None:
    said = core.say()
    core.settle()
    assert core.index.rows("SELECT * FROM known") == []
    assert core.index.find(said.id) is not None
    assert core.index.find(MessageIds(core.salt).make(said.time + 1, said.seq)) is None
    assert core.index.find(MessageIds(core.salt).make(said.time, said.seq + 1)) is None


@pytest.mark.parametrize("odd", ["\ud800", "a\0b", "\\ud800", "é", "😀", 'x"y', "\\u0000", ""])
def test_ids_and_names_with_surrogates_and_nul_are_found(core: Core, odd: str) -> None:
    """SQLite's JSON knows neither half characters nor NUL; both may come in an id of somebody's choice."""
    said = core.say(ids=(odd, "plain"))
    core.peers.identity("toy", odd, odd)
    core.settle()
    for id in (odd, "plain"):
        receipt = core.index.find(id)
        assert receipt is not None
        assert receipt.seq == said.seq
    assert core.index.find("a") is None
    peer = core.index.peer("toy", odd)
    assert peer is not None
    assert core.index.peer_numbered(peer.number) == peer
    assert core.index.peers() == [peer]


# Records


def test_a_fact_is_an_entry_but_no_message(core: Core) -> None:
    fact = core.log.fact("entity", {"protocol": "toy", "native": "n", "wire": "w"})
    core.settle()
    entry = core.index.entry(fact.seq)
    assert isinstance(entry, Fact)
    assert (entry.kind, entry.fields) == (fact.kind, fact.fields)
    assert core.index.entry(fact.seq + 1) is None


def test_the_index_has_the_offset_of_each_record(core: Core) -> None:
    core.say()
    second = core.say(b'"find me"')
    core.settle()
    offset = core.index.offset(second.seq)
    assert b"find me" in core.segments.read(second.seq, offset)
    assert core.index.offset(99) == 0


# How it is asked


def test_every_question_uses_an_index(core: Core) -> None:
    core.say(ids=("theirs",))
    core.peers.identity("toy", "alice")
    core.settle()
    asked: list[str] = []
    core.index._tables._read.set_trace_callback(asked.append)
    index = core.index
    index.history("lobby")
    index.history("lobby", after=1, before=9, newest_first=True)
    index.history("lobby", sender=1)
    index.history("lobby", sender=1, newest_first=True)
    index.last_seq("lobby")
    index.find("theirs")
    index.indexed_seq("theirs")
    index.has_id_beginning("the")
    index.has_message_by(1, "lobby")
    index.entry(1)
    index.offset(1)
    index.peer("toy", "alice")
    index.peer_numbered(1)
    index.peers()
    list(index.channels())
    list(index.newest("lobby", 5, 9))
    _ = index.next_number, index.last_time, index.applied_seq
    core.index._tables._read.set_trace_callback(None)
    assert len(set(asked)) >= 16
    for sql in set(asked):
        plan = [row[3] for row in core.index._tables._read.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert any(step.startswith("SEARCH") for step in plan), (sql, plan)
        assert not any(
            (step.startswith("SCAN") and "json_each" not in step) or "TEMP B-TREE" in step for step in plan
        ), (sql, plan)


def test_reading_cannot_write(core: Core) -> None:
    with pytest.raises(Unavailable):
        core.index.rows("DELETE FROM records")


def test_an_index_that_cannot_be_read_refuses_the_request(core: Core) -> None:
    core.index._tables._read.close()
    core.index._tables._read = sqlite3.connect(":memory:")
    with pytest.raises(Unavailable):
        core.index.history("lobby")
