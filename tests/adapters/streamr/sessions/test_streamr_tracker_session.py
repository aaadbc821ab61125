"""Nodes on a real bus report streams to the tracker and receive their neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.streamr.sessions import tracker_session
from adapters.streamr.sessions.tracker_session import MAX_NAME, TrackerSession
from adapters.streamr.sessions.tracker_topology import Topology
from adapters.streamr.wire import tracker
from gateway.access.throttle import Throttle
from gateway.adapter import ConnectionRequest
from gateway.core.frames import payload
from gateway.core.principal import Principal
from gateway.settings.limits import Limits, Rate
from tests.adapters.streamr.wire.tracker_messages import PARTS, nearly


class TrackedNode:
    """A connected node."""

    def __init__(self, broker: Any, principal: str = "streamr:anonymous", where: str = "", **query: str) -> None:
        headers = {"host": "gateway.example:8080"}
        session = broker.adapter.accept(ConnectionRequest(Principal(principal, where), "/tracker", query, headers))
        assert isinstance(session, TrackerSession)
        self.session = session
        self._posted = broker.core.posted

    def ask(self, *frame: Any) -> list[Any]:
        self.session.receive_data(json.dumps(frame).encode())
        while self.session._work is not None:  # a status is being applied
            self._posted.get(timeout=10)()
        return self.heard()

    def told(self) -> list[Any]:
        """What it hears when a second is over."""
        self.session.tick(0)
        while self.session._sending:
            self._posted.get(timeout=10)()
        return self.heard()

    def heard(self) -> list[Any]:
        return [json.loads(payload(frame)) for frame in self.session.data_to_send()]


def test_a_status_is_answered_with_neighbours_and_a_rising_counter(broker: Any) -> None:
    one, two = TrackedNode(broker, address="ws://one"), TrackedNode(broker, address="ws://two")
    [first] = one.ask(2, 1, "r1", {"streams": {"my/s::3": {"inboundNodes": []}}})
    assert first[:6] == [2, 2, "r1", "my/s", 3, []]
    [second] = two.ask(2, 1, "r2", {"streams": {"my/s::3": {}}})
    assert second[:6] == [2, 2, "r2", "my/s", 3, ["ws://one"]]
    [told] = one.told()
    assert told[3:6] == ["my/s", 3, ["ws://two"]]
    two.session.receive_eof()
    [left] = one.told()
    assert left[3:6] == ["my/s", 3, []]
    assert first[6] < min(second[6], told[6]) <= max(second[6], told[6]) < left[6]
    [again] = one.ask(2, 1, "r3", {"streams": {"my/s::3": {}}})
    assert again[:3] == [2, 2, "r3"]
    assert again[6] > left[6]


def test_the_counter_is_higher_after_a_restart(make_broker: Callable[..., Any]) -> None:
    broker = make_broker()
    before = max(TrackedNode(broker).ask(2, 1, "r", {"streams": ["s"]})[0][6] for _ in range(5))
    broker.clock.now += 1_000
    after = make_broker()
    after.clock.now = broker.clock.now
    assert TrackedNode(after).ask(2, 1, "r", {"streams": ["s"]})[0][6] > before


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("offset", [0, tracker.S0_OFFSET])
def test_each_node_is_answered_in_its_version_and_numbers(broker: Any, version: int, offset: int) -> None:
    node = TrackedNode(broker)
    [told] = node.ask(version, 1 + offset, {"streams": ["s"], "started": 0, "rtts": {}})
    assert (told[:2], told[3:6]) == ([version, 2 + offset], ["s", 0, []])
    assert told[2] == str(told[6]), "a status without a requestId is answered with an id of our own"
    answer = node.ask(version, 3 + offset, "r", "s", 0)
    assert answer == [[version, 4 + offset, "r", "s", 0, ["ws://gateway.example:8080/network"]]]


def test_an_unknown_partition_has_no_storage_nodes(broker: Any) -> None:
    assert TrackedNode(broker).ask(2, 3, "r", "s", 1) == [[2, 4, "r", "s", 1, []]]


@pytest.mark.parametrize(
    ("streams", "expected"),
    [
        ([], []),
        (["s", "t::2", "u::x", "::1"], [("s", 0), ("t", 2), ("u::x", 0), ("::1", 0)]),
        ([{"streamId": "s", "streamPartition": 1}, {"id": "t"}], [("s", 1), ("t", 0)]),
        ({"a::b::1": {}}, [("a::b", 1)]),
    ],
)
def test_streams_are_reported_in_any_known_form(broker: Any, streams: Any, expected: list[tuple[str, int]]) -> None:
    assert [tuple(answer[3:5]) for answer in TrackedNode(broker).ask(2, 1, "r", {"streams": streams})] == expected


@pytest.mark.parametrize("streams", [7, "s", [7], [None], {"": {}}, [{"streamId": 7}], [{"id": "s", "partition": -1}]])
def test_invalid_streams_are_refused_and_the_node_stays_connected(broker: Any, streams: Any) -> None:
    node = TrackedNode(broker, id="n")
    [refused] = node.ask(2, 1, "r", {"streams": streams})
    assert refused[:5] == [2, 6, "r", "INVALID_REQUEST", "n"]
    assert refused[5].startswith("Expected ")
    assert node.ask(2, 3, "r", "s", 0)[0][1] == 4


def test_a_single_stream_status_adds_to_what_was_reported(broker: Any) -> None:
    node, other = TrackedNode(broker), TrackedNode(broker)
    node.ask(2, 1, "r", {"streams": {"s::0": {}}})
    node.ask(2, 1, "r", {"streams": {"t::0": {}}, "singleStream": True})
    assert other.ask(2, 1, "r", {"streams": ["s"]})[0][5] == [node.session.name]
    node.ask(2, 1, "r", {"streams": {"t::0": {}}})
    assert other.told()[-1][3:6] == ["s", 0, []]


def test_messages_are_relayed_to_the_node_that_they_are_for(broker: Any) -> None:
    one, two = TrackedNode(broker, id="one"), TrackedNode(broker, id="two")
    offer = [2, 5, "r", {"peerId": "one"}, "two", "rtcOffer", {"description": "d"}]
    assert one.ask(*offer) == []
    assert two.heard() == [offer]
    two.session.receive_eof()
    assert one.ask(*offer)[0][:4] == [2, 6, "r", "RTC_UNKNOWN_PEER"]


def test_a_reconnected_node_receives_messages_to_its_name(broker: Any) -> None:
    one, old, new = TrackedNode(broker, id="one"), TrackedNode(broker, id="two"), TrackedNode(broker, id="two")
    old.session.receive_eof()
    offer = [2, 5, "r", {"peerId": "one"}, "two", "rtcOffer", {}]
    assert one.ask(*offer) == []
    assert new.heard() == [offer]


@pytest.mark.parametrize(
    "frame", [[2, 2, "r", "s", 0, [], 1], [2, 15, "r", "s", 0, [], 1], [2, 4, "r", "s", 0, []], [2, 6, "r", "X", "n"]]
)
def test_messages_that_only_trackers_send_are_refused(broker: Any, frame: list[Any]) -> None:
    [answer] = TrackedNode(broker).ask(*frame)
    assert answer[:4] == [2, 6, "r", "INVALID_REQUEST"]
    assert answer[5] == f"Unknown request type: {frame[1]}", "as the node wrote it"


def test_an_invalid_node_name_is_replaced_by_the_peer_number(broker: Any) -> None:
    for name in ("x" * (MAX_NAME + 1), "tab\t", ""):
        session = TrackedNode(broker, id=name).session
        assert session.name == str(session.peer.number)


def test_a_status_requires_the_right_for_each_stream(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(grants={"streamr:k": ("subscribe:s",)})
    refusal = broker.adapter.accept(ConnectionRequest(Principal("streamr:anonymous"), "/tracker", {}, {}))
    assert (refusal.status, refusal.text.startswith("the tracker is only for peers with some right")) == (403, True)
    node = TrackedNode(broker, "streamr:k")
    assert node.ask(2, 1, "r", {"streams": ["s"]})[0][1] == 2
    assert node.ask(2, 1, "r", {"streams": ["s", "t"]})[0][1:4] == [6, "r", "PERMISSION_DENIED"]


def test_the_number_of_reported_streams_of_a_node_is_bounded(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_session, "MAX_PARTS", 2)
    node = TrackedNode(broker)
    assert node.ask(2, 1, "r", {"streams": ["a", "b", "c"]})[0][1] == 6
    assert node.ask(2, 1, "r", {"streams": ["a", "b"]})[0][1] == 2
    assert node.ask(2, 1, "r", {"streams": ["c"], "singleStream": True})[0][1] == 6


def test_a_node_cannot_take_the_name_of_another_principal(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(grants={f"streamr:{name}": ("subscribe:s",) for name in "kl"})
    one, two = TrackedNode(broker, "streamr:k", id="n"), TrackedNode(broker, "streamr:l", id="n")
    again = TrackedNode(broker, "streamr:k", id="n")
    assert [node.session.name for node in (one, two, again)] == ["n", str(two.session.peer.number), "n"]


@pytest.mark.slow
def test_the_number_of_instructions_after_a_status_is_bounded(broker: Any) -> None:
    """Fifty bytes were answered by an instruction for each of the stream partitions that were ever reported."""
    node, others = (
        TrackedNode(broker, id="n" * MAX_NAME),
        [TrackedNode(broker, id=str(n) + "o" * 200) for n in range(9)],
    )
    streams = [f"{number:03}{'s' * 50}" for number in range(tracker_session.MAX_PARTS)]
    for each in (node, *others):
        assert len(each.ask(2, 1, "r", {"streams": streams})) == tracker_session.BURST
    for each in (node, *others):
        each.session._credit = tracker_session.BURST
        each.told()
    small = json.dumps([2, 1, "r", {"singleStream": True, "streams": {}}]).encode()
    answers = 0
    for _ in range(1_000):
        node.session.receive_data(small)
        answers += len(node.heard())
    assert answers == 0
    for number in range(20):  # what is reported again is answered, at a rate
        answers += len(node.ask(2, 1, f"r{number}", {"streams": streams}))
    assert answers <= tracker_session.BURST
    for _ in range(10):
        node.ask(2, 1, "r", {"streams": []})
        node.ask(2, 1, "r", {"streams": streams})
    told = [len(each.told()) for each in others]
    assert max(told) <= tracker_session.BURST, "however often it changed meanwhile"
    assert node.session.closing is None


def test_instructions_over_the_rate_are_sent_later_with_the_newest_state(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_session, "BURST", 3)
    monkeypatch.setattr(tracker_session, "INSTRUCTIONS_PER_SECOND", 2)
    node, other = TrackedNode(broker, id="n"), TrackedNode(broker, id="o")
    assert [answer[3] for answer in node.ask(2, 1, "r", {"streams": list("abcdef")})] == ["a", "b", "c"]
    other.ask(2, 1, "r", {"streams": ["e", "x"]})
    told = [[(answer[3], answer[5]) for answer in node.told()] for _ in range(3)]
    assert told == [[("d", []), ("e", ["o"])], [("f", [])], []]


def test_reported_names_are_bounded_for_each_node_network_and_in_total(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_session, "MAX_NAME_BYTES", 100)
    monkeypatch.setattr(tracker_session, "MAX_NETWORK_NAME_BYTES", 150)
    monkeypatch.setattr(tracker_session, "MAX_TOTAL_NAME_BYTES", 250)
    here, there = [TrackedNode(broker) for _ in range(3)], TrackedNode(broker, where="192.0.2.2")
    assert "names of at most 100 bytes" in here[0].ask(2, 1, "r", {"streams": ["x" * 101]})[0][5]
    for node, taken in zip(here, (2, 6, 6), strict=True):
        assert node.ask(2, 1, "r", {"streams": ["x" * 100]})[0][1] == taken
    assert there.ask(2, 1, "r", {"streams": ["x" * 100]})[0][1] == 2
    assert broker.adapter.tracker.reserved == 200
    here[0].session.receive_eof()
    assert here[1].ask(2, 1, "r", {"streams": ["x" * 100]})[0][1] == 2


def test_an_oversized_relayed_message_is_refused_to_its_sender(broker: Any) -> None:
    one, two = TrackedNode(broker, id="one"), TrackedNode(broker, id="two")
    answer = one.ask(2, 5, "r", {}, "two", "rtcOffer", {"description": "d" * tracker_session.MAX_RELAYED})
    assert "has at most" in answer[0][5]
    assert two.heard() == []


def test_joining_and_leaving_cost_the_same_in_a_large_crowd() -> None:
    """What is looked at is counted, by the nodes that are compared."""

    class Counted:
        looked = 0

        def __hash__(self) -> int:
            Counted.looked += 1
            return id(self)

    costs = []
    for crowd in (10, 2_000):
        topology: Topology[Counted] = Topology()
        for _ in range(crowd):
            list(topology.report(Counted(), PARTS))
        Counted.looked = 0
        for _ in range(10):
            node = Counted()
            list(topology.report(node, PARTS))
            list(topology.report(node, []))
        costs.append(Counted.looked)
    assert costs[1] <= 2 * costs[0]


def test_requests_over_the_rate_are_refused(broker: Any) -> None:
    node = TrackedNode(broker)
    broker.bus.throttle = Throttle(Limits(peer=Rate(rate=1, burst=1)), lambda: 0.0)
    assert node.ask(2, 3, "r", "s", 0)[0][1] == 4
    assert node.ask(2, 3, "r", "s", 0)[0][1:4] == [6, "r", "REQUEST_FAILED"]


def test_a_node_that_is_gone_leaves_nothing(broker: Any) -> None:
    node = TrackedNode(broker, id="n")
    node.ask(2, 1, "r", {"streams": ["s", "t"]})
    assert broker.adapter.report()["tracker"] == [{"node": "n", "streams": 2}]
    node.session.receive_eof()
    assert broker.adapter.report()["tracker"] == []
    assert broker.adapter.tracker.topology._rings == {}
    assert broker.adapter.tracker.reserved == 0
    assert broker.bus.sessions() == []


frames = st.binary(max_size=64) | nearly.map(lambda parts: json.dumps([parts[0], parts[1], *parts[2]]).encode())


@given(data=st.lists(frames, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzzed_bytes_do_not_end_the_session(broker: Any, data: list[bytes]) -> None:
    node = TrackedNode(broker)
    for frame in data:
        node.session.receive_data(frame)
        assert all(answer[0] in (1, 2) for answer in node.heard())
    assert node.session.closing is None
    node.session.receive_eof()
