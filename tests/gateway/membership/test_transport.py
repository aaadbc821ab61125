"""What the transport of a cluster sends."""

from __future__ import annotations

from types import SimpleNamespace

from gateway.cluster.signals import TurnRequest, decode_signal
from gateway.jetstream.connecting import JetStreamSettings
from gateway.membership.transport import JetStreamTransport


def test_a_wish_for_the_turn_names_the_batches_that_were_read_before() -> None:
    transport, told = JetStreamTransport(JetStreamSettings("main", ("nats://127.0.0.1:4222",))), list[bytes]()
    transport._stream = SimpleNamespace(tell=lambda data, _to: told.append(data))  # type: ignore[assignment]
    transport.want("one@1", 3)
    assert [decode_signal(data) for data in told] == [TurnRequest("one@1", 3)]
