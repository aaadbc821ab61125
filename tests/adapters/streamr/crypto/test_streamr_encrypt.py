"""The gateway publishes on streams that require encryption, and gives its keys only to permitted readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from adapters.streamr import message_forms
from adapters.streamr.crypto import encrypt
from adapters.streamr.crypto.encrypt import DAY
from gateway.core.message import Message, Peer

OAEP = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
STREAMS = {"s": {"require_encrypted_data": True}}
PRIVATE = rsa.generate_private_key(65537, 1024)
PEM = (
    PRIVATE.public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)


@pytest.fixture
def broker(make_broker: Callable[..., Any]) -> Any:
    return make_broker(streams=STREAMS)


def opened(row: list[Any], key: bytes) -> Any:
    data = bytes.fromhex(row[7])
    decryptor = Cipher(algorithms.AES(key), modes.CTR(data[:16])).decryptor()
    return json.loads(decryptor.update(data[16:]) + decryptor.finalize())


class EncryptionSubscriber:
    """A subscriber, as version 5 of the client is one; it does its own cryptography."""

    def __init__(self, broker: Any, publisher: Any) -> None:
        self.broker, self.publisher, self.count = broker, publisher, 0
        self.session = broker.open()
        self.stream = f"SYSTEM/keyexchange/{publisher.address}"
        token = broker.token(publisher)
        for stream in ("s", self.stream):
            broker.ask(self.session, [2, 9, "r", stream, 0, token])

    def rows(self) -> list[Any]:
        self.broker.core.drain()
        return [frame[3] for frame in self.broker.frames(self.session) if frame[1] == 0]

    def ask(self, address: str, content: Any) -> list[Any]:
        """Ask *address* for keys; the group-key messages that come."""
        self.count += 1
        stream = f"SYSTEM/keyexchange/{address}"
        row = self.publisher.message(stream, content, self.broker.clock(), self.count, kind=28)
        answers = self.broker.ask(self.session, [2, 8, "r", row, None])
        assert [answer for answer in answers if answer[1] == 7] == []
        return [answer[3] for answer in answers] + self.rows()

    def key(self, address: str, id: str) -> bytes:
        """The key called *id* that *address* gives."""
        (row,) = self.ask(address, ["r", "s", PEM, [id]])
        assert (row[1][0], row[1][4], row[3:7]) == (self.stream, address, [29, 0, 1, PEM])
        request, stream, ((name, digits),) = json.loads(row[7])
        assert (request, stream, name) == ("r", "s", id)
        return PRIVATE.decrypt(bytes.fromhex(digits), OAEP)


def test_foreign_messages_are_decrypted_with_the_key_of_their_address(
    broker: Any, alice: Any, recovered: Callable[..., str]
) -> None:
    reader, sender = EncryptionSubscriber(broker, alice), broker.toy().peer
    for content in ({"n": 1}, "é🌳"):
        broker.say("s", content, sender=sender)
    first, second = reader.rows()
    assert (first[3:6], second[3:6]) == ([27, 0, 2], [27, 0, 2])
    assert first[6] == second[6]
    assert (recovered(first), recovered(second)) == (first[1][4], second[1][4])
    assert second[2] == first[1][2:4]
    key = reader.key(first[1][4], first[6])
    assert (opened(first, key), opened(second, key)) == ({"n": 1}, "é🌳")


def test_all_senders_of_a_stream_have_one_key_a_day(broker: Any, alice: Any) -> None:
    reader = EncryptionSubscriber(broker, alice)
    broker.say("s", 1)
    broker.say("s", 2)
    broker.clock.now += DAY
    broker.say("s", 3)
    first, second, third = reader.rows()
    assert first[1][4] != second[1][4]
    assert first[6] == second[6] != third[6]
    assert opened(third, reader.key(third[1][4], third[6])) == 3
    assert opened(second, reader.key(first[1][4], second[6])) == 2


def test_group_keys_are_given_only_to_permitted_subscribers(
    make_broker: Callable[..., Any], alice: Any, bob: Any
) -> None:
    grants = {f"streamr:{alice.address}": ("subscribe:s",), f"streamr:{bob.address}": ("subscribe:t",)}
    broker = make_broker(streams=STREAMS, grants=grants)
    reader, stranger = EncryptionSubscriber(broker, alice), EncryptionSubscriber(broker, bob)
    broker.say("s", 1)
    (row,) = reader.rows()
    assert stranger.rows() == []
    (refusal,) = stranger.ask(row[1][4], ["r", "s", PEM, [row[6]]])
    assert (refusal[3], json.loads(refusal[7])[:3]) == (31, ["r", "s", "PERMISSION_DENIED"])
    assert opened(row, reader.key(row[1][4], row[6])) == 1


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (["r", "s", PEM, ["unknown"]], "UNKNOWN_GROUP_KEY"),
        (["r", "s", PEM, ["20000-" + "0" * 32]], "UNKNOWN_GROUP_KEY"),
        (["r", "s", "no key", ["KEY"]], "INVALID_GROUP_KEY_REQUEST"),
    ],
)
def test_requests_for_unavailable_keys_are_refused(broker: Any, alice: Any, content: list[Any], code: str) -> None:
    reader = EncryptionSubscriber(broker, alice)
    broker.say("s", 1)
    (row,) = reader.rows()
    content = [*content[:3], [row[6] if id == "KEY" else id for id in content[3]]]
    (refusal,) = reader.ask(row[1][4], content)
    assert (refusal[3], refusal[5]) == (31, 0)
    request, stream, found, text, ids = json.loads(refusal[7])
    assert (request, stream, found, ids) == ("r", "s", code, content[3])
    assert text


def test_a_request_for_several_keys_gets_the_known_ones_and_a_refusal(broker: Any, alice: Any) -> None:
    reader = EncryptionSubscriber(broker, alice)
    broker.say("s", 1)
    (row,) = reader.rows()
    refusal, response = reader.ask(row[1][4], ["r", "s", PEM, ["x", row[6], "y"]])
    assert json.loads(refusal[7])[4] == ["x", "y"]
    assert [id for id, _ in json.loads(response[7])[2]] == [row[6]]
    assert response[1][2:4] > refusal[1][2:4], "in an order that readers follow"


def test_misaddressed_or_malformed_key_requests_are_ignored(broker: Any, alice: Any, bob: Any) -> None:
    reader = EncryptionSubscriber(broker, alice)
    broker.say("s", 1)
    (row,) = reader.rows()
    assert reader.ask(bob.address, ["r", "s", PEM, [row[6]]]) == []
    assert reader.ask(row[1][4], ["r", "t", PEM, [row[6]]]) == [], "it said nothing there"
    for nonsense in ("{", [], ["r", "s", PEM, ["k"] * 100]):
        assert reader.ask(row[1][4], nonsense) == []
    assert broker.core.metrics.counts["refused"]["streamr", "group key"] == 3


def test_requests_in_the_worker_are_bounded(broker: Any, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = EncryptionSubscriber(broker, alice)
    broker.say("s", 1)
    (row,) = reader.rows()
    monkeypatch.setattr(encrypt, "MAX_PENDING_RESPONSES", 0)
    assert reader.ask(row[1][4], ["r", "s", PEM, [row[6]]]) == []


def test_version_31_asks_for_the_key_in_use(broker: Any, alice: Any) -> None:
    reader = EncryptionSubscriber(broker, alice)
    broker.say("s", {"n": 1})
    (row,) = reader.rows()
    (response,) = reader.ask(row[1][4], {"requestId": "r", "streamId": "s", "publicKey": PEM})
    content = json.loads(response[7])
    assert (content["requestId"], content["streamId"]) == ("r", "s")
    (given,) = content["keys"]
    assert given["start"] <= broker.clock()
    assert opened(row, PRIVATE.decrypt(bytes.fromhex(given["groupKey"]), OAEP)) == {"n": 1}


def test_after_a_restart_the_same_bytes_and_the_same_key(make_broker: Callable[..., Any], alice: Any) -> None:
    first = make_broker(streams=STREAMS)
    reader = EncryptionSubscriber(first, alice)
    said = first.say("s", {"n": 1})
    (row,) = reader.rows()
    first.core.settle()
    first.core.stop()
    again = make_broker(streams={})  # which no longer wants everything encrypted
    found = again.core.index.message(said.id)
    frame = again.adapter.form(found, "streamr/2/32")
    assert json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() in frame
    assert opened(row, EncryptionSubscriber(again, alice).key(row[1][4], row[6])) == {"n": 1}


def test_late_messages_are_encrypted(broker: Any, alice: Any) -> None:
    message = broker.say("s", 1, timestamp=broker.clock() - 3_600_000)
    assert message.refs["streamr"][2:] == [None, None, broker.clock() // DAY]
    row = broker.adapter.bridge_signer.sign(message)
    assert row.encryption_type == 2
    assert (
        opened(
            json.loads(row.encode(32)), EncryptionSubscriber(broker, alice).key(row.id.publisher_id, row.group_key_id)
        )
        == 1
    )


def test_content_too_long_after_encryption_is_undelivered(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_forms, "MAX_CONTENT", 100)
    assert broker.say("s", "x" * 60).undelivered == ("streamr",)
    assert broker.say("open", "x" * 60).undelivered == ()
    assert broker.say("s", "x" * 20).undelivered == ()


def test_a_stream_that_is_read_and_encrypted_is_both(make_broker: Callable[..., Any], tmp_path: Path) -> None:
    broker = make_broker(streams={"s": {"require_encrypted_data": True, "decrypt": True}}, secrets=tmp_path)
    toy = broker.toy("s")
    listener = broker.listener("s")
    broker.say("s", 1)
    assert [content for content in toy.take() if isinstance(content, bytes)] == [b"1"]
    ((*_, row),) = broker.frames(listener)
    assert row[5] == 2


def test_identities_of_each_protocol_have_addresses_that_survive_a_restart(
    make_broker: Callable[..., Any],
) -> None:
    """Also where records of an older make do not tell whose identity it is: there it is of the message's protocol."""
    first = make_broker(streams=STREAMS)
    said = [first.bus.publish(Message("s", Peer(7, of, "robot"), "toy", b"1")) for of in ("toy", "rest")]
    addresses = {first.adapter.bridge_signer.address(message) for message in said}
    assert len(addresses) == 2
    first.core.settle()
    first.core.stop()
    again = make_broker(streams=STREAMS).adapter.parts.trust
    assert all(again.is_publisher("s", address) for address in addresses)
    assert {again.account_of("s", address).address for address in addresses} == addresses
