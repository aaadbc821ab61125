"""Signatures, against what Go and gpg made, and with Sequoia as an independent judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

import pysequoia
import pytest

from adapters.sprout.forest import forest, openpgp, packets
from adapters.sprout.forest.openpgp import PublicKey, SecretKey
from adapters.sprout.forest.packets import OpenPGPError
from adapters.sprout.wire import base64url
from tests.adapters.sprout.forest.keys import (
    CREATED,
    NAMES,
    NODES,
    OWNERS,
    RAW,
    VECTORS,
    author_of,
    key_of,
    new_key,
    public_key_of,
    sequoia_agrees,
    signed,
)


@pytest.mark.parametrize("name", NODES)
def test_a_genuine_signature_holds(name: str) -> None:
    public_key_of(author_of(name)).verify(*signed(name))


@pytest.mark.parametrize("name", [name for name, node in NODES.items() if node["pgp_signature"]["hash"] == "SHA-256"])
def test_we_sign_byte_for_byte_as_go_does(name: str) -> None:
    data, signature = signed(name)
    made = datetime.fromisoformat(NODES[name]["pgp_signature"]["created"])
    assert key_of(OWNERS[author_of(name)]).sign(data, int(made.timestamp())) == signature


@pytest.mark.parametrize("identity", OWNERS)
def test_a_genuine_key_file_is_read(identity: str) -> None:
    key, node = key_of(OWNERS[identity]), forest.decode(RAW[identity])
    assert isinstance(node, forest.Identity)
    assert key.fingerprint == public_key_of(identity).fingerprint
    if identity != "identity_carol_gpg":  # gpg writes other packet headers
        assert key.public_key == node.public_key


def test_a_whole_identity_comes_out_byte_for_byte_as_go_made_it() -> None:
    made = forest.sign_identity("alice", key_of("alice"), NODES["identity_alice"]["fields"]["created_ms"])
    assert made == RAW["identity_alice"]


def test_a_new_key_is_as_go_makes_them() -> None:
    ours, gos = new_key(), key_of("alice")
    assert [tag for tag, _ in packets.read_packets(ours.file)] == [tag for tag, _ in packets.read_packets(gos.file)]
    shapes = [[(tag, len(body)) for tag, body in packets.read_packets(key.public_key)] for key in (ours, gos)]
    for (tag, size), (go_tag, go_size) in zip(*shapes, strict=True):
        assert tag == go_tag
        assert go_size - 2 <= size <= go_size or tag != packets.SIGNATURE, "a number may begin with zeros"
        assert size == go_size or tag == packets.SIGNATURE
    assert SecretKey(ours.file).public_key == ours.public_key
    assert SecretKey(ours.file).sign(b"x", 1) == ours.sign(b"x", 1)


def test_sequoia_accepts_what_we_generate_and_sign() -> None:
    key, data = new_key(), b"something said"
    certificate = pysequoia.Cert.from_bytes(key.public_key)
    assert certificate.fingerprint == key.fingerprint.hex()
    assert [str(user_id) for user_id in certificate.user_ids] == [openpgp.USER_ID]
    assert sequoia_agrees(key, data, key.sign(data, CREATED))
    assert not sequoia_agrees(key, data + b"!", key.sign(data, CREATED))
    PublicKey(key.public_key).verify(data, key.sign(data, CREATED))


def test_sequoia_signs_with_our_key_file_and_we_accept() -> None:
    key, data = new_key(), b"something said"
    signer = pysequoia.Tsk.from_bytes(key.file).signer()
    signature = pysequoia.sign(signer, data, mode=pysequoia.SignatureMode.DETACHED, armor=False)
    PublicKey(key.public_key).verify(data, bytes(signature))


@pytest.mark.parametrize("at", range(310))
def test_every_bit_of_a_signature_counts(at: int) -> None:
    data, signature = signed("reply_depth1")
    broken = bytearray(signature)
    broken[at] ^= 1 << at % 8
    with pytest.raises(OpenPGPError):
        public_key_of("identity_alice").verify(data, bytes(broken))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bad_signature_mpi", "a forged signature"),
        ("bad_signature_content_changed", "a signature of something else"),
        ("bad_signature_not_pgp", "not an OpenPGP packet"),
        ("bad_signature_empty", "not a signature"),
        ("identity_name_changed", "a signature of something else"),
        ("community_name_changed", "a signature of something else"),
    ],
)
def test_a_forged_vector_is_refused(name: str, reason: str) -> None:
    vectors = {vector["name"]: vector["node"] for vector in json.loads((VECTORS / "invalid.json").read_text())}
    raw = base64url.decode(vectors[name]["raw_b64u"].encode())
    node = forest.decode(raw)
    identity = "identity_alice" if isinstance(node, forest.Identity) else NAMES[node.author]
    with pytest.raises(OpenPGPError, match=reason):
        public_key_of(identity).verify(forest.signed_part(node, raw), node.signature)


def test_a_signature_by_another_key_is_refused() -> None:
    with pytest.raises(OpenPGPError, match="a signature by another key"):
        public_key_of("identity_bob_unicode_twig").verify(*signed("reply_depth1"))


def signed_as(key: SecretKey, data: bytes, padded: Callable[[bytes], bytes]) -> bytes:
    """A signature whose RSA value is *padded(digest)* under the secret key, whatever that is."""
    signature = key.sign(data, CREATED)
    digest = packets.read_signature(packets.read_packets(signature)[0].body).digest(data)
    numbers = key._rsa.private_numbers()
    value = pow(int.from_bytes(padded(digest), "big"), numbers.d, numbers.public_numbers.n)
    return signature[:-258] + b"\x08\0" + value.to_bytes(256, "big")


def unsigned_parts(signature: bytes, area: bytes) -> bytes:
    """The signature with that *area* of subpackets which it does not cover."""
    body = packets.read_packets(signature)[0].body
    at = 6 + int.from_bytes(body[4:6], "big")
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    return packets.write_packet(packets.SIGNATURE, body[:at] + len(area).to_bytes(2, "big") + area + body[end:])


@pytest.mark.parametrize("name", ["reply_depth1", "identity_carol_gpg"])
def test_a_signature_has_one_accepted_encoding(name: str) -> None:
    """Each spelling is another node, with an id of its own, that says the same: it would come again and again."""
    data, signature = signed(name)
    public = public_key_of(author_of(name))
    issuer = (packets.ISSUER, public.id)
    public.verify(data, unsigned_parts(signature, packets.write_subpackets([issuer])))
    (packet,) = packets.read_packets(signature)
    others = [
        unsigned_parts(signature, packets.write_subpackets([issuer, issuer])),
        unsigned_parts(signature, packets.write_subpackets([issuer, (20, b"a notation")])),
        unsigned_parts(signature, packets.write_subpackets([(100, b"")])),
        unsigned_parts(signature, b"\xff\0\0\0\x09\x10" + public.id),
        b"\xc2\xff" + len(packet.body).to_bytes(4, "big") + packet.body,
        b"\x8a" + len(packet.body).to_bytes(4, "big") + packet.body,
    ]
    for other in others:
        with pytest.raises(OpenPGPError, match="does not cover"):
            public.verify(data, other)


INFO = bytes.fromhex("3031300d060960864801650304020105000420")


@pytest.mark.parametrize(
    "padded",
    [
        lambda digest: b"\0\1" + b"\xff" * 8 + b"\0" + INFO + digest + bytes(256 - 11 - 51),  # the oldest forgery
        lambda digest: b"\0\1" + b"\xff" * 221 + b"\0" + digest,  # not said what hash it is
        lambda digest: b"\0\1" + b"\xff" * 202 + b"\0" + INFO[:-4] + b"\x04\x20" + digest[:-2] + b"\0\0",
        lambda digest: b"\0\2" + b"\xff" * 202 + b"\0" + INFO + digest,  # as for encryption
        lambda digest: b"\0\1" + b"\xff" * 201 + b"\xfe\0" + INFO + digest,
    ],
)
def test_other_padding_is_refused(padded: Callable[[bytes], bytes]) -> None:
    key, data = key_of("alice"), b"data"
    public = PublicKey(key.public_key)
    public.verify(data, signed_as(key, data, lambda digest: b"\0\1" + b"\xff" * 202 + b"\0" + INFO + digest))
    with pytest.raises(OpenPGPError, match="forged"):
        public.verify(data, signed_as(key, data, padded))


def test_a_signature_value_longer_than_the_key_is_refused() -> None:
    key, data = key_of("alice"), b"data"
    (packet,) = packets.read_packets(key.sign(data, CREATED))
    longer = packet.body[:-258] + b"\x08\x08\0" + packet.body[-256:]
    with pytest.raises(OpenPGPError, match="forged"):
        PublicKey(key.public_key).verify(data, packets.write_packet(packets.SIGNATURE, longer))


def test_a_certification_is_not_a_signature_of_data() -> None:
    key = key_of("alice")
    user_id, certification = packets.read_packets(key.public_key)[1:3]
    primary = packets.read_packets(key.public_key)[0].body
    data = b"\x99" + len(primary).to_bytes(2, "big") + primary + b"\xb4" + len(user_id.body).to_bytes(4, "big")
    with pytest.raises(OpenPGPError, match="a signature of another kind"):
        PublicKey(key.public_key).verify(data + user_id.body, packets.write_packet(*certification))


def test_a_critical_part_that_is_not_understood_refuses_the_signature() -> None:
    key = key_of("alice")
    for kind, holds in ((100, True), (0x80 | 100, False), (0x80 | packets.CREATED, True)):
        made = openpgp._make_signature(
            key._rsa, key.fingerprint, 0, CREATED, b"x", ((kind, CREATED.to_bytes(4, "big")),)
        )
        if holds:
            PublicKey(key.public_key).verify(b"x", packets.write_packet(*made))
        else:
            with pytest.raises(OpenPGPError, match="critical"):
                PublicKey(key.public_key).verify(b"x", packets.write_packet(*made))
