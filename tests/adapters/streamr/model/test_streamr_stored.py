"""Stored messages are read in the order of the protocol, from every source and before and after indexing."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.streamr.model import stored
from adapters.streamr.model.message_ids import BY_POSITION, BY_TIMESTAMP
from adapters.streamr.model.stored import (
    MAX_GROUP,
    NEWEST_FIRST,
    OLDEST_FIRST,
    SLICE,
    STEP_BYTES,
    ChainPosition,
    MessageRange,
)
from gateway.core.message import Message
from gateway.storage.index_queries import PAGE


def told(messages: Iterator[Message | None]) -> list[Any]:
    """The contents."""
    return [json.loads(message.content) for message in messages if message is not None]


def all_of_them(_message: Message) -> bool:
    return True


def publish(broker: Any, timestamp: int, content: Any, sequence: int = 0, chain: str = "") -> None:
    row = [32, ["s", 0, timestamp, sequence, "", chain], None, 27, 0, 0, None, json.dumps(content), None, 0, None]
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []


def test_messages_from_everywhere_are_in_one_order(broker: Any) -> None:
    now = broker.clock()
    broker.say("s", "theirs", timestamp=now - 50)
    publish(broker, now - 10, "second", 1)
    publish(broker, now - 10, "first", 0)
    publish(broker, now - 60, "oldest")
    broker.core.settle()
    publish(broker, now - 20, "waiting")
    broker.say("other", "elsewhere")
    everything = ["oldest", "theirs", "waiting", "first", "second"]
    assert told(broker.adapter.parts.stored.between("s", MessageRange())) == everything
    for count in range(7):
        assert told(broker.adapter.parts.stored.last("s", count, all_of_them)) == everything[max(0, 5 - count) :]


def test_the_ends_of_a_span_are_included(broker: Any) -> None:
    now = broker.clock()
    for step in range(3):
        for sequence in range(3):
            publish(broker, now + step, [step, sequence], sequence)
    span = MessageRange((now, 1), (now + 2, 0))
    assert told(broker.adapter.parts.stored.between("s", span)) == [[0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]


def test_messages_are_filtered_by_publisher_and_chain(broker: Any, alice: Any, bob: Any) -> None:
    now = broker.clock()
    for number, who in enumerate((alice, bob, alice)):
        row = who.message(
            "s", number, now + number, chain=f"c{number}", publisher=who.address.upper().replace("X", "x")
        )
        assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    bridged = broker.say("s", 3, timestamp=now)
    author = broker.adapter.bridge_signer.address(bridged)
    read = broker.adapter.parts.stored.between
    assert told(read("s", MessageRange(publisher=alice.address))) == [0, 2]
    assert told(read("s", MessageRange(publisher=alice.address, chain="c2"))) == [2]
    assert told(read("s", MessageRange(publisher=author, chain="toy"))) == [3]
    assert told(read("s", MessageRange(publisher=author, chain="c0"))) == []


def test_reordered_messages_are_read_in_the_order_of_their_chain(broker: Any) -> None:
    """A sender whose clock went back, or is ahead: the chain is in order all the same, and so are its messages."""
    sender, now = broker.toy().peer, broker.clock()
    times = [now - 100, now - 300, now + 9_000, now - 50]
    said = [broker.say("s", number, sender=sender, timestamp=time) for number, time in enumerate(times)]
    assert [message.refs["streamr"][:2] for message in said] == [[now - 100, 0], [now - 100, 1], [now, 0], [now, 1]]
    read = broker.adapter.parts.stored
    for _ in range(2):
        assert told(read.between("s", MessageRange())) == [0, 1, 2, 3]
        assert told(read.between("s", MessageRange((now - 100, 1), (now, 0)))) == [1, 2]
        assert told(read.last("s", 3, all_of_them)) == [1, 2, 3]
        broker.core.settle()


def test_undelivered_messages_are_neither_read_nor_counted(broker: Any) -> None:
    broker.say("s", "small")
    assert broker.say("s", "x" * (1 << 20)).undelivered == ("streamr",)
    for _ in range(2):
        assert told(broker.adapter.parts.stored.last("s", 1, all_of_them)) == ["small"]
        broker.core.settle()


def test_an_answer_has_the_messages_stored_at_its_request(broker: Any) -> None:
    now = broker.clock()
    publish(broker, now, "applied")
    broker.core.settle()
    publish(broker, now + 1, "waiting")
    answers = [
        broker.adapter.parts.stored.between("s", MessageRange()),
        broker.adapter.parts.stored.last("s", 5, all_of_them),
    ]
    publish(broker, now + 2, "later")
    broker.core.settle()
    assert [told(answer) for answer in answers] == [["applied", "waiting"]] * 2


def test_after_each_slice_others_have_their_turn(broker: Any) -> None:
    for number in range(10 * SLICE):
        publish(broker, broker.clock() + number, number)
    broker.core.settle()
    read = broker.adapter.parts.stored
    for answer in (
        read.between("s", MessageRange()),
        read.between("s", MessageRange(publisher="nobody")),
        read.last("s", 10 * SLICE, all_of_them),
    ):
        slices: list[int] = [0]
        for message in answer:
            slices.append(0) if message is None else slices.__setitem__(-1, slices[-1] + 1)
        assert len(slices) >= 10
        assert max(slices) <= SLICE


def test_a_long_message_fills_a_slice_by_itself(broker: Any) -> None:
    for _ in range(20):
        broker.clock.now += 1
        broker.say("s", "x" * (SLICE * STEP_BYTES))
    broker.core.settle()
    read = broker.adapter.parts.stored
    for answer in (read.between("s", MessageRange()), read.last("s", 20, all_of_them)):
        found = list(answer)
        assert found.count(None) >= 20
        assert not any(one is not None and two is not None for one, two in pairwise(found))


def test_one_crowded_millisecond_is_not_gathered_as_a_whole(broker: Any) -> None:
    count, now = 2 * MAX_GROUP + 5, broker.clock()
    for number in range(count):
        publish(broker, now, number, number)
    broker.core.settle()
    assert told(broker.adapter.parts.stored.between("s", MessageRange())) == list(range(count))
    assert told(broker.adapter.parts.stored.last("s", count - 3, all_of_them)) == list(range(3, count))


def test_a_long_answer_takes_no_memory(broker: Any) -> None:
    for _ in range(4 * PAGE):
        broker.clock.now += 1
        broker.say("s", "x" * 4_000)
    broker.core.settle()
    read = broker.adapter.parts.stored
    tracemalloc.start()
    assert sum(message is not None for message in read.last("s", 1_000_000, all_of_them)) == 4 * PAGE
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < PAGE * 4_000, "less than a quarter of it"


def test_long_messages_of_one_millisecond_are_not_held_together(broker: Any) -> None:
    """Who publishes chooses the timestamps: 256 messages of 1 MiB could be said to be made in the same one."""
    count, size, now = 40, 100_000, broker.clock()
    for sequence in reversed(range(count)):
        publish(broker, now, [sequence, "x" * size], sequence)
    broker.core.settle()
    read = broker.adapter.parts.stored
    tracemalloc.start()
    found = [json.loads(each.content)[0] for each in read.between("s", MessageRange()) if each is not None]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == list(range(count))
    assert peak < count * size, "less than what they say, which is half of what they take"


def test_the_place_of_a_message_goes_with_its_record(broker: Any) -> None:
    first = broker.say("s", 1)
    moved = broker.say("s", 2, sender=first.sender, timestamp=first.timestamp - 1000)
    broker.core.settle()
    assert broker.core.index.rows("SELECT seq FROM streamr_places") == [(moved.seq,)]
    broker.core.index._tables.prune(moved.seq + 1)
    assert broker.core.index.rows("SELECT seq FROM streamr_places") == []


def test_every_statement_uses_an_index(broker: Any) -> None:
    for sql in (*OLDEST_FIRST, *NEWEST_FIRST, BY_TIMESTAMP, BY_POSITION):
        plan = [row[3] for row in broker.core.index.rows(f"EXPLAIN QUERY PLAN {sql}", ("s", 0, 0, PAGE))]
        assert plan
        assert all(step.startswith("SEARCH") for step in plan), plan


# fmt: off
saying = st.one_of(
    st.tuples(st.just("streamr"), st.integers(-5, 5), st.integers(0, 2)),
    st.tuples(st.just("toy"), st.integers(-5, 5), st.integers(0, 1)),
    st.just(("finish_compaction", 0, 0)),
)
# fmt: on


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(saying, max_size=14), span=st.tuples(*[st.tuples(st.integers(-6, 6), st.integers(0, 2))] * 2))
def test_any_history_is_read_like_a_sorted_list(
    make_broker: Callable[..., Any], steps: list[Any], span: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "PAGE", 3)
    monkeypatch.setattr(stored, "MAX_GROUP_SIZE", 2)  # numbers: what is beyond is read again
    monkeypatch.setattr(stored, "MAX_KEPT_SIZE", 4)
    broker = make_broker()
    now = broker.clock()
    toys = [broker.toy().peer for _ in range(2)]
    channel = f"s{broker.bus.ledger.next_seq}"  # the same gateway each time
    model: list[tuple[ChainPosition, int, int]] = []
    for number, (kind, offset, which) in enumerate(steps):
        if kind == "finish_compaction":
            broker.core.settle()
            continue
        if kind == "toy":
            said = broker.say(channel, number, sender=toys[which], timestamp=now + offset)
        else:
            row = [32, [channel, 0, now + offset, which, "", ""], None, 27, 0, 0, None, str(number), None, 0, None]
            assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
            index = broker.core.index
            said = (index.unapplied(channel) or index.history(channel, limit=1, newest_first=True))[-1]
        model.append((broker.adapter.parts.forms.position(said), said.seq, number))
    model.sort(key=lambda entry: (entry[0][:2], entry[1]))
    wanted = MessageRange((now + span[0][0], span[0][1]), (now + span[1][0], span[1][1]))
    read = broker.adapter.parts.stored
    assert told(read.between(channel, wanted)) == [number for place, _, number in model if wanted.contains(place)]
    for count in range(len(model) + 2):
        assert (
            told(read.last(channel, count, all_of_them))
            == [number for *_, number in model][max(0, len(model) - count) :]
        )
