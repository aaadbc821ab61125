"""The gateway reads encrypted streams: it asks publishers for keys, and what they say is bridged in plain text."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from adapters.streamr.crypto import ciphers, decrypt, held_messages, keyring
from adapters.streamr.crypto.group_keys import MAX_ID, GroupKey
from gateway.access.auth import SecretFileError, write_secret
from gateway.core.errors import Unavailable
from gateway.core.message import Message

PEER = "0x" + "c" * 40
LONG = "so long that no other key opens it as JSON"  # one digit is JSON under one key in twenty-five
OAEP = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ciphers, "RSA_BITS", 1024)


@pytest.fixture
def make_reading(make_broker: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    return lambda **more: make_broker(streams={"s": {"decrypt": True, "partitions": 2}}, secrets=tmp_path, **more)


@pytest.fixture
def reading(make_reading: Callable[..., Any]) -> Any:
    return make_reading()


def aes(plain: bytes, key: bytes) -> str:
    vector = os.urandom(16)
    encryptor = Cipher(algorithms.AES(key), modes.CTR(vector)).encryptor()
    return (vector + encryptor.update(plain) + encryptor.finalize()).hex()


def rsa(plain: bytes, pem: str) -> str:
    public = serialization.load_pem_public_key(pem.encode())
    assert isinstance(public, RSAPublicKey)
    return public.encrypt(plain, OAEP).hex()


class Writer:
    """A publisher of an encrypted stream, as version 5 of the client is one; it does its own cryptography."""

    def __init__(self, broker: Any, publisher: Any) -> None:
        self.broker, self.publisher = broker, publisher
        self.session = broker.open()
        self.keys = {"k1": b"1" * 32, "k2": b"2" * 32}
        self.stream = f"SYSTEM/keyexchange/{publisher.address}"
        token = broker.token(publisher)
        assert broker.ask(self.session, [2, 9, "r", self.stream, 0, token])[0][1] == 2
        self.count = 0
        self.inbox: list[Any] = []

    def row(self, content: Any, key: str | None = "k1", secret: bytes | None = None, **more: Any) -> list[Any]:
        self.count += 1
        text = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
        sealed = aes(text, secret or self.keys[key or "k1"])
        more = {"encryption": 2, "group_key": key, **more}
        row: list[Any] = self.publisher.message("s", sealed, self.broker.clock(), self.count, **more)
        return row

    def publish(self, row: list[Any]) -> list[Any]:
        answers = self.broker.ask(self.session, [2, 8, "r", row, None])
        self.inbox += [answer for answer in answers if answer[1] == 0]
        return [answer for answer in answers if answer[1] != 0]

    def requests(self) -> list[Any]:
        """The group-key requests to this publisher: who asked, and what."""
        self.broker.core.drain()
        heard, self.inbox = [*self.inbox, *self.broker.frames(self.session)], []
        rows = [frame[3] for frame in heard if frame[1] == 0]
        return [(row[1][4], json.loads(row[7])) for row in rows if row[3] == 28]

    def tell(self, reader: str, content: Any, kind: int = 29, **more: Any) -> None:
        """Send a group-key message to *reader*."""
        self.count += 1
        stream = f"SYSTEM/keyexchange/{reader}"
        more = {"encryption": 1, **more}
        row = self.publisher.message(stream, content, self.broker.clock(), self.count, kind=kind, **more)
        assert self.publish(row) == []
        self.broker.core.drain()

    def answer(self, reader: str, request: list[Any]) -> None:
        """Give *reader* the keys it asked for."""
        request_id, stream, pem, ids = request
        self.tell(reader, [request_id, stream, [[id, rsa(self.keys[id], pem)] for id in ids if id in self.keys]])

    def give(self) -> None:
        """Answer every request there is."""
        for reader, request in self.requests():
            self.answer(reader, request)


def heard(toy: Any) -> list[Any]:
    return [json.loads(content) for content in toy.take() if isinstance(content, bytes)]


def undecrypted(broker: Any) -> int:
    return int(broker.core.metrics.counts["undecrypted"]["streamr",])


def ignored(broker: Any) -> int:
    return int(broker.core.metrics.counts["refused"]["streamr", "group key"])


def pass_time(broker: Any, ms: int) -> None:
    broker.clock.now += ms
    broker.adapter.tick(broker.clock.now)


# Reading


def test_what_is_encrypted_is_bridged_in_plain_text_and_unchanged_to_its_own(reading: Any, alice: Any) -> None:
    toy, reader, writer = reading.toy("s"), reading.listener("s"), Writer(reading, alice)
    rows = [writer.row({"n": 1, "é": "🌳"}), writer.row([2]), writer.row("three")]
    for row in rows:
        assert writer.publish(row) == []
    ((who, request),) = writer.requests()
    assert heard(toy) == []
    assert request[1:] == ["s", request[2], ["k1"]]
    assert who == reading.adapter.parts.participant.address
    writer.answer(who, request)
    assert heard(toy) == [{"n": 1, "é": "🌳"}, [2], "three"]
    assert reading.frames(reader) == [[2, 0, "", row] for row in rows]
    logged = reading.logged("s")
    assert [json.loads(message.content) for message in logged] == [{"n": 1, "é": "🌳"}, [2], "three"]
    assert [json.loads(message.wire) for message in logged] == rows
    assert undecrypted(reading) == ignored(reading) == 0


def test_once_it_has_the_key_nothing_waits_and_nothing_is_asked(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    writer.give()
    writer.publish(writer.row(2))
    assert heard(toy) == [1, 2]
    assert writer.requests() == []


def test_other_streams_and_what_is_in_the_clear_are_left_alone(reading: Any, alice: Any) -> None:
    toys, writer = [reading.toy("t"), reading.toy("s")], Writer(reading, alice)
    row = alice.message("t", "abcd", reading.clock(), encryption=2, group_key="k1")
    writer.publish(row)
    writer.publish(alice.message("s", {"plain": 1}, reading.clock()))
    assert heard(toys[0]) == [{"encrypted": {"groupKeyId": "k1", "content": "abcd"}}]
    assert heard(toys[1]) == [{"plain": 1}]
    assert writer.requests() == []


def test_publishers_and_partitions_do_not_wait_for_each_other(reading: Any, alice: Any, bob: Any) -> None:
    toy, other = reading.toy("s"), reading.toy("s#1")
    writers = [Writer(reading, alice), Writer(reading, bob)]
    writers[0].publish(writers[0].row("alice waits"))
    writers[1].publish(writers[1].row("bob waits"))
    writers[0].publish(writers[0].row("on partition 1", partition=1))
    writers[1].give()
    assert heard(toy) == ["bob waits"]
    assert heard(other) == []
    writers[0].give()
    assert (heard(toy), heard(other)) == (["alice waits"], ["on partition 1"])


def test_an_encrypted_answer_is_an_answer(reading: Any, alice: Any) -> None:
    first = reading.say("s", {"n": 1})
    writer = Writer(reading, alice)
    writer.publish(writer.row({"inReplyTo": first.id}))
    writer.give()
    (_, answer) = reading.logged("s")
    assert answer.parent == first.id


def test_a_copy_of_what_waits_goes_nowhere(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    row = writer.row(1)
    for _ in range(3):
        assert writer.publish(row) == []
    writer.give()
    assert writer.publish(row) == []
    assert heard(toy) == [1]


# New keys


def test_a_key_that_comes_with_a_message_is_used(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    row = writer.row(1)
    row[8] = json.dumps(["k2", aes(writer.keys["k2"], writer.keys["k1"])])
    row[10] = alice.sign(f"s0{row[1][2]}{row[1][3]}{alice.address}chain{row[7]}{row[8]}")
    assert writer.publish(row) == []
    writer.give()
    writer.publish(writer.row(2, "k2"))
    assert heard(toy) == [1, 2]
    assert writer.requests() == []


def test_another_key_is_asked_for(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    writer.give()
    writer.publish(writer.row(2, "k2"))
    writer.publish(writer.row(3))
    assert heard(toy) == [1]
    writer.give()
    assert heard(toy) == [2, 3]


@pytest.mark.parametrize("form", ["announce", "reset", "whole"])
def test_keys_that_nobody_asked_for_are_taken_from_who_publishes(reading: Any, alice: Any, form: str) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    ((reader, request),) = writer.requests()
    writer.answer(reader, request)
    sealed = rsa(writer.keys["k2"], request[2])
    key: Any = ["s", [["k2", sealed]]] if form == "announce" else ["s", "k2", sealed]
    if form == "whole":  # S2: all of it is encrypted, and the key in it is not once more
        key = "".join(("0" * 0, rsa(json.dumps(["s", "k", "1"]).encode(), request[2])))
    writer.tell(reader, key, kind=30)
    writer.publish(writer.row(2, "k2"))
    if form == "whole":  # 1,024 bits have no room for a key in JSON: what was in it is no key
        assert ignored(reading) == 1
        writer.give()
    assert writer.requests() == []
    assert heard(toy) == [1, 2]


def test_a_response_and_a_reset_that_are_rsa_as_a_whole_are_read(
    reading: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ciphers, "RSA_BITS", 2048)
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    ((reader, request),) = writer.requests()
    response = [request[0], "s", [["k1", writer.keys["k1"].hex()]]]
    writer.tell(reader, rsa(json.dumps(response).encode(), request[2]))
    assert heard(toy) == [1]
    writer.publish(writer.row(2, "k2"))
    ((reader, request),) = writer.requests()
    reset = ["s", "k2", writer.keys["k2"].hex()]
    writer.tell(reader, rsa(json.dumps(reset).encode(), request[2]), kind=30)
    assert heard(toy) == [2]


def test_a_rotation_is_for_the_readers_alone_and_its_key_is_used(reading: Any, alice: Any) -> None:
    toy, reader, writer = reading.toy("s"), reading.listener("s"), Writer(reading, alice)
    elsewhere = reading.listener("s", 1)
    writer.publish(writer.row(1))
    writer.give()
    reading.frames(reader)
    rotation = writer.row(["k2", writer.keys["k2"].hex()], kind=32)
    assert writer.publish(rotation) == []
    assert reading.frames(reader) == [[2, 0, "", rotation]]
    assert reading.frames(elsewhere) == []
    writer.publish(writer.row(2, "k2"))
    assert heard(toy) == [1, 2]
    assert len(reading.logged("s")) == 2, "a rotation is not logged"
    for broken in (writer.row(5, kind=32), writer.row(["k3", "00"], kind=32), writer.row(1, "k9", b"9" * 32, kind=32)):
        assert writer.publish(broken) == []


@pytest.mark.parametrize("fault", ["unsigned", "forged"])
def test_a_rotation_is_signed(reading: Any, alice: Any, fault: str) -> None:
    reader, writer = reading.listener("s"), Writer(reading, alice)
    row = writer.row(["k2", "00"], kind=32)
    row[9:] = [0, None] if fault == "unsigned" else [2, "0x" + "11" * 65]
    assert writer.publish(row)[0][1] == 7
    assert reading.frames(reader) == []


def test_keys_without_names_are_asked_for_and_changed_as_in_version_31(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1, None))
    ((reader, request),) = writer.requests()
    assert request.keys() == {"requestId", "streamId", "publicKey"}
    answer = {"requestId": request["requestId"], "streamId": "s"}
    keys = [{"groupKey": rsa(writer.keys["k1"], request["publicKey"]), "start": 5}]
    writer.tell(reader, {**answer, "keys": keys}, encryption=0)
    assert heard(toy) == [1]
    row = writer.row(writer.keys["k2"] + b"2", None, encryption=3)
    row = [31, *row[1:4], 3, row[7], *row[9:]]
    assert writer.publish(row) == []
    writer.publish(writer.row(3, None, writer.keys["k2"]))
    assert heard(toy) == [2, 3]
    assert writer.requests() == []
    pass_time(reading, decrypt.FAILURE_MEMORY)
    writer.publish(writer.row(LONG, None, b"4" * 32))
    assert len(writer.requests()) == 1, "there may be a newer key"


# What cannot be read


def test_without_an_answer_it_is_bridged_as_it_came_in_its_order(reading: Any, alice: Any) -> None:
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


def test_a_late_answer_is_good_for_what_follows(reading: Any, alice: Any) -> None:
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


def test_what_is_no_json_under_its_key_is_bridged_as_it_came(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    writer.give()
    other = writer.row(LONG, "k1", b"x" * 32)
    for row in (writer.row(b"nonsense"), other, writer.row(b"\xff")):
        writer.publish(row)
    assert [message if message == 1 else message.keys() for message in heard(toy)] == [1, *[{"encrypted"}] * 3]
    assert undecrypted(reading) == 3


def test_nothing_waits_where_nobody_can_be_asked(reading: Any, alice: Any, unsigned: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    nameless = unsigned("s", "ab" * 20, reading.clock())
    nameless[5:7] = [2, "k1"]
    long = alice.message("s", "ab" * 20, reading.clock(), encryption=2, group_key="k" * (MAX_ID + 1))
    for row in (nameless, long):
        assert writer.publish(row) == []
    assert [message.keys() for message in heard(toy)] == [{"encrypted"}] * 2
    assert writer.requests() == []


@pytest.mark.parametrize("bound", ["MAX_HELD", "MAX_HELD_SIZE"])
def test_what_waits_is_bounded_and_nothing_is_lost(
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


def test_what_waits_for_a_key_is_kept_for_who_brought_it(reading: Any, alice: Any, bob: Any) -> None:
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


def test_what_is_asked_for_is_bounded(reading: Any, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_when_the_gateway_stops_what_waits_is_said(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    writer.session.goodbye()
    assert [message.keys() for message in heard(toy)] == [{"encrypted"}]


def test_a_late_refusal_of_the_bus_is_told(reading: Any, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(reading, alice)
    writer.publish(writer.row(1))

    def publish(*_: object) -> None:
        raise Unavailable("the disk does not keep up")

    monkeypatch.setattr(reading.bus, "publish_alone", publish)
    pass_time(reading, decrypt.KEY_WAIT)
    answers = [frame for frame in reading.frames(writer.session) if frame[1] == 7]
    assert [(frame[2], frame[4]) for frame in answers] == [("r", "REQUEST_FAILED")]


# Whom to believe


def test_keys_are_believed_from_who_was_asked_alone(reading: Any, alice: Any, bob: Any) -> None:
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


def test_an_announce_is_believed_from_publishers_alone(make_reading: Callable[..., Any], alice: Any, bob: Any) -> None:
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


def test_who_may_subscribe_includes_the_gateway_where_it_reads(make_reading: Callable[..., Any], alice: Any) -> None:
    reading = make_reading(grants={f"streamr:{alice.address}": ("subscribe:t",)})
    own = reading.adapter.parts.participant.address
    assert reading.adapter.parts.trust.may_read("s", own)
    assert not reading.adapter.parts.trust.may_read("t", own)
    assert reading.adapter.parts.trust.may_read("t", alice.address)
    assert not reading.adapter.parts.trust.may_read("s", alice.address)


# What is kept


def test_keys_outlive_a_restart_in_a_file_of_their_own(
    make_reading: Callable[..., Any], alice: Any, tmp_path: Path
) -> None:
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


def test_the_key_in_use_is_the_one_that_was_told_last(tmp_path: Path) -> None:
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
def test_a_damaged_file_of_keys_is_said_when_the_gateway_starts(
    make_reading: Callable[..., Any], tmp_path: Path, text: str
) -> None:
    file = tmp_path / keyring.KEYRING_FILE
    write_secret(file, text.encode())
    with pytest.raises(SecretFileError, match=f"{keyring.KEYRING_FILE} holds no group keys .*; move it away"):
        make_reading()
    file.chmod(0o644)
    with pytest.raises(SecretFileError, match="may be read by others"):
        make_reading()


def test_messages_are_what_they_were_when_they_are_read_again(reading: Any, alice: Any) -> None:
    writer = Writer(reading, alice)
    writer.publish(writer.row({"n": 1}))
    writer.give()
    reading.core.settle()
    (entry,) = reading.core.index.history("s")
    assert isinstance(entry, Message)
    assert json.loads(entry.content) == {"n": 1}
    assert reading.adapter.signature_check()(entry) is None
