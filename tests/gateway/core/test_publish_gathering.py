"""Single messages are gathered until the turn of the loop ends, and published as runs of several senders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.errors import RequestError, Unavailable
from gateway.core.message import Message
from gateway.http.publish import find_key

if TYPE_CHECKING:
    from tests.conftest import Core, EchoSession, ToySession


class GatheringBus:
    """Sessions that listen to `lobby` and `hall`, and a turn of the loop that ends when a test says so."""

    def __init__(self, core: Core, *kinds: type[ToySession]) -> None:
        self.core = core
        self.due: list[Callable[[], None]] = []
        core.bus.gathering.at_turn_end = self.gather
        self.sessions = [kind(core.bus) for kind in kinds]
        for session in self.sessions:
            for channel in ("lobby", "hall"):
                core.bus.subscribe(session, channel)
        self.runs: list[list[bytes]] = []
        self.refused: list[tuple[bytes, str]] = []
        extend = core.log.extend

        def logged(run: Sequence[Any]) -> None:
            if isinstance(run[0], Message):
                self.runs.append([message.content for message in run])
            extend(run)

        core.log.extend = logged  # type: ignore[method-assign, assignment]
        self.heard()

    def say(self, who: int, content: bytes, channel: str = "lobby") -> None:
        session = self.sessions[who]
        said = Message(channel, session.who, session.protocol, content)
        self.core.bus.publish_alone(said, session, lambda error: self.refused.append((content, str(error))))

    def gather(self, call: Callable[[], None], _always: bool) -> bool:
        self.due.append(call)
        return True

    def end_turn(self) -> None:
        while self.due:
            self.due.pop()()

    def heard(self) -> list[list[Any]]:
        return [session.take() for session in self.sessions]


@pytest.fixture
def room(core: Core, toy_session: type[ToySession]) -> GatheringBus:
    for channel in ("lobby", "hall"):
        core.channels.register(channel)
    return GatheringBus(core, *[toy_session] * 3)


def test_messages_of_one_turn_are_logged_together_and_reach_all_others(room: GatheringBus) -> None:
    for who, content in ((0, b"1"), (1, b"2"), (0, b"3")):
        room.say(who, content)
    assert (room.runs, room.heard()) == ([], [[], [], []])
    room.end_turn()
    assert room.runs == [[b"1", b"2", b"3"]]
    assert room.heard() == [[b"2"], [b"1", b"3"], [b"1", b"2", b"3"]]
    assert room.core.metrics.counts["deliveries"]["toy",] == 6


def test_a_sender_that_goes_to_another_channel_keeps_its_order(room: GatheringBus) -> None:
    room.say(1, b"1", "hall")
    room.say(0, b"2")
    room.say(0, b"3", "hall")
    room.end_turn()
    assert room.runs == [[b"1"], [b"2"], [b"3"]]


def test_a_channel_keeps_its_order_across_protocols(
    core: Core, toy_session: type[ToySession], echo_session: type[EchoSession]
) -> None:
    room = GatheringBus(core, toy_session, echo_session, toy_session)
    for who, content in enumerate((b"1", b"2", b"3")):
        room.say(who, content)
    room.end_turn()
    assert room.runs[-3:] == [[b"1"], [b"2"], [b"3"]]
    assert room.heard()[1] == [b"1", b"2", b"3"], "its protocol hears itself"


ACTS: list[Callable[[GatheringBus], object]] = [
    lambda room: room.core.bus.unsubscribe(room.sessions[2], "lobby"),
    lambda room: room.sessions[2].receive_eof(),
    lambda room: room.core.bus.publish(Message("lobby", room.sessions[1].who, "toy", b"2"), room.sessions[1]),
    lambda room: room.core.bus.publish(Message("hall", room.sessions[0].who, "toy", b"2"), room.sessions[0]),
    lambda room: room.core.bus.direct(Message("hall", room.sessions[0].who, "toy", b"2"), 77),
    lambda room: room.core.bus.bind(room.sessions[0], room.core.peers.identity("toy", "alice")),
    lambda room: room.core.bus.find("anything"),
]


@pytest.mark.parametrize("act", ACTS)
def test_actions_that_depend_on_gathered_messages_come_after_them(
    room: GatheringBus, act: Callable[[GatheringBus], object]
) -> None:
    room.say(0, b"1")
    act(room)
    assert room.runs[0] == [b"1"]
    assert b"1" in room.sessions[1].heard


def test_a_newcomer_does_not_receive_earlier_messages(room: GatheringBus, toy_session: type[ToySession]) -> None:
    room.say(0, b"1")
    late = toy_session(room.core.bus)
    room.core.bus.subscribe(late, "lobby")
    room.end_turn()
    assert late.take() == []


def test_a_message_that_cannot_be_published_is_refused_alone(room: GatheringBus) -> None:
    class Picky:
        name = "picky"

        def add_refs(self, run: Sequence[Message]) -> None:
            for message in run:
                message.undelivered += (self.name,)
                if message.content == b"2":
                    raise Unavailable("not now")

    room.core.bus.translators = [Picky()]  # type: ignore[list-item]
    for who, content in enumerate((b"1", b"2", b"3")):
        room.say(who, content)
    room.end_turn()
    assert (room.runs, room.refused) == ([[b"1"], [b"3"]], [(b"2", "not now")])
    room.core.settle()
    kept = room.core.index.history("lobby")
    assert [(m.content, m.undelivered) for m in kept] == [(b"1", ("picky",)), (b"3", ("picky",))]
    assert all(room.core.ids.seq(m.id) == m.seq for m in kept)


def test_a_log_that_takes_nothing_refuses_at_once(room: GatheringBus) -> None:
    room.core.log.congested, room.core.log.failing = True, "full"
    with pytest.raises(RequestError, match="full"):
        room.say(0, b"1")
    room.core.log.congested, room.core.log.failing = False, None


def test_messages_of_programs_are_gathered_across_channels_and_found_by_their_keys(room: GatheringBus) -> None:
    bus, peer = room.core.bus, room.core.peers.identity("rest", "ada")
    for channel, content, key in (("lobby", b"1", "a"), ("hall", b"2", None), ("lobby", b"3", None)):
        said = Message(channel, peer, "rest", content, key=key)
        bus.publish_alone(said, None, lambda error: room.refused.append((b"", str(error))))
    assert find_key(bus, "b") is None
    assert room.runs == [], "no message with this key was gathered"
    found = find_key(bus, "a")
    assert room.runs == [[b"1", b"3"], [b"2"]]
    assert (found is not None, room.refused) == (True, [])
    assert room.heard()[0] == [b"1", b"3", b"2"]


def test_a_fault_at_the_end_of_the_turn_refuses_every_affected_message(room: GatheringBus) -> None:
    class Broken:
        name = "broken"

        def add_refs(self, run: Sequence[Message]) -> None:
            if run[0].channel == "lobby":
                raise KeyError

    room.core.bus.translators = [Broken()]  # type: ignore[list-item]
    room.say(0, b"1")
    room.say(1, b"2")
    room.say(2, b"3", "hall")
    room.end_turn()
    assert (room.runs, [content for content, _ in room.refused]) == ([[b"3"]], [b"1", b"2"])
    assert "the gateway has a fault" in room.refused[0][1]


def test_messages_that_were_taken_together_are_accepted_together(room: GatheringBus) -> None:
    bus, told, calls = room.core.bus, list[str](), list[int]()
    when_synced = room.core.log.when_synced

    def count(seq: int, *more: Any) -> None:
        calls.append(seq)
        when_synced(seq, *more)

    room.core.log.when_synced = count  # type: ignore[method-assign, assignment]
    for who in range(3):
        said = Message("lobby", room.sessions[who].who, "toy", b"%d" % who)
        bus.publish_alone(said, room.sessions[who], lambda _error: None)
        bus.acceptance.when_accepted(said, partial(told.remove if who == 1 else told.append, f"{who}"), lambda: None)
    room.end_turn()
    assert len(calls) == 1
    room.core.sync()
    assert told == ["0", "2"], "a bug in one of those that wait harms no other"
