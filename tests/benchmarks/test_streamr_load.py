"""Streamr messages of the load equal those of genuine clients."""

from __future__ import annotations

from adapters.streamr.crypto.signing import verify
from adapters.streamr.wire.codec import decode_control
from adapters.streamr.wire.control import PublishRequest
from adapters.streamr.wire.message import StreamMessage
from benchmarks.generator import SIZE
from benchmarks.streamr_load import SignedMessages, request


def message(text: bytes) -> StreamMessage:
    frame = decode_control(text)
    assert isinstance(frame, PublishRequest)
    return frame.message


def test_messages_are_signed_and_no_round_repeats_one() -> None:
    sign = SignedMessages(30)
    said = [message(text) for _ in range(2) for text in sign()]
    assert all(verify(each) for each in said)
    assert len({each.id for each in said}) == 60
    places = [(each.id.timestamp, each.id.sequence_number) for each in said]
    assert places == sorted(places)
    assert {len(each.content) for each in said} == {SIZE}


def test_an_unsigned_message_has_no_signature() -> None:
    assert not verify(message(request(1_795_236_878_000, 0, signed=False)))
