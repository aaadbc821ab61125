"""Ethereum signatures of stream messages and login challenges.

A payload is hashed with Keccak-256 behind the prefix of `personal_sign`, whose length field is counted
in UTF-8 bytes by the protocol (S0, signatureType) and in UTF-16 units by clients before 4.0: both are
tried. Keccak-256 is not SHA3-256: it pads differently, and hashlib does not have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from coincurve import PrivateKey, PublicKey
from coincurve.ecdsa import deserialize_recoverable
from coincurve.ecdsa import recover as recover_point
from sha3 import keccak_256

from .message import ETH, ETH_LEGACY, StreamMessage

MAX_ADDRESSES = 8_192  # of public keys that are remembered: publishers come again and again
# The 65 bytes r, s and v, in hexadecimal digits.
_SIGNATURE_DIGITS = 130
RECOVERY_IDS = {27: b"\0", 28: b"\1"}  # what v says (the libraries know no other), and how coincurve has it


def keccak256(data: bytes) -> bytes:
    """The Keccak-256 digest of *data*: 32 bytes."""
    digest: bytes = keccak_256(data).digest()
    return digest


def address_of(public_key: PublicKey) -> str:
    """The Ethereum address of a public key: `0x` and 40 lower-case hexadecimal digits."""
    return _address(public_key.format(compressed=False))


@lru_cache(maxsize=MAX_ADDRESSES)
def _address(point: bytes) -> str:
    return "0x" + keccak256(point[1:])[12:].hex()


def checksum(address: str) -> str:
    """*address* with the upper-case digits of EIP-55, whatever its case was."""
    digits = address.lower().removeprefix("0x")
    nibbles = keccak256(digits.encode()).hex()
    return "0x" + "".join(
        digit.upper() if nibble >= "8" else digit for digit, nibble in zip(digits, nibbles, strict=False)
    )


def payloads(message: StreamMessage) -> Iterator[str]:
    """The texts that a publisher of *message* may have signed, the most likely first.

    No specification says so, but the publisherId is signed in lower case.
    """
    stream_id, partition, timestamp, sequence, publisher_id, chain = message.id
    publisher = publisher_id.lower()
    if message.signature_type == ETH:
        head = f"{stream_id}{partition}{timestamp}{sequence}{publisher}{chain}"
        tail = message.content + (message.new_group_key or "")
        for prev in _previous(message):
            yield head + prev + tail
    elif message.signature_type == ETH_LEGACY:
        tail = f"{timestamp}{publisher}{message.content}"
        yield stream_id + tail  # the JavaScript libraries
        yield f"{stream_id}{partition}{tail}"  # S2 and the Java client


def digest(payload: str, length: int | None = None) -> bytes:
    """What is signed for *payload*; *length* replaces the number of its UTF-8 bytes in the prefix."""
    data = _utf8(payload)
    return keccak256(b"\x19Ethereum Signed Message:\n%d" % (len(data) if length is None else length) + data)


def recover(signature: str, payload_digest: bytes) -> str | None:
    """The address that made *signature*, or None where it is malformed; `0x` in front is optional."""
    digits = signature.removeprefix("0x")
    if len(digits) != _SIGNATURE_DIGITS:
        return None
    try:
        raw = bytes.fromhex(digits)
        recovery_id = RECOVERY_IDS.get(raw[64])
        if recovery_id is None:
            return None
        point = recover_point(payload_digest, deserialize_recoverable(raw[:64] + recovery_id), hasher=None)
    except (ValueError, IndexError):  # no digits; spaces among them; no point on the curve
        return None
    return address_of(PublicKey(point))


def signed_by(address: str, payload: str, signature: str) -> bool:
    """Whether *address* signed *payload* with `personal_sign`, as login challenges are."""
    address = address.lower()
    return recover(signature, digest(payload)) == address or _signed_utf16(address, payload, signature)


def digests(message: StreamMessage) -> tuple[bytes, ...]:
    """What may have been signed for *message*, digested: as many as `payloads` gives. They are kept with it."""
    found = message.digests
    if found is None:
        found = message.digests = tuple(map(digest, payloads(message)))
    return found


def verify(message: StreamMessage) -> bool:
    """Whether the publisher of *message* signed it; nobody signs an unsigned one."""
    signature, address = message.signature, message.id.publisher_id.lower()
    if not signature:
        return False
    for payload_digest in digests(message):
        if recover(signature, payload_digest) == address:
            return True
    return any(_signed_utf16(address, payload, signature) for payload in payloads(message))


def _signed_utf16(address: str, payload: str, signature: str) -> bool:
    """Whether *address* signed *payload* as clients before 4.0 count it; in ASCII that is no other way."""
    return not payload.isascii() and recover(signature, digest(payload, _utf16_units(payload))) == address


def sign(payload: str, key: PrivateKey, *, utf16: bool = False) -> str:
    """The signature of *payload*, `0x` and 130 digits: always the same one (RFC 6979), v is 27 or 28.

    *utf16* makes the one that clients before 4.0 accept.
    """
    raw = key.sign_recoverable(digest(payload, _utf16_units(payload) if utf16 else None), hasher=None)
    return f"0x{raw[:64].hex()}{raw[64] + 27:02x}"


def signed(message: StreamMessage, key: PrivateKey, *, utf16: bool = False) -> StreamMessage:
    """*message* with the signature (type ETH) of *key*, whose address must be its publisherId; *utf16* as in `sign`."""
    unsigned = replace(message, signature_type=ETH, signature=None, wire=None, verbatim=False)
    return replace(unsigned, signature=sign(next(payloads(unsigned)), key, utf16=utf16))


def _previous(message: StreamMessage) -> tuple[str, ...]:
    prev = message.prev_ref
    if prev is None:
        return ("",)
    if prev.sequence_number is None:  # S0 skips what is null, JavaScript spells it out
        return (f"{prev.timestamp}", f"{prev.timestamp}null", f"{prev.timestamp}undefined")
    return (f"{prev.timestamp}{prev.sequence_number}",)


def _utf8(payload: str) -> bytes:
    try:
        return payload.encode()
    except UnicodeEncodeError:  # lone surrogates, which JavaScript writes as U+FFFD
        return payload.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _utf16_units(payload: str) -> int:
    return len(payload.encode("utf-16-le", "surrogatepass")) // 2
