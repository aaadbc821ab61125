"""Many signatures checked together, for less than half of what they cost one by one.

A signature (r, s, v) of the digest z by the key Q is genuine if R = (z/s) G + (r/s) Q, where R is the point whose x is
r and whose y is odd if v says so: this is what recovery solves for Q. Where Q is known, the equations of many
signatures are added up, each multiplied by a random weight that nobody can foresee, and the sums are compared. Each
signature then costs the root for R and some 32 additions; G and Q are multiplied once for all of them.

Forged signatures among them go unnoticed with a probability of 1 in 2**64. Where the sums differ, each signature is
checked by itself. Source: Bellare, Garay and Rabin, Fast Batch Verification for Modular Exponentiation and Digital
Signatures (1998), section 3; for ECDSA, where v tells R: Antipa et al., Accelerated Verification of ECDSA Signatures
(2005).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from os import urandom
from typing import Any, Final, NamedTuple

from coincurve._libsecp256k1 import ffi, lib
from coincurve.context import GLOBAL_CONTEXT

from .message import StreamMessage
from .signing import address_at, digests, raw_signature, recover_point, verify

FEWEST = 20  # signatures of a publisher; for fewer it does not pay
MOST = 512  # that are checked together: so many are looked at again where one is forged
CHANCE = 64  # bits of a weight
ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141  # of the curve: SEC 2, section 2.4.1
_CONTEXT: Final = GLOBAL_CONTEXT.ctx
_BITS: Final = bytes.maketrans(b"01", b"\0\1")


class Claim(NamedTuple):
    """A signature, as `raw_signature` has it, and the digest that it is said to be of."""

    signature: bytes
    digest: bytes


def verify_all(messages: Sequence[StreamMessage]) -> list[bool]:
    """Whether the publisher of each of *messages* signed it: what `verify` says of each."""
    prove(messages)
    return [verify(message) for message in messages]


def prove(messages: Sequence[StreamMessage]) -> None:
    """Let `verify` know of *messages* that are certainly genuine; of the others it has to find out for itself."""
    for publisher, said in _by_publisher(messages).items():
        if len(said) >= FEWEST:
            for message in _genuine(publisher, said):
                message.proven = True


def _by_publisher(messages: Iterable[StreamMessage]) -> dict[str, list[StreamMessage]]:
    """The signed messages of each publisher."""
    found: dict[str, list[StreamMessage]] = {}
    for message in messages:
        if message.signature:
            found.setdefault(message.id.publisher_id.lower(), []).append(message)
    return found


def _genuine(publisher: str, messages: Iterable[StreamMessage]) -> Iterator[StreamMessage]:
    """Those of *messages* that *publisher* certainly signed."""
    claims: list[tuple[StreamMessage, Claim]] = []
    for message in messages:
        digest = next(iter(digests(message).values()), None)  # of the most likely text
        raw = raw_signature(message.signature or "")
        if digest is not None and raw is not None:
            claims.append((message, Claim(raw, digest)))
    point = recover_point(*claims[0][1]) if claims else None
    if point is None or address_at(point) != publisher:
        return
    for begin in range(0, len(claims), MOST):
        chunk = claims[begin : begin + MOST]
        if all_signed_by(point, [claim for _, claim in chunk]):
            yield from (message for message, _ in chunk)


def all_signed_by(point: bytes, claims: Sequence[Claim]) -> bool:
    """Whether the public key *point*, as `recover_point` has it, made all of *claims*; False where that is in doubt."""
    scalars = [_scalars(claim) for claim in claims]
    array = _points(claims)
    if array is None or any(r == 0 or s == 0 or max(r, s) >= ORDER for r, s, _ in scalars):
        return False
    points = [array + at for at in range(len(claims))]  # as long as there is the array
    weights = [int.from_bytes(urandom(CHANCE // 8), "big") for _ in claims]
    of_base = of_key = 0
    for (r, _, z), weight, inverse in zip(scalars, weights, inverted([s for _, s, _ in scalars]), strict=True):
        share = weight * inverse % ORDER
        of_base += share * z
        of_key += share * r
    return _is_sum(_by_weight(points, weights), point, of_base % ORDER, of_key % ORDER)


def _by_weight(points: Sequence[Any], weights: Sequence[int]) -> list[list[Any]]:
    """Those of *points* in whose weight each bit is set, from the highest bit down."""
    bits = "".join(f"{weight:0{CHANCE}b}" for weight in weights).encode().translate(_BITS)
    return [list(compress(points, bits[at::CHANCE])) for at in range(CHANCE)]


def _scalars(claim: Claim) -> tuple[int, int, int]:
    """r, s and z."""
    signature, digest = claim
    return (
        int.from_bytes(signature[:32], "big"),
        int.from_bytes(signature[32:64], "big"),
        int.from_bytes(digest, "big"),
    )


def _points(claims: Sequence[Claim]) -> Any:
    """The points R of all *claims*, an array; None where there is no such point."""
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


def _is_sum(bits: Iterable[list[Any]], point: bytes, of_base: int, of_key: int) -> bool:
    """Whether the points in *bits*, twice what follows each time, are of_base G + of_key Q; *point* is Q."""
    total, spare = ffi.new("secp256k1_pubkey *"), ffi.new("secp256k1_pubkey *")
    twice: list[Any] = []
    for places in bits:
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
