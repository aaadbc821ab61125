"""A status with many stream partitions is applied in slices, between which other connections are served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.streamr.sessions.tracker_session import MAX_PARTS, SLICE, TrackerSession
from gateway.adapter import ConnectionRequest
from gateway.core.frames import payload
from gateway.core.principal import Principal

NAMES = [f"s/{number}" for number in range(MAX_PARTS)]


def node(broker: Any, name: str) -> TrackerSession:
    session = broker.adapter.accept(ConnectionRequest(Principal("streamr:anonymous"), "/tracker", {"id": name}, {}))
    assert isinstance(session, TrackerSession)
    return session


def report(session: TrackerSession, id: str, names: list[str]) -> None:
    session.receive_data(json.dumps([2, 1, id, {"streams": names}]).encode())


def heard(session: TrackerSession) -> list[Any]:
    return [json.loads(payload(frame)) for frame in session.data_to_send()]


def finish(broker: Any, session: TrackerSession) -> int:
    """Run all slices; return how many there were."""
    count = 0
    while session.overloaded:
        broker.core.posted.get(timeout=10)()
        count += 1
    return count


def test_a_short_status_is_answered_at_once(broker: Any) -> None:
    one = node(broker, "one")
    report(one, "r", NAMES[: SLICE - 1])
    assert not one.overloaded
    assert len(heard(one)) == SLICE - 1


def test_a_long_one_takes_a_slice_at_a_time(broker: Any) -> None:
    one, other = node(broker, "one"), node(broker, "other")
    report(one, "r", NAMES)
    assert one.overloaded
    assert heard(one) == []
    report(other, "o", NAMES[:1])
    assert [frame[2] for frame in heard(other)] == ["o"], "others are served meanwhile"
    assert finish(broker, one) >= 2 * MAX_PARTS / SLICE
    frames = heard(one)
    assert [frame[3] for frame in frames] == NAMES
    assert frames[0][5] == ["other"]


def test_messages_sent_during_a_status_are_handled_next(broker: Any) -> None:
    one = node(broker, "one")
    report(one, "first", NAMES)
    report(one, "second", NAMES[:1])
    assert not one.ask_to_read()
    finish(broker, one)
    assert [frame[2] for frame in heard(one)] == ["first"] * MAX_PARTS  # the credit is used up
    assert dict(broker.adapter.report())["tracker"] == [{"node": "one", "streams": 1}]


def test_a_status_counts_as_one_request_for_each_partition_that_it_names(broker: Any) -> None:
    charged: list[float] = []
    broker.core.bus.charge = lambda _network, requests: charged.append(requests)
    one = node(broker, "one")
    for names in (NAMES[:1], NAMES[:5], NAMES):
        report(one, "r", names)
        finish(broker, one)
    assert charged == [4, MAX_PARTS - 1]


def test_a_refused_status_changes_nothing(make_broker: Any) -> None:
    broker = make_broker(grants={"streamr:anonymous": ("subscribe:s/*", "!subscribe:s/999")})
    one = node(broker, "one")
    report(one, "r", NAMES)
    finish(broker, one)
    [error] = heard(one)
    assert error[2] == "r"
    assert "s/999" in error[5]
    assert broker.adapter.report()["tracker"] == [{"node": "one", "streams": 0}]


@pytest.mark.parametrize("slices", [0, 1, 25, 45])
def test_a_node_that_goes_away_in_the_middle_leaves_nothing_behind(broker: Any, slices: int) -> None:
    one, other = node(broker, "one"), node(broker, "other")
    report(one, "r", NAMES)
    for _ in range(slices):
        broker.core.posted.get(timeout=10)()
    one.receive_eof()
    finish(broker, one)
    broker.core.posted.drain()
    report(other, "o", NAMES)
    finish(broker, other)
    frames = heard(other)
    assert len(frames) == MAX_PARTS
    assert all(frame[5] == [] for frame in frames)
