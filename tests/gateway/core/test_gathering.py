"""What comes alone is gathered until the turn of the loop ends, and published as runs of several senders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.errors import RequestError, Unavailable
from gateway.core.message import Message

if TYPE_CHECKING:
    from tests.conftest import Core, EchoSession, ToySession


class Room:
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

    def gather(self, call: Callable[[], None]) -> bool:
        self.due.append(call)
        return True

    def end_turn(self) -> None:
        while self.due:
            self.due.pop()()

    def heard(self) -> list[list[Any]]:
        return [session.take() for session in self.sessions]


@pytest.fixture
def room(core: Core, toy_session: type[ToySession]) -> Room:
    for channel in ("lobby", "hall"):
        core.channels.register(channel)
    return Room(core, *[toy_session] * 3)


def test_what_several_say_in_a_turn_is_logged_at_once_and_heard_by_all_others(room: Room) -> None:
    for who, content in ((0, b"1"), (1, b"2"), (0, b"3")):
        room.say(who, content)
    assert (room.runs, room.heard()) == ([], [[], [], []])
    room.end_turn()
    assert room.runs == [[b"1", b"2", b"3"]]
    assert room.heard() == [[b"2"], [b"1", b"3"], [b"1", b"2", b"3"]]
    assert room.core.metrics.counts["deliveries"]["toy",] == 6


def test_a_sender_that_goes_to_another_channel_keeps_its_order(room: Room) -> None:
    room.say(1, b"1", "hall")
    room.say(0, b"2")
    room.say(0, b"3", "hall")
    room.end_turn()
    assert room.runs == [[b"1"], [b"2"], [b"3"]]


def test_a_channel_keeps_its_order_across_protocols(
    core: Core, toy_session: type[ToySession], echo_session: type[EchoSession]
) -> None:
    room = Room(core, toy_session, echo_session, toy_session)
    for who, content in enumerate((b"1", b"2", b"3")):
        room.say(who, content)
    room.end_turn()
    assert room.runs[-3:] == [[b"1"], [b"2"], [b"3"]]
    assert room.heard()[1] == [b"1", b"2", b"3"], "its protocol hears itself"


ACTS: list[Callable[[Room], object]] = [
    lambda room: room.core.bus.unsubscribe(room.sessions[2], "lobby"),
    lambda room: room.sessions[2].receive_eof(),
    lambda room: room.core.bus.publish(Message("lobby", room.sessions[1].who, "toy", b"2"), room.sessions[1]),
    lambda room: room.core.bus.publish(Message("hall", room.sessions[0].who, "toy", b"2"), room.sessions[0]),
    lambda room: room.core.bus.direct(Message("hall", room.sessions[0].who, "toy", b"2"), 77),
    lambda room: room.core.bus.bind(room.sessions[0], room.core.peers.identity("toy", "alice")),
    lambda room: room.core.bus.find("anything"),
]


@pytest.mark.parametrize("act", ACTS)
def test_what_depends_on_it_comes_after_it(room: Room, act: Callable[[Room], object]) -> None:
    room.say(0, b"1")
    act(room)
    assert room.runs[0] == [b"1"]
    assert b"1" in room.sessions[1].heard


def test_a_newcomer_does_not_hear_what_was_said_before(room: Room, toy_session: type[ToySession]) -> None:
    room.say(0, b"1")
    late = toy_session(room.core.bus)
    room.core.bus.subscribe(late, "lobby")
    room.end_turn()
    assert late.take() == []


def test_what_cannot_be_published_is_refused_alone(room: Room) -> None:
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


def test_a_log_that_takes_nothing_refuses_at_once(room: Room) -> None:
    room.core.log.congested, room.core.log.failing = True, "full"
    with pytest.raises(RequestError, match="full"):
        room.say(0, b"1")
    room.core.log.congested, room.core.log.failing = False, None
