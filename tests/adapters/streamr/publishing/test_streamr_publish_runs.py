"""Messages that arrive together have the effects of single ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.streamr.crypto import batch
from adapters.streamr.publishing import publish_runs
from adapters.streamr.publishing.validation import MAX_AHEAD
from adapters.streamr.wire.codec import decode_publish_fast
from gateway.core.message import LATE_AFTER, Message, Peer
from gateway.core.outbox import LOW_WATER
from tests.adapters.streamr.conftest import Broker, Publisher, unsigned
from tests.adapters.streamr.publishing.run_messages import (
    ALICE,
    ANSWER,
    CUT_ANEW,
    FORGED,
    HALF_SIGNED,
    HEARD,
    NOW,
    SPOILT,
    SPOILT_ALICE,
    after,
    at_once,
    frames,
    one_by_one,
    says,
)


@pytest.fixture(autouse=True, scope="module")
def few() -> Iterator[None]:
    """Signatures are checked together as soon as there are two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "MIN_BATCH", 2)
        yield


@pytest.mark.slow
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(frames(), st.integers(3, 12), st.booleans())
@example([*ALICE[:3], *says("bob", 0, 1), *ALICE[3:5]], 99, True)  # two publishers, of whom the connection is neither
@example([*says("alice", 0, token="bob"), *ALICE[1:3], *says("alice", 3, 3, 2, token="bob")], 99, True)
@example([*says(None, 0, 1, 1, 2), *says(None, 3, token="alice"), *says("alice", 3, 4, token="alice")], 99, True)
@example([*says(None, 0, 1), *HALF_SIGNED, *says(None, 4)], 99, True)
@example([HEARD, *ALICE[:3], [2, 10, "r", "s", 0], ALICE[5], ALICE[4]], 99, True)
@example([HEARD, *ALICE[:2], SPOILT_ALICE[0], *ALICE[3:5]], 99, True)
@example([*ALICE[:2], ANSWER, *ALICE[4:6]], 99, True)  # to what came at once with it
@example([HEARD, *ALICE[:2], FORGED, *ALICE[3:5]], 99, True)  # who is refused hears that in its turn
@example([*ALICE[:1], *SPOILT_ALICE, *ALICE[7:]], 99, True)
@example([*ALICE[:5], *says(None, 5, 6, 7)], 4, True)
@example(
    [*says("alice", 0, 1, stream="closed", encryption=2, group_key="k"), *says("alice", 2, stream="closed")], 99, True
)
@example([*says("alice", 0, stream="s1"), *says("bob", 1), CUT_ANEW, *says("alice", 2, 3, partition=10)], 99, True)
@example([HEARD, *ALICE[:2], FORGED, *ALICE[3:5]], 99, False)
@example([*ALICE[:1], *SPOILT_ALICE, *ALICE[7:]], 99, False)
def test_a_run_has_the_effects_of_single_messages(said: list[Any], limit: int, together: bool) -> None:
    assert after(limit, said, at_once, together=together) == after(limit, said, one_by_one)


def test_messages_of_one_publisher_are_published_as_one_run(
    broker: Broker, alice: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the property would compare nothing."""
    sizes: list[int] = []
    publish = broker.bus.publish_run

    def watch(run: list[Message], origin: Any) -> None:
        sizes.append(len(run))
        publish(run, origin)

    monkeypatch.setattr(broker.bus, "publish_run", watch)
    now, speaker = broker.clock(), broker.open()
    rows = [alice.message("s", number, now + number) for number in range(9)]
    plain = [unsigned("s", number, now + number) for number in range(4)]
    texts = [json.dumps([2, 8, "r", row, None], separators=(",", ":")).encode() for row in (*rows, *plain)]
    speaker.receive_all(texts[:1])
    speaker.receive_all(texts[1:])
    assert sizes == [1, 8, 4]
    assert broker.frames(speaker) == []


@pytest.mark.parametrize("who", ["alice", None])
@pytest.mark.parametrize("edge", [-LATE_AFTER, MAX_AHEAD, -60_000], ids=["late", "ahead", "kept"])
def test_a_run_has_the_time_limits_of_single_messages(edge: int, who: str | None) -> None:
    said = [HEARD, *says(who, *range(edge - 3, edge + 4))]
    expected = after(99, said, one_by_one, kept_since=NOW - 60_000)
    assert after(99, said, at_once, kept_since=NOW - 60_000) == expected


@pytest.mark.parametrize("options", [{}, {"batch_verification": False}, {"batch_verification": True}])
def test_the_setting_decides_whether_signatures_are_checked_together(
    options: dict[str, bool], make_broker: Callable[..., Broker], alice: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    equations: list[int] = []
    solve = batch.common_address

    def watch(claims: Sequence[batch.Claim]) -> str | None:
        equations.append(len(claims))
        return solve(claims)

    monkeypatch.setattr(batch, "common_address", watch)
    broker = make_broker(**options)
    speaker, toy = broker.open(), broker.toy("s")
    rows = [alice.message("s", number, broker.clock() + number) for number in range(5)]
    rows[3] = SPOILT["forged"](rows[3])
    texts = [json.dumps([2, 8, "r", row, None], separators=(",", ":")).encode() for row in rows]
    speaker.receive_data(texts[0])
    speaker.receive_all(texts[1:])
    assert toy.take() == [b"0", b"1", b"2", b"4"]
    assert [frame[1] for frame in broker.frames(speaker)] == [7]
    assert equations == ([4] if options.get("batch_verification") else [])


def test_only_messages_like_the_first_continue_a_run(broker: Broker, alice: Publisher) -> None:
    now, speaker = broker.clock(), broker.open()
    row = alice.message("s", 1, now + 1)
    first = decode_publish_fast(
        json.dumps([2, 8, "r", alice.message("s", 1, now), None], separators=(",", ":")).encode()
    )
    assert first is not None
    parts = broker.adapter.parts
    run = publish_runs.PublishRun.begin(parts.context, parts.publish_handler, speaker, first, speaker)
    assert run is not None
    run.add(run.first)

    def continues(place: tuple[int, ...], value: Any) -> bool:
        frame: Any = [2, 8, "r", [row[0], [*row[1]], *row[2:]], None]
        at = frame
        for index in place[:-1]:
            at = at[index]
        at[place[-1]] = value
        wire = json.dumps(frame, separators=(",", ":")).encode()
        assert decode_publish_fast(wire) is not None, place
        return run.read(wire) is not None

    varies = {(2,): "other", (3, 1, 2): now + 2, (3, 1, 3): 5, (3, 2): [1, 0], (3, 7): "2", (3, 10): "0x1b"}
    assert all(continues(*each) for each in varies.items())
    others: dict[tuple[int, ...], Any] = {
        (3, 1, 0): "t",
        (3, 1, 1): 1,
        (3, 1, 4): alice.address.upper(),
        (3, 1, 5): "d",
    }
    others |= {(3, 3): 28, (3, 5): 2, (3, 6): "key", (3, 9): 1, (3, 10): None, (4,): "token"}
    for place, value in others.items():
        assert not continues(place, value), place


def test_messages_over_the_rate_are_not_verified(
    make_broker: Callable[..., Broker], alice: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, verified = make_broker(batch_verification=True), list[int]()
    monkeypatch.setattr(publish_runs, "mark_verified", lambda _, messages: verified.append(len(messages)))
    speaker, tokens = broker.open(), iter(range(4))
    broker.bus.throttle = lambda _, peer, __: float(peer.number == speaker.peer.number and next(tokens, None) is None)
    rows = [alice.message("s", number, broker.clock() + number) for number in range(9)]
    speaker.receive_all([json.dumps([2, 8, "r", row, None], separators=(",", ":")).encode() for row in rows])
    assert verified[0] == 4
    assert not any(verified[1:])
    assert len(broker.frames(speaker)) == 5


def test_forged_messages_are_handled_only_as_fast_as_their_errors_are_read(broker: Broker, alice: Publisher) -> None:
    rows = [alice.message("s", "1", broker.clock() + number) for number in range(1_000)]
    forged = [[*row[:7], "2", *row[8:]] for row in rows[1:]]
    speaker = broker.open()
    texts = [json.dumps([2, 8, "r", row, None], separators=(",", ":")).encode() for row in (rows[0], *forged)]
    speaker.receive_data(texts[0])
    speaker.receive_all(texts[1:])
    told = len(speaker.data_to_send())
    assert LOW_WATER < 600 * told < 3 * LOW_WATER, "the rest is looked at when these errors are read"
    while more := len(speaker.data_to_send()):
        told += more
    assert told == len(forged)


def test_messages_behind_a_full_outbox_wait_in_order(broker: Broker, alice: Publisher) -> None:
    now, speaker, toy = broker.clock(), broker.open(), broker.toy("s")
    rows = [alice.message("s", number, now + number) for number in range(3)]
    first, second, third = (json.dumps([2, 8, "r", row, None], separators=(",", ":")).encode() for row in rows)
    speaker.receive_data(first)
    refused = [json.dumps([2, 8, "x" * 1_000, rows[0][:3], None]).encode()] * (LOW_WATER // 1_000 + 1)
    speaker.receive_all([second, *refused, third])
    assert toy.take() == [b"0", b"1"], "its outbox is full of errors"
    assert broker.frames(speaker)
    assert toy.take() == [b"2"]
    speaker.close(1000, "enough")
    speaker.receive_all([second, third])
    assert toy.take() == []


def test_bridged_messages_republished_in_a_burst_are_copies(broker: Broker, alice: Publisher) -> None:
    reader, toy, speaker = broker.listener("s"), broker.toy("s"), broker.open()
    broker.say("s", 12, sender=Peer(7, "toy", "somebody"))
    [[_, _, _, copy]] = broker.frames(reader)
    rows = [*(alice.message("s", number, broker.clock() + number) for number in range(2)), copy, copy]
    toy.take()
    speaker.receive_all([json.dumps([2, 8, "r", row, None], separators=(",", ":")).encode() for row in rows])
    assert broker.frames(speaker) == []
    assert toy.take() == [b"0", b"1"]


def test_an_inbox_subscription_receives_nothing_else(broker: Broker) -> None:
    reader = broker.open()
    inbox, said = f"s/@{reader.peer.number}", []
    for number, (kind, stream) in enumerate([(9, inbox), (9, "s"), (10, "s"), (9, "s"), (10, inbox), (10, "s")]):
        assert len(broker.ask(reader, [2, kind, "r", stream, 0, None])) == 1
        broker.say("s", number)
        said += [json.loads(frame[3][7]) for frame in broker.frames(reader)]
    assert said == [1, 3, 4]


def test_a_run_is_refused_as_a_whole(broker: Broker, alice: Publisher) -> None:
    now, speaker, toy = broker.clock(), broker.open(), broker.toy("s")
    rows = [alice.message("s", number, now + number) for number in range(4)]
    texts = [json.dumps([2, 8, f"r{n}", row, None], separators=(",", ":")).encode() for n, row in enumerate(rows)]
    speaker.receive_data(texts[0])
    request = decode_publish_fast(texts[1])
    assert request is not None
    parts = broker.adapter.parts
    run = publish_runs.PublishRun.begin(parts.context, parts.publish_handler, speaker, request, speaker)
    assert run is not None
    run.add(run.first)
    for text in texts[2:]:
        said = run.read(text)
        assert said is not None
        run.add(said)
    broker.core.log.congested = True
    run.publish()
    broker.core.log.congested = False
    assert [(frame[1], frame[2], frame[4]) for frame in broker.frames(speaker)] == [
        (7, f"r{number}", "REQUEST_FAILED") for number in (1, 2, 3)
    ]
    assert toy.take() == [b"0"]
