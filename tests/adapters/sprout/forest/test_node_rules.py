"""The rules of nodes agree with the vectors and with the verdicts of the reference library and relay."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from adapters.sprout.forest import forest, node_rules, twig
from adapters.sprout.forest.forest import NULL_ID, TWIG, UTF8, Community, Content, Identity, Node, Reply
from adapters.sprout.forest.node_rules import READING, RULES, ReferenceAction, ValidationResult
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.wire import base64url

VECTORS = Path(__file__).parents[3] / "vectors/sprout"
VALID: dict[str, Any] = {vector["name"]: vector["node"] for vector in json.loads((VECTORS / "valid.json").read_text())}
INVALID: dict[str, Any] = {
    vector["name"]: vector["node"] for vector in json.loads((VECTORS / "invalid.json").read_text())
}
RELAY: dict[str, Any] = {
    verdict["name"]: verdict for verdict in json.loads((VECTORS / "invalid-relay-verdicts.json").read_text())
}
NOW = 1_795_240_000_000  # ms, an hour after the vectors were made
UNKNOWN = "SHA512_B32__MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"

# Why each invalid vector that is a node is refused; those that are none are in test_forest.py.
REFUSED = {
    "bad_signature_mpi": "the signature is not the author's",
    "bad_signature_content_changed": "the signature is not the author's",
    "bad_signature_not_pgp": "the signature is not the author's",
    "bad_signature_empty": "the signature is not the author's",
    "wrong_depth2_null_conversation": "a deep reply in no conversation",
    "wrong_depth0": "a reply is at depth 0",
    "wrong_community_existing": "the community is not the parent's",
    "community_id_is_a_reply": "the community is not the parent's",
    "wrong_conversation_existing": "the conversation is not the parent's",
    "null_parent": "a reply has no parent",
    "parent_is_identity": "the parent is an identity",
    "metadata_not_twig": "the metadata is not TWIG",
    "metadata_twig_odd": "the metadata cannot be read",
    "metadata_twig_empty_name": "the metadata cannot be read",
    "expired": "it has expired",
    "identity_name_changed": "the signature is not the author's",
    "identity_name_newline": "the name has a line break",
    "community_name_changed": "the signature is not the author's",
}
WAITING = {"unknown_parent", "unknown_author", "community_unknown_author"}


def raw_of(vector: Any) -> bytes:
    return base64url.decode(vector["raw_b64u"].encode())


HELD = {vector["id"]: forest.decode(raw_of(vector)) for vector in VALID.values()}


@cache
def alice() -> SecretKey:
    return SecretKey((VECTORS / "keys/alice.privkey").read_bytes())


def verdict_on(raw: bytes, now_ms: int = NOW) -> ValidationResult:
    node = forest.decode(raw)
    return node_rules.validate(node, raw, now_ms, HELD.get(node.author), HELD.get(node.parent))


def resigned(node: Node) -> bytes:
    """*node* with a good signature by alice."""
    return forest._sign(replace(node, signature=b""), alice())


@pytest.mark.parametrize("vector", VALID.values(), ids=VALID)
def test_a_genuine_node_may_enter(vector: Any) -> None:
    verdict = verdict_on(raw_of(vector))
    assert verdict == ValidationResult()
    assert verdict.ok


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_node_is_refused_with_its_reason(name: str) -> None:
    verdict = verdict_on(raw_of(INVALID[name]))
    assert verdict == ValidationResult(REFUSED[name])
    assert not verdict.ok


@pytest.mark.parametrize("name", sorted(WAITING))
def test_a_node_with_an_unknown_author_or_parent_waits(name: str) -> None:
    verdict = verdict_on(raw_of(INVALID[name]))
    assert verdict == ValidationResult(missing=(UNKNOWN,))
    assert not verdict.ok


def why_unreadable(name: str) -> str:
    try:
        forest.decode(raw_of(INVALID[name]))
    except forest.NodeError as error:
        return str(error)
    return ""


def test_every_invalid_vector_is_judged() -> None:
    unreadable = {name: reason for name in INVALID if (reason := why_unreadable(name))}
    assert REFUSED.keys() | WAITING | unreadable.keys() == INVALID.keys()
    assert {name: READING[reason] for name, reason in unreadable.items()} == {
        name: relay_on(name) for name in unreadable
    }


def relay_on(name: str) -> ReferenceAction:
    """What the reference relay was seen to do with an invalid vector."""
    seen = RELAY[name]
    if seen["connection_closed"]:
        return ReferenceAction.CLOSES
    return ReferenceAction.STORES if seen["stored_afterwards"] else ReferenceAction.DROPS


@pytest.mark.parametrize("name", REFUSED)
def test_the_table_agrees_with_the_reference_relay(name: str) -> None:
    (rule,) = (rule for rule in RULES if rule.reason == REFUSED[name])
    assert rule.reference is relay_on(name)


T = TypeVar("T")


def held(name: str, kind: type[T]) -> T:
    node = HELD[VALID[name]["id"]]
    assert isinstance(node, kind)
    return node


IDENTITY = held("identity_alice", Identity)
COMMUNITY = held("community_general", Community)
TOP = held("reply_depth1", Reply)
DEEP = held("reply_depth3", Reply)
NODES: tuple[Node, ...] = (IDENTITY, COMMUNITY, TOP, DEEP)
ANOTHER = VALID["community_name_256"]["id"]


def metadata(**pairs: bytes) -> Content:
    return Content(twig.encode({f"{name}/1": value for name, value in pairs.items()}), TWIG)


TIMES = (b"", b"soon", b"2099-01-01", b"2099-02-31T00:00:00Z", b"2099-01-01T00:00:00", b"2099-01-01 00:00:00Z", b"\xff")
# For each rule nodes that break it and none before it.
BREAKING: dict[str, list[Node]] = {
    "the metadata is not TWIG": [replace(node, metadata=Content(b"", UTF8)) for node in NODES],
    "the metadata cannot be read": [replace(node, metadata=Content(b"x", TWIG)) for node in NODES],
    "the expiration cannot be read": [replace(TOP, metadata=metadata(expiration=time)) for time in TIMES],
    "it has expired": [replace(node, metadata=metadata(expiration=b"2026-11-21T00:00:00+00:00")) for node in NODES],
    "it was made after the year 9999": [replace(TOP, created=node_rules.MAX_CREATED + 1)],
    "the name is not text": [replace(COMMUNITY, name=Content(b"\xff")), replace(IDENTITY, name=Content(b"", TWIG))],
    "the name is too long": [replace(COMMUNITY, name=Content(b"x" * 257)), replace(IDENTITY, name=Content(b"x" * 257))],
    "the name has a line break": [replace(COMMUNITY, name=Content(b"a\nb")), replace(IDENTITY, name=Content(b"\n"))],
    "a root is not at depth 0": [replace(COMMUNITY, depth=1), replace(IDENTITY, depth=1)],
    "a root has a parent": [replace(COMMUNITY, parent=ANOTHER), replace(IDENTITY, parent=ANOTHER)],
    "an identity has an author": [replace(IDENTITY, author=ANOTHER)],
    "it has no author": [replace(COMMUNITY, author=NULL_ID), replace(TOP, author=NULL_ID)],
    "a reply has no parent": [replace(TOP, parent=NULL_ID)],
    "a reply has no community": [replace(TOP, community=NULL_ID)],
    "a reply is at depth 0": [replace(TOP, depth=0)],
    "a conversation within another": [replace(TOP, conversation=DEEP.conversation)],
    "a deep reply in no conversation": [replace(DEEP, conversation=NULL_ID)],
    "the content is declared to be TWIG, and is not": [
        replace(TOP, content=Content(blob, TWIG)) for blob in (b"x", b"no version\0v", b"key/1")
    ],
    "the key cannot be used": [replace(IDENTITY, public_key=b"")],
    "the author is not an identity": [replace(COMMUNITY, author=ANOTHER), replace(TOP, author=ANOTHER)],
    "the signature is not the author's": [replace(node, created=0) for node in NODES],
    "the parent is an identity": [replace(TOP, parent=TOP.author)],
    "the depth is not the parent's and 1": [replace(DEEP, depth=4), replace(DEEP, depth=2)],
    "the community is not the parent's": [replace(TOP, community=ANOTHER), replace(DEEP, community=ANOTHER)],
    "the conversation is not the parent's": [replace(DEEP, conversation=DEEP.parent)],
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.reason)
def test_every_rule_is_kept(rule: node_rules.NodeRule) -> None:
    for node in BREAKING[rule.reason]:
        # A wrong signature is the only fault that signing again would mend.
        raw = forest.encode(node) if rule.reason == "the signature is not the author's" else resigned(node)
        assert verdict_on(raw) == ValidationResult(rule.reason)


def test_the_same_nodes_without_the_fault_may_enter() -> None:
    for node in (*NODES, *(replace(TOP, content=Content(blob, TWIG)) for blob in (b"", b"key/1\0value"))):
        assert verdict_on(resigned(node)).ok


def test_a_plain_reply_is_judged_as_by_all_rules() -> None:
    plain = {True: 0, False: 0}
    for node in (*NODES, *(broken for each in BREAKING.values() for broken in each)):
        for raw in (resigned(node), forest.encode(node)):
            author, parent = (HELD.get(node.author), HELD.get(node.parent))
            read = forest.decode(raw)
            verdict = node_rules.validate(read, raw, NOW, author, parent)
            case = node_rules._Case(
                read, raw, NOW, node_rules._pairs(read), read if isinstance(read, Identity) else author, parent
            )
            assert verdict == node_rules._by_rules(case)
            plain[node_rules._is_plain(read, author, parent)] += 1
    assert plain[True] >= 4, "some of them are plain, or this says nothing"


def test_a_forged_node_is_refused_before_its_parent_is_asked_for() -> None:
    forged = replace(TOP, parent=UNKNOWN, community=UNKNOWN)
    assert verdict_on(forest.encode(forged)) == ValidationResult("the signature is not the author's")
    assert verdict_on(resigned(forged)) == ValidationResult(missing=(UNKNOWN,))


def test_all_that_is_missing_is_named() -> None:
    stranger = replace(TOP, author=UNKNOWN, parent=(there := forest.node_id(b"there")), community=there)
    assert verdict_on(resigned(stranger)) == ValidationResult(missing=(UNKNOWN, there))


@pytest.mark.parametrize(
    ("time", "ends_ms"),
    [
        (b"2026-11-21T06:00:00Z", 1_795_240_800_000),
        (b"2026-11-21T06:00:00.5Z", 1_795_240_800_500),
        (b"2026-11-21T06:00:00.123456789Z", 1_795_240_800_123),
        (b"2026-11-21T06:00:00.1234567890123Z", 1_795_240_800_123),
        (b"2026-11-21T08:00:00+02:00", 1_795_240_800_000),
    ],
)
def test_a_node_expires_at_its_time(time: bytes, ends_ms: int) -> None:
    raw = resigned(replace(TOP, metadata=metadata(expiration=time)))
    assert verdict_on(raw, ends_ms - 1).ok
    assert verdict_on(raw, ends_ms) == ValidationResult("it has expired")


@pytest.mark.parametrize("time", [b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"0000-01-01T00:00:00Z"])
def test_extreme_times_are_valid(time: bytes) -> None:
    verdict_on(resigned(replace(TOP, metadata=metadata(expiration=time))))


def test_each_rule_has_a_distinct_reason() -> None:
    reasons = [rule.reason for rule in RULES]
    assert len(set(reasons)) == len(reasons)
    assert BREAKING.keys() == set(reasons)
