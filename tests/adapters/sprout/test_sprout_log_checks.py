"""The ids, signatures and authors of the nodes in a log are verified."""

from __future__ import annotations

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.forest.forest import NULL_ID, Content, ReplyPosition
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.log_checks import SignatureVerifier, flaw
from adapters.sprout.wire.base64url import encode
from gateway.core.message import Message, Peer
from gateway.storage.record import Fact


@pytest.fixture(scope="module")
def nodes() -> dict[str, bytes]:
    """An identity, a community and a reply, and another reply by somebody else in the first one's name."""
    ada, eve = SecretKey.generate(1), SecretKey.generate(1)
    identity = forest.sign_identity("ada", ada, 1000)
    author = forest.node_id(identity)
    community = forest.sign_community("general", author, ada, 1000)
    id = forest.node_id(community)
    place = ReplyPosition(id, 1, id, NULL_ID)
    replies = (forest.sign_reply(place, Content(b"hi"), author, key, 1000) for key in (ada, eve))
    return dict(zip(("identity", "community", "reply", "forged"), (identity, community, *replies), strict=True))


def fact(raw: bytes, id: str | None = None) -> Fact:
    native = {"sprout": id or forest.node_id(raw)}
    return Fact("entity", {"protocol": "sprout", "native": native, "wire": encode(raw).decode()})


def message(raw: bytes) -> Message:
    native = {"sprout": forest.node_id(raw)}
    return Message("lobby", Peer(0, "sprout"), "sprout", b'{"content":"hi"}', native=native, wire=encode(raw))


def test_valid_signatures_are_accepted(nodes: dict[str, bytes]) -> None:
    proof = SignatureVerifier()
    assert proof(fact(nodes["identity"])) is None
    assert proof(fact(nodes["community"])) is None
    assert proof(message(nodes["reply"])) is None


def test_invalid_signatures_are_reported(nodes: dict[str, bytes]) -> None:
    proof = SignatureVerifier()
    assert "its author is not in the log" in (proof(fact(nodes["community"])) or "")
    proof(fact(nodes["identity"]))
    assert proof(message(nodes["forged"])) is not None
    for none in fact(nodes["community"], id=forest.node_id(nodes["reply"])), fact(nodes["community"][:-1]):
        assert flaw(none) is not None
        assert proof(none) is None, "nothing that could be signed"


def test_records_of_other_protocols_are_not_checked() -> None:
    proof = SignatureVerifier()
    assert proof(Fact("start", {"gateway": "g", "version": "1"})) is None
    assert proof(Message("lobby", Peer(0, "rest"), "rest", b"1")) is None
