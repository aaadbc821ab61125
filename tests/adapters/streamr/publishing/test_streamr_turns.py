"""Messages of several connections in one turn of the loop have the effects of single ones."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.streamr.sessions.session import StreamrSession
from gateway.core.message import Message
from tests.adapters.streamr.conftest import Broker, Publisher, unsigned
from tests.adapters.streamr.publishing.run_messages import HEARD, RunBroker, frames, says

Read = tuple[int | None, list[Any]]  # what one read brings on which connection; None: the turn of the loop ends


class Turns:
    """Turns of the loop, which end when a test says so; if *gathers*, what comes alone is published then."""

    def __init__(self, broker: Broker, *, gathers: bool = True) -> None:
        self._due: list[Callable[[], None]] = []
        self._gathers = gathers
        broker.bus.gathering.at_turn_end = self._gather

    def _gather(self, call: Callable[[], None], _always: bool) -> bool:
        if self._gathers:
            self._due.append(call)
        return self._gathers

    def end(self) -> None:
        while self._due:
            self._due.pop()()


def after_turns(limit: int, reads: Sequence[Read], *, gathers: bool) -> Any:
    """What is logged on each channel, and what everybody was told there and answered, once several spoke."""
    with TemporaryDirectory() as data:
        room = RunBroker(Path(data), limit, together=False)
        try:
            broker, turns = room.broker, Turns(room.broker, gathers=gathers)
            speakers = [room.speaker, broker.open(), broker.open()]
            for who, said in (*reads, (None, [])):
                if who is None:
                    turns.end()
                elif gathers:
                    speakers[who].receive_all(room.texts(said))
                else:
                    for text in room.texts(said):
                        speakers[who].receive_data(text)
            told = [_told(broker, session) for session in (*speakers, *room.listeners)]
            counts = {name: dict(counter) for name, counter in room.core.metrics.counts.items()}
            return _logged(room), told, room.toy.take(), counts
        finally:
            room.close()


def _logged(room: RunBroker) -> Any:
    assert [entry.seq for entry in room.logged] == sorted(entry.seq for entry in room.logged)
    messages = [entry for entry in room.logged if isinstance(entry, Message)]
    assert all(room.core.ids.seq(m.id) == m.seq for m in messages)
    by_id = {m.id: m.wire for m in messages}
    logged = defaultdict[str, list[Any]](list)
    for m in messages:
        parent = by_id.get(m.parent or "", m.parent)
        logged[m.channel].append((m.wire, parent, m.content, m.ids, m.native, m.sender, m.timestamp, m.late))
    return logged, [(entry.kind, entry.fields) for entry in room.logged if not isinstance(entry, Message)]


def _told(broker: Broker, session: StreamrSession) -> Any:
    heard, answers = defaultdict[str, list[Any]](list), list[Any]()
    for frame in broker.frames(session):
        delivered = frame[1] == 0
        (heard[json.dumps(frame[-1][1][:2])] if delivered else answers).append(frame)
    return heard, answers, session.identity, session.closing


def alone(who: int, *said: Any) -> list[Read]:
    return [(who, [each]) for each in said]


ALICE, BOB = says("alice", *range(9)), says("bob", *range(9))
ALICE_11, NOBODY = says("alice", *range(10, 19), partition=11), says(None, *range(9))
NOBODY_ELSE = says(None, *range(9), chain="other")
reads: st.SearchStrategy[Read] = st.one_of(
    st.tuples(st.sampled_from([0, 1, 2]), frames().map(lambda said: said[:2])),
    st.tuples(st.sampled_from([0, 1, 2]), frames().map(lambda said: said[:1])),
    st.just((None, [])),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(reads, min_size=2, max_size=12), st.integers(3, 16))
@example([*alone(0, ALICE[0]), *alone(1, BOB[0]), *alone(0, ALICE_11[0]), *alone(0, ALICE[1])], 99)
@example([*alone(0, HEARD, ALICE[0], BOB[0]), *alone(0, ALICE_11[0]), *alone(0, ALICE[1])], 99)  # several authors
@example([*alone(0, NOBODY[0]), *alone(1, NOBODY[0], NOBODY_ELSE[0]), *alone(2, NOBODY[0]), *alone(0, NOBODY[1])], 99)
@example([*alone(0, ALICE[0]), *alone(1, HEARD, BOB[0], [2, 10, "r", "s", 0]), *alone(2, BOB[0])], 99)
@example([(0, ALICE[:2]), *alone(1, ALICE[2]), (0, ALICE[3:5]), (None, []), *alone(2, ALICE[4])], 4)
def test_gathered_messages_have_the_effects_of_single_ones(reads: list[Read], limit: int) -> None:
    assert after_turns(limit, reads, gathers=True) == after_turns(limit, reads, gathers=False)


@pytest.fixture
def logged(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[list[bytes]]:
    """The contents of the messages that were logged together."""
    runs: list[list[bytes]] = []
    extend = broker.core.log.extend

    def watch(entries: Sequence[Any]) -> None:
        if isinstance(entries[0], Message):
            runs.append([entry.content for entry in entries])
        extend(entries)

    monkeypatch.setattr(broker.core.log, "extend", watch)
    return runs


def request(row: list[Any]) -> bytes:
    return json.dumps([2, 8, "r", row, None], separators=(",", ":")).encode()


def test_messages_of_several_connections_in_one_turn_are_logged_together(
    broker: Broker, alice: Publisher, bob: Publisher, logged: list[list[bytes]]
) -> None:
    now, listener, turns = broker.clock(), broker.listener("s"), Turns(broker)
    for row in (alice.message("s", 1, now), bob.message("s", 2, now), unsigned("s", 3, now)):
        broker.open().receive_all([request(row)])
    assert (logged, broker.frames(listener)) == ([], [])
    turns.end()
    assert logged == [[b"1", b"2", b"3"]]
    assert [frame[3][7] for frame in broker.frames(listener)] == ["1", "2", "3"]


def test_chains_without_a_publisher_do_not_wait_for_the_index(
    broker: Broker, logged: list[list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections without a name publish at times of their own; none of that may be a copy of another's."""
    now, turns, speakers = broker.clock(), Turns(broker), [broker.open() for _ in range(3)]
    monkeypatch.setattr(broker.bus, "find", lambda named: pytest.fail(f"{named} is looked up"))
    for at in range(4):
        for n, speaker in enumerate(speakers):
            speaker.receive_data(request(unsigned("s", n, now + at - 3 * n, chain=f"c{n}")))
        turns.end()
    assert logged == [[b"0", b"1", b"2"]] * 4


def test_a_copy_is_found_while_the_first_is_gathered(
    broker: Broker, alice: Publisher, logged: list[list[bytes]]
) -> None:
    now, turns = broker.clock(), Turns(broker)
    for row in (alice.message("s", 1, now), unsigned("s", 2, now)):
        for _ in range(2):
            broker.open().receive_data(request(row))
    turns.end()
    assert sorted(logged) == [[b"1"], [b"2"]]


def test_a_resend_includes_messages_gathered_before_it(broker: Broker, alice: Publisher) -> None:
    Turns(broker)
    row = alice.message("s", 1, broker.clock())
    broker.open().receive_data(request(row))
    assert [frame[1] for frame in broker.ask(broker.open(), [2, 11, "q", "s", 0, 1, None])] == [4, 1, 5]
