"""Traces record when a message was logged, on disk, queued and written, while its channel is traced."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gateway.core import trace
from gateway.core.errors import Throttled
from gateway.core.message import Message, PendingForm
from gateway.core.trace import Tracer


@pytest.fixture
def now() -> list[int]:
    return [1_000_000]


@pytest.fixture
def tracer(core: Any, now: list[int]) -> Tracer:
    return Tracer(core.bus, partial(core.log.when_synced, hurry=False), lambda: now[0])


def test_a_message_is_followed_to_each_connection(core: Any, tracer: Tracer, toy_session: Any, now: list[int]) -> None:
    sender, near, far = (toy_session(core.bus) for _ in range(3))
    for session in (sender, near, far):
        core.bus.subscribe(session, "lobby")
    tracer.start("lobby")
    message = core.bus.publish(Message("lobby", sender.who, "toy", b'"hi"'), sender)
    (found,) = tracer.traces("lobby")
    assert (found.id, found.seq, found.received) == (message.id, message.seq, message.time * 1000)
    assert (found.logged, found.synced) == (1_000_000, None)
    assert [each.peer for each in found.deliveries] == [near.who, far.who], "not to the sender"
    assert [each.written for each in found.deliveries] == [None, None]
    now[0] = 1_000_700
    near.data_to_send()
    core.sync()
    assert [each.written for each in found.deliveries] == [1_000_700, None]
    assert tracer.find(message.id) is found
    assert found.synced == 1_000_700


def test_a_form_that_is_made_later_is_written_later(
    core: Any, tracer: Tracer, toy_session: Any, now: list[int]
) -> None:
    pending = PendingForm()

    class Slow(toy_session):  # type: ignore[misc]
        def deliver(self, message: Message) -> None:
            self.put(message.form("slow", lambda _message, _key: pending))

    listener = Slow(core.bus)
    core.bus.subscribe(listener, "lobby")
    tracer.start("lobby")
    core.say()
    (delivery,) = tracer.traces("lobby")[0].deliveries
    listener.data_to_send()
    assert delivery.written is None
    pending.fill(b"made")
    now[0] += 5
    assert listener.data_to_send() == [b"made"]
    assert delivery.written == now[0]


def test_a_channel_is_traced_for_a_minute_and_others_are_not(
    core: Any, tracer: Tracer, toy_session: Any, now: list[int]
) -> None:
    listener = toy_session(core.bus)
    core.bus.subscribe(listener, "lobby")
    assert tracer.start("lobby") == now[0] // 1000 + 60_000
    core.say(channel="elsewhere")
    core.say()
    now[0] += 60_000_000
    tracer.tick()
    assert tracer.end("lobby") is None
    core.say()
    assert len(tracer.traces("lobby")) == 1
    assert tracer.traces("elsewhere") == []
    assert core.bus.tracers == {}
    assert listener.heard == [b'"hi"', b'"hi"'], "what is traced is delivered as ever"


def test_traces_are_bounded(core: Any, tracer: Tracer, toy_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_DELIVERIES", 2)
    for _ in range(3):
        core.bus.subscribe(toy_session(core.bus), "lobby")
    tracer.start("lobby")
    for _ in range(trace.MAX_MESSAGES + 1):
        core.say()
    kept = tracer.traces("lobby")
    assert len(kept) == trace.MAX_MESSAGES
    assert (len(kept[0].deliveries), kept[0].unlisted) == (2, 1)
    for n in range(trace.MAX_CHANNELS - 1):
        tracer.start(f"other {n}")
    with pytest.raises(Throttled) as refusal:
        tracer.start("one too many")
    assert refusal.value.retry_after_seconds == 60
    tracer.start("lobby")
