"""What the load generator for Streamr says is what genuine clients say."""

from __future__ import annotations

from adapters.streamr.crypto.signing import verify
from adapters.streamr.wire.codec import decode_control
from adapters.streamr.wire.control import PublishRequest
from benchmarks.streamr import Timestamps
from benchmarks.streamr_load import messages

HEAD = 8  # bytes of a client's frame before a payload of this size


def test_messages_are_signed_distinct_and_of_one_length() -> None:
    for signed in (True, False):
        frames = messages(30, signed=signed, start=1_795_236_878_000)
        assert len({len(frame) for frame in frames}) == 1
        found = [decode_control(frame[HEAD:]) for frame in frames]
        said = [frame.message for frame in found if isinstance(frame, PublishRequest)]
        assert len({message.id for message in said}) == 30
        assert all(verify(message) is signed for message in said)


def test_no_round_repeats_what_another_said() -> None:
    timestamps = Timestamps()
    starts = [timestamps.take(count) for count in (40_000, 40_000, 10_000)]
    assert starts[1] - starts[0] > 40_000 // 10
    assert starts[2] - starts[1] > 40_000 // 10
