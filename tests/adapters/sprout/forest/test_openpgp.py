"""Keys and signatures, against what Go and gpg made, and with Sequoia as an independent judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pysequoia
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.sprout.forest import forest, openpgp, packets, validate
from adapters.sprout.forest.openpgp import PublicKey, SecretKey
from adapters.sprout.forest.packets import OpenPGPError
from adapters.sprout.wire import base64url

VECTORS = Path(__file__).parents[3] / "vectors/sprout"
NODES: dict[str, Any] = {vector["name"]: vector["node"] for vector in json.loads((VECTORS / "valid.json").read_text())}
RAW = {name: base64url.decode(node["raw_b64u"].encode()) for name, node in NODES.items()}
NAMES = {node["id"]: name for name, node in NODES.items()}
OWNERS = {"identity_alice": "alice", "identity_bob_unicode_twig": "bob", "identity_carol_gpg": "carol-gpg"}
CREATED = 1_795_235_963  # the keys of the vectors, in seconds since 1970


@cache
def key_of(owner: str) -> SecretKey:
    return SecretKey((VECTORS / f"keys/{owner}.privkey").read_bytes())


@cache
def new_key() -> SecretKey:
    return SecretKey.generate(CREATED - 1)


def author_of(name: str) -> str:
    """The name of the identity that signed a vector."""
    node = forest.decode(RAW[name])
    return name if isinstance(node, forest.Identity) else NAMES[node.author]


def public_key_of(identity: str) -> PublicKey:
    node = forest.decode(RAW[identity])
    assert isinstance(node, forest.Identity)
    return PublicKey(node.public_key)


def signed(name: str) -> tuple[bytes, bytes]:
    """What is signed in a vector, and the signature."""
    node = forest.decode(RAW[name])
    return forest.signed_part(node, RAW[name]), node.signature


def sequoia_agrees(key: SecretKey, data: bytes, signature: bytes) -> bool:
    certificate = pysequoia.Cert.from_bytes(key.public_key)
    try:
        pysequoia.verify(bytes=data, store=lambda _: [certificate], signature=pysequoia.Sig.from_bytes(signature))
    except Exception:  # its errors have no common base
        return False
    return True


def repacked(data: bytes, change: dict[int, bytes | None]) -> bytes:
    """A key with packets of some tags replaced, or left out."""
    parts = [(tag, change.get(tag, body)) for tag, body in packets.read_packets(data)]
    return b"".join(packets.write_packet(tag, body) for tag, body in parts if body is not None)


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


def test_a_value_longer_than_the_key_is_no_signature() -> None:
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


def test_earlier_signatures_of_an_expired_key_are_valid() -> None:
    secrets = pysequoia.Tsk.from_bytes(new_key().file)
    # Sequoia writes lifetimes of keys from the present on.
    expiry = int(datetime.now(UTC).timestamp()) + 1000
    until = datetime.fromtimestamp(expiry, UTC)
    shortened = secrets.extract_certificate().set_expiration(until, secrets.certifier())
    key = PublicKey(bytes(shortened))
    assert key.expires == expiry
    key.verify(b"said", new_key().sign(b"said", expiry - 1))
    with pytest.raises(OpenPGPError, match="a signature by a key that had expired"):
        key.verify(b"said", new_key().sign(b"said", expiry))


def test_a_key_of_another_algorithm_is_refused() -> None:
    certificate = pysequoia.Tsk.generate(user_id="someone").extract_certificate()
    with pytest.raises(OpenPGPError, match="a key of another kind"):
        PublicKey(bytes(certificate))


def test_a_key_whose_subkeys_sign_is_refused() -> None:
    secrets = pysequoia.Tsk.generate(user_id="someone", cipher_suite=pysequoia.CipherSuite.RSA2k)
    with pytest.raises(OpenPGPError, match="a key that may not sign"):
        PublicKey(bytes(secrets.extract_certificate()))


def remade(flags: bytes | None, *, user_id: bytes = b"someone") -> bytes:
    """Alice's primary key with a certification of its own that says these key flags."""
    key = key_of("alice")
    primary = packets.read_packets(key.public_key)[0]
    about = () if flags is None else ((packets.KEY_FLAGS, flags),)
    made = openpgp._make_signature(
        key._rsa, key.fingerprint, 0x13, CREATED, openpgp._certified_data(primary.body, user_id), about
    )
    return b"".join(
        packets.write_packet(*part) for part in (primary, packets.OpenPGPPacket(packets.USER_ID, user_id), made)
    )


def test_key_flags_say_whether_a_key_may_sign() -> None:
    for flags in (None, b"\x02", b"\x03\x00"):
        PublicKey(remade(flags))
    for flags in (b"\x01", b""):
        with pytest.raises(OpenPGPError, match="a key that may not sign"):
            PublicKey(remade(flags))


def test_a_key_needs_its_own_word_for_a_user_id() -> None:
    data = key_of("alice").public_key
    changes: list[dict[int, bytes | None]] = [
        {packets.USER_ID: b"Bob"},
        {packets.USER_ID: None},
        {packets.SIGNATURE: None},
    ]
    for change in changes:
        with pytest.raises(OpenPGPError, match="a key without a user id of its own"):
            PublicKey(repacked(data, change))
    mallory = repacked(key_of("bob").public_key, {packets.PUBLIC_KEY: packets.read_packets(data)[0].body})
    with pytest.raises(OpenPGPError, match="a key without a user id of its own"):
        PublicKey(mallory)


def test_only_the_first_entity_counts() -> None:
    both = key_of("alice").public_key + key_of("bob").public_key
    assert PublicKey(both).fingerprint == key_of("alice").fingerprint
    alone = packets.write_packet(*packets.read_packets(key_of("alice").public_key)[0])
    with pytest.raises(OpenPGPError, match="a key without a user id of its own"):
        PublicKey(alone + key_of("alice").public_key)


def test_times_after_the_end_of_openpgp_time_can_be_signed() -> None:
    key = new_key()
    PublicKey(key.public_key).verify(b"x", key.sign(b"x", 1 << 40))


def test_a_revoked_key_is_refused() -> None:
    secrets = pysequoia.Tsk.from_bytes(new_key().file)
    revocation = secrets.extract_certificate().revoke(secrets.certifier())
    revoked = pysequoia.Cert.from_bytes(new_key().public_key + bytes(revocation))
    with pytest.raises(OpenPGPError, match="a key that is revoked"):
        PublicKey(bytes(revoked))


def test_the_newest_certification_counts() -> None:
    key = key_of("alice")
    user_id = b"someone"
    primary = packets.read_packets(key.public_key)[0]
    certified = openpgp._certified_data(primary.body, user_id)
    newer = openpgp._make_signature(
        key._rsa, key.fingerprint, 0x13, CREATED + 1, certified, ((packets.KEY_FLAGS, b"\x01"),)
    )
    with pytest.raises(OpenPGPError, match="a key that may not sign"):
        PublicKey(remade(b"\x03") + packets.write_packet(*newer))


def primary_with(modulus: int, exponent: int) -> bytes:
    numbers = packets.write_number(modulus) + packets.write_number(exponent)
    return packets.write_packet(packets.PUBLIC_KEY, b"\x04\0\0\0\0\x01" + numbers)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a public key"),
        (b"\x7f", "not an OpenPGP packet"),
        (key_of("alice").file, "not a public key"),
        (packets.write_packet(6, b""), "a key of another kind"),
        (packets.write_packet(6, b"\x03\0\0\0\0\x01"), "a key of another kind"),
        (packets.write_packet(6, b"\x04\0\0\0\0\x16"), "a key of another kind"),
        (packets.write_packet(6, b"\x04\0\0\0\0\x01\x08\x00\x01"), "a number that is cut off"),
        (primary_with((1 << 1023) - 1, 65537), "a key of another size"),
        (primary_with((1 << 8193) - 1, 65537), "a key of another size"),
        (primary_with((1 << 2048) - 1, (1 << 24) + 1), "a key of another size"),
        (primary_with((1 << 2048) - 1, 2), "numbers that are not an RSA key"),
        (b"\xc6\xe1x", "a packet without a length"),
        (b"\x9bx", "a packet without a length"),
        (b"\xc6\x05x", "a packet that is cut off"),
        (b"\xc6", "a packet that is cut off"),
        (b"\xc6\xff\0", "a packet that is cut off"),
    ],
)
def test_invalid_keys_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(OpenPGPError, match=reason):
        PublicKey(data)


def test_invalid_key_files_are_refused() -> None:
    file = key_of("alice").file
    public = packets.read_packets(key_of("alice").public_key)[0].body
    secret = packets.read_packets(file)[0].body
    broken = secret[:-1] + bytes((secret[-1] ^ 1,))
    ones = b"\0" + b"\0\x01\x01" * 4
    for data, reason in [
        (b"", "not a secret key"),
        (key_of("alice").public_key, "not a secret key"),
        (repacked(file, {packets.SECRET_KEY: public + b"\xfe\x09"}), "a secret key that is locked by a passphrase"),
        (repacked(file, {packets.SECRET_KEY: broken}), "a secret key that is damaged"),
        (repacked(file, {packets.SECRET_KEY: public + ones + b"\0\x08"}), "numbers that are not an RSA key"),
        (repacked(file, {packets.SIGNATURE: None}), "a key without a user id of its own"),
    ]:
        with pytest.raises(OpenPGPError, match=reason):
            SecretKey(data)


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


@given(st.integers(0, 20_000).flatmap(lambda size: st.just(bytes(size))), st.integers(0, 63))
def test_packets_are_read_as_they_are_written(body: bytes, tag: int) -> None:
    assert packets.read_packets(packets.write_packet(tag, body) * 2) == [(tag, body)] * 2


@given(st.integers(1, 1 << 2050))
def test_numbers_are_read_as_they_are_written(value: int) -> None:
    assert packets.read_numbers(b"x" + packets.write_number(value), 1, 1)[0] == [value]


def cut_and_broken(whole: bytes) -> st.SearchStrategy[bytes]:
    """*whole* with a byte changed and some left out."""
    place = st.integers(0, len(whole) - 1)
    return st.builds(
        lambda at, value, start, size: (whole[:at] + bytes((value,)) + whole[at + 1 :])[:start] + whole[start + size :],
        place,
        st.integers(0, 255),
        place,
        st.integers(0, 3),
    )


@given(st.binary(max_size=40) | cut_and_broken(key_of("alice").public_key))
def test_any_bytes_end_in_a_key_or_the_error(data: bytes) -> None:
    try:
        key = PublicKey(data)
    except OpenPGPError:
        return
    assert key.fingerprint == key_of("alice").fingerprint


@given(st.binary(max_size=40) | cut_and_broken(signed("reply_depth1")[1]))
def test_any_bytes_end_in_a_signature_or_the_error(signature: bytes) -> None:
    data, genuine = signed("reply_depth1")
    try:
        public_key_of("identity_alice").verify(data, signature)
    except OpenPGPError:
        return
    assert len(signature) == len(genuine)


@given(st.binary(max_size=40) | cut_and_broken(key_of("alice").file))
def test_any_bytes_end_in_a_key_file_or_the_error(file: bytes) -> None:
    try:
        key = SecretKey(file)
    except OpenPGPError:
        return
    assert key.fingerprint == key_of("alice").fingerprint


def test_the_fast_signature_reader_agrees_with_the_other() -> None:
    key = SecretKey((VECTORS / "keys/alice.privkey").read_bytes())
    issuer = packets.usual_issuer(key.fingerprint)
    made = [key.sign(b"%d" % n, n) for n in (n << 22 for n in range(600))]
    whole = [(packets.read_usual_signature(each, issuer), packets.read_packets(each)[0].body) for each in made]
    assert all(quick == packets.read_signature(body) for quick, body in whole if quick is not None)
    shorter = [len(body) < len(whole[0][1]) for _, body in whole]
    assert [quick is None for quick, _ in whole] == shorter, "unless a number begins with zeros"
    assert any(shorter)
    for at in range(54):  # every byte that says what kind of signature it is
        other = bytearray(made[0])
        other[at] ^= 0x40
        quick = packets.read_usual_signature(bytes(other), issuer)
        assert quick is None or quick == packets.read_signature(packets.read_packets(bytes(other))[0].body)
    assert packets.read_usual_signature(made[0] + b"\0", issuer) is None


# What is made to be slow


def certified_often(times: int) -> bytes:
    """A public key that certifies its one user id so many times."""
    primary, user_id, certification, *_ = packets.read_packets(key_of("alice").public_key)
    return b"".join(packets.write_packet(*part) for part in (primary, user_id, *[certification] * times))


def test_a_key_may_certify_itself_a_few_times() -> None:
    assert PublicKey(certified_often(openpgp.MAX_CERTIFICATIONS)).id == key_id_of("alice")
    with pytest.raises(OpenPGPError, match="too often"):
        PublicKey(certified_often(openpgp.MAX_CERTIFICATIONS + 1))


def test_packets_of_a_key_are_bounded() -> None:
    primary, user_id, certification, *_ = packets.read_packets(key_of("alice").public_key)
    parts = [primary, user_id, certification]
    parts += [packets.OpenPGPPacket(packets.USER_ID, b"")] * (packets.MAX_PACKETS - len(parts))
    assert PublicKey(b"".join(packets.write_packet(*part) for part in parts)).id == key_id_of("alice")
    parts.append(packets.OpenPGPPacket(packets.USER_ID, b""))
    with pytest.raises(OpenPGPError, match="too many packets"):
        PublicKey(b"".join(packets.write_packet(*part) for part in parts))


def test_long_keys_that_are_kept_are_few() -> None:
    primary, user_id, certification, *_ = packets.read_packets(key_of("alice").public_key)
    validate._long_key.cache_clear()
    for number in range(validate.MAX_LONG_KEYS + 5):
        name = b"%d" % number + b"x" * validate.USUAL_KEY
        parts = (primary, user_id, certification, packets.OpenPGPPacket(packets.USER_ID, name))
        validate._key(b"".join(packets.write_packet(*part) for part in parts))
    assert validate._long_key.cache_info().currsize == validate.MAX_LONG_KEYS


def key_id_of(name: str) -> bytes:
    return key_of(name).fingerprint[-8:]
