"""Many signatures checked together, for a third of what they cost one by one.

A signature (r, s, v) of the digest z by the key Q is genuine if R = (z/s) G + (r/s) Q, where R is the point whose x is
r and whose y is odd if v says so: this is what recovery solves for Q. Where Q is known, the equations of many
signatures are added up, each multiplied by a random weight that nobody can foresee, and the sums are compared. Each
signature then costs the root for R and a few additions; G and Q are multiplied once for all of them.

Forged signatures among them go unnoticed with a probability of 1 in 2**64. Where the sums differ, each signature is
checked by itself. Source: Bellare, Garay and Rabin, Fast Batch Verification for Modular Exponentiation and Digital
Signatures (1998), section 3; for ECDSA, where v tells R: Antipa et al., Accelerated Verification of ECDSA Signatures
(2005).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import urandom
from typing import Any, Final, NamedTuple

from coincurve._libsecp256k1 import ffi, lib
from coincurve.context import GLOBAL_CONTEXT

from .message import StreamMessage
from .signing import address_at, digests, raw_signature, recover_point, verify

FEWEST = 32  # signatures of a publisher; for fewer it does not pay
MOST = 512  # that are checked together: so many are looked at again where one is forged
ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141  # of the curve: SEC 2, section 2.4.1
_CONTEXT: Final = GLOBAL_CONTEXT.ctx
# A weight is a sum of 16 powers of two, one of each 16 in a row: 64 bits of chance, and only 16 additions. For each of
# its 8 random bytes, what that byte adds to the weight, and the exponents of these two powers.
_BYTES: Final = 8
_EXPONENTS: Final = 32 * _BYTES
_DIGITS: Final = tuple(
    tuple(
        (1 << low | 1 << high, low, high)
        for high in range(32 * n + 16, 32 * n + 32)
        for low in range(32 * n, 32 * n + 16)
    )
    for n in range(_BYTES)
)


class Claim(NamedTuple):
    """A signature, as `raw_signature` has it, and the digest that it is said to be of."""

    signature: bytes
    digest: bytes


def verify_all(messages: Sequence[StreamMessage]) -> list[bool]:
    """Whether the publisher of each of *messages* signed it: what `verify` says of each."""
    genuine: set[int] = set()
    for publisher, places in _by_publisher(messages).items():
        if len(places) >= FEWEST:
            genuine.update(_genuine(publisher, places, messages))
    return [at in genuine or verify(message) for at, message in enumerate(messages)]


def _by_publisher(messages: Iterable[StreamMessage]) -> dict[str, list[int]]:
    """Where the signed messages of each publisher stand."""
    found: dict[str, list[int]] = {}
    for at, message in enumerate(messages):
        if message.signature:
            found.setdefault(message.id.publisher_id.lower(), []).append(at)
    return found


def _genuine(publisher: str, places: Sequence[int], messages: Sequence[StreamMessage]) -> list[int]:
    """Those of *places* at which there certainly is a signature of *publisher*."""
    claims: dict[int, Claim] = {}
    for at in places:
        digest = next(iter(digests(messages[at]).values()), None)  # of the most likely text
        raw = raw_signature(messages[at].signature or "")
        if digest is not None and raw is not None:
            claims[at] = Claim(raw, digest)
    point = _point_of(publisher, claims.values())
    if point is None:
        return []
    known = list(claims)
    chunks = (known[begin : begin + MOST] for begin in range(0, len(known), MOST))
    return [at for chunk in chunks if all_signed_by(point, [claims[at] for at in chunk]) for at in chunk]


def _point_of(address: str, claims: Iterable[Claim]) -> bytes | None:
    """The public key of *address*, by the first of its signatures; None where that one is not its."""
    for claim in claims:
        point = recover_point(*claim)
        return point if point is not None and address_at(point) == address else None
    return None


def all_signed_by(point: bytes, claims: Sequence[Claim]) -> bool:
    """Whether the public key *point*, as `recover_point` has it, made all of *claims*; False where that is in doubt."""
    scalars = [_scalars(claim) for claim in claims]
    points = _points(claims)
    if points is None or any(r == 0 or s == 0 or max(r, s) >= ORDER for r, s, _ in scalars):
        return False
    inverses = inverted([s for _, s, _ in scalars])
    powers: list[list[Any]] = [[] for _ in range(_EXPONENTS)]
    of_base = of_key = 0
    noise = urandom(_BYTES * len(claims))
    for at, ((r, _, z), inverse) in enumerate(zip(scalars, inverses, strict=True)):
        weight, place = 0, points + at
        for digits, byte in zip(_DIGITS, noise[_BYTES * at : _BYTES * (at + 1)], strict=True):
            more, low, high = digits[byte]
            weight += more
            powers[low].append(place)
            powers[high].append(place)
        share = weight * inverse % ORDER
        of_base += share * z
        of_key += share * r
    return _is_sum(powers, point, of_base % ORDER, of_key % ORDER)


def _scalars(claim: Claim) -> tuple[int, int, int]:
    """r, s and z."""
    signature, digest = claim
    return (
        int.from_bytes(signature[:32], "big"),
        int.from_bytes(signature[32:64], "big"),
        int.from_bytes(digest, "big"),
    )


def _points(claims: Sequence[Claim]) -> Any:
    """The points R of all *claims*, in one array; None where there is no such point."""
    array = ffi.new("secp256k1_pubkey[]", len(claims))
    for at, (signature, _) in enumerate(claims):
        # SEC 1, section 2.3.3: 2 in front of an x whose y is even, 3 where it is odd
        if not lib.secp256k1_ec_pubkey_parse(_CONTEXT, array + at, bytes((2 + signature[-1],)) + signature[:32], 33):
            return None
    return array


def inverted(numbers: Sequence[int]) -> list[int]:
    """The inverses of *numbers*, none of which is 0, modulo `ORDER`: one inversion and three products for each."""
    products, product = [], 1
    for number in numbers:
        products.append(product)
        product = product * number % ORDER
    rest, found = pow(product, -1, ORDER), []
    for number, before in zip(reversed(numbers), reversed(products), strict=True):
        found.append(rest * before % ORDER)
        rest = rest * number % ORDER
    return found[::-1]


def _is_sum(powers: Sequence[list[Any]], point: bytes, of_base: int, of_key: int) -> bool:
    """Whether the points in *powers*, each times its power of two, are together of_base G + of_key Q; *point* is Q."""
    total, spare = ffi.new("secp256k1_pubkey *"), ffi.new("secp256k1_pubkey *")
    twice: list[Any] = []
    for places in reversed(powers):
        if terms := twice + places:
            if not lib.secp256k1_ec_pubkey_combine(_CONTEXT, spare, terms, len(terms)):
                return False  # they cancel each other out, which is no point
            total, spare = spare, total
            twice = [total, total]
    other = ffi.new("secp256k1_pubkey *", [point])
    return bool(
        lib.secp256k1_ec_pubkey_tweak_mul(_CONTEXT, other, of_key.to_bytes(32, "big"))
        and lib.secp256k1_ec_pubkey_tweak_add(_CONTEXT, other, of_base.to_bytes(32, "big"))
        and lib.secp256k1_ec_pubkey_cmp(_CONTEXT, total, other) == 0
    )
