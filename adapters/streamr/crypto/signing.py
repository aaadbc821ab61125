"""Ethereum signatures of stream messages and login challenges.

A payload is hashed with Keccak-256 behind the prefix of `personal_sign`, whose length field is counted
in UTF-8 bytes by the protocol (S0, signatureType) and in UTF-16 units by clients before 4.0: both are
tried. Keccak-256 is not SHA3-256: it pads differently, and hashlib does not have it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from time import perf_counter

from coincurve import PrivateKey, PublicKey
from coincurve._libsecp256k1 import ffi, lib
from coincurve.context import GLOBAL_CONTEXT
from sha3 import keccak_256

from adapters.streamr.wire.message import ETH, ETH_LEGACY, StreamMessage
from gateway.core.histogram import SECONDS, Histogram

MAX_ADDRESSES = 8_192  # of public keys in a cache: publishers send many messages
_SIGNATURE_BYTES = 65  # r, s and v
_SIGNATURE_DIGITS = 2 * _SIGNATURE_BYTES
V_EVEN = 27  # v of a signature whose R has an even y; 28 where that is odd. The libraries know no other
CHECKS = Histogram(SECONDS)  # the checks of this process: each recovers a key, of one signature or of a batch
# What `recover` asks of libsecp256k1 itself: by way of coincurve's objects it takes 6 microseconds more.
_CONTEXT = GLOBAL_CONTEXT.ctx
_SIGNATURE = ffi.typeof("secp256k1_ecdsa_recoverable_signature *")
_POINT = ffi.typeof("secp256k1_pubkey *")


def keccak256(data: bytes) -> bytes:
    """The Keccak-256 digest of *data*: 32 bytes."""
    digest: bytes = keccak_256(data).digest()
    return digest


def address_of(public_key: PublicKey) -> str:
    """The Ethereum address of a public key: `0x` and 40 lower-case hexadecimal digits."""
    return "0x" + keccak256(public_key.format(compressed=False)[1:])[12:].hex()


@lru_cache(maxsize=MAX_ADDRESSES)
def address_of_point(point: bytes) -> str:
    """The address of a public key as libsecp256k1 stores it."""
    return address_of(PublicKey(ffi.new(_POINT, [point])))


def checksum(address: str) -> str:
    """*address* with the upper-case digits of EIP-55, whatever its case was."""
    digits = address.lower().removeprefix("0x")
    nibbles = keccak256(digits.encode()).hex()
    return "0x" + "".join(
        digit.upper() if nibble >= "8" else digit for digit, nibble in zip(digits, nibbles, strict=False)
    )


def signed_payloads(message: StreamMessage) -> tuple[str, ...]:
    """The payloads that the publisher of *message* may have signed, the most likely first.

    The publisherId is signed in lower case, although no specification says so.
    """
    stream_id, partition, timestamp, sequence, publisher_id, chain = message.id
    publisher = publisher_id.lower()
    if message.signature_type == ETH:
        head = f"{stream_id}{partition}{timestamp}{sequence}{publisher}{chain}"
        tail = message.content + (message.new_group_key or "")
        prev = message.prev_ref
        if prev is None:
            return (head + tail,)
        if prev.sequence_number is not None:
            return (f"{head}{prev.timestamp}{prev.sequence_number}{tail}",)
        # S0 skips what is null, JavaScript spells it out
        return tuple(f"{head}{prev.timestamp}{spelt}{tail}" for spelt in ("", "null", "undefined"))
    if message.signature_type == ETH_LEGACY:
        tail = f"{timestamp}{publisher}{message.content}"
        return stream_id + tail, f"{stream_id}{partition}{tail}"  # the JavaScript libraries; S2 and the Java client
    return ()


def digest(payload: str, length: int | None = None) -> bytes:
    """The digest that is signed for *payload*; *length* replaces the number of its UTF-8 bytes in the prefix."""
    try:
        data = payload.encode()
    except UnicodeEncodeError:  # lone surrogates, which JavaScript writes as U+FFFD
        data = payload.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
    size = len(data) if length is None else length
    return keccak256(b"\x19Ethereum Signed Message:\n%d%b" % (size, data))


def recover(signature: str, payload_digest: bytes) -> str | None:
    """The address that made *signature*, None if it is malformed; the prefix `0x` is optional."""
    raw = parse_signature(signature)
    point = None if raw is None else recover_point(raw, payload_digest)
    return None if point is None else address_of_point(point)


def parse_signature(signature: str) -> bytes | None:
    """The 65 bytes r, s and v of *signature*; None if it is malformed."""
    digits = signature.removeprefix("0x")
    if len(digits) != _SIGNATURE_DIGITS:
        return None
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    # `fromhex` skips spaces, so there may be fewer bytes
    return raw if len(raw) == _SIGNATURE_BYTES and raw[-1] in (V_EVEN, V_EVEN + 1) else None


def recover_point(raw: bytes, payload_digest: bytes) -> bytes | None:
    """The public key that made the signature *raw*, as libsecp256k1 stores it; None if there is no such key."""
    begin = perf_counter()
    found, point = ffi.new(_SIGNATURE), ffi.new(_POINT)
    if not lib.secp256k1_ecdsa_recoverable_signature_parse_compact(_CONTEXT, found, raw, raw[-1] - V_EVEN):
        return None
    is_valid = lib.secp256k1_ecdsa_recover(_CONTEXT, point, found, payload_digest)
    CHECKS.observe(perf_counter() - begin)
    if not is_valid:
        return None
    key: bytes = ffi.buffer(point)[:]
    return key


def is_signed_by(address: str, payload: str, signature: str) -> bool:
    """Whether *address* signed *payload* with `personal_sign`, as login challenges are."""
    address = address.lower()
    return recover(signature, digest(payload)) == address or _is_signed_utf16(address, payload, signature)


def digests(message: StreamMessage) -> dict[str, bytes]:
    """The digests of the `signed_payloads` of *message*, by payload; they are cached with the message."""
    found = message.digests
    if found is None:
        found = message.digests = {}
        for payload in signed_payloads(message):
            found[payload] = digest(payload)
    return found


def verify(message: StreamMessage) -> bool:
    """Whether the publisher of *message* signed it; False if it is unsigned."""
    if message.verified:
        return True
    signature, address = message.signature, message.id.publisher_id.lower()
    if not signature:
        return False
    for payload_digest in digests(message).values():
        if recover(signature, payload_digest) == address:
            return True
    return any(_is_signed_utf16(address, payload, signature) for payload in signed_payloads(message))


def _is_signed_utf16(address: str, payload: str, signature: str) -> bool:
    """Whether *address* signed *payload* as clients before 4.0 count it; in ASCII that is no other way."""
    return not payload.isascii() and recover(signature, digest(payload, _utf16_units(payload))) == address


def sign(payload: str, key: PrivateKey, *, utf16: bool = False) -> str:
    """The signature of *payload*, `0x` and 130 digits: always the same one (RFC 6979), v is 27 or 28.

    *utf16* makes the one that clients before 4.0 accept.
    """
    raw = key.sign_recoverable(digest(payload, _utf16_units(payload) if utf16 else None), hasher=None)
    return f"0x{raw[:64].hex()}{raw[64] + V_EVEN:02x}"


def sign_message(message: StreamMessage, key: PrivateKey, *, utf16: bool = False) -> StreamMessage:
    """*message* with the signature (type ETH) of *key*, whose address must be its publisherId; *utf16* as in `sign`."""
    signed = replace(message, signature_type=ETH, signature=None, wire=None, verbatim=False)
    signed.signature = sign(signed_payloads(signed)[0], key, utf16=utf16)  # it is used nowhere yet
    return signed


def _utf16_units(payload: str) -> int:
    return len(payload.encode("utf-16-le", "surrogatepass")) // 2
