"""OpenPGP packets: any bytes end in a value or the documented error, and the fast reader agrees with the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.sprout.forest import packets
from adapters.sprout.forest.openpgp import PublicKey, SecretKey
from adapters.sprout.forest.packets import OpenPGPError
from tests.adapters.sprout.forest.keys import VECTORS, cut_and_broken, key_of, public_key_of, signed


@given(st.integers(0, 20_000).flatmap(lambda size: st.just(bytes(size))), st.integers(0, 63))
def test_packets_are_read_as_they_are_written(body: bytes, tag: int) -> None:
    assert packets.read_packets(packets.write_packet(tag, body) * 2) == [(tag, body)] * 2


@given(st.integers(1, 1 << 2050))
def test_numbers_are_read_as_they_are_written(value: int) -> None:
    assert packets.read_numbers(b"x" + packets.write_number(value), 1, 1)[0] == [value]


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
