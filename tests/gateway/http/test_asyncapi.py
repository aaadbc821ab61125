"""`/asyncapi.json` describes the frames on the wires."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from adapters import ADAPTERS
from adapters.sprout.wire.codec import VERBS
from adapters.streamr.wire.asyncapi import FIELDS as DESCRIBED
from adapters.streamr.wire.codec import FIELDS
from adapters.streamr.wire.control import CONTROL, ControlType
from adapters.streamr.wire.network import NetworkType
from adapters.streamr.wire.tracker import TRACKER
from adapters.topic_relay.session import VERBS as TYPES
from gateway.http.websocket.messages import KINDS as KINDS_OF_REST
from gateway.http.websocket.messages import type_of
from tests.server import Server

NAME = re.compile(r"[\w.-]+", re.ASCII)
ROW: list[Any] = [32, ["s", 0, 1_763_700_000_000, 0, "", ""], None, 27, 0, 0, None, "1", None, 0, None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    answer = httpx.get(f"http://{server.http}/asyncapi.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def follow(document: Any, reference: str) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        document = document[part]
    return document


KINDS: dict[str, type] = {
    "boolean": bool,
    "string": str,
    "object": dict,
    "array": list,
    "null": type(None),
    "integer": int,
}


def fits(value: Any, schema: Any) -> bool:
    """Whether *value* is what *schema* says, by the words of JSON Schema that are used."""
    known = {"type", "const", "enum", "anyOf", "items", "minItems", "properties", "required", "pattern"}
    assert schema.keys() <= known | {
        *("title", "examples", "minLength", "maxLength", "minimum", "maximum", "description", "default"),
        "additionalProperties",
    }, schema
    kinds = schema.get("type", [])
    if kinds and not isinstance(value, tuple(KINDS[kind] for kind in ([kinds] if type(kinds) is str else kinds))):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema and not any(fits(value, each) for each in schema["anyOf"]):
        return False
    if isinstance(value, str):
        return re.search(schema.get("pattern", ""), value) is not None and len(value) >= schema.get("minLength", 0)
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        return False
    if isinstance(value, list) and isinstance(items := schema.get("items", {}), dict):
        return all(fits(item, items) for item in value)
    if isinstance(value, list):
        return all(fits(*pair) for pair in zip(value, items, strict=False))
    if isinstance(value, dict) and not (
        schema.get("additionalProperties", True) or value.keys() <= schema["properties"].keys()
    ):
        return False
    if isinstance(value, dict):
        there = {name: each for name, each in schema.get("properties", {}).items() if name in value}
        return set(schema.get("required", ())) <= value.keys() and all(
            fits(value[n], each) for n, each in there.items()
        )
    return True


def said(document: Any, channel: str, action: str, value: Any) -> list[str]:
    """What *value* is called where the gateway does *action* on *channel*."""
    listed = document["operations"][f"{channel}_{action}"]["messages"]
    found = [follow(document, follow(document, message["$ref"])["$ref"]) for message in listed]
    return [message["name"] for message in found if fits(value, message["payload"])]


def test_the_document_has_every_channel_and_valid_references(document: Any, server: Server) -> None:
    assert document["asyncapi"] == "3.0.0"
    assert document["servers"] == {
        "websockets": {"host": server.http, "protocol": "ws"},
        "sprout": {"host": server.sprout, "protocol": "tcp"},
    }
    for reference in references(document):
        assert follow(document, reference) is not None
    for part in ("channels", "operations", "servers"):
        assert all(NAME.fullmatch(name) for name in document[part])
    assert all(NAME.fullmatch(name) for name in document["components"]["messages"])
    addresses = {channel["address"] for channel in document["channels"].values()} - {None}
    assert addresses == {path for adapter in ADAPTERS for path in adapter.paths} | {"/v1/ws"}
    assert "sprout_sprout" in document["channels"]
    assert "sprout_sprout_tls" not in document["channels"], "without a certificate nobody listens there"


def test_the_reference_has_an_example_of_each_message(document: Any) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "wire.md").read_text()
    names = {message["name"] for message in document["components"]["messages"].values()}
    assert not {name for name in names if f"| `{name}` |" not in page}


def test_the_document_has_every_message_type_and_field(document: Any) -> None:
    def names(channel: str) -> set[str]:
        return set(document["channels"][channel]["messages"])

    assert names("streamr_api_v1_ws") == {f"control{v}.{kind.name}" for v in CONTROL for kind in ControlType}
    assert names("streamr_network") == {f"{form}.{kind.name}" for form in ("array", "object") for kind in NetworkType}
    assert names("streamr_tracker") == {f"tracker{version}.{kind.name}" for version in (1, 2) for kind in TRACKER}
    assert names("sprout_sprout") == {name.decode() for name in VERBS}
    received = document["operations"]["topic_relay_receive"]["messages"]
    assert len(received) == len(TYPES) - 1, "Error is no type that anybody says"
    known = {name for layouts in CONTROL.values() for fields in layouts.values() for name in fields}
    assert known <= FIELDS.keys() & DESCRIBED.keys()


def test_frames_of_streamr_match_the_document(document: Any, server: Server) -> None:
    for version, token in ((1, []), (2, ["r"])):
        versions = f"controlLayerVersion={version}&messageLayerVersion={29 + version + version // 2}"
        with connect(f"ws://{server.http}/api/v1/ws?{versions}") as socket:
            for frame, name in (
                ([version, 9, *token, "s", 0, None], "SUBSCRIBE"),
                ([version, 8, *token, [*ROW[:1], [*ROW[1][:3], version, *ROW[1][4:]], *ROW[2:]], None], "PUBLISH"),
                ([version, 11, *token, "s", 0, *([] if token else ["r"]), 5, None], "RESEND_LAST"),
                ([version, 10, *token, "s", 0], "UNSUBSCRIBE"),
                ([version, 10, *token, "s", 0], "UNSUBSCRIBE"),
            ):
                assert said(document, "streamr_api_v1_ws", "receive", frame) == [f"control{version}.{name}"]
                socket.send(json.dumps(frame))
            seen: list[str] = []
            while not {"ERROR", "RESENT"} <= set(seen):  # a resend goes its own way
                [name] = said(document, "streamr_api_v1_ws", "send", json.loads(socket.recv(timeout=10)))
                seen.append(name.partition(".")[2])
            resent = ["RESENDING", *["UNICAST"] * version, "RESENT"]
            assert sorted(seen) == sorted(["SUBSCRIBED", "BROADCAST", *resent, "UNSUBSCRIBED", "ERROR"])


def test_messages_of_the_websocket_of_rest_match_the_document(document: Any, server: Server) -> None:
    names = set(document["channels"]["rest_v1_ws"]["messages"])
    assert {name for name in names if "." not in name} == {type_of(kind) for kind in KINDS_OF_REST}
    with connect(f"ws://{server.http}/v1/ws") as socket, connect(f"ws://{server.http}/v1/ws") as other:

        def hear() -> Any:
            return json.loads(socket.recv(timeout=10))

        seen, number = [welcome := hear()], welcome["number"]
        other.send('{"type":"subscribe","channel":"w"}')
        [other.recv(timeout=10) for _ in range(2)]
        for kind, fields in (
            ("subscribe", {"pattern": "w*", "after": 0}),
            ("subscribe", {"channel": "w"}),
            ("presence", {"channel": "w"}),
            ("direct", {"channel": "w", "peer": number, "content": 1}),
            ("publish", {"channel": "w", "content": {"a": 1}}),
            ("history", {"channel": "w", "newestFirst": True, "limit": 1}),
            ("unsubscribe", {"pattern": "w*"}),
            ("unsubscribe", {"pattern": "w*"}),
            ("ping", {}),
        ):
            request = {"type": kind, "request": kind, **fields}
            assert said(document, "rest_v1_ws", "receive", request) == [kind]
            assert said(document, "rest_v1_ws", "receive", request | {"other": 1}) == []
            socket.send(json.dumps(request))
            while seen[-1].get("request") != kind:
                seen.append(hear())
        other.send('{"type":"unsubscribe","channel":"w"}')
        other.send('{"type":"subscribe","channel":"w"}')
        while seen[-1]["type"] != "joined":
            seen.append(hear())
        for each in seen:
            assert said(document, "rest_v1_ws", "send", each) == [f"{each['type']}.told"], each
        assert {f"{each['type']}.told" for each in seen} | {"gap.told"} == {name for name in names if "." in name}


def test_frames_of_the_network_layer_match_the_document(document: Any, server: Server) -> None:
    wrapped = {"serializedControlLayerPayload": '[2,9,"r","s",0,null]'}
    with connect(f"ws://{server.http}/network") as socket:
        for frame, asked, told in (
            (["4.4.3", 2, "n", "s"], "array.FIND_STORAGE_NODES", "array.STORAGE_NODES"),
            (["4.4.3", 4, "n", [2, 9, "r", "s", 0, None]], "array.WRAPPER", "array.WRAPPER"),
            ({"version": "5.0.0", "code": 4, "payload": wrapped}, "object.WRAPPER", "object.WRAPPER"),
        ):
            assert said(document, "streamr_network", "receive", frame) == [asked]
            socket.send(json.dumps(frame))
            assert said(document, "streamr_network", "send", json.loads(socket.recv(timeout=10))) == [told]
    with connect(f"ws://{server.http}/tracker") as socket:
        for frame, asked, told in (
            ([1, 1, "r", {"streams": ["s"]}], "tracker1.STATUS", "tracker1.INSTRUCTION"),
            ([2, 3, "r", "s", 0], "tracker2.STORAGE_NODES_REQUEST", "tracker2.STORAGE_NODES_RESPONSE"),
        ):
            assert said(document, "streamr_tracker", "receive", frame) == [asked]
            socket.send(json.dumps(frame))
            assert said(document, "streamr_tracker", "send", json.loads(socket.recv(timeout=10))) == [told]


def test_packets_of_the_topic_relay_match_the_document(document: Any, server: Server) -> None:
    with connect(f"ws://{server.http}/relay") as one, connect(f"ws://{server.http}/") as two:
        for at, packet, heard in (
            (one, {"type": 2, "topic": "t"}, "Subscribe.told"),
            (two, {"type": 2, "topic": "t"}, "Subscribe.told"),
            (one, {"type": 1, "topic": "t"}, "Hello.told"),
            (two, {"type": 5, "topic": "t"}, "Info.told"),
        ):
            assert len(said(document, "topic_relay_relay", "receive", packet)) == 1
            at.send(json.dumps(packet))
            assert heard in said(document, "topic_relay_relay", "send", json.loads(at.recv(timeout=10)))
        assert "Echo.told" in said(document, "topic_relay", "send", json.loads(one.recv(timeout=10)))
        two.send('{"type":6,"topic":"t","n":1}')
        assert "Broadcast.told" in said(document, "topic_relay", "send", json.loads(one.recv(timeout=10)))
        two.send('{"type":2,"topic":"t"}')
        assert "Refused" in said(document, "topic_relay", "send", json.loads(two.recv(timeout=10)))


def test_messages_of_sprout_match_the_document(document: Any, server: Server) -> None:
    host, _, port = server.sprout.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as wire, wire.makefile("rb") as lines:
        wire.sendall(b"version 1 0.0\n")
        first = lines.readline().decode()
        while not first.startswith("status"):  # the gateway says its own version, too
            assert said(document, "sprout_sprout", "send", first) == [first.split()[0]]
            first = lines.readline().decode()
        assert said(document, "sprout_sprout", "send", first) == ["status"]
    assert said(document, "sprout_sprout", "receive", "version 1 0.0\n") == ["version"]
    assert said(document, "sprout_sprout", "receive", "announce 2 1\nSHA x\n") == ["announce"]
    assert said(document, "sprout_sprout", "receive", "announce 2\n") == []
