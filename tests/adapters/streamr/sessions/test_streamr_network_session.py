"""What a node of the network layer makes the gateway do and hold is bounded."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

from adapters.streamr.sessions.network_session import MAX_STATUS, MAX_WRAPPED, NetworkSession
from gateway.adapter import ConnectionRequest
from gateway.core.frames import payload, text_frame
from gateway.core.principal import Principal

COUNT = 4 * MAX_WRAPPED + 1


def node(broker: Any) -> NetworkSession:
    session = broker.adapter.accept(ConnectionRequest(Principal("streamr:anonymous"), "/network", {}, {}))
    assert isinstance(session, NetworkSession)
    return session


def numbered(*numbers: int) -> list[bytes]:
    return [text_frame(b"[2,0,%d]" % number) for number in numbers]


def numbers_in(frames: list[bytes]) -> list[int]:
    return [json.loads(payload(frame))[3][2] for frame in frames]


def test_a_full_outbox_is_wrapped_a_little_in_each_turn(broker: Any) -> None:
    """Eight thousand frames, which fill it, took 50 ms at once."""
    one, written = node(broker), list[bool]()
    one.blocked = False
    for frame in numbered(*range(COUNT)):
        one.send(frame)
    one.stream(iter(numbered(COUNT, COUNT + 1)))
    one.when_written(lambda: written.append(True))
    size, heard = one.waiting_bytes, list[int]()
    while one.has_more:
        assert not written
        pieces = one.data_to_send()
        assert len(pieces) <= MAX_WRAPPED
        heard += numbers_in(pieces)
        size -= sum(len(text_frame(b"[2,0,%d]" % number)) for number in numbers_in(pieces) if number < COUNT)
        assert one.waiting_bytes == size
    assert heard == list(range(COUNT + 2))
    assert written == [True]


def test_a_status_takes_no_more_memory_than_its_text_and_counts(broker: Any) -> None:
    """Its values took 98 kB, of which the budget did not know."""
    nodes = [node(broker) for _ in range(20)]
    status: Any = {"a": [{}] * 1_300}
    text = json.dumps(["4.4.3", 0, "one", status]).encode()
    nodes[0].receive_data(text)
    tracemalloc.start()
    try:
        for each in nodes[1:]:
            each.receive_data(text)
        assert tracemalloc.get_traced_memory()[0] < len(nodes) * 4 * MAX_STATUS
    finally:
        tracemalloc.stop()
    assert nodes[0].held_size >= 3 * 1_300
    assert nodes[0]._nodes.report()[0]["status"] == status
    nodes[0].receive_data(json.dumps(["4.4.3", 0, "one", "x" * MAX_STATUS]).encode())
    assert nodes[0]._nodes.report()[0]["status"] == f"{MAX_STATUS + 2} bytes"
