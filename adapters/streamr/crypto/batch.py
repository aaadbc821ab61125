"""Many signatures by one key checked in one equation, which costs less than one by one.

A signature (r, s, v) of the digest z by the key Q is genuine if R = (z/s) G + (r/s) Q, where R is the point whose x is
r and whose y is odd if v says so: this is what recovery solves for Q. The equations of many signatures by one key are
added up, each multiplied by a random weight that nobody can foresee, and their sum is an equation of the same kind,
solved for Q once. Each signature then costs the root for R and some 43 additions.

Weights have 128 bits and are drawn anew each time, so a set that contains a forged signature passes with a probability
of at most 2**-128. Where the recovered key is not the publisher's, each signature is checked by itself.

Checking signatures together takes less CPU time than one by one: 14 % less for 32 of them, 31 % for 64, 41 % for 128,
49 % for 512. A gateway handles fewer at once when they arrive over sockets, and no gain was measured there, so
`streamr.batch_verification` is off by default; `trellis pipeline integrity` always checks up to 512 together. The
argument is in docs/decisions/0020-batch-verification.md.

Source: Bellare, Garay and Rabin, Fast Batch Verification for Modular Exponentiation and Digital Signatures (1998),
section 3; for ECDSA, where v tells R: Antipa et al., Accelerated Verification of ECDSA Signatures (2005).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from os import urandom
from typing import Any, Final

from coincurve._libsecp256k1 import ffi, lib
from coincurve.context import GLOBAL_CONTEXT
from gmpy2 import invert, mpz  # int takes twice as long for products of this size

from adapters.streamr.wire.message import StreamMessage

from .signing import V_EVEN, address_of_point, digests, parse_signature, recover_point, verify

MIN_BATCH = 32  # signatures of a publisher; 24 cost as much as one by one
MAX_BATCH = 512  # that are checked together; all of them are checked again if one is forged
WEIGHT_BYTES = 16
LANE_BYTES = WEIGHT_BYTES + 1  # a weight's room in the one big number of `_terms_by_digit`: three times the weight fits
ORDER: Final = mpz(0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141)  # SEC 2, section 2.4.1
_CONTEXT: Final = GLOBAL_CONTEXT.ctx
_BITS: Final = bytes.maketrans(b"01", b"\0\1")  # makes "0" false for `compress`
_PREFIXES: Final = {V_EVEN: b"\2", V_EVEN + 1: b"\3"}  # of an x whose y is as v says (SEC 1, section 2.3.3)

Claim = tuple[bytes, bytes]  # a signature, as `parse_signature` has it, and the digest that it is said to be of


def verify_all(messages: Sequence[StreamMessage]) -> list[bool]:
    """Whether the publisher of each of *messages* signed it: what `verify` says of each."""
    publishers: dict[str, list[StreamMessage]] = {}
    for message in messages:
        publishers.setdefault(message.id.publisher_id.lower(), []).append(message)
    for publisher, said in publishers.items():
        mark_verified(publisher, said)
    return [verify(message) for message in messages]


def mark_verified(publisher: str, messages: Sequence[StreamMessage]) -> None:
    """Mark as `verified` those of *messages* that *publisher* certainly signed; `verify` checks the others one by one.

    All of them claim to be of *publisher*, an address in lower case.
    """
    claiming: list[StreamMessage] = []
    claims: list[Claim] = []
    for message in messages:
        raw = parse_signature(message.signature or "")
        digest = next(iter(digests(message).values()), None)  # of the most likely text
        if raw is not None and digest is not None:
            claiming.append(message)
            claims.append((raw, digest))
    if len(claims) < MIN_BATCH:
        return
    for begin in range(0, len(claims), MAX_BATCH):
        chunk = slice(begin, begin + MAX_BATCH)
        if common_address(claims[chunk]) == publisher:
            for message in claiming[chunk]:
                message.verified = True


def common_address(claims: Sequence[Claim]) -> str | None:
    """The address whose key made every one of *claims*.

    If they are not all of one key, the result is some address or None: compare it with the expected one.
    """
    count = len(claims)
    drawn = urandom(WEIGHT_BYTES * count)
    weights = [mpz.from_bytes(drawn[at : at + WEIGHT_BYTES]) for at in range(0, len(drawn), WEIGHT_BYTES)]
    array = ffi.new("secp256k1_pubkey[]", 2 * count)
    points = [array + at for at in range(2 * count)]  # valid while `array` lives
    factors = _coefficients(claims, weights)
    if factors is None or not _parse_points(claims, points):
        return None
    total = _sum(_terms_by_digit(points, weights))
    if total is None:
        return None
    # The sum as a signature: its R is the total, and its s and z are such that z/s and r/s are the factors.
    of_base, of_key = factors
    s = mpz.from_bytes(total[1:]) * invert(of_key, ORDER) % ORDER
    z = of_base * s % ORDER
    point = recover_point(total[1:] + s.to_bytes(32) + bytes((V_EVEN + total[0] - 2,)), z.to_bytes(32))
    return None if point is None else address_of_point(point)


def _coefficients(claims: Iterable[Claim], weights: Iterable[mpz]) -> tuple[mpz, mpz] | None:
    """The a and b for which the sum of the weighted R is a G + b Q; None where an r or s is out of range, or b is 0.

    One inversion for all: the fractions have one common denominator, the product of all s.
    """
    number, order = mpz.from_bytes, ORDER  # a global costs a tenth more here
    of_base, of_key, product = mpz(0), mpz(0), mpz(1)
    for (signature, digest), weight in zip(claims, weights, strict=True):
        r, s = number(signature[:32]), number(signature[32:64])
        if r >= order or s >= order:
            return None
        others = weight * product
        of_base = (of_base * s + others * number(digest)) % order
        of_key = (of_key * s + others * r) % order
        product = product * s % order
    if not product or not of_key:
        return None
    inverse = invert(product, order)
    return of_base * inverse % order, of_key * inverse % order


def _parse_points(claims: Sequence[Claim], points: Sequence[Any]) -> bool:
    """Whether there is a point R for each of *claims*: then they are in *points*, and their negatives behind them."""
    count, parse, negate = len(claims), lib.secp256k1_ec_pubkey_parse, lib.secp256k1_ec_pubkey_negate
    for (signature, _), point in zip(claims, points, strict=False):
        if not parse(_CONTEXT, point, _PREFIXES[signature[64]] + signature[:32], 33):
            return False
    ffi.memmove(points[count], points[0], count * ffi.sizeof("secp256k1_pubkey"))
    for point in points[count:]:
        negate(_CONTEXT, point)
    return True


def _terms_by_digit(points: Sequence[Any], weights: Sequence[mpz]) -> list[list[Any]]:
    """What is added for each digit of the weights, from the highest down; *points* are as `_parse_points` leaves them.

    The digits are 0, 1 and -1, two out of three of them 0: three times a weight less the weight, without carrying, is
    twice the weight (Reitwiesner's non-adjacent form).
    """
    once = int.from_bytes(b"".join([weight.to_bytes(LANE_BYTES) for weight in weights]))
    lane = 8 * LANE_BYTES
    thrice, size = 3 * once, lane * len(weights)
    digits = f"{thrice & ~once:0{size}b}{once & ~thrice:0{size}b}".encode().translate(_BITS)
    # Three times a weight has two bits more than it, and the lowest bit of twice the weight is 0.
    places = range(lane - 8 * WEIGHT_BYTES - 2, lane - 1)
    return [list(compress(points, digits[at::lane])) for at in places]


def _sum(digits: Iterable[Sequence[Any]]) -> bytes | None:
    """The sum of the points, compressed (33 bytes, SEC 1, section 2.3.3); None where it is no point.

    *digits* are from the highest down: before each, what was added so far is doubled.
    """
    total, spare = ffi.new("secp256k1_pubkey *"), ffi.new("secp256k1_pubkey *")
    twice: list[Any] = []
    for points in digits:
        if terms := [*twice, *points]:
            if not lib.secp256k1_ec_pubkey_combine(_CONTEXT, spare, terms, len(terms)):
                return None  # they cancel each other out
            total, spare = spare, total
            twice = [total, total]
    if not twice:
        return None  # of no point at all, libsecp256k1 would end the process
    text, size = ffi.new("unsigned char[33]"), ffi.new("size_t *", 33)
    lib.secp256k1_ec_pubkey_serialize(_CONTEXT, text, size, total, lib.SECP256K1_EC_COMPRESSED)
    return bytes(text)
