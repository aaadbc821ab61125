"""Batch verification agrees with single verification, also for forgeries that cancel each other out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from os import urandom
from random import Random

import pytest
from coincurve import PrivateKey, PublicKey
from coincurve._libsecp256k1 import ffi
from gmpy2 import mpz
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.streamr.crypto import batch, signing
from adapters.streamr.crypto.batch import MAX_BATCH, MIN_BATCH, ORDER, Claim
from adapters.streamr.wire.message import ETH_LEGACY, MessageID, MessageRef, StreamMessage

KEYS = [PrivateKey.from_int(number) for number in (7, 11)]
MANY = 2 * MIN_BATCH


def said(key: PrivateKey, number: int, content: str = '{"n":1}') -> StreamMessage:
    message = StreamMessage(MessageID("s", 0, number, 0, signing.address_of(key.public_key), "c"), content)
    return signing.sign_message(message, key)


def other(message: StreamMessage, change: Callable[[int, int, int], tuple[int, int, int]]) -> StreamMessage:
    """*message* with another r, s and v."""
    raw = bytes.fromhex((message.signature or "")[2:])
    r, s, v = change(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:64], "big"), raw[64])
    return replace(message, signature=f"0x{r:064x}{s:064x}{v:02x}")


CHANGES: dict[str, Callable[[StreamMessage], StreamMessage]] = {
    "none": lambda message: message,
    "the other root": lambda message: other(message, lambda r, s, v: (r, s, 55 - v)),
    "its twin, which is genuine too": lambda message: other(message, lambda r, s, v: (r, ORDER - s, 55 - v)),
    "s too large": lambda message: other(message, lambda r, s, v: (r, s + ORDER if s + ORDER < 1 << 256 else ORDER, v)),
    "s is nothing": lambda message: other(message, lambda r, _, v: (r, 0, v)),
    "r is nothing": lambda message: other(message, lambda _, s, v: (0, s, v)),
    "r too large": lambda message: other(message, lambda _, s, v: (ORDER, s, v)),
    "r is no point": lambda message: other(message, lambda _, s, v: (5, s, v)),
    "an unknown v": lambda message: other(message, lambda r, s, _: (r, s, 29)),
    "another content": lambda message: replace(message, content='{"n":2}'),
    "of somebody else": lambda message: replace(message, signature=said(KEYS[1], 1).signature),
    "not signed": lambda message: replace(message, signature=None, signature_type=0),
    "no signature at all": lambda message: replace(message, signature="0xno"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_message_in_a_batch_gets_its_single_verdict(name: str) -> None:
    messages = [said(KEYS[0], number) for number in range(MANY)]
    for place in (0, MANY // 2):
        mixed = list(messages)
        mixed[place] = CHANGES[name](mixed[place])
        assert batch.verify_all(mixed) == [signing.verify(replace(message)) for message in mixed]


def test_random_batches_get_the_verdicts_of_single_verification() -> None:
    random = Random(5)
    for _ in range(12):
        count = random.choice((1, MIN_BATCH, MANY, MAX_BATCH + MIN_BATCH))
        share = random.choice((0.0, 0.01, 0.5))
        mixed = [said(random.choice(KEYS), number) for number in range(count)]
        for at in range(count):
            if random.random() < share:
                mixed[at] = CHANGES[random.choice(list(CHANGES))](mixed[at])
        assert batch.verify_all(mixed) == [signing.verify(replace(message)) for message in mixed]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from([*CHANGES, *["none"] * 12]), st.sampled_from(KEYS)), min_size=1, max_size=9))
@example([("none", KEYS[0])] * 9)
def test_batch_verification_equals_single_verification(mixed: list[tuple[str, PrivateKey]]) -> None:
    messages = [CHANGES[name](said(key, number)) for number, (name, key) in enumerate(mixed)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "MIN_BATCH", 2)
        assert batch.verify_all(messages) == [signing.verify(replace(message)) for message in messages]


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_message_gets_its_single_verdict_at_every_position(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MIN_BATCH", 2)
    messages = [said(KEYS[0], number) for number in range(7)]
    for place in range(len(messages)):
        mixed = [*messages[:place], CHANGES[name](messages[place]), *messages[place + 1 :]]
        alone = signing.verify(replace(mixed[place]))
        assert batch.verify_all([replace(each) for each in mixed]) == [alone or at != place for at in range(len(mixed))]


def test_batch_verification_tries_every_signed_payload() -> None:
    legacy = [replace(said(KEYS[0], number), signature_type=ETH_LEGACY) for number in range(MANY)]
    legacy = [replace(each, signature=signing.sign(signing.signed_payloads(each)[0], KEYS[0])) for each in legacy]
    legacy[3] = replace(legacy[3], signature=signing.sign(signing.signed_payloads(legacy[3])[1], KEYS[0]))
    utf16 = [
        signing.sign_message(said(KEYS[0], number, '"\N{SNOWMAN}"'), KEYS[0], utf16=True) for number in range(MANY)
    ]
    vague = [replace(said(KEYS[0], 9 + number), prev_ref=MessageRef(5)) for number in range(MANY)]
    vague = [replace(each, signature=signing.sign(signing.signed_payloads(each)[2], KEYS[0])) for each in vague]
    assert batch.verify_all([*legacy, *utf16, *vague]) == [True] * 3 * MANY


def test_repeated_messages_and_malleated_signatures_verify_in_a_batch() -> None:
    message = said(KEYS[0], 1)
    twin = CHANGES["its twin, which is genuine too"](message)
    assert batch.verify_all([message, twin] * MIN_BATCH) == [True] * 2 * MIN_BATCH


def test_mark_verified_marks_only_batches_without_a_forgery() -> None:
    messages = [said(KEYS[0], number) for number in range(MAX_BATCH + MIN_BATCH)]
    forged = CHANGES["another content"](messages[1])
    batch.mark_verified(messages[0].id.publisher_id, [messages[0], forged, *messages[2:]])
    assert [message.verified for message in messages] == [False] * MAX_BATCH + [True] * MIN_BATCH
    batch.mark_verified(messages[0].id.publisher_id, messages)
    assert all(message.verified for message in messages)
    assert not replace(messages[0], content="2").verified, "what says something else has to be proven again"


def cancelling(
    victim: PublicKey, messages: list[StreamMessage], weights: tuple[int, int] = (1, 1)
) -> Iterator[StreamMessage]:
    """Forgeries for two *messages* of *victim*, whose key is not needed: their errors cancel out with these *weights*.

    The points R are made of the base and of the victim's key, with factors that are known; that leaves two linear
    equations for the two s.
    """
    factors = [(3, 5), (8, 13)]
    points = [
        PublicKey.combine_keys([PrivateKey.from_int(a).public_key, victim.multiply(b.to_bytes(32, "big"))])
        for a, b in factors
    ]
    (r1, v1), (r2, v2) = [(int.from_bytes(raw[1:], "big"), raw[0] + 25) for raw in (p.format() for p in points)]
    z1, z2 = [int.from_bytes(signing.digest(signing.signed_payloads(message)[0]), "big") for message in messages]
    base, key = (
        sum(w * factor for w, factor in zip(weights, each, strict=True)) for each in zip(*factors, strict=True)
    )
    scale = pow(z1 * r2 - z2 * r1, -1, ORDER)
    # Of w1/s1 and w2/s2.
    scaled = (base * r2 - z2 * key) * scale, (z1 * key - base * r1) * scale
    for message, r, v, inverse, weight in zip(messages, (r1, r2), (v1, v2), scaled, weights, strict=True):
        s = weight * pow(inverse, -1, ORDER) % ORDER
        yield replace(message, signature=f"0x{r:064x}{s:064x}{v:02x}")


def test_forgeries_that_cancel_each_other_out_are_found() -> None:
    messages = [said(KEYS[0], number) for number in range(MANY)]
    messages[5:7] = forged = list(cancelling(KEYS[0].public_key, messages[5:7]))
    verdicts = batch.verify_all(messages)
    assert [at for at, genuine in enumerate(verdicts) if not genuine] == [5, 6]
    # They would have been taken for genuine, had the equations only been added.
    assert unweighted(KEYS[0].public_key, forged)
    assert not unweighted(KEYS[0].public_key, [messages[0], forged[0]])


@pytest.mark.parametrize("weights", [(1, 1), (3, 5), (1 << 127, (1 << 128) - 1)])
def test_forgeries_pass_only_if_the_weights_are_predicted(
    weights: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack is real: all that stands against it is that the weights are drawn afterwards, and differ."""
    address = signing.address_of(KEYS[0].public_key)
    messages = [said(KEYS[0], number) for number in range(4)]
    for place in range(3):
        mixed = list(messages)
        mixed[place : place + 2] = cancelling(KEYS[0].public_key, mixed[place : place + 2], weights)
        claims = [claim(message) for message in mixed]
        assert not any(signing.verify(replace(message)) for message in mixed[place : place + 2])
        assert all(batch.common_address(claims) != address for _ in range(20))
        foreseen = [weights[0]] * 4
        foreseen[place : place + 2] = weights
        with monkeypatch.context() as patch:
            patch.setattr(batch, "urandom", lambda _, drawn=foreseen: b"".join(each.to_bytes(16) for each in drawn))
            assert batch.common_address(claims) == address
            patch.setattr(
                batch, "urandom", lambda _, drawn=foreseen: b"".join((each ^ 2).to_bytes(16) for each in drawn)
            )
            assert batch.common_address(claims) != address or weights[0] == weights[1]


def test_weights_have_128_bits_of_chance_each(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw(count: int) -> bytes:
        drawn.append(count)
        return urandom(count)

    monkeypatch.setattr(batch, "urandom", draw)
    claims = [claim(said(KEYS[0], number)) for number in range(3)]
    for _ in range(2):
        assert batch.common_address(claims) == signing.address_of(KEYS[0].public_key)
    assert drawn == [3 * 16] * 2, "anew each time"


def test_every_bit_of_a_weight_counts() -> None:
    top = 1 << 127
    weights = [1, 2, 3, top, top + 1, 2 * top - 1, 2 * top - 2, 0xAAAA << 112, 0x5555 << 100, 0xDEADBEEF << 96]
    claims = [claim(said(KEYS[0], number)) for number in range(len(weights))]
    array = ffi.new("secp256k1_pubkey[]", 2 * len(weights))
    points = [array + at for at in range(2 * len(weights))]
    assert batch._parse_points(claims, points)
    known = [PublicKey(bytes((raw[64] - signing.V_EVEN + 2,)) + raw[:32]) for raw, _ in claims]
    sums = [point.multiply(weight.to_bytes(32)) for point, weight in zip(known, weights, strict=True)]
    total = batch._sum(batch._terms_by_digit(points, [mpz(weight) for weight in weights]))
    assert total == PublicKey.combine_keys(sums).format()


def claim(message: StreamMessage) -> Claim:
    raw = signing.parse_signature(message.signature or "")
    assert raw is not None
    return raw, signing.digest(signing.signed_payloads(message)[0])


def unweighted(key: PublicKey, messages: list[StreamMessage]) -> bool:
    """Whether the sums agree without weights."""
    base = of_key = 0
    points = []
    for raw, digest in map(claim, messages):
        points.append(PublicKey(bytes((raw[64] - signing.V_EVEN + 2,)) + raw[:32]))
        inverse = pow(int.from_bytes(raw[32:64]), -1, ORDER)
        base += int.from_bytes(digest) * inverse
        of_key += int.from_bytes(raw[:32]) * inverse
    parts = PrivateKey.from_int(base % ORDER).public_key, key.multiply((of_key % ORDER).to_bytes(32))
    return PublicKey.combine_keys(points) == PublicKey.combine_keys([*parts])


def test_a_forged_signature_is_found_with_any_weight() -> None:
    address = signing.address_of(KEYS[0].public_key)
    claims = [claim(said(KEYS[0], number)) for number in range(3)]
    claims[1] = claims[1][0], bytes(32)
    # One bit of chance would let it pass every other time.
    assert all(batch.common_address(claims) != address for _ in range(200))
    assert batch.common_address(claims[::2]) == address


def test_r_and_s_beyond_the_order_prove_nothing() -> None:
    key, nonce = KEYS[0], PrivateKey.from_int(99).public_key.format()
    r, v = int.from_bytes(nonce[1:]), signing.V_EVEN + nonce[0] - 2
    digest = ((5 * 99 - r * int(key.to_hex(), 16)) % ORDER).to_bytes(32)  # so that s is 5
    address = signing.address_of(key.public_key)
    assert batch.common_address([(r.to_bytes(32) + (5).to_bytes(32) + bytes((v,)), digest)] * 2) == address
    assert batch.common_address([(r.to_bytes(32) + (5 + ORDER).to_bytes(32) + bytes((v,)), digest)] * 2) is None
    # A point whose x is beyond the order: whose key it would be can be told, but libsecp256k1 does not recover it.
    assert batch.common_address([((ORDER + 2).to_bytes(32) + (5).to_bytes(32) + bytes((v,)), digest)] * 2) is None


def test_weights_of_zero_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [claim(said(KEYS[0], number)) for number in range(2)]
    monkeypatch.setattr(batch, "urandom", bytes)
    assert batch.common_address(claims) is None
    assert batch._sum([[], []]) is None, "libsecp256k1 would end the process"


def test_factors_that_cancel_each_other_out_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    message = said(KEYS[0], 1)
    negative = other(message, lambda r, s, v: (r, ORDER - s, v))
    monkeypatch.setattr(batch, "urandom", lambda count: b"\1" * count)  # the same weight for both
    assert batch.common_address([claim(message), claim(negative)]) is None


def test_a_few_signed_among_many_unsigned_messages_are_not_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(batch, "common_address", lambda claims: tried.append(len(claims)))
    messages = [said(KEYS[0], number) for number in range(MIN_BATCH)]
    unsigned = CHANGES["no signature at all"]
    assert batch.verify_all([*messages[1:], *map(unsigned, messages)]) == [True] * (MIN_BATCH - 1) + [False] * MIN_BATCH
    assert not tried, "it would not pay, and be a cheap try for a forger"
    batch.verify_all([*messages, *map(unsigned, messages)])
    assert tried == [MIN_BATCH]
