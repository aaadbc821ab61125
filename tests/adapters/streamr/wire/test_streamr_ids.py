"""Names: channels and streams, inboxes, key exchange, partitions by key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.streamr.wire import ids
from adapters.streamr.wire.partition import partition_of

ADDRESS = "0x2c7536E3605D9C16a7a3D7b1898e529396a65c23"
names = st.text(min_size=1) | st.text("a#01", min_size=1)


@pytest.mark.parametrize(
    ("stream", "channel"),
    [
        (("s", 0), "s"),
        (("s", 3), "s#3"),
        (("s#3", 0), "s#3#0"),
        (("s#3", 1), "s#3#1"),
        (("s#3#0", 0), "s#3#0#0"),
        (("s#0", 0), "s#0"),
        (("s#03", 0), "s#03"),
        (("#3", 0), "#3"),
        (("s#", 0), "s#"),
        (("s#" + "9" * 5000, 0), "s#" + "9" * 5000),
    ],
)
def test_a_stream_partition_is_one_channel(stream: tuple[str, int], channel: str) -> None:
    assert ids.channel_of(*stream) == channel
    assert ids.stream_of(channel) == stream


@given(names, st.integers(0, 2**53 - 1) | st.just(0))
def test_every_stream_partition_survives_the_round_trip(stream_id: str, partition: int) -> None:
    assert ids.stream_of(ids.channel_of(stream_id, partition)) == (stream_id, partition)


@given(names)
def test_every_channel_name_survives_the_round_trip(channel: str) -> None:
    assert ids.channel_of(*ids.stream_of(channel)) == channel


@pytest.mark.parametrize("peer", [0, 7, 10**15])
def test_an_inbox_names_its_peer(peer: int) -> None:
    assert ids.inbox_of(ids.inbox_id("a/@b", peer)) == ids.Inbox("a/@b", peer)


def test_an_inbox_may_name_an_address() -> None:
    assert ids.inbox_of(ids.inbox_id("s", ADDRESS)) == ids.Inbox("s", ADDRESS.lower())


@pytest.mark.parametrize("stream_id", ["s", "s/@", "/@7", "s/@07", "s/@x", "s/@-1", "s/@0x12", "s/@" + "9" * 5000])
def test_inbox_of_returns_none_for_other_stream_ids(stream_id: str) -> None:
    assert ids.inbox_of(stream_id) is None


def test_a_key_exchange_stream_belongs_to_an_address() -> None:
    assert ids.key_exchange_address("SYSTEM/keyexchange/" + ADDRESS) == ADDRESS.lower()
    assert ids.key_exchange_address("SYSTEM/keyexchange") is None
    assert ids.key_exchange_address("s") is None


@pytest.mark.parametrize(("key", "partition"), [("a", 4), ("b", 1), ("key-1", 2)])
def test_a_key_has_the_partition_genuine_clients_give_it(key: str, partition: int) -> None:
    assert partition_of(key, 5) == partition
    assert partition_of(key, 1) == 0


@given(st.text(st.characters(codec=None)), st.integers(1, 1000))
def test_any_key_has_a_partition(key: str, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
