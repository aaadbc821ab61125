"""Conversations recorded with the reference server get the same answers from sessions on a bus, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from adapters.topic_relay.session import TopicRelaySession
from gateway.adapter import ConnectionRequest, Refusal
from gateway.core.principal import Principal

if TYPE_CHECKING:
    from .conftest import Relay

VECTORS = Path(__file__).parents[2] / "vectors" / "topic_relay" / "conversations.json"
CONVERSATIONS = {vector["name"]: vector for vector in json.loads(VECTORS.read_text())["vectors"]}

HERE = '"info":{"channel":"t","addresses":{"topic_relay":"t"},"topic":"t","version":"1.2.3"}'
CRAFTED = '{"type":6,"topic":"t","x":'


class Departure(NamedTuple):
    """Where the gateway answers otherwise on purpose: why, and everything that each peer hears instead."""

    reason: str
    heard: dict[str, list[str]]


def unsupported(kind: str) -> Departure:
    reply = f'{{"type":{kind},"topic":"t","id":3,"error":"UnsupportedMessageType"}}'
    return Departure("the reference client throws on a reply without a topic, so the packet is echoed", {"a": [reply]})


DEPARTURES = {
    "type_info_5": Departure(
        "Info is part of the specification, and answered",
        {"a": [f'{{"type":5,"topic":"t","id":3,"peers":[],{HERE}}}']},
    ),
    "type_hello_7": unsupported("7"),
    "type_neg": unsupported("-1"),
    "type_2_5": unsupported("2.5"),
    "type_inf": unsupported("1e400"),
    "invalid_array_items": Departure("an array is no packet", {"a": ['{"error":"InvalidParams"}']}),
    "json_numbers": Departure(
        "numbers are echoed as written: 1e400 does not become null",
        {
            "a": [
                '{"type":2,"topic":"t","a":1,"b":12345678901234567000,"c":1e400,"d":0,"e":100000,"f":1e+21,"g":0.1,'
                '"h":1e-7,"i":9007199254740992,"j":123456789012345680000,"k":-1e400,"l":5e-324,'
                '"m":1.7976931348623157e+308,"n":0.000001,"o":100000000000000000000,"p":0,"peers":[]}'
            ]
        },
    ),
    "size_65001_bytes_cjk": Departure(
        "a length is counted in UTF-16 units, as the released reference does (its HEAD counts bytes)",
        {"a": ['{"type":2,"topic":"t","peers":[]}', CRAFTED.replace("x", "d") + f'"{"測" * 21657}x","src":1}}']},
    ),
    "CRASH_deep_nesting": Departure(
        "nesting that nobody could handle is refused; the reference dies of it, and with it its peers",
        {"a": ['{"type":2,"topic":"t","peers":[]}'], "b": ['{"error":"InvalidParams"}']},
    ),
}
PATHS = {"any_path"}  # the reference is found at any path, the gateway only at its own
OF_THE_WIRE = {"ping", "pong", "closed"}  # steps that are the WebSocket's own


def text_of(step: dict[str, Any]) -> str:
    if "text_parts" in step:
        return "".join(part * times for part, times in step["text_parts"])
    return "".join(step["fragments"]) if "fragments" in step else str(step["text"])


def data_of(step: dict[str, Any]) -> bytes:
    return bytes.fromhex(step["hex"]) if "hex" in step else text_of(step).encode()


def parsed(text: str) -> Any:
    """JSON as JavaScript has it: every number is a double."""
    return json.loads(text, parse_int=float)


def turns(steps: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, list[str]]]]:
    """Each thing that is done, with what every peer hears of it before the next."""
    steps = [step for step in steps if step["op"] not in OF_THE_WIRE]
    starts = [i for i, step in enumerate(steps) if step["op"] != "recv"]
    for start, end in zip(starts, [*starts[1:], len(steps)], strict=True):
        heard: dict[str, list[str]] = {}
        for step in steps[start + 1 : end]:
            heard.setdefault(step["peer"], []).append(text_of(step))
        yield steps[start], heard


def act(relay: Relay, peers: dict[str, TopicRelaySession], step: dict[str, Any]) -> None:
    name = step["peer"]
    match step["op"]:
        case "open":
            peers[name] = relay.open()
        case "send":
            peers[name].receive_data(data_of(step))
        case "close":
            peers.pop(name).receive_eof()
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("name", sorted(CONVERSATIONS.keys() - DEPARTURES.keys() - PATHS))
def test_recorded_conversations_get_the_answers_of_the_reference(relay: Relay, name: str) -> None:
    peers: dict[str, TopicRelaySession] = {}
    for step, expected in turns(CONVERSATIONS[name]["steps"]):
        act(relay, peers, step)
        for peer, session in peers.items():
            heard = [parsed(text.decode()) for text in relay.texts(session)]
            assert heard == [parsed(text) for text in expected.pop(peer, [])]
        assert not expected
    assert all(session.closing is None for session in peers.values())


@pytest.mark.parametrize("name", DEPARTURES)
def test_departures_from_the_reference_get_their_documented_answers(relay: Relay, name: str) -> None:
    peers: dict[str, TopicRelaySession] = {}
    for step, _ in turns(CONVERSATIONS[name]["steps"]):
        act(relay, peers, step)
    for peer, session in peers.items():
        heard = [parsed(text.decode()) for text in relay.texts(session)]
        assert heard == [parsed(text) for text in DEPARTURES[name].heard.get(peer, [])]
        assert session.closing is None


@pytest.mark.parametrize("name", DEPARTURES)
def test_every_documented_departure_differs_from_the_reference(name: str) -> None:
    recorded: dict[str, list[str]] = {}
    for step in CONVERSATIONS[name]["steps"]:
        if step["op"] == "recv":
            recorded.setdefault(step["peer"], []).append(text_of(step))
    assert DEPARTURES[name].reason
    assert {peer: list(map(parsed, texts)) for peer, texts in recorded.items()} != {
        peer: list(map(parsed, texts)) for peer, texts in DEPARTURES[name].heard.items()
    }


@pytest.mark.parametrize("name", sorted(PATHS))
def test_other_paths_are_refused(relay: Relay, name: str) -> None:
    for step in CONVERSATIONS[name]["steps"]:
        if step["op"] == "open":
            answer = relay.adapter.accept(ConnectionRequest(Principal("somebody"), step["path"]))
            assert isinstance(answer, Refusal)
            assert answer.status == 404
