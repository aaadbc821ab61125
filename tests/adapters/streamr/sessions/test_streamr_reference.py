"""Recorded conversations with the genuine broker and genuine clients are replayed with equal answers.

What differs on purpose stands in `DEPARTURES` with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.adapter import ConnectionRequest, Refusal
from gateway.core.principal import Principal

VECTORS = Path(__file__).parents[3] / "vectors" / "streamr"
BROKER = json.loads((VECTORS / "broker20-oracle.json").read_text())
USER = "0x2c7536e3605d9c16a7a3d7b1898e529396a65c23"

NOT_JSON = "the text is that of the parser; orjson has its own"
READABLE = "the requestId is echoed whenever it can be read"
PARTITION = "the partition is optional in every specification"
RANGE = "the reference lets somebody wait for ever on a partition that nobody can publish to"
ONCE = "one subscription, however often it was asked for"
NULL = "null is no content; the reference makes the text `null` of it"
STORED = "every stream is stored"
LEAK = "the reference tells the address of its inner service, and the wrong code"

# The probe, how our answer begins (the requestId is left out), and why it is not the reference's.
# fmt: off
DEPARTURES: dict[str, tuple[list[Any], str]] = {
    "not json":                             ([7, "Invalid JSON: "], NOT_JSON),
    "empty string":                         ([7, "Invalid JSON: "], NOT_JSON),
    "publish content not json":             ([7, "Publish request failed: Invalid JSON in stream s: nope. "], NOT_JSON),
    "unknown type":                         ([7, "Unsupported type: 99, message: Supported types: [0,1,2,"], READABLE),
    "subscribe missing partition":          ([2, "s"], PARTITION),
    "subscribe partition out of range":     ([7, "Subscribe request failed: Partition 7 is out of range"], RANGE),
    "publish content null":                 ([7, "Expected content to not be null."], NULL),
    "unsubscribe again":                    ([7, "Not subscribed to stream s partition 0!"], ONCE),
    "resend stream without storage":        ([6, "nostore"], STORED),
    "resend denied":                        ([7, "You are not allowed to resend from stream denied"], LEAK),
}
# fmt: on


def once(frames: list[Any]) -> list[Any]:
    """The reference delivers a message once for each subscription; here it is delivered once."""
    return list({json.dumps(frame): frame for frame in frames}.values())


def recall(reference: Any, resent: list[Any]) -> None:
    """Publish what the reference resends: it was given more messages than those whose probes were recorded."""
    session = reference.open({}, f"streamr:{USER}")
    for frame in resent:
        if frame[1] == 1:
            assert reference.ask(session, [2, 8, "r", frame[-1], "token-1"]) == []


@pytest.fixture
def reference(make_broker: Callable[..., Any]) -> Any:
    """A gateway with the streams and the user of the probes."""
    streams = ("s", "part", "part#1", "part#2", "enc", "nostore")
    verbs = ("subscribe", "publish", "history")
    rights = tuple(f"{verb}:{name}" for verb in verbs for name in (*streams, "part#*", "nope"))
    broker = make_broker(
        create=False, streams={"part": 3, "enc": {"require_encrypted_data": True}}, grants={f"streamr:{USER}": rights}
    )
    for name in (*streams, "denied"):
        broker.core.channels.configure(name)
    broker.adapter.logins.address = lambda token, _now: USER if token == "token-1" else None
    broker.clock.now = 1795236878500
    return broker


def test_probes_get_the_answers_of_the_genuine_broker(reference: Any) -> None:
    sessions = {
        f"control {control} / message {message}": reference.open(
            {"controlLayerVersion": str(control), "messageLayerVersion": str(message)}, f"streamr:{USER}"
        )
        for control, message in ((2, 32), (1, 31), (2, 30))
    }
    reference.ask(sessions["control 2 / message 30"], [2, 9, "r", "s", 0, "token-1"])
    departed = set()
    for probe in BROKER["ws"]:
        name = probe["name"].strip()
        if name.startswith("same broadcast seen"):
            assert reference.frames(sessions["control 1 / message 31"]) == once(probe["received"])
            continue
        recall(reference, probe["received"])
        for session in sessions.values():
            reference.frames(session)
        sent = probe["sent"]
        session = sessions[probe["conn"]]
        ours = reference.ask(session, sent.encode() if isinstance(sent, str) else sent)
        if name not in DEPARTURES:
            assert ours == once(probe["received"]), name
            continue
        expected, _reason = DEPARTURES[name]
        found = [[frame[1], *frame[2 + (frame[0] == 2) :]] for frame in ours]
        shown = [[str(v)[: len(str(e))] for v, e in zip(frame, expected, strict=False)] for frame in found]
        assert shown == ([list(map(str, expected))] if expected else []), name
        if ours != once(probe["received"]):
            departed.add(name)
    assert departed == DEPARTURES.keys()


@pytest.mark.parametrize("probe", BROKER["upgrade"], ids=lambda probe: probe["query"] or "none")
def test_handshakes_get_the_answers_of_the_genuine_broker(broker: Any, probe: Any) -> None:
    query = dict(pair.split("=") for pair in probe["query"].lstrip("?").split("&") if pair)
    answer = broker.adapter.accept(ConnectionRequest(Principal("streamr:anonymous"), "/api/v1/ws", query))
    if probe.get("body", "").startswith("Missing version negotiation!"):
        assert not isinstance(answer, Refusal), "what is missing is taken from the first frame"
    elif "status" in probe:
        assert answer == Refusal(probe["status"], probe["body"])
    else:
        assert not isinstance(answer, Refusal)


# Genuine clients


def users(transcript: list[Any]) -> dict[str, str]:
    """The addresses behind the tokens that the stub gave out."""
    return {
        json.loads(entry["responseBody"])["token"]: json.loads(entry["requestBody"])["address"].lower()
        for entry in transcript
        if entry["dir"] == "http" and entry["url"].endswith("/login/response") and entry["status"] == 200
    }


def is_ours(frame: Any) -> bool:
    """Whether a recorded frame of the stub is an answer, not what it said by itself."""
    return isinstance(frame, list) and (frame[1] in range(1, 8) or (frame[1] == 0 and bool(frame[-1][1][4])))


@pytest.mark.parametrize("client", ["2.2.7", "4.1.6", "5.1.0"])
def test_recorded_clients_get_the_recorded_answers(make_broker: Callable[..., Any], client: str) -> None:
    transcript = json.loads((VECTORS / "transcripts" / f"client-{client}.json").read_text())["transcript"]
    broker = make_broker(streams={"stub/part": 5})
    tokens = users(transcript)
    broker.adapter.logins.address = lambda token, _now: tokens.get(token)
    broker.bus.allowed = lambda _principal, _verb, channel: channel != "stub/denied"
    broker.clock.now = 1795236460000
    sessions: dict[int, Any] = {}
    expected: dict[int, list[Any]] = {}
    ours: dict[int, list[Any]] = {}
    for entry in transcript:
        connection = entry.get("conn")
        if entry["dir"] == "ws-open":
            query = dict(pair.split("=") for pair in entry["url"].partition("?")[2].split("&"))
            sessions[connection] = broker.open(query)
            expected[connection], ours[connection] = [], []
        elif entry["dir"] == "ws-out" and is_ours(entry["frame"]):
            expected[connection].append(entry["frame"])
        elif entry["dir"] == "ws-close":
            sessions.pop(connection).receive_eof()
        elif entry["dir"] == "ws-in" and isinstance(entry["frame"], list) and entry["frame"][1] >= 8:
            ours[connection] += broker.ask(sessions[connection], entry["frame"])
            for other, session in sessions.items():
                ours[other] += broker.frames(session)
    denied = "Not authorized to subscribe to stream stub/denied and partition 0"
    for frames in expected.values():
        for frame in frames:
            if denied in frame:  # the stub's own words; the broker's are in the probes
                frame[frame.index(denied)] = "You are not allowed to subscribe to stream stub/denied"
    assert sum(map(len, expected.values())) >= 5
    for connection, frames in expected.items():
        assert sorted(map(json.dumps, ours[connection])) == sorted(map(json.dumps, frames))
