"""Unreadable messages are bridged encrypted, untrusted keys are refused, and both are bounded."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.streamr.crypto import decrypt, held_messages, keyring
from adapters.streamr.crypto.group_keys import MAX_ID, GroupKey
from gateway.access.authorization import SecretFileError, write_secret
from gateway.core.errors import Unavailable
from gateway.core.message import Message
from tests.adapters.streamr.crypto.encrypted import LONG, Writer, heard, ignored, pass_time, rsa, undecrypted

pytestmark = pytest.mark.usefixtures("_quick")


# What cannot be read


def test_messages_without_a_key_response_are_bridged_encrypted_in_order(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    rows = [writer.row(1), writer.row(2)]
    for row in rows:
        writer.publish(row)
    assert writer.publish(alice.message("s", {"clear": 3}, reading.clock(), 99)) == []
    assert len(writer.requests()) == 1
    pass_time(reading, decrypt.RETRY_INTERVAL)
    assert len(writer.requests()) == 1, "asked again"
    assert heard(toy) == []
    pass_time(reading, decrypt.KEY_WAIT - decrypt.RETRY_INTERVAL)
    expected = [{"encrypted": {"groupKeyId": "k1", "content": row[7]}} for row in rows]
    assert heard(toy) == [*expected, {"clear": 3}]
    assert undecrypted(reading) == 2
    writer.publish(writer.row(3))
    assert len(heard(toy)) == 1, "nothing waits for who is silent"
    assert writer.requests() == []
    writer.publish(writer.row(3, "k2"))
    assert len(heard(toy)) == 1, "whatever the key"
    assert len(writer.requests()) == 1
    pass_time(reading, decrypt.KEY_WAIT)
    pass_time(reading, decrypt.FAILURE_MEMORY)
    writer.publish(writer.row(4))
    writer.give()
    assert heard(toy) == [4]


def test_a_late_key_response_decrypts_later_messages(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    ((reader, request),) = writer.requests()
    pass_time(reading, decrypt.KEY_WAIT)
    assert len(heard(toy)) == 1
    writer.answer(reader, request)
    writer.publish(writer.row(2))
    assert heard(toy) == [2]


@pytest.mark.parametrize("refusal", ["error", "empty"])
def test_a_refusal_ends_the_waiting(reading: Any, alice: Any, refusal: str) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    ((reader, request),) = writer.requests()
    if refusal == "error":
        writer.tell(reader, [request[0], "s", "CODE", "no", ["k1"]], kind=31, encryption=0)
    else:
        writer.tell(reader, [request[0], "s", []])
    assert [message.keys() for message in heard(toy)] == [{"encrypted"}]


def test_messages_that_decrypt_to_invalid_json_are_bridged_encrypted(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    writer.give()
    other = writer.row(LONG, "k1", b"x" * 32)
    for row in (writer.row(b"nonsense"), other, writer.row(b"\xff")):
        writer.publish(row)
    assert [message if message == 1 else message.keys() for message in heard(toy)] == [1, *[{"encrypted"}] * 3]
    assert undecrypted(reading) == 3


def test_messages_whose_key_cannot_be_requested_do_not_wait(reading: Any, alice: Any, unsigned: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    nameless = unsigned("s", "ab" * 20, reading.clock())
    nameless[5:7] = [2, "k1"]
    long = alice.message("s", "ab" * 20, reading.clock(), encryption=2, group_key="k" * (MAX_ID + 1))
    for row in (nameless, long):
        assert writer.publish(row) == []
    assert [message.keys() for message in heard(toy)] == [{"encrypted"}] * 2
    assert writer.requests() == []


@pytest.mark.parametrize("bound", ["MAX_HELD", "MAX_HELD_SIZE"])
def test_waiting_messages_are_bounded_and_none_is_lost(
    reading: Any, alice: Any, bob: Any, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Whoever has most of it is given up: nobody ends the waiting of others by saying much."""
    toy, writers = reading.toy("s"), [Writer(reading, alice), Writer(reading, bob)]
    for writer in (*writers, writers[1]):
        writer.publish(writer.row(1))
    assert heard(toy) == []
    held = reading.adapter.parts.participant._decryptor._held
    assert held.size > 3 * held_messages.MESSAGE_OVERHEAD
    monkeypatch.setattr(held_messages, bound, 3 if bound == "MAX_HELD" else held.size)
    writers[1].publish(writers[1].row(1))
    assert [message.keys() for message in heard(toy)] == [{"encrypted"}] * 3
    writers[0].give()
    assert heard(toy) == [1]
    assert held.size == 0


def test_waiting_messages_count_in_the_memory_of_their_sender(reading: Any, alice: Any, bob: Any) -> None:
    """The budget of memory counts it, and takes it back from who holds most: then it is said as it came."""
    toy, writers = reading.toy("s"), [Writer(reading, alice), Writer(reading, bob)]
    for writer in writers:
        writer.publish(writer.row("x" * 10_000))
        assert writer.session.held_size > 40_000, "the digits, and the text with them"
    writers[0].session.release_memory()
    assert writers[0].session.held_size == 0
    assert [message.keys() for message in heard(toy)] == [{"encrypted"}]
    assert writers[1].session.closing is None
    writers[1].give()
    assert heard(toy) == ["x" * 10_000]
    assert writers[1].session.held_size < 1_000
    assert not reading.adapter.parts.participant._decryptor._held._sizes_by_origin


def test_pending_key_requests_are_bounded(reading: Any, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decrypt, "MAX_KEY_REQUESTS", 1)
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1, partition=1))
    writer.publish(writer.row(2, "k2"))
    assert [message.keys() for message in heard(toy)] == [{"encrypted"}]
    assert [request[3] for _, request in writer.requests()] == [["k1"]]


def test_keys_in_the_worker_are_bounded(reading: Any, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(reading, alice)
    writer.publish(writer.row(1))
    ((reader, request),) = writer.requests()
    monkeypatch.setattr(decrypt, "MAX_DECRYPTING", 0)
    writer.answer(reader, request)
    assert ignored(reading) == 1


def test_waiting_messages_are_published_when_the_gateway_stops(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    writer.session.goodbye()
    assert [message.keys() for message in heard(toy)] == [{"encrypted"}]


def test_a_late_refusal_of_the_bus_is_reported_to_the_client(
    reading: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(reading, alice)
    writer.publish(writer.row(1))

    def publish(*_: object) -> None:
        raise Unavailable("the disk does not keep up")

    monkeypatch.setattr(reading.bus, "publish_alone", publish)
    pass_time(reading, decrypt.KEY_WAIT)
    answers = [frame for frame in reading.frames(writer.session) if frame[1] == 7]
    assert [(frame[2], frame[4]) for frame in answers] == [("r", "REQUEST_FAILED")]


# Whom to believe


def test_key_responses_are_accepted_only_from_the_requested_publisher(reading: Any, alice: Any, bob: Any) -> None:
    toy, writer, thief = reading.toy("s"), Writer(reading, alice), Writer(reading, bob)
    writer.publish(writer.row(1))
    ((reader, request),) = writer.requests()
    thief.keys["k1"] = b"x" * 32
    thief.tell(reader, [request[0], "s", "CODE", "no", ["k1"]], kind=31, encryption=0)
    thief.answer(reader, request)
    thief.tell(reader, "abcd")
    for nonsense in ("{", [], [request[0], "s", [["k1", "zz"]]]):
        writer.tell(reader, nonsense)
    assert heard(toy) == []
    writer.answer(reader, request)
    assert heard(toy) == [1]


def test_key_announces_are_accepted_only_from_publishers(
    make_reading: Callable[..., Any], alice: Any, bob: Any
) -> None:
    rights = ("publish:s", "publish:s#1")
    reading = make_reading(grants={f"streamr:{alice.address}": rights, f"streamr:{bob.address}": ("subscribe:t",)})
    writer, thief = Writer(reading, alice), Writer(reading, bob)
    writer.publish(writer.row(1))
    ((reader, request),) = writer.requests()
    for teller, stream in ((thief, "s"), (writer, "s"), (writer, "t")):
        teller.tell(reader, [stream, [["k2", rsa(teller.keys["k2"], request[2])]]], kind=30)
    writer.tell(reader, [request[0], "t", [["k1", rsa(writer.keys["k1"], request[2])]]])
    owners = set(reading.adapter.parts.participant._decryptor._keyring._keys)
    assert owners == {(("s", alice.address), "k2"), (("s", alice.address), "k1")}, "of no stream but that one"
    assert ignored(reading) == 2


def test_permitted_readers_include_the_gateway_on_streams_it_reads(
    make_reading: Callable[..., Any], alice: Any
) -> None:
    reading = make_reading(grants={f"streamr:{alice.address}": ("subscribe:t",)})
    own = reading.adapter.parts.participant.address
    assert reading.adapter.parts.trust.may_read("s", own)
    assert not reading.adapter.parts.trust.may_read("t", own)
    assert reading.adapter.parts.trust.may_read("t", alice.address)
    assert not reading.adapter.parts.trust.may_read("s", alice.address)


# What is kept


def test_keys_survive_a_restart_in_a_private_file(make_reading: Callable[..., Any], alice: Any, tmp_path: Path) -> None:
    first = make_reading()
    writer = Writer(first, alice)
    writer.publish(writer.row(1))
    writer.give()
    first.core.drain()
    first.core.stop()
    file = tmp_path / keyring.KEYRING_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = writer.keys["k1"].hex()
    assert secret in file.read_text()
    logs = b"".join(path.read_bytes() for path in first.core.data.rglob("*") if path.is_file() and path != file)
    assert secret.encode() not in logs
    assert writer.keys["k1"] not in logs
    again = make_reading()
    toy, writer = again.toy("s"), Writer(again, alice)
    writer.count = 50
    writer.publish(writer.row(2))
    assert heard(toy) == [2]
    assert writer.requests() == []


def test_the_key_in_use_is_the_one_added_last(tmp_path: Path) -> None:
    ring = keyring.Keyring(tmp_path / "keys", [], lambda call, done: done(call()))
    owner = keyring.KeyOwner("s", "0xa")
    first, second = GroupKey("k1", b"1" * 32), GroupKey("k2", b"2" * 32)
    for key in (first, second, first):
        ring.add(owner, key)
        assert ring.find(owner, None) == key
    assert ring.find(keyring.KeyOwner("s", "0xb"), None) is None
    again = keyring.Keyring(tmp_path / "keys", keyring.read_keys(tmp_path / "keys"), lambda call, done: done(call()))
    assert (again.find(owner, "k1"), again.find(owner, "k2")) == (first, second)


def test_the_number_of_keys_is_bounded(reading: Any, alice: Any) -> None:
    reading.adapter.parts.participant._decryptor._keyring._keys.limit = 1
    toy, writer = reading.toy("s"), Writer(reading, alice)
    for number, key in enumerate(("k1", "k2", "k1")):
        writer.publish(writer.row(number, key))
        ((reader, request),) = writer.requests()
        assert request[3] == [key], "the one before was forgotten"
        writer.answer(reader, request)
    assert heard(toy) == [0, 1, 2]


@pytest.mark.parametrize("text", ['{"keys": [["s", "0xa", "k", "00"]]}', "{}", '{"keys": 5}', "nonsense"])
def test_an_unusable_key_file_fails_the_start(make_reading: Callable[..., Any], tmp_path: Path, text: str) -> None:
    file = tmp_path / keyring.KEYRING_FILE
    write_secret(file, text.encode())
    with pytest.raises(SecretFileError, match=f"{keyring.KEYRING_FILE} holds no group keys .*; move it away"):
        make_reading()
    file.chmod(0o644)
    with pytest.raises(SecretFileError, match="may be read by others"):
        make_reading()


def test_decrypted_messages_are_read_back_unchanged(reading: Any, alice: Any) -> None:
    writer = Writer(reading, alice)
    writer.publish(writer.row({"n": 1}))
    writer.give()
    reading.core.settle()
    (entry,) = reading.core.index.history("s")
    assert isinstance(entry, Message)
    assert json.loads(entry.content) == {"n": 1}
    assert reading.adapter.signature_check()(entry) is None
