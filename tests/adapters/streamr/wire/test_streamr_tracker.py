"""The tracker protocol: its codec against the libraries' own messages, the topology, and nodes on a real bus."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.streamr.sessions import tracker_session
from adapters.streamr.sessions.tracker_session import MAX_NAME, TrackerSession
from adapters.streamr.sessions.tracker_topology import NEIGHBOURS, Ring, StreamPart, Topology
from adapters.streamr.wire import tracker
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.tracker import TRACKER, TrackerMessage, TrackerType, decode_tracker, encode_tracker
from gateway.access.limits import Limits, Rate, Throttle
from gateway.adapter import ConnectionRequest
from gateway.core.frames import payload
from gateway.core.principal import Principal

VECTORS = Path(__file__).parents[3] / "vectors" / "streamr"
LIBRARIES = ("protocol-5.3.3.json", "protocol-8.4.1.json")
CASES = [case for name in LIBRARIES for case in json.loads((VECTORS / name).read_text())["tracker"]]
S0 = [
    [2, 14, {"streams": [], "started": 0, "rtts": {}}],
    [2, 15, "request-id", "stream-id", 0, ["ws://address1", "ws://address2"], 10],
    [2, 16, "request-id", "stream-id", 0],
    [2, 17, "request-id", "stream-id", 0, ["ws://storage-node-address-1", "ws://storage-node-address-2"]],
]


# The codec


@pytest.mark.parametrize("wire", [case["wire"] for case in CASES if "wire" in case], ids=lambda wire: f"{wire[:2]}")
def test_what_the_libraries_write_is_read_and_written_the_same(wire: Any) -> None:
    message = decode_tracker(json.dumps(wire))
    assert json.loads(encode_tracker(message)) == wire


@pytest.mark.parametrize("case", [case for case in CASES if case.get("result", {}).get("ok")], ids=lambda c: c["name"])
def test_fields_are_where_the_libraries_have_them(case: Any) -> None:
    message, expected = decode_tracker(json.dumps(case["input"])), case["result"]["value"]
    names = {"streamId": "stream_id", "streamPartition": "stream_partition", "requestId": "request_id"}
    for name in ("version", "requestId", "streamId", "streamPartition", "counter"):
        assert getattr(message, names.get(name, name)) == expected[name]
    assert list(message.nodes) == expected["nodeAddresses"]


@pytest.mark.parametrize("wire", S0, ids=lambda wire: f"{wire[1]}")
def test_what_the_specification_writes_is_read(wire: list[Any]) -> None:
    message = decode_tracker(json.dumps(wire))
    assert message.type == wire[1] - tracker.S0_OFFSET
    assert message.number == wire[1]
    if wire[1] != 14:  # its Status has no requestId
        assert json.loads(encode_tracker(message)) == wire


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ("nope", "Invalid JSON"),
        ("{}", "Unsupported version: undefined, message: Supported versions: [1,2]"),
        ("[3,1]", "Unsupported version: 3"),
        ('["2",1]', "Unsupported version: 2"),
        ("[2,7]", "Unsupported type: 7, message: Supported types: [1,2,3,4,5,6,14,15,16,17]"),
        ("[2,18]", "Unsupported type: 18"),
        ("[2,[1]]", "Unsupported type: 1"),
        ("[2,1,7,{}]", "Expected requestId to be a string but was a number (7)."),
        ('[2,1,"r"]', "Expected status to be an object but was r."),
        ('[2,1,"r",null]', "Expected status to not be null."),
        ('[2,3,"r"]', "Expected streamId to not be undefined."),
        ('[2,3,"r","",0]', "Expected streamId to not be an empty string."),
        ('[2,3,"r","s",-1]', "Expected streamPartition to not be negative (-1)."),
        ('[2,2,"r","s",0,"x",1]', "Expected nodeAddresses to be an array but was a string (x)."),
        ('[2,2,"r","s",0,[7],1]', "Expected nodeAddresses[0] to be a string but was a number (7)."),
        ('[2,2,"r","s",0,[]]', "Expected counter to not be undefined."),
        ('[2,5,"r",{},"","offer",{}]', "Expected targetNode to not be an empty string."),
    ],
)
def test_what_is_wrong_is_named_by_its_field(wire: str, text: str) -> None:
    with pytest.raises(StreamrError) as refused:
        decode_tracker(wire)
    assert refused.value.message.startswith(text)
    assert refused.value.request_id == ("r" if '"r"' in wire else "")


def test_a_list_of_nodes_is_bounded() -> None:
    with pytest.raises(StreamrError, match="at most 1000"):
        decode_tracker(json.dumps([2, 4, "r", "s", 0, ["a"] * (tracker.MAX_NODES + 1)]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
nearly = st.tuples(
    st.sampled_from([1, 2, 3, "2", None]), st.sampled_from([*range(19), "9", "14"]), st.lists(json_values, max_size=6)
)


@given(st.binary() | st.text())
def test_any_bytes_are_a_message_or_refused(data: bytes | str) -> None:
    with suppress(StreamrError):
        decode_tracker(data)


@given(nearly)
def test_any_array_is_a_message_that_can_be_written_or_refused(parts: tuple[Any, Any, list[Any]]) -> None:
    version, kind, rest = parts
    with suppress(StreamrError):
        message = decode_tracker(json.dumps([version, kind, *rest]))
        assert decode_tracker(encode_tracker(message)) == message


def test_every_type_has_its_fields() -> None:
    assert set(TRACKER) == set(TrackerType)
    assert all(hasattr(TrackerMessage(type=TrackerType.STATUS), attribute) for attribute, _ in tracker.FIELDS.values())


# The topology

PARTS = [StreamPart("a", 0), StreamPart("a", 1), StreamPart("b", 0)]


@given(st.lists(st.tuples(st.integers(0, 9), st.sets(st.sampled_from(PARTS))), max_size=40))
def test_what_nodes_were_told_last_is_always_what_holds(reports: list[tuple[int, set[StreamPart]]]) -> None:
    topology: Topology[int] = Topology()
    having: dict[int, dict[StreamPart, None]] = {}
    known: dict[tuple[int, StreamPart], list[int]] = {}
    for node, parts in reports:
        having[node] = dict.fromkeys(sorted(parts))
        changed = [(each, part) for part, nodes in topology.report(node, having[node]) for each in nodes]
        assert len(changed) <= NEIGHBOURS * len(PARTS)
        known |= {(each, part): topology.neighbours(each, part) for each, part in changed}
        known |= {(node, part): topology.neighbours(node, part) for part in having[node]}
        known = {(each, part): others for (each, part), others in known.items() if part in having[each]}
    assert {each: topology.parts(each) for each in having} == having
    for (node, part), others in known.items():
        assert node not in others
        assert len(others) <= NEIGHBOURS
        assert all(node in known[other, part] for other in others), "who is a neighbour has one"
        there = {each for each, parts in having.items() if part in parts}
        assert set(others) <= there
        assert len(others) == min(len(there) - 1, NEIGHBOURS)


def test_everybody_is_reached_from_everybody() -> None:
    ring: Ring[int] = Ring()
    for number in range(50):
        ring.add(number)
    reached, frontier = {0}, [0]
    while frontier:
        frontier = [other for node in frontier for other in ring.neighbours(node) if other not in reached]
        reached.update(frontier)
    assert reached == set(range(50))


# Nodes


class Node:
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


def test_a_status_is_answered_by_who_else_is_there_with_a_rising_counter(broker: Any) -> None:
    one, two = Node(broker, address="ws://one"), Node(broker, address="ws://two")
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
    before = max(Node(broker).ask(2, 1, "r", {"streams": ["s"]})[0][6] for _ in range(5))
    broker.clock.now += 1_000
    after = make_broker()
    after.clock.now = broker.clock.now
    assert Node(after).ask(2, 1, "r", {"streams": ["s"]})[0][6] > before


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("offset", [0, tracker.S0_OFFSET])
def test_each_node_is_answered_in_its_version_and_numbers(broker: Any, version: int, offset: int) -> None:
    node = Node(broker)
    [told] = node.ask(version, 1 + offset, {"streams": ["s"], "started": 0, "rtts": {}})
    assert (told[:2], told[3:6]) == ([version, 2 + offset], ["s", 0, []])
    assert told[2] == str(told[6]), "a status without a requestId is answered with an id of our own"
    answer = node.ask(version, 3 + offset, "r", "s", 0)
    assert answer == [[version, 4 + offset, "r", "s", 0, ["ws://gateway.example:8080/network"]]]


def test_a_partition_that_there_is_not_is_kept_by_nobody(broker: Any) -> None:
    assert Node(broker).ask(2, 3, "r", "s", 1) == [[2, 4, "r", "s", 1, []]]


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
    assert [tuple(answer[3:5]) for answer in Node(broker).ask(2, 1, "r", {"streams": streams})] == expected


@pytest.mark.parametrize("streams", [7, "s", [7], [None], {"": {}}, [{"streamId": 7}], [{"id": "s", "partition": -1}]])
def test_what_are_no_streams_is_refused_and_the_node_stays(broker: Any, streams: Any) -> None:
    node = Node(broker, id="n")
    [refused] = node.ask(2, 1, "r", {"streams": streams})
    assert refused[:5] == [2, 6, "r", "INVALID_REQUEST", "n"]
    assert refused[5].startswith("Expected ")
    assert node.ask(2, 3, "r", "s", 0)[0][1] == 4


def test_a_single_stream_status_adds_to_what_was_reported(broker: Any) -> None:
    node, other = Node(broker), Node(broker)
    node.ask(2, 1, "r", {"streams": {"s::0": {}}})
    node.ask(2, 1, "r", {"streams": {"t::0": {}}, "singleStream": True})
    assert other.ask(2, 1, "r", {"streams": ["s"]})[0][5] == [node.session.name]
    node.ask(2, 1, "r", {"streams": {"t::0": {}}})
    assert other.told()[-1][3:6] == ["s", 0, []]


def test_messages_are_relayed_to_the_node_that_they_are_for(broker: Any) -> None:
    one, two = Node(broker, id="one"), Node(broker, id="two")
    offer = [2, 5, "r", {"peerId": "one"}, "two", "rtcOffer", {"description": "d"}]
    assert one.ask(*offer) == []
    assert two.heard() == [offer]
    two.session.receive_eof()
    assert one.ask(*offer)[0][:4] == [2, 6, "r", "RTC_UNKNOWN_PEER"]


def test_who_comes_again_under_its_name_is_the_one_that_is_reached(broker: Any) -> None:
    one, old, new = Node(broker, id="one"), Node(broker, id="two"), Node(broker, id="two")
    old.session.receive_eof()
    offer = [2, 5, "r", {"peerId": "one"}, "two", "rtcOffer", {}]
    assert one.ask(*offer) == []
    assert new.heard() == [offer]


@pytest.mark.parametrize(
    "frame", [[2, 2, "r", "s", 0, [], 1], [2, 15, "r", "s", 0, [], 1], [2, 4, "r", "s", 0, []], [2, 6, "r", "X", "n"]]
)
def test_what_only_trackers_send_is_refused(broker: Any, frame: list[Any]) -> None:
    [answer] = Node(broker).ask(*frame)
    assert answer[:4] == [2, 6, "r", "INVALID_REQUEST"]
    assert answer[5] == f"Unknown request type: {frame[1]}", "as the node wrote it"


def test_a_name_that_cannot_be_shown_is_no_name(broker: Any) -> None:
    for name in ("x" * (MAX_NAME + 1), "tab\t", ""):
        session = Node(broker, id=name).session
        assert session.name == str(session.peer.number)


def test_rights_decide_whose_neighbour_somebody_is(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(grants={"streamr:k": ("subscribe:s",)})
    refusal = broker.adapter.accept(ConnectionRequest(Principal("streamr:anonymous"), "/tracker", {}, {}))
    assert (refusal.status, refusal.text.startswith("the tracker is only for peers with some right")) == (403, True)
    node = Node(broker, "streamr:k")
    assert node.ask(2, 1, "r", {"streams": ["s"]})[0][1] == 2
    assert node.ask(2, 1, "r", {"streams": ["s", "t"]})[0][1:4] == [6, "r", "PERMISSION_DENIED"]


def test_what_a_node_reports_is_bounded(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_session, "MAX_PARTS", 2)
    node = Node(broker)
    assert node.ask(2, 1, "r", {"streams": ["a", "b", "c"]})[0][1] == 6
    assert node.ask(2, 1, "r", {"streams": ["a", "b"]})[0][1] == 2
    assert node.ask(2, 1, "r", {"streams": ["c"], "singleStream": True})[0][1] == 6


def test_the_name_of_who_has_another_key_is_not_taken(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(grants={f"streamr:{name}": ("subscribe:s",) for name in "kl"})
    one, two = Node(broker, "streamr:k", id="n"), Node(broker, "streamr:l", id="n")
    again = Node(broker, "streamr:k", id="n")
    assert [node.session.name for node in (one, two, again)] == ["n", str(two.session.peer.number), "n"]


def test_a_status_costs_what_is_in_it(broker: Any) -> None:
    """Fifty bytes were answered by an instruction for each of the stream partitions that were ever reported."""
    node, others = Node(broker, id="n" * MAX_NAME), [Node(broker, id=str(n) + "o" * 200) for n in range(9)]
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


def test_who_may_not_be_told_more_now_is_told_how_it_is_then(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_session, "BURST", 3)
    monkeypatch.setattr(tracker_session, "INSTRUCTIONS_PER_SECOND", 2)
    node, other = Node(broker, id="n"), Node(broker, id="o")
    assert [answer[3] for answer in node.ask(2, 1, "r", {"streams": list("abcdef")})] == ["a", "b", "c"]
    other.ask(2, 1, "r", {"streams": ["e", "x"]})
    told = [[(answer[3], answer[5]) for answer in node.told()] for _ in range(3)]
    assert told == [[("d", []), ("e", ["o"])], [("f", [])], []]


def test_all_that_nodes_report_is_bounded_and_no_network_has_all_of_it(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_session, "MAX_NAME_BYTES", 100)
    monkeypatch.setattr(tracker_session, "MAX_NETWORK_NAME_BYTES", 150)
    monkeypatch.setattr(tracker_session, "MAX_TOTAL_NAME_BYTES", 250)
    here, there = [Node(broker) for _ in range(3)], Node(broker, where="192.0.2.2")
    assert "names of at most 100 bytes" in here[0].ask(2, 1, "r", {"streams": ["x" * 101]})[0][5]
    for node, taken in zip(here, (2, 6, 6), strict=True):
        assert node.ask(2, 1, "r", {"streams": ["x" * 100]})[0][1] == taken
    assert there.ask(2, 1, "r", {"streams": ["x" * 100]})[0][1] == 2
    assert broker.adapter.tracker.reserved == 200
    here[0].session.receive_eof()
    assert here[1].ask(2, 1, "r", {"streams": ["x" * 100]})[0][1] == 2


def test_a_message_to_another_node_is_no_way_to_close_it(broker: Any) -> None:
    one, two = Node(broker, id="one"), Node(broker, id="two")
    answer = one.ask(2, 5, "r", {}, "two", "rtcOffer", {"description": "d" * tracker_session.MAX_RELAYED})
    assert "has at most" in answer[0][5]
    assert two.heard() == []


def test_to_come_and_go_costs_the_same_however_many_are_there() -> None:
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


def test_who_asks_too_much_is_told_so(broker: Any) -> None:
    node = Node(broker)
    broker.bus.throttle = Throttle(Limits(peer=Rate(rate=1, burst=1)), lambda: 0.0)
    assert node.ask(2, 3, "r", "s", 0)[0][1] == 4
    assert node.ask(2, 3, "r", "s", 0)[0][1:4] == [6, "r", "REQUEST_FAILED"]


def test_a_node_that_is_gone_leaves_nothing(broker: Any) -> None:
    node = Node(broker, id="n")
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
def test_no_fuzzed_bytes_hurt_the_session(broker: Any, data: list[bytes]) -> None:
    node = Node(broker)
    for frame in data:
        node.session.receive_data(frame)
        assert all(answer[0] in (1, 2) for answer in node.heard())
    assert node.session.closing is None
    node.session.receive_eof()
