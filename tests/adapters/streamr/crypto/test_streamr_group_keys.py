"""Group-key messages, the ciphers and derived keys agree with genuine clients."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.streamr.crypto import ciphers, group_keys
from adapters.streamr.crypto.ciphers import RsaPair, aes_decrypt, aes_encrypt, rsa_encrypt
from adapters.streamr.crypto.decrypt import decrypt_keys
from adapters.streamr.crypto.encrypt import DAY, DerivedGroupKeys
from adapters.streamr.crypto.group_keys import (
    GroupKey,
    KeyAnnounce,
    KeyRefusal,
    KeyRequest,
    KeyResponse,
    SentGroupKey,
    decode_group_key,
    parse_key_message,
    parse_new_key,
)
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import MessageID, StreamMessage, parse_message

VECTORS = Path(__file__).parents[3] / "vectors" / "streamr"
CLIENT = json.loads((VECTORS / "encryption-client-5.1.0.json").read_text())
NODE = json.loads((VECTORS / "rsa.json").read_text())
LIBRARIES = ["2.2.15", "5.3.3", "8.4.1"]
HEX = "ab" * 32


def said(kind: int, content: Any, encryption: int = 0) -> StreamMessage:
    text = content if isinstance(content, str) else json.dumps(content)
    message_id = MessageID("SYSTEM/keyexchange/0x" + "a" * 40, 0, 1, 0, "0xb", "c")
    return StreamMessage(message_id, text, message_type=kind, encryption_type=encryption)


@cache
def pair_of(pem: str) -> RsaPair:
    private = serialization.load_pem_private_key(pem.encode(), None)
    assert isinstance(private, rsa.RSAPrivateKey)
    return RsaPair(private)


# What genuine clients make


def test_ciphertext_of_a_genuine_client_is_decrypted() -> None:
    key = bytes.fromhex(CLIENT["groupKeyHex"])
    assert aes_decrypt(CLIENT["aes256ctrHex"], key).decode() == CLIENT["plaintext"]
    pair = pair_of(CLIENT["rsaPrivateKey"])
    assert pair.decrypt(CLIENT["rsaOaepSha1Hex"]) == key
    assert pair.public == CLIENT["rsaPublicKey"]
    assert pair_of(NODE["privateKey"]).decrypt(NODE["encryptedGroupKeyHex"]) == bytes.fromhex(NODE["groupKeyHex"])


def test_ciphertext_equals_that_of_a_genuine_client() -> None:
    digits = CLIENT["aes256ctrHex"]
    again = aes_encrypt(CLIENT["plaintext"].encode(), bytes.fromhex(CLIENT["groupKeyHex"]), bytes.fromhex(digits[:32]))
    assert again == digits


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_group_key_message_of_the_libraries_is_read(library: str) -> None:
    vectors = json.loads((VECTORS / f"protocol-{library}.json").read_text())
    rows = [row for vector in vectors["stream"] for row in vector.get("wire", {}).values() if isinstance(row, list)]
    found = [parse_key_message(parse_message(json.dumps(row))) for row in rows if row[3] in range(28, 32)]
    kinds = {type(message) for message in found}
    assert {KeyRequest, KeyResponse, KeyAnnounce} <= kinds
    assert {message.stream_id for message in found} == {"my/stream"}
    for message in found:
        if isinstance(message, KeyResponse | KeyAnnounce):
            secrets = [pair_of(NODE["privateKey"]).decrypt(key.hex_text).hex() for key in message.keys]
            assert secrets == [NODE["groupKeyHex"]]
        elif isinstance(message, KeyRequest):
            assert message.public_key == NODE["publicKey"]
            assert bool(message.ids) == message.has_key_ids == (library != "2.2.15")


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_key_messages_are_encoded_as_by_the_libraries(library: str) -> None:
    vectors = json.loads((VECTORS / f"protocol-{library}.json").read_text())
    rows = [vector["wire"]["32"] for vector in vectors["stream"] if isinstance(vector["wire"].get("32"), list)]
    for row in rows:
        if row[3] in (28, 29, 31):
            message = parse_key_message(parse_message(json.dumps(row)))
            assert not isinstance(message, KeyAnnounce)
            assert message.content() == row[7]


# Forms that are in no library


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        (29, ["r", "s", ["k", HEX]], KeyResponse("r", "s", (SentGroupKey("k", HEX),))),
        (30, ["s", ["k", HEX]], KeyAnnounce("s", (SentGroupKey("k", HEX),))),
        (30, ["s", "k", HEX], KeyAnnounce("s", (SentGroupKey("k", HEX),))),
        (
            30,
            ["s", [["k", HEX], ["l", HEX]]],
            KeyAnnounce("s", (SentGroupKey("k", HEX), SentGroupKey("l", HEX))),
        ),
        (30, {"streamId": "s", "groupKey": HEX, "start": 5}, KeyAnnounce("s", (SentGroupKey("start:5", HEX),))),
        (31, ["r", "s", "CODE", "why", ["k"]], KeyRefusal("r", "s", "CODE", "why", ("k",))),
        (31, {"requestId": "r", "streamId": "s", "code": "C", "message": "m"}, KeyRefusal("r", "s", "C", "m")),
        (
            28,
            {"streamId": "s", "publicKey": "pem", "range": {"start": 1, "end": 2}},
            KeyRequest("", "s", "pem", (), False),
        ),
    ],
)
def test_the_forms_of_the_specifications_are_read(kind: int, content: Any, expected: Any) -> None:
    assert parse_key_message(said(kind, content)) == expected


def test_a_response_that_is_rsa_as_a_whole_is_read_once_it_is_decrypted() -> None:
    found = parse_key_message(said(29, "abcdef", 1), json.dumps(["r", "s", [["k", HEX]]]))
    assert found == KeyResponse("r", "s", (SentGroupKey("k", HEX),), fully_encrypted=True)
    assert decode_group_key(HEX) == bytes.fromhex(HEX)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (28, "nonsense"),
        (28, "5"),
        (28, ["r", "s"]),
        (28, ["r", "", "pem", []]),
        (28, ["r", "s", "pem", "k"]),
        (28, ["r", "s", "pem", [""]]),
        (28, ["r" * (group_keys.MAX_ID + 1), "s", "pem", []]),
        (28, ["r", "s", "pem", ["k"] * (group_keys.MAX_IDS + 1)]),
        (29, ["r", "s", [["k", HEX]] * (group_keys.MAX_IDS + 1)]),
        (29, ["r", "s", [["k"]]]),
        (29, ["r", "s", [["k", 5]]]),
        (29, {"requestId": "r", "streamId": "s", "keys": [{"groupKey": HEX, "start": -1}]}),
        (30, []),
        (31, [[]]),
        (32, ["k", HEX]),
    ],
)
def test_invalid_group_key_messages_are_refused(kind: int, content: Any) -> None:
    with pytest.raises(StreamrError):
        parse_key_message(said(kind, content))


def test_a_new_key_is_a_pair() -> None:
    assert parse_new_key('["k", "00"]') == SentGroupKey("k", "00")
    for text in ("[]", '["k"]', "{}", "x", '["", "00"]'):
        with pytest.raises(StreamrError):
            parse_new_key(text)


# Ciphers


@pytest.mark.parametrize("digits", ["", "00" * 15, "xy", "0"])
def test_invalid_ciphertext_raises_value_error(digits: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        aes_decrypt(digits, bytes(32))


def test_unusable_public_keys_raise_value_error() -> None:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    elliptic = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = elliptic.public_bytes(serialization.Encoding.PEM, form).decode()
    for key in ("", "pem", pem, "\ud800", " " * (ciphers.MAX_PEM + 1), CLIENT["rsaPrivateKey"]):
        with pytest.raises(ValueError, match=r".+"):
            rsa_encrypt(bytes(32), key)


def test_keys_of_a_wrong_length_raise_value_error() -> None:
    for digits in ("ab" * 31, "ab" * 33, "zz" * 32):
        with pytest.raises(ValueError, match=r".+"):
            decode_group_key(digits)


def test_no_secret_is_in_a_repr() -> None:
    assert repr(GroupKey("id", bytes.fromhex(HEX))) == "GroupKey('id')"


# The gateway's own


def test_derived_keys_survive_restarts_and_differ_by_day_and_stream() -> None:
    keys, again, other = DerivedGroupKeys(b"s" * 32), DerivedGroupKeys(b"s" * 32), DerivedGroupKeys(b"t" * 32)
    today = 1_763_700_000_000 // DAY
    assert keys.of("s", today) == again.of("s", today)
    distinct = [keys.of("s", today), keys.of("s", today + 1), keys.of("t", today), other.of("s", today)]
    assert len({key.secret for key in distinct}) == len({key.id for key in distinct}) == 4
    assert keys.find("s", keys.of("s", today).id) == keys.of("s", today)
    tomorrow = keys.of("s", today + 1).id
    for id in ("", "k", f"{today}-{tomorrow.partition('-')[2]}", other.of("s", today).id, keys.of("t", today).id):
        assert keys.find("s", id) is None


def test_encryption_is_deterministic_and_never_reuses_a_vector() -> None:
    keys, today = DerivedGroupKeys(b"s" * 32), 20_000
    messages = [
        StreamMessage(MessageID("s", 0, 5, sequence, publisher, "c"), content)
        for sequence in (0, 1)
        for publisher in ("0xa", "0xb")
        for content in ('{"n":1}', '"héllo 🌳"')
    ]
    sealed = [keys.encrypt(message, today) for message in messages]
    assert sealed == [DerivedGroupKeys(b"s" * 32).encrypt(message, today) for message in messages]
    assert len({message.content[:32] for message in sealed}) == len(messages)
    for message, plain in zip(sealed, messages, strict=True):
        assert (message.encryption_type, message.group_key_id) == (2, keys.of("s", today).id)
        assert aes_decrypt(message.content, keys.of("s", today).secret).decode() == plain.content


# Whatever comes

TEXTS = st.sampled_from(["", "s", "r", NODE["publicKey"], NODE["encryptedGroupKeyHex"], HEX, "k", "\ud800", "x" * 300])
ATOMS = st.none() | st.booleans() | st.integers(-1, 2**60) | TEXTS | st.text(max_size=5)
NAMES = st.sampled_from(["requestId", "streamId", "publicKey", "groupKeyIds", "keys", "groupKey", "start", "code"])
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=6), max_leaves=12
)
PAIR = pair_of(NODE["privateKey"])


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([27, 28, 29, 30, 31, 32]), VALUES | st.text(max_size=9), st.sampled_from([0, 1, 2]), st.booleans()
)
@pytest.mark.slow
def test_any_key_message_is_read_or_refused(kind: int, content: Any, encryption_type: int, whole: bool) -> None:
    message = said(kind, content, encryption_type)
    with suppress(StreamrError):
        parse_key_message(message)
    decrypt_keys(message, PAIR, fully_encrypted=whole)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([28, 29, 30, 31]), VALUES, st.sampled_from([0, 1]), st.booleans())
def test_the_gateway_handles_any_key_message_without_an_exception(
    broker: Any, kind: int, content: Any, encryption_type: int, mine: bool
) -> None:
    participant = broker.adapter.parts.participant
    broker.say("s", 1)
    others = list(broker.adapter.bridge_signer._accounts)[-1][1]
    participant.receive(said(kind, content, encryption_type), participant.address if mine else others)
    broker.core.drain()
