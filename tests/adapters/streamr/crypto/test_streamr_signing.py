"""Signatures of the genuine libraries verify, and ours equal theirs bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coincurve import PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from adapters.streamr.crypto import signing
from adapters.streamr.wire.message import ETH, ETH_LEGACY, MessageID, MessageRef, StreamMessage, parse_message

VECTORS = Path(__file__).parents[3] / "vectors" / "streamr"
QUIRKS: Any = json.loads((VECTORS / "signature-quirks.json").read_text())
KEY = PrivateKey.from_hex(QUIRKS["key"]["privateKey"][2:])
ADDRESS: str = QUIRKS["key"]["address"]
MESSAGE = StreamMessage(MessageID("my/stream", 0, 1612345678901, 0, ADDRESS, "chain-1"), '{"foo":42}')


def legacy(signature: str) -> StreamMessage:
    return replace(MESSAGE, signature_type=ETH_LEGACY, signature=signature)


def test_keccak_256_is_not_sha3() -> None:
    empty = "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert signing.keccak256(b"").hex() == empty


def test_checksum_restores_the_case_of_an_address() -> None:
    assert signing.address_of(KEY.public_key) == ADDRESS.lower()
    for known in (ADDRESS, "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359"):
        assert signing.checksum(known.lower()) == signing.checksum(known) == known


@pytest.mark.parametrize("vector", QUIRKS["vectors"], ids=lambda vector: vector["name"])
def test_both_lengths_of_the_prefix_are_accepted(vector: Any) -> None:
    payload = vector["payload"]
    assert "0x" + signing.digest(payload).hex() == vector["digestByteLength"]
    assert "0x" + signing.digest(payload, vector["utf16Length"]).hex() == vector["digestCharLength"]
    assert signing.sign(payload, KEY) == vector["signatureEthers5"] == vector["signatureProtocolSigningUtil"]
    for signature in (vector["signatureEthers4"], vector["signatureEthers5"]):
        assert signing.is_signed_by(ADDRESS, payload, signature)
        assert signing.is_signed_by(ADDRESS.lower(), payload, signature[2:])
        assert not signing.is_signed_by(ADDRESS, payload + " ", signature)


def test_both_legacy_payloads_are_accepted() -> None:
    for vector in QUIRKS["ethLegacy"]["vectors"]:
        assert vector["payload"] in signing.signed_payloads(legacy(""))
        assert signing.verify(legacy(vector["signature"]))
        assert not signing.verify(replace(legacy(vector["signature"]), content="{}"))


@pytest.mark.parametrize("tail", ["", "null", "undefined"])
def test_three_spellings_of_a_reference_without_a_sequence_number_verify(tail: str) -> None:
    message = replace(MESSAGE, prev_ref=MessageRef(5), signature_type=ETH)
    signature = signing.sign(f"my/stream016123456789010{ADDRESS.lower()}chain-15{tail}" + '{"foo":42}', KEY)
    assert signing.verify(replace(message, signature=signature))


def judged() -> list[Any]:
    """The messages of which the library's validator said something that follows from the signature."""
    vectors: list[Any] = json.loads((VECTORS / "protocol-8.4.1.json").read_text())["validator"]
    return [
        vector
        for vector in vectors
        if "Signature validation failed" in vector.get("errorMessage", "")
        or (vector["ok"] and parse_message(json.dumps(vector["wire"])).signature)
    ]


@pytest.mark.parametrize("vector", judged())
def test_the_validator_of_the_library_agrees(vector: Any) -> None:
    assert signing.verify(parse_message(json.dumps(vector["wire"]))) == vector["ok"]


GOOD = signing.sign_message(MESSAGE, KEY).signature or ""


@pytest.mark.parametrize(
    "spoilt",
    [
        GOOD[:-2] + f"{int(GOOD[-2:], 16) - 27:02x}",  # v of 0 or 1, as some libraries write it
        GOOD[:-2] + f"{55 - int(GOOD[-2:], 16):02x}",  # the other v
        GOOD[:-2] + "1d",
        GOOD[:-2],
        GOOD + "00",
        GOOD[:-4] + "  " + GOOD[-2:],
        GOOD[:-2] + "zz",
        "0x" + "00" * 64 + "1b",
        "0x" + "ff" * 64 + "1b",
        "",
    ],
)
def test_an_altered_signature_does_not_verify(spoilt: str) -> None:
    assert signing.verify(replace(MESSAGE, signature_type=ETH, signature=GOOD))
    assert not signing.verify(replace(MESSAGE, signature_type=ETH, signature=spoilt))


def test_an_unsigned_message_does_not_verify() -> None:
    assert not signing.verify(MESSAGE)
    assert not signing.verify(replace(signing.sign_message(MESSAGE, KEY), signature_type=0))


def test_the_new_group_key_and_the_chain_are_signed() -> None:
    message = signing.sign_message(replace(MESSAGE, prev_ref=MessageRef(5, 1), new_group_key='["a",  "b"]'), KEY)
    assert signing.verify(message)
    assert not signing.verify(replace(message, new_group_key='["a","b"]'))
    assert not signing.verify(replace(message, prev_ref=MessageRef(5, 2)))
    assert not signing.verify(replace(message, id=message.id._replace(msg_chain_id="chain-2")))


def test_lone_surrogates_are_signed_as_javascript_writes_them() -> None:
    assert signing.sign("\ud800x\U0001f600", KEY) == signing.sign("\ufffdx\U0001f600", KEY)
    assert signing.is_signed_by(ADDRESS, "\ud800", signing.sign("\ud800", KEY))


@given(st.text(), st.text(st.characters(codec=None), min_size=1), st.integers(0, 2**53 - 1))
def test_signatures_made_here_verify_in_every_version(chain: str, content: str, timestamp: int) -> None:
    unsigned = StreamMessage(MessageID("s", 1, timestamp, 2, ADDRESS, chain), content)
    message = signing.sign_message(unsigned, KEY)
    for version in (30, 31, 32):
        converted = parse_message(message.encode(version))
        assert signing.verify(converted)
        assert converted == message


@given(st.text(), st.text())
def test_any_signature_is_true_or_false(address: str, signature: str) -> None:
    assert not signing.is_signed_by(address, "payload", signature)


@given(st.binary(min_size=65, max_size=65), st.binary(min_size=32, max_size=32))
def test_any_65_bytes_give_an_address_or_none(raw: bytes, payload_digest: bytes) -> None:
    recovered = signing.recover(raw.hex(), payload_digest)
    assert recovered is None or len(recovered) == 42
