"""OpenPGP keys and detached signatures (RFC 4880), as far as Arbor uses them: version 4, RSA, SHA-2.

A key is a binary transferable public key, of which the first entity counts. Its primary key signs; it needs
a user id that it has certified itself (not with SHA-1), and its key flags, if present, must allow signing.
Signatures by subkeys are refused: neither genuine program makes them.

An expired key cannot sign, but its earlier signatures stay valid: its lifetime is compared with the signature's
own time. The reference compares it with the present, so that old messages become invalid.

Key files are those of the reference: transferable secret keys without a passphrase.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from . import packets
from .packets import OpenPGPError, OpenPGPPacket, Signature

USER_ID: Final = "Arbor identity key (Automatically generated) <none@arbor.chat>"
# `cryptography` refuses smaller keys; larger ones take milliseconds to verify. The exponent is bounded as in Go.
MIN_BITS: Final = 1024
MAX_BITS: Final = 8192
MAX_EXPONENT: Final = (1 << 24) - 1
# Self-certifications that are checked: GnuPG adds one whenever the lifetime of a key is changed. Checking one takes a
# time that grows with the square of the key's bits, so there may be 8 by a key of 4,096 bits, and 2 by one of 8,192.
MAX_CERTIFICATIONS: Final = 16
MAX_CERTIFIED_BITS: Final = 8 * 4096**2
# Parameters of the keys that `SecretKey.generate` makes.
_BITS: Final = 2048
_EXPONENT: Final = 65537

_LAST_SECOND: Final = (1 << 32) - 1
_BINARY: Final = 0x00  # types of signatures (section 5.2.1)
_CERTIFICATIONS: Final = range(0x10, 0x14)
_CERTIFICATION: Final = 0x13
_SUBKEY_BINDING: Final = 0x18
_REVOCATION: Final = 0x20
_MAY_SIGN: Final = 0x02  # key flags (section 5.2.3.21)
_SIGN_AND_CERTIFY: Final = b"\x03"
_ENCRYPT: Final = b"\x0c"

_SHA256: Final = Prehashed(hashes.SHA256())
_PADDING: Final = PKCS1v15()
# The DER prefix of a hash that is signed (RFC 8017, section 9.2, note 1).
_DIGEST_INFO: Final = {
    8: bytes.fromhex("3031300d060960864801650304020105000420"),
    9: bytes.fromhex("3041300d060960864801650304020205000430"),
    10: bytes.fromhex("3051300d060960864801650304020305000440"),
}

# The subpackets of Go's certifications (section 5.2.3), in its order: key flags, features, primary user id, and the
# preferred ciphers, hashes and AEAD modes.
_ABOUT_KEY: Final = ((27, _SIGN_AND_CERTIFY), (30, b"\1"), (25, b"\1"), (11, b"\7"), (21, b"\x08"), (34, b"\1"))
_ABOUT_SUBKEY: Final = ((27, _ENCRYPT),)


class PublicKey:
    """A key that verifies signatures.

    `fingerprint` has 20 bytes, `id` is its last 8; `created` and `expires` (None for never) are in seconds since 1970.
    """

    def __init__(self, data: bytes) -> None:
        """Read a transferable public key; raise `OpenPGPError` unless it is complete, certified and able to sign."""
        primary, *others = packets.read_packets(data) or [OpenPGPPacket(0, b"")]
        if primary.tag != packets.PUBLIC_KEY:
            raise OpenPGPError("not a public key")
        part = _read_public_part(primary.body)
        if part.size != len(primary.body):
            raise OpenPGPError("a key of another kind")
        self.fingerprint = part.fingerprint
        self.id = part.fingerprint[-8:]
        self.created = part.created
        self._issuer = packets.usual_issuer(part.fingerprint)
        self._rsa = part.key()
        self._bytes = (self._rsa.key_size + 7) // 8
        about = self._certification(primary.body, others)
        if about.key_flags is not None and not about.key_flags & _MAY_SIGN:
            raise OpenPGPError("a key that may not sign")
        self.expires = None if about.key_seconds is None else part.created + about.key_seconds

    def verify(self, data: bytes, signature: bytes) -> None:
        """Raise `OpenPGPError` unless *signature*, one binary packet, is this key's signature of *data*."""
        made = packets.read_usual_signature(signature, self._issuer) or _read_signature(signature)
        if not made.strict:
            raise OpenPGPError("a signature with parts that it does not cover")
        if made.type != _BINARY:
            raise OpenPGPError("a signature of another kind")
        if self.expires is not None and made.created >= self.expires:
            raise OpenPGPError("a signature by a key that had expired")
        self._check(made, data)

    def _check(self, made: Signature, data: bytes) -> None:
        if made.issuer != self.id:
            raise OpenPGPError("a signature by another key")
        digest = made.digest(data)
        try:  # recovering and comparing takes a seventh less time than `verify`
            recovered = self._rsa.recover_data_from_signature(made.value.rjust(self._bytes, b"\0"), _PADDING, None)
        except InvalidSignature:
            recovered = b""
        if recovered != _DIGEST_INFO[made.hash] + digest:
            raise OpenPGPError("a forged signature")

    def _certification(self, primary: bytes, others: list[OpenPGPPacket]) -> Signature:
        """The newest of the key's certifications of its own user ids."""
        certified: bytes | None = None
        most = min(MAX_CERTIFICATIONS, MAX_CERTIFIED_BITS // self._rsa.key_size**2)
        found: list[Signature] = []
        checked = 0
        for tag, body in others:
            if tag == packets.PUBLIC_KEY:
                break
            if tag != packets.SIGNATURE:
                certified = _certified_data(primary, body) if tag == packets.USER_ID else None
            elif body[1:2] == bytes((_REVOCATION,)):
                raise OpenPGPError("a key that is revoked")
            elif certified is not None and (made := self._own_certification(body)):
                checked += 1
                if checked > most:
                    raise OpenPGPError("a key that certifies itself too often")
                if self._is_valid(made, certified):
                    found.append(made)
        if not found:
            raise OpenPGPError("a key without a user id of its own")
        return max(found, key=lambda made: made.created)

    def _own_certification(self, body: bytes) -> Signature | None:
        """The self-certification in *body*; None if it is malformed, or names another key as its issuer."""
        try:
            made = packets.read_signature(body)
        except OpenPGPError:
            return None
        return made if made.issuer == self.id and made.type in _CERTIFICATIONS else None

    def _is_valid(self, made: Signature, certified: bytes) -> bool:
        try:
            self._check(made, certified)
        except OpenPGPError:
            return False
        return True


def _read_signature(signature: bytes) -> Signature:
    parts = packets.read_packets(signature)
    if len(parts) != 1 or parts[0].tag != packets.SIGNATURE:
        raise OpenPGPError("not a signature")
    made = packets.read_signature(parts[0].body)
    return made._replace(strict=made.strict and signature in packets.minimal_encodings(parts[0]))


class SecretKey:
    """A key that signs, with the content of its `file` and its `public_key`, both binary.

    `created` is in seconds since 1970.
    """

    def __init__(self, file: bytes) -> None:
        """Read a key file; raise `OpenPGPError` if it is not one, or if a passphrase locks it."""
        parts = packets.read_packets(file)
        if not parts or parts[0].tag != packets.SECRET_KEY:
            raise OpenPGPError("not a secret key")
        self.file = file
        self.public_key = b"".join(packets.write_packet(*_public_packet(part)) for part in parts)
        public = PublicKey(self.public_key)
        self.fingerprint, self.created = public.fingerprint, public.created
        self._rsa = _read_secret(parts[0].body)

    @classmethod
    def generate(cls, created_seconds: int) -> SecretKey:
        """A new key like the reference's: an RSA-2048 key to sign and certify, and a subkey to encrypt."""
        primary, subkey = (rsa.generate_private_key(_EXPONENT, _BITS) for _ in range(2))
        name = USER_ID.encode()
        body, sub_body = (_write_public_part(key.public_key(), created_seconds) for key in (primary, subkey))
        issuer = _fingerprint(body)
        binding = _hashed_key(body) + _hashed_key(sub_body)
        certification = _make_signature(
            primary, issuer, _CERTIFICATION, created_seconds, _certified_data(body, name), _ABOUT_KEY
        )
        parts = (
            OpenPGPPacket(packets.SECRET_KEY, body + _write_secret(primary)),
            OpenPGPPacket(packets.USER_ID, name),
            certification,
            OpenPGPPacket(packets.SECRET_SUBKEY, sub_body + _write_secret(subkey)),
            _make_signature(primary, issuer, _SUBKEY_BINDING, created_seconds, binding, _ABOUT_SUBKEY),
        )
        return cls(b"".join(packets.write_packet(*part) for part in parts))

    def sign(self, data: bytes, created_seconds: int) -> bytes:
        """A detached signature of *data* as Go makes it; the same input always gives the same bytes.

        OpenPGP's time ends in 2106: later signatures are dated at its last second.
        """
        created = min(created_seconds, _LAST_SECOND)
        return packets.write_packet(*_make_signature(self._rsa, self.fingerprint, _BINARY, created, data))


class _PublicPart(NamedTuple):
    """The public part of a key packet, public or secret (section 5.5.2), and its size in bytes."""

    created: int
    modulus: int
    exponent: int
    size: int
    fingerprint: bytes

    def key(self) -> rsa.RSAPublicKey:
        if not MIN_BITS <= self.modulus.bit_length() <= MAX_BITS or self.exponent > MAX_EXPONENT:
            raise OpenPGPError("a key of another size")
        try:
            return rsa.RSAPublicNumbers(self.exponent, self.modulus).public_key()
        except ValueError:
            raise OpenPGPError("numbers that are not an RSA key") from None


def _read_public_part(body: bytes) -> _PublicPart:
    if len(body) < 6 or body[0] != 4 or body[5] != packets.RSA:
        raise OpenPGPError("a key of another kind")
    (modulus, exponent), size = packets.read_numbers(body, 6, 2)
    created = int.from_bytes(body[1:5], "big")
    return _PublicPart(created, modulus, exponent, size, _fingerprint(body[:size]))


def _write_public_part(key: rsa.RSAPublicKey, created: int) -> bytes:
    numbers = key.public_numbers()
    head = struct.pack(">BIB", 4, created, packets.RSA)
    return head + packets.write_number(numbers.n) + packets.write_number(numbers.e)


def _read_secret(body: bytes) -> rsa.RSAPrivateKey:
    """The key in a secret key packet without a passphrase (section 5.5.3)."""
    public = _read_public_part(body)
    secret = body[public.size :]
    if secret[:1] != b"\0":
        raise OpenPGPError("a secret key that is locked by a passphrase")
    (d, p, q, _), end = packets.read_numbers(secret, 1, 4)
    if secret[end:] != _checksum(secret[1:end]):
        raise OpenPGPError("a secret key that is damaged")
    try:
        crt = rsa.rsa_crt_dmp1(d, p), rsa.rsa_crt_dmq1(d, q), rsa.rsa_crt_iqmp(p, q)
        return rsa.RSAPrivateNumbers(p, q, d, *crt, public.key().public_numbers()).private_key()
    except (ValueError, ZeroDivisionError):
        raise OpenPGPError("numbers that are not an RSA key") from None


def _write_secret(key: rsa.RSAPrivateKey) -> bytes:
    numbers = key.private_numbers()
    p, q = numbers.p, numbers.q
    secret = b"".join(map(packets.write_number, (numbers.d, p, q, pow(p, -1, q))))
    return b"\0" + secret + _checksum(secret)


def _checksum(secret: bytes) -> bytes:
    return struct.pack(">H", sum(secret) & 0xFFFF)


def _public_packet(part: OpenPGPPacket) -> OpenPGPPacket:
    """The public counterpart of a packet of a key file."""
    tag = {packets.SECRET_KEY: packets.PUBLIC_KEY, packets.SECRET_SUBKEY: packets.PUBLIC_SUBKEY}.get(part.tag)
    return part if tag is None else OpenPGPPacket(tag, part.body[: _read_public_part(part.body).size])


def _make_signature(
    key: rsa.RSAPrivateKey,
    fingerprint: bytes,
    type: int,
    created: int,
    data: bytes,
    about: tuple[tuple[int, bytes], ...] = (),
) -> OpenPGPPacket:
    """A signature packet with its hashed subpackets in Go's order."""
    hashed = packets.write_subpackets(
        (
            (packets.CREATED, struct.pack(">I", created)),
            (packets.ISSUER, fingerprint[-8:]),
            (packets.ISSUER_FINGERPRINT, b"\x04" + fingerprint),
            *about,
        )
    )
    head = struct.pack(">BBBBH", 4, type, packets.RSA, packets.SHA256, len(hashed)) + hashed
    digest = hashlib.sha256(data + head + b"\x04\xff" + struct.pack(">I", len(head))).digest()
    value = key.sign(digest, _PADDING, _SHA256)
    return OpenPGPPacket(
        packets.SIGNATURE, head + b"\0\0" + digest[:2] + packets.write_number(int.from_bytes(value, "big"))
    )


def _hashed_key(body: bytes) -> bytes:
    """The form of a key that is hashed (section 5.2.4)."""
    return b"\x99" + struct.pack(">H", len(body)) + body


def _certified_data(primary: bytes, user_id: bytes) -> bytes:
    """The data that a certification of *user_id* signs (section 5.2.4)."""
    return _hashed_key(primary) + b"\xb4" + struct.pack(">I", len(user_id)) + user_id


def _fingerprint(body: bytes) -> bytes:
    """The fingerprint of a version 4 key (section 12.2)."""
    return hashlib.sha1(_hashed_key(body), usedforsecurity=False).digest()
