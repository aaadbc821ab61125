"""Only suitable keys and key files are accepted, and others are refused with a reason."""

from __future__ import annotations

from datetime import UTC, datetime

import pysequoia
import pytest

from adapters.sprout.forest import node_rules, openpgp, packets
from adapters.sprout.forest.openpgp import PublicKey, SecretKey
from adapters.sprout.forest.packets import OpenPGPError
from tests.adapters.sprout.forest.keys import CREATED, key_id_of, key_of, new_key, repacked
from tests.attacks.heavy_keys import HeavyKey


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


def test_a_key_without_a_certified_user_id_is_refused() -> None:
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


# What is made to be slow


def certified_often(times: int) -> bytes:
    """A public key that certifies its one user id so many times."""
    primary, user_id, certification, *_ = packets.read_packets(key_of("alice").public_key)
    return b"".join(packets.write_packet(*part) for part in (primary, user_id, *[certification] * times))


def test_a_key_may_certify_itself_a_few_times() -> None:
    assert PublicKey(certified_often(openpgp.MAX_CERTIFICATIONS)).id == key_id_of("alice")
    with pytest.raises(OpenPGPError, match="too often"):
        PublicKey(certified_often(openpgp.MAX_CERTIFICATIONS + 1))


@pytest.mark.parametrize(("bits", "most"), [(2048, 16), (4096, 8), (8192, 2)])
def test_a_long_key_may_certify_itself_less_often(bits: int, most: int) -> None:
    """Each of these certifications is forged, which shows only after a time that grows with the square of the bits."""
    with pytest.raises(OpenPGPError, match="a key without a user id of its own"):
        PublicKey(HeavyKey(bits, most).public_key)
    with pytest.raises(OpenPGPError, match="a key that certifies itself too often"):
        PublicKey(HeavyKey(bits, most + 1).public_key)


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
    node_rules._long_key.cache_clear()
    for number in range(node_rules.MAX_LONG_KEYS + 5):
        name = b"%d" % number + b"x" * node_rules.USUAL_KEY
        parts = (primary, user_id, certification, packets.OpenPGPPacket(packets.USER_ID, name))
        node_rules._key(b"".join(packets.write_packet(*part) for part in parts))
    assert node_rules._long_key.cache_info().currsize == node_rules.MAX_LONG_KEYS
