"""Resends return messages in order, with exactly one outcome."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adapters.streamr.model.stored import SLICE
from gateway.access.revocation import POLICY, RIGHT_ENDED, Revocation
from gateway.core import answer_scheduler
from gateway.core.answer_scheduler import MAX_WAIT_SECONDS, QUIET_MS
from gateway.core.errors import Unavailable
from gateway.core.outbox import MAX_STREAMS

TEN_SECONDS = 10_000


@pytest.fixture
def history(broker: Any, alice: Any, bob: Any) -> Any:
    """Alice said 0 and 2, Bob 1 and a toy 3, a second between each; only some of it is in the tables."""
    rows = []
    for number, who in enumerate((alice, bob, alice)):
        rows.append(who.message("s", {"n": number}, broker.clock(), chain="c"))
        assert broker.ask(broker.open(), [2, 8, "r", rows[-1], None]) == []
        broker.clock.now += 1000
        if number == 1:
            broker.core.settle()
    broker.say("s", {"n": 3})
    broker.rows = rows
    return broker


def outcome(frames: list[Any]) -> tuple[list[Any], list[int]]:
    """The types of frames around the messages, and the numbers in these."""
    assert [frame[1] for frame in frames[1:-1]] == [1] * len(frames[1:-1])
    numbers = [json.loads(frame[3][7])["n"] for frame in frames if frame[1] == 1]
    return [frame[1] for frame in frames if frame[1] != 1], numbers


# What is asked for, counted from the first message's time, and which messages answer it.
# fmt: off
REQUESTS: dict[str, tuple[list[Any], list[int]]] = {
    "last":            ([11, 2],                                      [2, 3]),
    "more than are":   ([11, 99],                                     [0, 1, 2, 3]),
    "from":            ([12, [1000, 0], None],                        [1, 2, 3]),
    "from no number":  ([12, [1000, None], None],                     [1, 2, 3]),
    "from within":     ([12, [1000, 1], None],                        [2, 3]),
    "of a publisher":  ([12, [0, 0], "alice"],                        [0, 2]),
    "range":           ([13, [1000, 0], [2000, 0], None, None],       [1, 2]),
    "range of all ms": ([13, [1000, None], [2000, None], None, None], [1, 2]),
    "range of chain":  ([13, [0, 0], [9000, 0], "alice", "c"],        [0, 2]),
}
# fmt: on


@pytest.mark.parametrize("name", REQUESTS)
def test_a_resend_is_answered_in_order(history: Any, alice: Any, name: str) -> None:
    (kind, *rest), numbers = REQUESTS[name]
    start = history.rows[0][1][2]
    names = {"alice": alice.address.upper().replace("X", "x")}
    asked = [[start + part[0], part[1]] if isinstance(part, list) else names.get(part, part) for part in rest]
    frames = history.ask(history.open(), [2, kind, "req", "s", 0, *asked, None])
    assert frames[0] == [2, 4, "req", "s", 0]
    assert frames[-1] == [2, 5, "req", "s", 0]
    assert outcome(frames) == ([4, 5], numbers)
    assert {frame[2] for frame in frames} == {"req"}
    assert [frame[3] for frame in frames[1:-1] if frame[3][1][4] == alice.address][:1] in (
        [history.rows[0]],
        [history.rows[2]],
        [],
    )


def test_s0_asks_for_a_chain_in_a_ninth_field(history: Any, alice: Any) -> None:
    start = history.rows[0][1][2]
    for chain, numbers in (("c", [0, 2]), ("d", [])):
        frames = history.ask(history.open(), [2, 12, "r", "s", 0, [start, 0], alice.address, chain, None])
        assert outcome(frames)[1] == numbers


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ([True, None, None, None], [0, 1, 2, 3]),
        ([None, 2, None, None], [2, 3]),
        ([None, None, 1000, None], [1, 2, 3]),
        ([None, None, 1000, 2000], [1, 2]),
    ],
)
def test_the_resend_request_of_s1(history: Any, options: list[Any], numbers: list[int]) -> None:
    start = history.rows[0][1][2]
    asked = [*options[:2], *[option and start + option for option in options[2:]]]
    session = history.open({"controlLayerVersion": "1", "messageLayerVersion": "30"})
    frames = history.ask(session, [1, 11, "s", 0, "sub", *asked])
    assert (frames[0], frames[-1]) == ([1, 4, "s", 0, "sub"], [1, 5, "s", 0, "sub"])
    assert [json.loads(frame[3][4])["n"] for frame in frames[1:-1]] == numbers
    assert {(*frame[:3], frame[3][0]) for frame in frames[1:-1]} == {(1, 1, "sub", 30)}


def test_a_resend_of_s1_is_answered_with_its_subscription_number(history: Any) -> None:
    session = history.open({"controlLayerVersion": "1", "messageLayerVersion": "30"})
    frames = history.ask(session, [1, 11, "s", 0, 234, None, 2, None, None])
    assert [frame[2] if frame[1] == 1 else frame[4] for frame in frames] == [234] * 4
    assert history.ask(session, [1, 11, "other", 0, 0, None, 2, None, None]) == [[1, 6, "other", 0, 0]]


@pytest.mark.parametrize(
    "frame",
    [
        [2, 11, "r", "s", 0, 0, None],
        [2, 11, "r", "other", 0, 5, None],
        [2, 13, "r", "s", 0, [1, 0], [2, 0], None, None, None],
        [2, 12, "r", "s", 0, [0, 0], "0x" + "9" * 40, None],
        [2, 11, "r", "SYSTEM/keyexchange/0x" + "9" * 40, 0, 5, None],
        [2, 11, "r", "s/@0", 0, 5, None],
    ],
)
def test_an_empty_resend_is_answered_with_no_resend(history: Any, frame: list[Any]) -> None:
    assert history.ask(history.open(), frame) == [[2, 6, "r", frame[3], 0]]
    assert not history.core.channels.exists("other"), "asking makes no channel"


def test_a_resend_from_an_unknown_partition_is_refused(broker: Any) -> None:
    assert broker.ask(broker.open(), [2, 11, "r", "s", 7, 5, None]) == [
        [2, 7, "r", "Resend request failed: Partition 7 is out of range (0..0)", "REQUEST_FAILED"]
    ]


def test_a_resend_has_only_the_messages_of_its_partition(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(streams={"wide": 3})
    broker.say("wide#2", {"n": 2})
    broker.say("wide", {"n": 0})
    for partition, numbers in enumerate(([0], [], [2])):
        frames = broker.ask(broker.open(), [2, 11, "r", "wide", partition, 5, None])
        assert outcome(frames)[1] == numbers
        assert {frame[4] for frame in frames if frame[1] != 1} == {partition}


def test_a_resend_without_the_right_is_refused(make_broker: Callable[..., Any], alice: Any) -> None:
    broker = make_broker(grants={f"streamr:{alice.address}": ("history:s",), "streamr:anonymous": ("subscribe:s",)})
    broker.say("s", {"n": 1})
    assert broker.ask(broker.open(), [2, 11, "r", "s", 0, 1, None]) == [
        [2, 7, "r", "You are not allowed to resend from stream s", "PERMISSION_DENIED"]
    ]
    assert broker.ask(broker.open(), [2, 11, "r", "s", 0, 1, "made up"]) == [
        [2, 7, "r", "Authentication failed while trying to resend to stream s", "AUTHENTICATION_FAILED"]
    ]
    assert outcome(broker.ask(broker.open(), [2, 11, "r", "s", 0, 1, broker.token(alice)]))[1] == [1]


def test_resent_messages_equal_live_ones(history: Any) -> None:
    reader = history.listener("s")
    history.say("s", {"n": 4, "é": "\U0001f333"})
    (live,) = history.frames(reader)
    history.core.settle()
    for version, query in ((32, None), (31, {"controlLayerVersion": "2", "messageLayerVersion": "31"})):
        frames = history.ask(history.open(query), [2, 11, "r", "s", 0, 1, None])
        assert frames[1][3][0] == version
        assert version == 31 or frames[1][3] == live[3]


@pytest.mark.parametrize("version", [30, 30.0])
def test_a_message_of_s1_is_resent_while_it_lives(broker: Any, version: float) -> None:
    now = broker.clock()
    flat = [version, "s", 0, now, 0, "", None, None, 60, 27, '{"n":1}', 0, ""]
    assert broker.ask(broker.open(), [1, 8, flat, "key", None]) == []
    for _ in range(2):
        assert outcome(broker.ask(broker.open(), [2, 11, "r", "s", 0, 1, None]))[1] == [1]
        broker.core.settle()
    broker.clock.now = now + 60_001
    assert outcome(broker.ask(broker.open(), [2, 11, "r", "s", 0, 1, None])) == ([6], [])


@pytest.mark.parametrize("ttl", [0, 0.0, None])
def test_a_message_of_s1_without_a_time_to_live_never_expires(broker: Any, ttl: float | None) -> None:
    """0 is what the broker of 2018 wrote where its producer said nothing."""
    flat = [30, "s", 0, broker.clock(), 0, "", None, None, ttl, 27, '{"n":1}', 0, ""]
    assert broker.ask(broker.open(), [1, 8, flat, "key", None]) == []
    broker.clock.now += 60_001
    for _ in range(2):
        for request in ([2, 11, "r", "s", 0, 1, None], [2, 12, "r", "s", 0, [0, 0], None, None]):
            assert outcome(broker.ask(broker.open(), request)) == ([4, 5], [1])
        broker.core.settle()


def test_the_last_ones_are_those_that_are_shown(broker: Any, alice: Any) -> None:
    """What had its time, and what the reader's version has no word for, does not take the place of the others."""
    now = broker.clock()
    broker.say("s", {"n": 1}, timestamp=now - 2)
    broker.say("s", {"n": 2}, timestamp=now - 1)
    flat = [30, "s", 0, now, 0, "", None, None, 60, 27, '{"n":3}', 0, ""]
    assert broker.ask(broker.open(), [1, 8, flat, "key", None]) == []
    secret = alice.message("s", "00ff", now + 1, encryption=2, group_key="k")
    assert broker.ask(broker.open(), [2, 8, "r", secret, None]) == []
    old = {"controlLayerVersion": "2", "messageLayerVersion": "30"}
    for later, shown in ((0, ([4, 5], [2, 3])), (60_001, ([4, 5], [1, 2]))):
        broker.clock.now = now + later
        for _ in range(2):
            frames = broker.ask(broker.open(old), [2, 11, "r", "s", 0, 2, None])
            numbers = [json.loads(frame[3][4])["n"] for frame in frames if frame[1] == 1]
            assert ([frame[1] for frame in frames if frame[1] != 1], numbers) == shown
            broker.core.settle()


def test_live_messages_come_between_the_slices_of_a_resend(broker: Any) -> None:
    for number in range(4 * SLICE):
        broker.say("s", {"n": number})
        broker.clock.now += 1
    broker.clock.now += QUIET_MS
    reader = broker.listener("s")
    reader.receive_data(b'[2,12,"r","s",0,[0,0],null,null]')
    broker.core.drain()
    first = broker.frames(reader)
    broker.say("s", {"live": True})
    broker.core.drain()
    rest = broker.frames(reader)
    while reader.resends:
        broker.core.posted.get(timeout=10)()
        rest += broker.frames(reader)
    assert first[0][1] == 4
    frames = first + rest
    live = [index for index, frame in enumerate(frames) if frame[1] == 0]
    assert len(live) == 1
    assert 0 < live[0] < len(frames) - 1, "in the middle"
    assert outcome([frame for frame in frames if frame[1] != 0]) == ([4, 5], list(range(4 * SLICE)))


def test_a_resend_is_pulled_as_fast_as_it_is_read_and_no_faster(broker: Any) -> None:
    for _ in range(40):
        broker.say("s", "x" * 100_000)
    broker.clock.now += QUIET_MS
    session = broker.open()
    session.receive_data(b'[2,11,"r","s",0,99,null]')
    while session.has_more or session.resends:
        broker.core.drain()
        assert sum(map(len, session.data_to_send())) < 300_000
        assert session._size == 0
        if not session.has_more and session.resends:
            broker.core.posted.get(timeout=10)()


def test_many_resends_at_a_time_hold_further_requests_back(broker: Any) -> None:
    for number in range(2 * SLICE):
        broker.say("s", {"n": number})
    session = broker.open()
    for number in range(2 * MAX_STREAMS):
        session.receive_data(json.dumps([2, 11, f"r{number}", "s", 0, 99, None]).encode())
    assert len(session.resends) == MAX_STREAMS
    assert not session.ask_to_read()
    frames = broker.frames(session)
    while session.resends:
        broker.core.posted.get(timeout=10)()
        frames += broker.frames(session)
    assert session.ask_to_read()
    for number in range(2 * MAX_STREAMS):
        assert outcome([frame for frame in frames if frame[2] == f"r{number}"]) == ([4, 5], list(range(2 * SLICE)))


def test_revoking_the_right_ends_a_running_resend(make_broker: Callable[..., Any], alice: Any) -> None:
    broker = make_broker(grants={f"streamr:{alice.address}": ("history:s",), "streamr:anonymous": ("publish:*",)})
    Revocation(broker.access, broker.bus, broker.core.posted.put)
    for number in range(8 * SLICE):
        broker.say("s", {"n": number})
    broker.clock.now += QUIET_MS
    token, sessions = broker.token(alice), [broker.open(), broker.open()]
    sessions[0].receive_data(json.dumps([2, 11, "r", "s", 0, 99, token]).encode())
    sessions[1].receive_data(json.dumps([2, 9, "r", f"SYSTEM/keyexchange/{alice.address}", 0, token]).encode())
    begun = list[Any]()
    while not begun:
        broker.core.drain()
        begun = broker.frames(sessions[0])
    assert 1 < len(begun) < 8 * SLICE, "in the middle"
    broker.access.set_grants({f"streamr:{alice.address}": ("history:s", "publish:s")})
    broker.core.drain()
    assert [session.closing for session in sessions] == [None, None], "that changes nothing for it"
    sessions[0].receive_data(json.dumps([2, 11, "again", "s", 0, 99, token]).encode())
    broker.access.set_grants({f"streamr:{alice.address}": ("publish:s",)})
    broker.core.drain()
    assert [session.closing for session in sessions] == [(POLICY, RIGHT_ENDED), None], "of a key exchange any is enough"
    assert [frame[1] for frame in broker.frames(sessions[0])] == []
    broker.access.set_grants({"streamr:anonymous": ()})
    broker.core.drain()
    assert sessions[1].closing == (POLICY, RIGHT_ENDED)


def test_disconnecting_during_a_resend_leaves_no_state(broker: Any) -> None:
    for number in range(4 * SLICE):
        broker.say("s", {"n": number})
    session = broker.open()
    session.receive_data(b'[2,11,"r","s",0,999,null]')
    session.data_to_send()
    session.receive_eof()
    broker.core.drain()
    assert (session.resends, session.data_to_send()) == ({}, [])


def test_an_index_failure_ends_a_running_resend_with_an_error(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4 * SLICE):
        broker.say("s", {"n": number})
        broker.clock.now += 1
    broker.core.settle()
    broker.clock.now += QUIET_MS
    session = broker.open()
    session.receive_data(b'[2,12,"r","s",0,[0,0],null,null]')
    frames = broker.frames(session)

    def fail(*_: Any) -> None:
        raise Unavailable("the index cannot be read")

    monkeypatch.setattr(broker.core.index, "read", fail)
    while session.resends:
        broker.core.posted.get(timeout=10)()
        frames += broker.frames(session)
    assert frames[-1] == [2, 7, "r", "Resend request failed: the index cannot be read", "RESEND_FAILED"]
    assert [frame[1] for frame in frames if frame[1] != 1] == [4, 7]
    assert session.closing is None


def test_a_resend_that_finds_no_place_waits_for_one_and_then_is_refused(
    history: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_scheduler, "MAX_SLOTS_PER_NETWORK", 1)
    first, second, third = (history.open() for _ in range(3))
    answers = history.adapter.services.answer_scheduler
    held = answers.request_slot("", lambda: None)
    for session in (first, second, third):
        session.receive_data(b'[2,11,"r","s",0,9,null]')
        assert history.frames(session) == [], "an answer of another kind has the place"
    third.receive_eof()
    held.release()
    for session in (first, second):
        assert [frame[1] for frame in rest(history, session)] == [4, 1, 1, 1, 1, 5], "each gives its place back"
    answers.request_slot("", lambda: None)
    first.receive_data(b'[2,11,"again","s",0,9,null]')
    monkeypatch.setattr(answer_scheduler, "MAX_WAIT_SECONDS", -1.0)
    answers.tick()
    assert history.frames(first) == [
        [2, 7, "again", f"Resend request failed: too many requests, try again in {MAX_WAIT_SECONDS} s", "RESEND_FAILED"]
    ]
    assert not first.resends


def rest(broker: Any, session: Any) -> list[Any]:
    """What *session* is told until its resends are over."""
    frames = broker.frames(session)
    while session.resends:
        broker.core.posted.get(timeout=10)()
        frames += broker.frames(session)
    return list(frames)
