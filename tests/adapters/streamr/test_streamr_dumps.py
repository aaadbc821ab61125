"""Files in the formats of the broker's data API are read: those of a genuine broker, and signed messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from coincurve import PrivateKey
from typer.testing import CliRunner, Result

from adapters.streamr.crypto.signing import address_of, sign, sign_message, signed_payloads, verify
from adapters.streamr.dump_files import read_dump
from adapters.streamr.wire.message import ETH_LEGACY, UNSIGNED, MessageID, MessageRef, StreamMessage, parse_message
from gateway.cli import app
from gateway.commands.common import CommandError

KEY = PrivateKey(bytes(31) + b"\5")
VECTORS = Path(__file__).parents[2] / "vectors/streamr"
ADDRESS = address_of(KEY.public_key)


def conversation(count: int = 5, stream: str = "s") -> list[StreamMessage]:
    """Signed messages that follow each other; the contents are what careless readers change."""
    contents = ['{"a":1}', '{"ü":"\\ud83d"}', "[1,2]", '"text"', '{"n":12345678901234567890}']
    told: list[StreamMessage] = []
    before: MessageRef | None = None
    for n in range(count):
        id = MessageID(stream, 0, 1_700_000_000_000 + n // 2, n % 2, ADDRESS, "c")
        told.append(parse_message(sign_message(StreamMessage(id, contents[n % 5], before), KEY).encode(32)))
        before = MessageRef(id.timestamp, id.sequence_number)
    return told


def as_object(message: StreamMessage, **more: Any) -> dict[str, Any]:
    names = ("streamId", "streamPartition", "timestamp", "sequenceNumber", "publisherId", "msgChainId")
    kinds = {"messageType": 27, "contentType": 0, "encryptionType": message.encryption_type, "groupKeyId": None}
    tail = {"signatureType": message.signature_type, "signature": message.signature}
    return dict(zip(names, message.id, strict=True)) | kinds | {"content": json.loads(message.content)} | tail | more


def dump(messages: list[StreamMessage], form: str) -> bytes:
    """*messages* as the broker gives them; the order is that of its storage."""
    rows = [message.encode(32).decode() for message in messages]
    if form == "raw":
        return "\n".join(rows).encode()
    return json.dumps(rows if form == "protocol" else [as_object(message) for message in messages]).encode()


@pytest.mark.parametrize("form", ["raw", "protocol"])
def test_messages_come_out_byte_for_byte(form: str) -> None:
    said = conversation()
    found = list(read_dump(dump(said, form)))
    assert [(one.number, one.fault) for one in found] == [(n, "") for n in range(1, 6)]
    assert [one.message.wire for one in found if one.message] == [one.wire for one in said]


def test_signed_fields_of_objects_are_restored_where_possible() -> None:
    said = [one for one in conversation() if "ud83d" not in one.content]
    found = [one.message for one in read_dump(dump(said, "object"))]
    assert [one.content for one in found if one] == [one.content for one in said]
    # The first was signed without, the last two with the message before them; the one in between lacks its predecessor.
    assert [one.signature_type != UNSIGNED and verify(one) for one in found if one] == [True, False, True, True]
    assert [one.wire for one in found if one and one.signature] == [
        one.encode(32) for one in said if one is not said[1]
    ]


def test_an_old_signature_needs_no_predecessor() -> None:
    old = StreamMessage(MessageID("s", 0, 5, 0, ADDRESS, ""), '{"a":1}', signature_type=ETH_LEGACY)
    whole = StreamMessage(old.id, old.content, signature_type=ETH_LEGACY, signature=sign(signed_payloads(old)[0], KEY))
    ((_, found, _),) = read_dump(json.dumps([as_object(whole)]).encode())
    assert found is not None
    assert verify(found)


def test_answers_of_the_genuine_broker_are_read() -> None:
    told = json.loads((VECTORS / "broker20-oracle.json").read_text())["rest"]
    answers = [one for one in told if one["method"] == "GET" and one["status"] == 200]
    answers = [one for one in answers if len(one["response"]) < 1500]  # the vectors cut what is longer
    read_of = {one["path"]: list(read_dump(one["response"].encode())) for one in answers}
    assert len(read_of) > 5
    assert not [one.fault for found in read_of.values() for one in found if one.fault]
    same = [found for path, found in read_of.items() if "count=2" in path]
    assert len(same) == 3
    assert len({tuple((one.message.id, one.message.content) for one in found if one.message) for found in same}) == 1


@pytest.mark.parametrize("data", [b"", b" \n", b"[]", b"[ ]"])
def test_nothing_is_in_an_empty_file(data: bytes) -> None:
    assert list(read_dump(data)) == []


@pytest.mark.parametrize("data", [b"hello", b"{}", b"[", b'{"a":1}', b'["x"', b'[{"a":1', b"\xff"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(read_dump(data))


def test_an_invalid_entry_is_reported_by_number_and_others_are_read() -> None:
    good = conversation(1)[0]
    raw = list(read_dump(good.encode(32) + b"\n\n[32,1]\n" + good.encode(31)))
    assert [(one.number, one.message is None, bool(one.fault)) for one in raw] == [
        (1, False, False),
        (3, True, True),
        (4, False, False),
    ]
    objects = list(read_dump(json.dumps([as_object(good, streamId=5), as_object(good), 7]).encode()))
    assert sorted((one.number, one.message is None) for one in objects) == [(1, True), (2, False), (3, True)]
    texts = list(read_dump(json.dumps([good.encode(32).decode(), 7, "x"]).encode()))
    assert [one.message is None for one in texts] == [False, True, True]


def test_the_command_imports_dumps_and_reports_faults(tmp_path: Path) -> None:
    said = conversation()
    (tmp_path / "raw").write_bytes(dump(said, "raw"))
    forged = said[0].encode(32).replace(b'\\"a\\":1', b'\\"a\\":2').replace(b'"c"', b'"d"')
    (tmp_path / "bad").write_bytes(forged + b"\n[5]")
    (tmp_path / "worse").write_bytes(b"hello")

    def run(*names: str) -> Result:
        files = [str(tmp_path / name) for name in names]
        return CliRunner().invoke(app, ["import", "--streamr", *files, "--data", str(tmp_path / "data")])

    first, again, bad = run("raw"), run("raw"), run("bad", "worse")
    assert first.stdout == "5 messages imported, 0 known already, faults: 0\n"
    assert again.stdout == "0 messages imported, 5 known already, faults: 0\n"
    assert bad.stdout == "0 messages imported, 0 known already, faults: 3\n"
    for place, reason in (("bad, message 1", "Signature"), ("bad, message 2", "version"), ("worse", "formats")):
        assert [line for line in bad.stderr.splitlines() if place in line and reason in line], place
    assert isinstance(bad.exception, CommandError | SystemExit)
    assert run().exit_code == 2
    hostile = f'[32,["\x9b2J\u202e",0,1,0,"",""],null,27,0,0,null,"{chr(0x9B)}31m",null,0,null]'
    (tmp_path / "hostile").write_text(hostile)
    told = run("hostile").stderr
    assert "message 1" in told
    assert "\x9b" not in told
    assert "\u202e" not in told
