"""Messages made by the genuine libraries, clients and broker, compared field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.streamr.crypto.signing import signed_payloads, verify
from adapters.streamr.wire.codec import decode_control, encode
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import AES, MessageRef, StreamMessage, parse_message

VECTORS = Path(__file__).parents[3] / "vectors" / "streamr"
LIBRARIES = ("protocol-2.2.15", "protocol-5.3.3", "protocol-8.4.1")
TRANSCRIPTS = ("client-2.2.7", "client-4.1.6", "client-5.1.0")

# What the libraries' objects call the attributes of ours.
ATTRIBUTES = {
    "version": "version",
    "type": "type",
    "requestId": "request_id",
    "subId": "request_id",
    "streamId": "stream_id",
    "streamPartition": "stream_partition",
    "sessionToken": "session_token",
    "numberLast": "number_last",
    "fromMsgRef": "from_ref",
    "toMsgRef": "to_ref",
    "publisherId": "publisher_id",
    "msgChainId": "msg_chain_id",
    "errorMessage": "error_message",
    "errorCode": "error_code",
}

# Where Trellis departs from protocol 8.4.1 on purpose: None accepts what the library refuses.
ABSENT = "Unsupported version: undefined, message: Supported versions: [1,2]"
DEPARTURES: dict[str, str | None] = {
    "null": ABSENT,
    "string": ABSENT,
    "subscribe without partition": None,
    "subscribe partition null": None,
    "unsubscribe without partition": None,
    "resend type 11 v1 seed 001 form all": None,
    "resend type 11 v1 seed 001 form last": None,
    "resend from null ref": "Expected fromMsgRef to not be null.",
    "publish null message": "Expected streamMessage to not be null.",
    "flat v30 (seed 001)": None,
    "flat v30 (seed 001) partition as string": None,
    "9-field v32 (seed 002 examples)": None,
    "10-field v32 (seed 002 structure)": None,
    "9-field v32 type 28 content array (seed 002)": None,
    "type 32 GroupKeyRotate (seed 002)": None,
    "content null": "Expected content to not be null.",
    "newGroupKey as array": "Expected newGroupKey to be a string but was a object (a,b).",
    "newGroupKey not json": "Invalid JSON in newGroupKey",
    "msgId null": "Expected msgId to not be null.",
    "prev string": "Expected prevMsgRef to be an array but was a string (x).",
    "v30 prevMsgRef [null,null]": None,
    "not json": "Invalid JSON",
}
BROKER_DEPARTURES: dict[str, str | None] = {
    "not json": "Invalid JSON",
    "empty string": "Invalid JSON",
    "subscribe missing partition": None,
    "publish content null": "Expected content to not be null.",
}


def load(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def stream_vectors() -> list[Any]:
    return [
        pytest.param(vector, id=f"{library}: {vector['name']}")
        for library in LIBRARIES
        for vector in load(library)["stream"]
    ]


def control_vectors() -> list[Any]:
    return [
        pytest.param(vector, id=f"{library}: {vector['cls']} {vector['version']} {vector.get('messageVersion')}")
        for library in LIBRARIES
        for vector in load(library)["control"]
        if vector.get("version", 0) > 0 and vector.get("messageVersion", 32) >= 30
    ]


def flat(message: StreamMessage) -> dict[str, Any]:
    stream_id, partition, timestamp, sequence, publisher, chain = message.id
    return {
        "streamId": stream_id,
        "streamPartition": partition,
        "timestamp": timestamp,
        "sequenceNumber": sequence,
        "publisherId": publisher,
        "msgChainId": chain,
        "messageType": message.message_type,
        "contentType": 0,
        "encryptionType": message.encryption_type,
        "groupKeyId": message.group_key_id,
        "content": message.content,
        "signatureType": message.signature_type,
        "signature": message.signature,
    }


@pytest.mark.parametrize("vector", stream_vectors())
def test_a_message_is_read_in_every_version(vector: Any) -> None:
    for version, wire in vector["wire"].items():
        if int(version) < 30 or not isinstance(wire, list):
            continue
        message = parse_message(compact(wire))
        assert message.version == int(version)
        assert message.content == vector["serializedContent"]
        assert message.encode(int(version)) == compact(wire).encode() or wire[2] == [None, None]
        expected = vector.get("decoded", {}).get(version)
        if expected and "ok" in expected:  # version 30 does not say that this content is encrypted
            with pytest.raises(StreamrError) as refused:
                message.parsed_content()
            assert refused.value.code == "REQUEST_FAILED"
            said = expected["errorMessage"].replace("stream undefined:", "stream my/stream:")  # a slip of 5.3.3
            assert refused.value.message.split(". ")[0] == said.split(". ")[0]
        elif expected:
            assert message.parsed_content() == vector["parsedContent"]
            assert flat(message) == expected | {"content": vector["serializedContent"]}


@pytest.mark.parametrize("vector", stream_vectors())
def test_a_message_is_converted_as_the_libraries_do(vector: Any) -> None:
    rows = {int(version): wire for version, wire in vector["wire"].items() if isinstance(wire, list)}
    newest = parse_message(compact(rows[max(rows)]))
    for version in rows.keys() & {30, 31, 32}:
        if rows[version][2] == [None, None]:
            rows[version][2] = None
        assert json.loads(newest.encode(version)) == rows[version]


@pytest.mark.parametrize("vector", stream_vectors())
def test_the_payload_and_the_signature_are_the_libraries(vector: Any) -> None:
    rows = {int(version): wire for version, wire in vector["wire"].items() if isinstance(wire, list)}
    newest = parse_message(compact(rows[max(rows)]))
    payload = vector.get("payloadToSign")
    if not isinstance(payload, str):
        assert signed_payloads(newest) == ()
        assert not verify(newest)
        return
    assert signed_payloads(newest)[0] == payload
    assert verify(newest)
    for version in {30, 31, 32} & rows.keys():
        hidden = version == 30 and newest.encryption_type == AES and newest.new_group_key is None
        assert verify(parse_message(newest.encode(version))) == (newest.is_lossless_in(version) or hidden)


@pytest.mark.parametrize("vector", control_vectors())
def test_a_control_frame_is_read_and_written(vector: Any) -> None:
    wire = compact(vector["wire"])
    frame = decode_control(wire)
    assert encode(frame, vector["version"], vector.get("messageVersion", 32)) == wire.encode()
    for name, expected in vector["decoded"].items():
        if name in ("class", "hasStreamMessage", "subId") or expected == "__undefined__":
            continue
        ref = isinstance(expected, dict) and MessageRef(expected["timestamp"], expected["sequenceNumber"])
        assert getattr(frame, ATTRIBUTES[name]) == (ref or expected)


def test_versions_before_1_and_30_are_refused_by_name() -> None:
    for vector in load("protocol-2.2.15")["control"]:
        if "wire" not in vector or (vector["version"] > 0 and vector.get("messageVersion", 32) >= 30):
            continue
        with pytest.raises(StreamrError, match=r"^Unsupported version: "):
            decode_control(compact(vector["wire"]))


@pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in load("protocol-8.4.1")["invalid"]])
def test_errors_have_the_text_of_the_library(vector: Any) -> None:
    read = decode_control if vector["layer"] == "control" else parse_message
    result = vector["result"]
    expected = DEPARTURES.get(vector["name"], None if result["ok"] else result["errorMessage"])
    if expected is None:
        read(text_of(vector["input"]))
    else:
        with pytest.raises(StreamrError) as refused:
            read(text_of(vector["input"]))
        assert refused.value.message.startswith(expected)


def test_the_faults_of_the_library_before_are_the_same() -> None:
    """Its 90 are told apart from those of the newest by what it said, not by what was said to it."""
    said = [{vector["name"]: vector["input"] for vector in load(library)["invalid"]} for library in LIBRARIES[1:]]
    assert said[0] == said[1]


# What the oldest library was given (control versions 0 and 1), and what it is here; None is read.
OLDEST: dict[str, str | None] = {
    "not json": "Invalid JSON: ",
    "empty array": "Unsupported version: undefined, message: Supported versions: [1,2]",
    "object without type": "Unsupported version: undefined, message: Supported versions: [1,2]",
    "unknown type": "Unsupported type: 99, message: Supported types: [0,1,2,3,4,5,6,7,8,9,10,11,12,13]",
    "unknown version": None,  # it is 2
    "subscribe without partition": None,
    "subscribe without stream": "Expected streamId to not be undefined.",
    "subscribe v1 with apiKey (seed 001)": None,
    "publish v1 with apiKey (seed 001)": None,
    "resend 11 seed 001 all": None,
    "resend 11 seed 001 last": None,
    "v0 subscribe object": "Unsupported version: undefined, message: Supported versions: [1,2]",
    "v0 resend object no option": "Unsupported version: undefined, message: Supported versions: [1,2]",
    "flat v30 (seed 001)": None,
    "v30 content not json": "Invalid JSON in stream my/stream: nope. ",
    "v32 message": None,
    "v30 prev [null,null]": None,
}


@pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in load(LIBRARIES[0])["invalid"]])
def test_input_of_the_oldest_library_is_read_or_refused_with_its_text(vector: Any) -> None:
    def read() -> None:
        if vector["layer"] == "control":
            decode_control(text_of(vector["input"]))
        else:
            parse_message(text_of(vector["input"])).parsed_content()

    expected = OLDEST[vector["name"]]
    if expected is None:
        read()
    else:
        with pytest.raises(StreamrError) as refused:
            read()
        assert refused.value.message.startswith(expected)


@pytest.mark.parametrize("probe", load("broker20-oracle")["ws"], ids=lambda probe: probe["name"])
def test_the_broker_and_we_refuse_the_same_frames(probe: Any) -> None:
    if "sent" in probe:
        expected = BROKER_DEPARTURES.get(probe["name"], refusal(probe["received"]))
        if expected is None:
            decode_control(text_of(probe["sent"]))
        else:
            with pytest.raises(StreamrError) as refused:
                decode_control(text_of(probe["sent"]))
            assert refused.value.message.startswith(expected)
            assert refused.value.code == "INVALID_REQUEST"
    for reply in probe["received"]:
        message_version = 32 if reply[1] > 1 else reply[-1][0]
        assert json.loads(encode(decode_control(compact(reply)), reply[0], message_version)) == reply


def refusal(replies: list[Any]) -> str | None:
    """What the broker's parser said; what came after parsing (streams, permissions) is not ours here."""
    said = [reply[3 if reply[0] == 2 else 2] for reply in replies if reply[1] == 7]
    return next((text for text in said if text.startswith(("Expected ", "Unsupported "))), None)


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_frames_of_genuine_clients_are_read_verbatim(name: str) -> None:
    signatures = 0
    for entry in json.loads((VECTORS / "transcripts" / f"{name}.json").read_text())["transcript"]:
        if entry["dir"] != "ws-in":
            continue
        wire = compact(entry["frame"])
        frame = decode_control(wire)
        message = getattr(frame, "message", None)
        if message is not None:
            assert message.verbatim
            assert message.wire == compact(next(part for part in entry["frame"] if isinstance(part, list))).encode()
            assert message.signature is None or verify(message)
            signatures += message.signature is not None
        assert encode(frame, entry["frame"][0], getattr(message, "version", 32)) == wire.encode()
    assert signatures > 0
