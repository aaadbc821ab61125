"""What the transport of a cluster sends."""

from __future__ import annotations

from types import SimpleNamespace

from gateway.cluster.signals import TurnRequest, decode_signal
from gateway.jetstream.connecting import JetStreamSettings
from gateway.jetstream.reader import StreamEntry
from gateway.membership.transport import JetStreamTransport


def test_a_wish_for_the_turn_names_the_batches_that_were_read_before() -> None:
    transport, told = JetStreamTransport(JetStreamSettings("main", ("nats://127.0.0.1:4222",))), list[bytes]()
    transport._stream = SimpleNamespace(tell=lambda data, _to: told.append(data))  # type: ignore[assignment]
    transport.want("one@1", 3)
    assert [decode_signal(data) for data in told] == [TurnRequest("one@1", 3)]


def test_the_turn_is_told_whether_more_was_received() -> None:
    """Also of what came in another portion meanwhile."""
    transport, told = (
        JetStreamTransport(JetStreamSettings("main", ("nats://127.0.0.1:4222",))),
        list[tuple[bytes, bool]](),
    )
    transport._turn = SimpleNamespace(arrived=lambda data, has_more: told.append((data, has_more)))  # type: ignore[assignment]
    transport._stream = SimpleNamespace(acknowledge_read=lambda _: None)  # type: ignore[assignment]
    transport._came([StreamEntry(1, 0, b"1"), StreamEntry(2, 0, b"2")])
    transport._came([StreamEntry(3, 0, b"3")])
    while (call := transport.receive(0)) is not None:
        call()
    assert told == [(b"1", True), (b"2", True), (b"3", False)]
