"""The signatures of stream messages in a log are verified."""

from __future__ import annotations

from coincurve import PrivateKey

from adapters.streamr.adapter import StreamrAdapter
from adapters.streamr.crypto.signing import address_of, sign_message
from adapters.streamr.wire.message import parse_message
from gateway.core.message import Message, Peer
from gateway.storage.record import Fact

proof = StreamrAdapter.signature_check()


def message(wire: bytes) -> Message:
    return Message("lobby", Peer(0, "streamr"), "streamr", b'{"n":1}', wire=wire)


def test_forged_and_malformed_messages_are_reported() -> None:
    key = PrivateKey(b"\1" * 32)
    text = b'[32,["lobby",0,1,0,"%b","chain"],null,27,0,0,null,"{\\"n\\":1}",null,0,null]'
    unsigned = text % address_of(key.public_key).encode()
    genuine = sign_message(parse_message(unsigned), key).encode(32)
    assert proof(message(unsigned)) is None
    assert proof(message(genuine)) is None
    assert proof(message(genuine.replace(b'\\"n\\":1', b'\\"n\\":2'))) == "a forged signature"
    assert proof(message(b"[]")) is not None


def test_records_of_other_protocols_are_not_checked() -> None:
    assert proof(Fact("start", {"gateway": "g", "version": "1"})) is None
    assert proof(Message("lobby", Peer(0, "rest"), "rest", b"1")) is None
