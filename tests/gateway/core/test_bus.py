"""None"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.directs import DIRECT_ID_LIFETIME
from gateway.core.errors import Unavailable, UnknownChannel
from gateway.core.message import Message
from tests.gateway.core.bus_toys import Make, to

if TYPE_CHECKING:
    from tests.conftest import Core, EchoSession, ToySession


# Publishing


def test_a_message_reaches_all_sessions_but_the_publishing_one(
    core: Core, join: Make, echo_session: type[EchoSession]
) -> None:
    a, b, elsewhere = join("lobby"), join("lobby"), join("other")
    echoing = join("lobby", kind=echo_session)
    a.receive_data(b"1")
    echoing.receive_data(b"2")
    core.say(b"3")
    assert [session.take() for session in (a, b, elsewhere, echoing)] == [
        [("+", "lobby", 1), ("+", "lobby", 3), b"2", b"3"],
        [("+", "lobby", 3), b"1", b"2", b"3"],
        [],
        [b"1", b"2", b"3"],
    ]
    assert core.metrics.counts["deliveries"]["toy",] == 2 + 3 + 3


def test_a_message_reaches_another_session_of_the_same_identity(core: Core, join: Make) -> None:
    a, b = join("lobby"), join("lobby")
    alice = core.peers.identity("toy", "alice")
    core.bus.bind(a, alice)
    core.bus.bind(b, alice)
    a.take(), b.take()
    a.receive_data(b"1")
    assert (a.take(), b.take()) == ([], [b"1"])


def test_a_message_gets_its_seq_time_and_id(core: Core) -> None:
    first = core.say()
    second = core.say(timestamp=5, id="chosen")
    assert (first.seq, second.seq) == (2, 3)  # 1 is the channel's fact
    assert first.time == first.timestamp == core.clock.now
    assert (second.time, second.timestamp, second.id) == (core.clock.now, 5, "chosen")
    assert core.ids.seq(first.id) == 2


def test_time_never_decreases(core: Core) -> None:
    first = core.say()
    core.clock.now -= 1000
    second = core.say()
    core.clock.now += 1001
    third = core.say()
    assert (second.time - first.time, third.time - first.time) == (0, 1)


def test_time_continues_from_the_end_of_the_log(make_core: Callable[..., Core]) -> None:
    core = make_core()
    first = core.say()
    again = make_core()
    again.clock.now -= 5000
    assert again.say().time == first.time


def test_the_time_of_a_record_is_that_of_its_id_although_the_clock_went_back(make_core: Callable[..., Core]) -> None:
    core = make_core()
    moment = core.clock.now
    core.log.fact("counts", {"minute": 0, "flows": []})
    core.clock.now -= 5000
    message = core.say()
    core.log.fact("counts", {"minute": 1, "flows": []})
    core.clock.now -= 5000
    again = make_core()
    after = again.say()
    assert [message.time, after.time] == [moment, moment]
    assert [int(each.id[:13].replace("-", ""), 16) for each in (message, after)] == [moment, moment]


def test_a_submitted_message_may_be_logged_later(core: Core, join: Make) -> None:
    submitted: list[Any] = []
    core.bus.submit = lambda *run: submitted.append(run)
    listener, accepted = join("lobby"), list[int]()
    message = core.say(b"1")
    core.bus.acceptance.when_accepted(message, lambda: accepted.append(message.seq))
    core.sync()
    assert (listener.take(), accepted, message.seq) == ([], [], 0)
    (run,) = submitted
    core.clock.now += 7
    core.bus.take(run[0], run[1])
    assert (listener.take(), message.time) == ([b"1"], core.clock.now)
    core.sync()
    core.bus.acceptance.when_accepted(message, lambda: accepted.append(-1))
    assert accepted == [message.seq, -1]


def test_a_late_message_is_shown_to_its_own_protocol(core: Core, join: Make, echo_session: type[EchoSession]) -> None:
    a, other = join("lobby"), join("lobby", kind=echo_session)
    a.take()
    core.say(b"1", late=True)
    assert (a.take(), other.take()) == ([b"1"], [])


def test_no_message_is_accepted_while_the_log_is_congested(core: Core, join: Make) -> None:
    a = join("lobby")
    core.log.congested = True
    before = core.log.next_seq
    with pytest.raises(Unavailable):
        core.say(channel="another")
    assert (a.take(), core.log.next_seq, core.channels.registered()) == ([], before, [])
    assert core.bus.congested


def test_publishing_creates_no_channel_if_channels_are_only_configured(
    make_core: Callable[..., Core], toy_session: type[ToySession]
) -> None:
    core = make_core(create=False)
    session = toy_session(core.bus)
    with pytest.raises(UnknownChannel):
        core.say()
    with pytest.raises(UnknownChannel):
        core.bus.subscribe(session, "lobby")
    assert core.bus.active_channels() == []
    core.channels.configure("lobby")
    core.bus.subscribe(session, "lobby")
    core.say()
    assert session.take() == [b'"hi"']


UNFIT = object()


class Translator:
    """Counts the messages from elsewhere."""

    def __init__(self, name: str, answer: Any) -> None:
        self.name = name
        self.answer = answer
        self.seen: list[int] = []

    def describe(self, address: str) -> dict[str, Any]:
        return {f"{self.name} address": address}

    def resolve_id(self, id: str) -> str | None:
        del id
        return None

    def add_refs(self, run: Sequence[Message]) -> None:
        for message in run:
            self.seen.append(message.seq)
            if self.answer is UNFIT:
                message.undelivered += (self.name,)
            elif self.answer is not None:
                message.refs[self.name] = self.answer


def test_refs_of_bridged_forms_are_made_once_and_logged(core: Core) -> None:
    translators = [Translator("toy", 1), Translator("a", {"n": 1}), Translator("b", UNFIT), Translator("c", None)]
    core.bus.translators = list(translators)
    message = core.say()
    assert [each.seen for each in translators] == [[], [message.seq], [message.seq], [message.seq]]
    assert (message.refs, message.undelivered) == ({"a": {"n": 1}}, ("b",))
    core.settle()
    back = core.index.message(message.id)
    assert back is not None
    assert (back.refs, back.undelivered) == (message.refs, message.undelivered)
    assert core.metrics.counts["undeliverable"]["b",] == 1


def test_a_message_is_logged_before_it_is_delivered(core: Core, join: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    a = join("lobby")
    order: list[str] = []
    append = core.log.append

    def logged(message: Message) -> None:
        order.append("log")
        append(message)

    monkeypatch.setattr(core.log, "append", logged)
    monkeypatch.setattr(a, "deliver", lambda _message: order.append("deliver"))
    core.say()
    assert order[-2:] == ["log", "deliver"], "the channel was settled first"


def test_a_copy_is_recognised_before_and_after_it_is_indexed(core: Core) -> None:
    message = core.say(ids=("theirs",))
    receipt = core.bus.find("theirs")
    assert receipt == (message.seq, message.id, message.time, ())
    core.settle()
    assert core.bus.find("theirs") == receipt == core.bus.find(message.id)
    assert core.bus.find("another") is None


# Direct messages


def test_a_direct_message_reaches_one_peer_and_nothing_else(core: Core, join: Make) -> None:
    a, b, c = join("lobby"), join("lobby"), join("lobby")
    for session in (a, b, c):
        session.take()
    before = core.log.next_seq
    assert to(a, b.peer.number) == 1
    assert (a.take(), b.take(), c.take()) == ([], [b"1"], [])
    assert to(a, a.peer.number, b"2") == 1
    assert a.take() == [b"2"]
    assert to(a, 999) == 0
    core.bus.unsubscribe(b, "lobby")
    c.take()
    assert to(a, b.peer.number) == 0
    assert (b.take(), c.take(), core.log.next_seq) == ([], [], before)
    core.settle()
    assert core.index.history("lobby") == []
    assert core.metrics.counts["direct_messages"]["toy",] == 2


def test_a_direct_message_to_an_identity_or_a_connection_number(core: Core, join: Make) -> None:
    a, b, c = join("lobby"), join("lobby"), join("other")
    alice = core.peers.identity("toy", "alice")
    for session in (a, b, c):
        core.bus.bind(session, alice)
    a.take(), b.take()
    d = join("lobby")
    message = Message("lobby", d.who, "toy", b"1")
    assert core.bus.direct(message, alice.number) == 2
    assert message.target == alice
    assert (a.take()[1:], b.take()[1:], c.take()) == ([b"1"], [b"1"], [])
    message = Message("lobby", d.who, "toy", b"2")
    assert core.bus.direct(message, b.peer.number) == 1
    assert (message.target, a.take(), b.take()) == (b.peer, [], [b"2"])


def test_a_link_receives_no_direct_messages_for_its_identities(core: Core, join: Make) -> None:
    a, b = join("lobby"), join("lobby")
    alice = core.peers.identity("toy", "alice")
    core.bus.bind(b, alice)
    core.bus.bind(b, core.peers.identity("toy", "bob"))
    assert to(a, alice.number) == 0
    assert to(a, b.peer.number) == 1


def test_a_direct_message_that_a_protocol_cannot_carry_is_not_delivered(
    core: Core, join: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = join("lobby"), join("lobby")
    b.take()
    monkeypatch.setattr(b, "fits", lambda message: len(message.content) < 2)
    message = Message("lobby", a.who, "toy", b"22")
    assert core.bus.direct(message, b.peer.number) == 0
    assert (message.undelivered, b.take()) == (("toy",), [])
    assert core.metrics.counts["undeliverable"] == {("toy",): 1}
    assert to(a, b.peer.number) == 1
    assert b.take() == [b"1"]


def test_direct_messages_have_unique_ids_that_no_record_has(core: Core, join: Make) -> None:
    a, b = join("lobby"), join("lobby")
    messages = [Message("lobby", a.who, "toy", b"1") for _ in range(3)]
    for message in messages:
        core.bus.direct(message, b.peer.number)
    logged = [core.say(), core.say()]
    core.settle()
    assert len({message.id for message in (*messages, *logged)}) == 5
    assert [message.seq for message in messages] == [0, 0, 0]
    assert [core.index.find(message.id) for message in messages] == [None] * 3


def test_a_repeated_direct_message_is_not_delivered_and_answered_as_the_first(core: Core, join: Make) -> None:
    a, b = join("lobby"), join("lobby")
    assert to(a, b.peer.number, ids=("x", "y")) == 1
    b.take()
    assert to(a, b.peer.number, ids=("y",)) == 1
    assert b.take() == []
    core.clock.now += DIRECT_ID_LIFETIME
    core.bus.tick()
    assert to(a, b.peer.number, ids=("x",)) == 1
    assert b.take() == []
    core.clock.now += 1
    core.bus.tick()
    assert to(a, b.peer.number, ids=("x",)) == 1
    assert b.take() == [b"1"]


def test_a_direct_message_without_a_receiver_may_be_sent_again(core: Core, join: Make) -> None:
    a, b = join("lobby"), join()
    assert to(a, b.peer.number, ids=("x",)) == 0
    core.bus.subscribe(b, "lobby")
    assert to(a, b.peer.number, ids=("x",)) == 1


def test_the_memory_of_direct_messages_is_bounded(core: Core, join: Make) -> None:
    core.bus.directs._ids.limit = 10
    a, b = join("lobby"), join("lobby")
    for number in range(50):
        to(a, b.peer.number, ids=(str(number),))
    core.bus.tick()
    assert list(core.bus.directs._ids) == [str(number) for number in range(40, 50)]
