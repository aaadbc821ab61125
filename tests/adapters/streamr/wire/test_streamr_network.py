"""The network layer: its codec against S2 and real nodes' objects, and nodes that speak it on a real bus."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.streamr.sessions import network_session
from adapters.streamr.sessions.network_session import ACTIONS, NetworkSession
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.network import (
    ARRAYS,
    CODES,
    OBJECTS,
    OLD_CODES,
    UNSUPPORTED_CODES,
    NetworkType,
    decode_network,
    encode_network,
)
from gateway.access.authorization import ApiKey, digest
from gateway.access.throttle import Throttle
from gateway.adapter import ConnectionRequest
from gateway.core.frames import payload
from gateway.core.principal import Principal
from gateway.settings.limits import Limits, Rate

VECTORS = Path(__file__).parents[3] / "vectors" / "streamr"
OLD = json.loads((VECTORS / "network-4.4.3.json").read_text())
READ = {"status", "instruction", "findStorageNodes", "storageNodes"}  # of what version 4.4.3 wrote
S2: list[Any] = [
    ["4.4.3", 0, "sender", "status"],
    ["4.4.3", 1, "sender", "stream-id", ["address1", "address2"]],
    ["4.4.3", 2, "sender", "stream-id"],
    ["4.4.3", 3, "sender", "stream-id", ["address1", "address2"]],
    ["4.4.3", 4, "sender", [2, 9, "stream-id", 0, "my-session-token"]],
]
NEW: list[Any] = [
    {"version": "5.0.0", "code": 0, "payload": {"streams": [], "started": "x"}},
    {"version": "13.0.0", "code": 1, "payload": {"streamId": "s", "streamPartition": 1, "nodeAddresses": ["ws://a"]}},
    {"version": "13.0.0", "code": 2, "payload": {"streamId": "s", "streamPartition": 0}},
    {"version": "16.1.0", "code": 3, "payload": {"streamId": "s", "streamPartition": 0, "nodeAddresses": []}},
    {"version": "16.1.0", "code": 4, "payload": {"serializedControlLayerPayload": '[2,9,"r","s",0,null]'}},
]


# The codec


@pytest.mark.parametrize("wire", S2 + NEW, ids=str)
def test_decoded_messages_are_encoded_unchanged(wire: Any) -> None:
    message = decode_network(json.dumps(wire))
    assert message.type == (wire[1] if isinstance(wire, list) else wire["code"])
    assert json.loads(encode_network(message)) == wire


@pytest.mark.parametrize("name", sorted(READ))
def test_messages_of_nodes_4_4_3_survive_the_round_trip(name: str) -> None:
    wire = OLD["wire"][name]
    assert json.loads(encode_network(decode_network(json.dumps(wire)))) == wire


@pytest.mark.parametrize(
    "name", sorted(set(OLD["wire"]) - {"status", "instruction", "findStorageNodes", "storageNodes"})
)
def test_the_other_codes_of_4_4_3_are_refused_by_name(name: str) -> None:
    wire = OLD["wire"][name]
    called = re.sub("[A-Z]", lambda letter: f"_{letter[0]}", name).upper()
    with pytest.raises(StreamrError, match=f"^Unsupported type: {called}, message: a control message comes in a wrap"):
        decode_network(json.dumps(wire))


def test_the_codes_of_4_4_3_are_the_vectors() -> None:
    assert {OLD["msgTypes"][kind.name]: kind for kind in set(NetworkType) - {NetworkType.WRAPPER}} == OLD_CODES
    assert {name: code for code, name in UNSUPPORTED_CODES.items()} == {
        name: code for name, code in OLD["msgTypes"].items() if code not in OLD_CODES
    }


def test_every_type_has_its_fields_and_its_action() -> None:
    assert set(ARRAYS) == set(OBJECTS) == set(CODES.values()) == set(NetworkType)
    assert set(ACTIONS) == set(NetworkType) - {NetworkType.WRAPPER}


def test_a_wrapped_message_is_taken_out_byte_for_byte() -> None:
    control = b'[2,8,"r",[32,["s",0,1.0,0,"",""],null,27,0,0,null,"\\u00e9",null,0,null],null]'
    assert decode_network(b'["4.4.3",4,"n",%b]' % control).control == control
    assert decode_network(json.dumps(["4.4.3", 4, "n", control.decode()])).control == control


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ("nope", "Invalid JSON"),
        ("7", "Unsupported version: undefined"),
        ("[4,0]", "Unsupported version: 4, message: a version is like 4.4.3"),
        ('["4.4",0,"n","x"]', "Unsupported version: 4.4"),
        ('["4.4.3",5,"n"]', "Unsupported type: 5, message: Supported types: [0,1,2,3,4]"),
        ('["4.4.3","0","n"]', "Unsupported type: 0"),
        ('["4.4.3",0]', "Expected source to not be undefined."),
        ('["4.4.3",0,"n",7]', "Expected status to be a string but was a number (7)."),
        ('["4.4.3",2,"n",""]', "Expected streamId to not be an empty string."),
        ('["4.4.3",3,"n","s",["a",null]]', "Expected nodeAddresses[1] to not be null."),
        ('["4.4.3",4,"n"]', "Expected controlLayerPayload to not be undefined."),
        ('["4.4.3",4,"n",""]', "Expected controlLayerPayload to not be an empty string."),
        ("{}", "Unsupported version: undefined"),
        ('{"version":"5.0.0","code":9,"payload":{}}', "Unsupported type: 9, message: Supported types: [0,1,2,3,4]"),
        ('{"version":"4.4.3","code":4,"payload":{}}', "Unsupported type: PUBLISH, message: "),
        ('{"version":"4.4.3","code":15,"payload":{}}', "Unsupported type: 15, message: Supported types: [0,5,13,14]"),
        ('{"version":"5.0.0","code":2,"payload":[]}', "Expected payload to be an object but was ."),
        (
            '{"version":"5.0.0","code":2,"payload":{"streamId":"s","streamPartition":"0"}}',
            "Expected streamPartition to",
        ),
        ('{"version":"5.0.0","code":4,"payload":{}}', "Expected serializedControlLayerPayload to not be undefined."),
    ],
)
def test_an_invalid_message_is_refused_with_its_field(wire: str, text: str) -> None:
    with pytest.raises(StreamrError) as refused:
        decode_network(wire)
    assert refused.value.message.startswith(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
versions = st.sampled_from(["4.4.3", "5.0.0", "16.1.0", "x", 4, None])
members = st.sampled_from(["streamId", "streamPartition", "nodeAddresses", "serializedControlLayerPayload", "x"])
nearly = st.tuples(versions, st.integers(0, 15), st.text(max_size=3), st.lists(json_values, max_size=3)).map(
    lambda parts: [parts[0], parts[1], parts[2], *parts[3]]
) | st.fixed_dictionaries(
    {"version": versions, "code": st.integers(0, 15), "payload": st.dictionaries(members, json_values) | json_values}
)
frames = st.binary(max_size=64) | nearly.map(lambda frame: json.dumps(frame).encode())


@given(frames | st.text())
def test_any_bytes_are_a_message_that_can_be_written_or_refused(data: bytes | str) -> None:
    with suppress(StreamrError):
        message = decode_network(data)
        if message.type is not NetworkType.WRAPPER:  # what is wrapped is read by the next codec
            assert decode_network(encode_network(message)) == message


# Nodes


class NetworkNode:
    """A connected node, which speaks S2's arrays unless its version is another one."""

    def __init__(self, broker: Any, version: str = "", principal: str = "streamr:anonymous", **query: str) -> None:
        request = ConnectionRequest(Principal(principal), "/network", query, {"host": "gateway.example"}, secure=True)
        session = broker.adapter.accept(request)
        assert isinstance(session, NetworkSession)
        self.session = session
        self._version = version

    def send(self, frame: Any) -> list[Any]:
        self.session.receive_data(json.dumps(frame).encode())
        return self.heard()

    def heard(self) -> list[Any]:
        return [json.loads(payload(frame)) for frame in self.session.data_to_send()]

    def wrap(self, *control: Any) -> Any:
        if self._version:
            text = json.dumps(control)
            return {"version": self._version, "code": 4, "payload": {"serializedControlLayerPayload": text}}
        return ["4.4.3", 4, "node", list(control)]

    def unwrap(self, frame: Any) -> Any:
        """The control message in *frame*, which must be a wrapper of this node's form."""
        if self._version:
            assert (frame["version"], frame["code"]) == (self._version, 4)
            return json.loads(frame["payload"]["serializedControlLayerPayload"])
        assert frame[:3] == ["4.4.3", 4, "gw"]
        return frame[3]

    def ask(self, *control: Any) -> list[Any]:
        return [self.unwrap(frame) for frame in self.send(self.wrap(*control))]


@pytest.fixture(params=["", "5.0.0", "16.1.0"], ids=["array", "object 5", "object 16"])
def node(request: pytest.FixtureRequest, broker: Any) -> NetworkNode:
    return NetworkNode(broker, request.param)


def test_a_wrapped_message_has_the_effect_of_an_unwrapped_one(broker: Any, node: NetworkNode, alice: Any) -> None:
    assert node.ask(2, 9, "r", "s", 0, None) == [[2, 2, "r", "s", 0]]
    broker.say("s", {"from": "elsewhere"})
    [told] = [node.unwrap(frame) for frame in node.heard()]
    assert told[:3] == [2, 0, ""]
    assert json.loads(told[3][7]) == {"from": "elsewhere"}
    listener = broker.listener("s")
    message = alice.message("s", {"é": 1}, broker.clock())
    assert node.ask(2, 8, "r", message, None) == [[2, 0, "", message]], "a node that listens hears itself"
    assert broker.frames(listener) == [[2, 0, "", message]]
    assert node.ask(2, 10, "r", "s", 0) == [[2, 3, "r", "s", 0]]
    assert node.ask(2, 10, "r", "s", 0)[0][1:3] == [7, "r"]


def test_a_resend_is_wrapped_message_by_message(broker: Any, node: NetworkNode) -> None:
    for number in range(3):
        broker.say("s", number)
    broker.core.settle()
    answers = node.ask(2, 11, "r", "s", 0, 2, None)
    while node.session.resends:
        broker.core.posted.get(timeout=10)()
        answers += [node.unwrap(frame) for frame in node.heard()]
    assert [answer[:3] for answer in answers] == [[2, 4, "r"], [2, 1, "r"], [2, 1, "r"], [2, 5, "r"]]
    assert [answer[3][7] for answer in answers[1:3]] == ["1", "2"]


def test_old_versions_are_wrapped_too(broker: Any, node: NetworkNode) -> None:
    assert node.ask(1, 9, "s", 0, None) == [[1, 2, "s", 0]]
    broker.say("s", 1)
    [told] = [node.unwrap(frame) for frame in node.heard()]
    assert told[:2] == [1, 0]
    assert told[2][0] == 30


def test_the_example_of_the_specification_subscribes(broker: Any) -> None:
    answer = NetworkNode(broker).send(["4.4.3", 4, "sender", [2, 9, "stream-id", 0, "my-session-token"]])
    assert answer[0][3][:2] == [2, 2]
    assert answer[0][3][3:] == ["stream-id", 0]


def test_the_gateway_is_the_storage_node_of_every_partition(broker: Any) -> None:
    node, url = NetworkNode(broker), "wss://gateway.example/network"
    assert node.send(["4.4.3", 2, "node", "s"]) == [["4.4.3", 3, "gw", "s", [url]]]
    find: Any = {"version": "13.0.0", "code": 2, "payload": {"streamId": "s", "streamPartition": 0}}
    assert node.send(find) == [
        {"version": "13.0.0", "code": 3, "payload": {"streamId": "s", "streamPartition": 0, "nodeAddresses": [url]}}
    ]
    find["payload"]["streamPartition"] = 1
    assert node.send(find)[0]["payload"]["nodeAddresses"] == []
    assert node.send(OLD["wire"]["findStorageNodes"])[0] == {
        **OLD["wire"]["storageNodes"],
        "payload": {"streamId": "stream-id", "streamPartition": 0, "nodeAddresses": [url]},
    }


def test_nodes_get_the_configured_url_of_the_gateway(make_broker: Callable[..., Any]) -> None:
    node = NetworkNode(make_broker(url="wss://public.example/network"))
    assert node.send(["4.4.3", 2, "node", "s"])[0][4] == ["wss://public.example/network"]


def test_the_status_of_a_node_is_reported_until_it_disconnects(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_session, "MAX_STATUS", 16)
    node = NetworkNode(broker)
    number = node.session.peer.number
    assert node.send(["4.4.3", 0, "n1", "fine"]) == []
    shown = {"peer": number, "source": "n1", "version": "4.4.3", "status": "fine"}
    assert broker.adapter.report()["network"] == [shown]
    assert node.send(["4.4.3", 1, "n1", "s", ["a", "b"]]) == []
    assert broker.adapter.report()["network"] == [shown | {"told": ["s", 2]}]
    node.send({"version": "5.0.0", "code": 0, "payload": {"streams": ["x" * 20]}})
    [report] = broker.adapter.report()["network"]
    assert report["status"] == "36 bytes", "what is too long is not kept"
    node.session.receive_eof()
    assert broker.adapter.report()["network"] == []
    assert broker.bus.sessions() == []


def test_errors_are_answered_in_a_wrapper_and_the_node_stays_connected(node: NetworkNode) -> None:
    node.send(node.wrap(2, 9, "r", "s", 0, None))
    assert node.ask(2, 99, "r")[0][1:3] == [7, "r"]
    [refused] = [node.unwrap(frame) for frame in node.send(node.wrap())]
    assert refused[1] == 7
    session = node.session
    session.receive_data(b"\xff")
    assert node.unwrap(node.heard()[0])[1:3] == [7, ""]
    assert session.closing is None


def test_a_node_without_wrapper_is_refused_in_the_form_of_the_specification(broker: Any) -> None:
    node = NetworkNode(broker)
    node.send(OLD["wire"]["status"])
    [refused] = node.send(OLD["wire"]["subscribe"])
    assert refused[:3] == ["4.4.3", 4, "gw"]
    assert refused[3][3].startswith("Unsupported type: SUBSCRIBE")


@pytest.mark.parametrize(
    ("frame", "version"),
    [
        ({"version": "16.1.0", "code": 99, "payload": {}}, "16.1.0"),
        ({"version": "16.1.0", "code": 2, "payload": {}}, "16.1.0"),
        ({"version": "seven", "code": 2}, "5.0.0"),
        ({}, "5.0.0"),
    ],
    ids=str,
)
def test_a_bad_first_message_is_answered_in_its_own_form(broker: Any, frame: Any, version: str) -> None:
    node = NetworkNode(broker, version)
    [answer] = [node.unwrap(refused) for refused in node.send(frame)]
    assert answer[:3] == [2, 7, ""]
    assert answer[3].startswith(("Unsupported ", "Expected "))


@pytest.mark.parametrize("frame", [[], ["seven", 0], ["4.4.3", 9], 7, None], ids=str)
def test_a_frame_that_is_no_object_is_answered_with_an_array(broker: Any, frame: Any) -> None:
    node = NetworkNode(broker)
    [answer] = [node.unwrap(refused) for refused in node.send(frame)]
    assert answer[:3] == [2, 7, ""]


def test_rights_and_tokens_count_as_on_the_other_websocket(make_broker: Callable[..., Any], alice: Any) -> None:
    broker = make_broker(keys=(ApiKey("k", digest("x")),), grants={f"streamr:{alice.address}": ("subscribe:s",)})
    node = NetworkNode(broker)
    assert node.ask(2, 9, "r", "s", 0, None)[0][1] == 7
    assert node.ask(2, 9, "r", "s", 0, broker.token(alice)) == [[2, 2, "r", "s", 0]]


def test_requests_over_the_rate_are_refused(broker: Any) -> None:
    node = NetworkNode(broker)
    broker.bus.throttle = Throttle(Limits(peer=Rate(rate=1, burst=1)), lambda: 0.0)
    assert node.send(["4.4.3", 2, "node", "s"])[0][1] == 3
    assert node.unwrap(node.send(["4.4.3", 2, "node", "s"])[0])[4] == "REQUEST_FAILED"


@given(data=st.lists(frames, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzzed_bytes_do_not_end_the_session(broker: Any, data: list[bytes]) -> None:
    session = NetworkNode(broker).session
    for frame in data:
        session.receive_data(frame)
        for answer in session.data_to_send():
            decode_network(payload(answer))
    assert session.closing is None
    session.receive_eof()
