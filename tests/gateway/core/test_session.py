from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.errors import Forbidden, NotSubscribed, ProtocolError, Throttled, Unavailable
from gateway.core.message import Form, Message, PendingForm
from gateway.core.outbox import BURST_FACTOR, LOW_WATER, MAX_STREAMS
from gateway.core.presence import JOIN_NOTICES_PER_REQUEST, LEAVE_NOTICES_PER_REQUEST
from gateway.core.principal import Principal
from gateway.core.session import Session

if TYPE_CHECKING:
    from tests.conftest import Core, ToySession


@pytest.fixture
def session(core: Core, toy_session: type[ToySession]) -> ToySession:
    return toy_session(core.bus)


def pending(*holders: Session) -> PendingForm:
    form = PendingForm()
    for holder in holders:
        holder.put(form)
    return form


# Order


def test_frames_leave_in_order_and_once(session: ToySession) -> None:
    session.send(b"1")
    session.put(b"2")
    session.send(b"3")
    assert session.wakes == 1
    assert session.has_more
    assert session.data_to_send() == [b"1", b"2", b"3"]
    assert (session.data_to_send(), session.has_more) == ([], False)
    session.put(b"4")
    assert session.wakes == 2


def test_a_pending_form_keeps_its_place(session: ToySession) -> None:
    session.send(b"1")
    first, second = pending(session), pending(session)
    session.send(b"4")
    assert session.data_to_send() == [b"1"]
    assert not session.has_more
    wakes = session.wakes
    second.fill(b"3")
    assert (session.wakes, session.has_more, session.data_to_send()) == (wakes, False, [])
    first.fill(b"2")
    assert (session.wakes, session.has_more) == (wakes + 1, True)
    assert session.data_to_send() == [b"2", b"3", b"4"]
    assert session._size == 0


def test_a_form_that_cannot_be_made_is_skipped(session: ToySession) -> None:
    failed, done, never = pending(session), PendingForm(), PendingForm()
    done.fill(b"1")
    never.fill(None)
    session.put(done)
    session.put(never)
    failed.fill(None)
    assert session.data_to_send() == [b"1"]
    assert not session.has_more


def test_a_form_holds_back_one_connection_alone(core: Core, toy_session: type[ToySession]) -> None:
    a, b = toy_session(core.bus), toy_session(core.bus)
    form = pending(a)
    b.put(b"1")
    a.put(b"1")
    assert (a.data_to_send(), b.data_to_send()) == ([], [b"1"])
    form.fill(b"0")
    assert a.data_to_send() == [b"0", b"1"]


# Streams


def test_no_more_forms_than_a_portion_leave_at_once(session: ToySession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(session), "max_portion", 2)
    session.send(b"a")
    session.send(b"b")
    form = pending(session)
    session.send(b"c")
    session.stream(iter([b"e", b"f"]))
    assert session.data_to_send() == [b"a", b"b"]
    assert session.data_to_send() == []  # the form holds back what follows
    form.fill(b"-")
    assert [session.data_to_send() for _ in range(3)] == [[b"-", b"c"], [b"e", b"f"], []]
    assert (session.waiting_bytes, session.has_more) == (0, False)


def test_a_stream_is_pulled_no_faster_than_it_is_read(session: ToySession) -> None:
    pulled = 0

    def frames() -> Iterator[Form]:
        nonlocal pulled
        for number in range(100):
            pulled += 1
            yield b"%04d" % number * (LOW_WATER // 16)

    session.stream(frames())
    assert (pulled, session.wakes) == (0, 1)
    out: list[bytes] = []
    while session.has_more:
        before = pulled
        out += session.data_to_send()
        assert pulled - before <= 5
    assert [frame[:4] for frame in out] == [b"%04d" % number for number in range(100)]
    assert session._size == 0


def test_other_output_comes_between_the_frames_of_a_stream(session: ToySession) -> None:
    session.stream(iter([b"a" * LOW_WATER, b"b" * LOW_WATER, b"c"]))
    session.stream(iter([b"d"]))
    out = [frame[:1] for frame in session.data_to_send()]
    session.send(b"x")
    while session.has_more:
        out += [frame[:1] for frame in session.data_to_send()]
    assert out == [b"a", b"x", b"b", b"c", b"d"]


def test_a_stream_waits_for_a_pending_form(session: ToySession) -> None:
    form, done, never = PendingForm(), PendingForm(), PendingForm()
    done.fill(b"3")
    never.fill(None)
    session.stream(iter([b"1", form, never, done, b"4"]))
    assert session.data_to_send() == [b"1"]
    session.send(b"x")
    assert (session.data_to_send(), session.has_more) == ([], False)
    wakes = session.wakes
    form.fill(b"2")
    assert session.wakes == wakes + 1
    assert session.data_to_send() == [b"2", b"x", b"3", b"4"]
    assert (session._size, session._pending_count) == (0, 0)


def test_a_stream_that_fails_ends_the_connection(session: ToySession) -> None:
    def frames() -> Iterator[Form]:
        yield b"1"
        raise Unavailable("the index cannot be read")

    session.stream(frames())
    assert session.data_to_send() == [b"1"]
    assert session.closing is not None
    assert session.closing.code == 1011
    assert not session.has_more


# Bounds


@pytest.mark.parametrize("late", [False, True])
def test_a_reader_that_never_reads_is_closed(core: Core, session: ToySession, late: bool) -> None:
    forms = [PendingForm() for _ in range(30)]
    held = PendingForm()
    if late:
        session.put(held)
    for form in forms:
        if not late:
            form.fill(b"x" * 100_000)
        session.put(form)
    for form in forms:
        if not form.done:
            form.fill(b"x" * 100_000)
    assert session.closing is not None
    assert session.closing.code == 1013
    assert core.metrics.counts["overflows"]["toy",] == 1
    held.fill(b"late")
    session.put(b"more")
    assert (session.data_to_send(), session._size, session._pending_count) == ([], 0, 0)


def test_a_peer_that_was_sent_much_at_once_is_not_too_slow(session: ToySession) -> None:
    """Before the shell could write nothing is judged but a multiple of the limit; then who does not read is."""
    session.blocked = False
    piece = b"x" * (session.max_outbox // 2)
    for _ in range(2 * BURST_FACTOR):
        session.put(piece)
    assert session.closing is None
    session.put(piece)
    assert session.closing is not None
    assert session.closing.code == 1013


def test_reaching_the_limit_exactly_is_no_overflow(session: ToySession) -> None:
    session.put(b"x" * session.max_outbox)
    assert session.closing is None
    session.put(b"x")
    assert session.closing is not None


def test_replies_exert_backpressure(core: Core, session: ToySession, toy_session: type[ToySession]) -> None:
    listener = toy_session(core.bus)
    core.bus.subscribe(listener, "lobby")
    session.send(b"x" * (LOW_WATER - 1))
    assert session.ask_to_read()
    session.receive_data(b"1")
    session.send(b"x")
    assert not session.ask_to_read()
    session.receive_data(b"2")
    session.receive_data(b"3")
    assert listener.take() == [b"1"]
    session.data_to_send()
    assert listener.take() == [b"2", b"3"]
    assert session.ask_to_read()


def test_nothing_is_kept_for_a_peer_that_is_gone(session: ToySession) -> None:
    form = pending(session)
    session.put(b"x" * 1000)
    session.receive_eof()
    assert session.held_size == session.waiting == 0
    form.fill(b"late")
    assert session.held_size == session.waiting == 0


def test_replies_alone_never_overflow(session: ToySession) -> None:
    for _ in range(3):
        session.send(b"x" * session.max_outbox)
    assert session.closing is None


def test_too_many_streams_exert_backpressure(session: ToySession) -> None:
    for _ in range(MAX_STREAMS):
        assert session.ask_to_read()
        session.stream(iter([b"x"]))
    assert not session.ask_to_read()
    session.data_to_send()
    assert session.ask_to_read()


# The end


def test_data_queued_before_the_close_is_still_written(session: ToySession) -> None:
    session.send(b"1")
    session.close(1000, "enough")
    session.close(1011, "too late")
    session.put(b"no delivery")
    session.receive_data(b"ignored")
    assert session.closing == (1000, "enough")
    assert session.data_to_send() == [b"1"]
    assert session.wakes == 2


def test_lost_framing_ends_the_connection(session: ToySession, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(_data: bytes) -> None:
        session.send(b"farewell")
        raise ProtocolError("no idea where the next line begins")

    monkeypatch.setattr(session, "handle", handle)
    session.receive_data(b"1")
    session.receive_data(b"2")
    assert session.closing == (1002, "no idea where the next line begins")
    assert session.data_to_send() == [b"farewell"]


def test_the_backlog_is_dropped_at_the_end(core: Core, session: ToySession) -> None:
    session.send(b"x" * LOW_WATER)
    session.receive_data(b"1")
    session.close(1000, "")
    session.receive_data(b"2")
    session.data_to_send()
    assert core.log.next_seq == 2  # a block of numbers; nothing was published


def test_goodbye_closes_the_session_with_1001(session: ToySession) -> None:
    session.goodbye()
    assert session.closing is not None
    assert session.closing.code == 1001


def test_after_the_end_no_shell_is_woken(core: Core, session: ToySession) -> None:
    form = pending(session)
    session.stream(iter([b"1"]))
    session.receive_eof()
    wakes = session.wakes
    form.fill(b"1")
    session.send(b"2")
    assert session.wakes == wakes
    assert core.bus.session_count == 0


# Leave


def test_every_request_is_checked(core: Core, session: ToySession) -> None:
    asked: list[tuple[Any, ...]] = []
    answers: list[Any] = [True, True, False]
    waits = [0.0, 2.5]

    def allowed(*question: Any) -> bool:
        asked.append(question)
        return bool(answers.pop(0))

    core.bus.allowed = allowed
    core.bus.throttle = lambda *_question: waits.pop(0)
    session.check("publish", "lobby")
    with pytest.raises(Throttled) as throttled:
        session.check("publish", "lobby")
    assert throttled.value.retry_after_seconds == 2.5
    with pytest.raises(Forbidden) as forbidden:
        session.check("direct", "lobby")
    assert (forbidden.value.verb, forbidden.value.channel) == ("direct", "lobby")
    assert asked == [(session.principal, verb, "lobby") for verb in ("publish", "publish", "direct")]


def test_leaving_a_crowd_is_charged_for_every_notice(core: Core, toy_session: type[ToySession]) -> None:
    charged: list[tuple[str, float]] = []
    core.bus.charge = lambda network, requests: charged.append((network, requests))
    crowd = [toy_session(core.bus) for _ in range(3 * LEAVE_NOTICES_PER_REQUEST)]
    for each in crowd:
        core.bus.subscribe(each, "lobby")
    crowd.pop().stop_listening("lobby")
    assert charged == [("", 3 - 1 / LEAVE_NOTICES_PER_REQUEST)]
    crowd.pop().receive_eof()
    with pytest.raises(NotSubscribed):
        crowd[0].stop_listening("elsewhere")
    assert len(charged) == 1, "connections that end, and refused requests, cost nothing"


def test_joining_a_crowd_is_charged_for_every_notice(core: Core, toy_session: type[ToySession]) -> None:
    """To join and to hang up, again and again, would otherwise tell thousands for two requests."""
    for _ in range(2 * JOIN_NOTICES_PER_REQUEST):
        core.bus.subscribe(toy_session(core.bus), "lobby")
    charged: list[tuple[str, float]] = []
    core.bus.charge = lambda network, requests: charged.append((network, requests))
    newcomer = toy_session(core.bus)
    core.bus.subscribe(newcomer, "lobby")
    newcomer.receive_eof()
    assert charged == [("", 2)]


def test_by_default_presence_sends_nothing(core: Core) -> None:
    class Quiet(Session):
        protocol = "quiet"

        def handle(self, data: bytes) -> None:
            self.send(data)

        def deliver(self, message: Message) -> None:
            self.put(message.content)

    a, b = (Quiet(core.bus, Principal("anonymous")) for _ in range(2))
    core.bus.subscribe(a, "lobby")
    core.bus.subscribe(b, "lobby")
    core.bus.leave(b)
    a.tick(1)
    assert a.data_to_send() == []
    a.receive_data(b"echo")
    core.say()
    assert a.data_to_send() == [b"echo", b'"hi"']


def test_memory_kept_for_a_peer_is_counted_and_can_be_released(session: ToySession) -> None:
    assert session.held_size == 0
    session.send(b"x" * LOW_WATER)
    session.receive_data(b"y" * 1000)
    assert session.held_size == LOW_WATER + 1000
    session.stream(iter([b"z"]))
    session.release_memory()
    assert session.held_size == 0
    assert session.closing is not None
    assert session.closing.code == 1013
    assert session.data_to_send() == []
