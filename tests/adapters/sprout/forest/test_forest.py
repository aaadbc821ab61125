"""The binary form of nodes, against nodes that forest-go made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.sprout.forest import forest, twig
from adapters.sprout.forest.forest import NULL_ID, TWIG, UTF8, Community, Content, Identity, Node, NodeError, Reply
from adapters.sprout.forest.node_rules import READING
from adapters.sprout.wire import base64url

VECTORS = Path(__file__).parents[3] / "vectors/sprout"
VALID: list[Any] = json.loads((VECTORS / "valid.json").read_text())
INVALID: list[Any] = json.loads((VECTORS / "invalid.json").read_text())
GROVE = sorted((VECTORS / "vector-grove").iterdir())

# The vectors that are no nodes at all; the others break a rule of adapters/sprout/forest/node_rules.py.
UNREADABLE = {
    "version_0": "schema version 0",
    "id_desc_sha512_64": "an unknown kind of id",
    "id_desc_null": "an id that is the null hash",
    "truncated": "shorter than its fields",
    "node_type_3": "no such node type",
    "empty": "shorter than its fields",
    "content_type_0_binary": "an unknown kind of content",
}


def raw_of(vector: Any) -> bytes:
    return base64url.decode(vector["node"]["raw_b64u"].encode())


ids = st.just(NULL_ID) | st.binary(min_size=32, max_size=32).map(forest.node_id)
u32, u64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
blobs = st.binary(max_size=20)
contents = st.builds(Content, blobs, st.sampled_from([UTF8, TWIG]))
head = (ids, u32, u64, contents, ids)
nodes: st.SearchStrategy[Node] = st.one_of(
    st.builds(Identity, *head, contents, blobs, blobs),
    st.builds(Community, *head, contents, blobs),
    st.builds(Reply, *head, ids, ids, contents, blobs),
)


@pytest.mark.parametrize("vector", VALID, ids=lambda vector: vector["name"])
def test_a_genuine_node_is_read_and_written_back(vector: Any) -> None:
    raw, fields = raw_of(vector), vector["node"]["fields"]
    node = forest.decode_as(vector["node"]["id"], raw)
    assert forest.encode(node) == raw
    assert forest.signed_part(node, raw) == raw[: vector["node"]["signed_data_len"]]
    assert hashlib.sha256(forest.signed_part(node, raw)).hexdigest() == vector["node"]["signed_data_sha256_hex"]
    assert type(node) is (Identity, Community, Reply)[fields["node_type"]]
    assert (node.depth, node.created) == (fields["depth"], fields["created_ms"])
    assert (node.parent, node.author) == (fields["parent"]["text"], fields["author"]["text"])
    assert node.metadata == Content(base64url.decode(fields["metadata"]["blob_b64u"].encode()), TWIG)
    assert node.signature == base64url.decode(fields["signature"]["blob_b64u"].encode())
    if isinstance(node, Reply):
        assert (node.community, node.conversation) == (
            fields["community_id"]["text"],
            fields["conversation_id"]["text"],
        )
        assert node.content == Content(
            base64url.decode(fields["content"]["blob_b64u"].encode()), fields["content"]["type"]
        )
    else:
        assert node.name.text == fields["name"]["text_utf8"]
    pairs = {f"{pair['name']}/{pair['version']}": pair["value_text"] for pair in fields["metadata_twig"]}
    assert {key: value.decode() for key, value in twig.decode(node.metadata.blob).items()} == pairs


@pytest.mark.parametrize("path", GROVE, ids=lambda path: path.name)
def test_a_grove_file_is_named_after_its_hash(path: Path) -> None:
    forest.decode_as(path.name, path.read_bytes())


@pytest.mark.parametrize("vector", INVALID, ids=lambda vector: vector["name"])
def test_only_the_unreadable_vectors_are_unreadable(vector: Any) -> None:
    raw = raw_of(vector)
    if vector["name"] in UNREADABLE:
        with pytest.raises(NodeError, match=UNREADABLE[vector["name"]]):
            forest.decode(raw)
    else:
        assert forest.encode(forest.decode_as(vector["node"]["id"], raw)) == raw


@given(nodes)
def test_reading_is_the_inverse_of_writing(node: Node) -> None:
    assert forest.decode(forest.encode(node)) == node


@given(
    st.binary() | nodes.map(forest.encode).flatmap(lambda raw: st.binary(max_size=9).map(lambda tail: raw[:-9] + tail))
)
def test_any_bytes_end_in_a_node_or_the_error(raw: bytes) -> None:
    try:
        node = forest.decode(raw)
    except NodeError as error:
        reason = str(error)
    else:
        assert forest.encode(node) == raw
        return
    assert reason in READING


def test_every_missing_byte_and_every_byte_more_is_noticed() -> None:
    raw = raw_of(VALID[5])
    for end in range(len(raw)):
        with pytest.raises(NodeError, match="shorter than its fields"):
            forest.decode(raw[:end])
    with pytest.raises(NodeError, match="bytes behind the signature"):
        forest.decode(raw + b"\0")


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (1, 2, "a later schema version"),
        (3, 9, "an unknown kind of hash"),
        (5, 31, "an unknown kind of hash"),
        (-311, 2, "an unknown kind of key or signature"),
    ],
)
def test_other_types_and_versions_are_refused(at: int, value: int, reason: str) -> None:
    raw = bytearray(raw_of(next(vector for vector in VALID if vector["name"] == "reply_depth1")))
    raw[at - 2 if at < 0 else at] = value
    with pytest.raises(NodeError, match=reason):
        forest.decode(bytes(raw))


def test_a_node_under_another_id_is_refused() -> None:
    with pytest.raises(NodeError, match="not the node of that id"):
        forest.decode_as(VALID[0]["node"]["id"], raw_of(VALID[1]))


def test_an_id_is_sha512_256_and_not_a_cut_sha512() -> None:
    assert (
        forest.node_id(b"abc")
        == "SHA512_B32__"
        + base64url.encode(
            bytes.fromhex("53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23")  # FIPS 180-4, example
        ).decode()
    )


@pytest.mark.parametrize(
    "node",
    [
        Community(NULL_ID, 0, 1 << 64, Content(b"", TWIG), NULL_ID, Content(b""), b""),
        Community(NULL_ID, -1, 0, Content(b"", TWIG), NULL_ID, Content(b""), b""),
        Community(NULL_ID, 0, 0, Content(bytes(65_536), TWIG), NULL_ID, Content(b""), b""),
        Community("garbage", 0, 0, Content(b"", TWIG), NULL_ID, Content(b""), b""),
        Community("SHA512_B32__AAAA", 0, 0, Content(b"", TWIG), NULL_ID, Content(b""), b""),
        Community("\ud800", 0, 0, Content(b"", TWIG), NULL_ID, Content(b""), b""),
        Community(forest.node_id(b"").removeprefix("SHA512_B32__"), 0, 0, Content(b""), NULL_ID, Content(b""), b""),
    ],
)
def test_values_out_of_range_are_not_encoded(node: Node) -> None:
    with pytest.raises(NodeError):
        forest.encode(node)


@dataclass
class Stamp:
    """A signer whose signatures can be read."""

    public_key: bytes = b"key"

    def sign(self, data: bytes, created_seconds: int) -> bytes:
        return b"%d %b" % (created_seconds, hashlib.sha256(data).digest())


def test_new_nodes_are_signed_at_the_right_position() -> None:
    stamp = Stamp()
    identity = forest.sign_identity("alice", stamp, 1_999, b"a/1\0x")
    author = forest.node_id(identity)
    community = forest.sign_community("general", author, stamp, 2_000)
    root = forest.decode(community)
    assert isinstance(root, Community)
    raws = [identity, community]
    parent: Community | Reply = root
    for depth in range(1, 4):
        place = forest.position_below(forest.node_id(raws[-1]), parent)
        raws.append(forest.sign_reply(place, Content(b"hello"), author, stamp, 3_000))
        reply = forest.decode(raws[-1])
        assert isinstance(reply, Reply)
        assert (reply.parent, reply.depth, reply.community, reply.conversation) == place
        assert reply.depth == depth
        assert reply.community == forest.node_id(community)
        assert reply.conversation == (NULL_ID if depth == 1 else forest.node_id(raws[2]))
        assert (reply.author, reply.content, reply.created) == (author, Content(b"hello"), 3_000)
        parent = reply
    for raw in raws:
        node = forest.decode(raw)
        assert node.signature == stamp.sign(forest.signed_part(node, raw), node.created // 1000)
    assert forest.decode(identity) == Identity(
        NULL_ID,
        0,
        1_999,
        Content(b"a/1\0x", TWIG),
        NULL_ID,
        Content(b"alice"),
        b"key",
        forest.decode(identity).signature,
    )
    with pytest.raises(NodeError):
        forest.sign_identity("\ud800", stamp, 0)


def test_only_utf8_is_text() -> None:
    assert Content("é".encode()).text == "é"
    assert Content(b"\xff").text is None
    assert Content(b"a/1\0", TWIG).text is None


# The quick way to read a usual reply


def verdict(read: Any, raw: bytes) -> Any:
    try:
        return read(raw)
    except forest.NodeError as error:
        return str(error)


@given(st.data())
def test_the_fast_decoder_agrees_with_the_table(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from([raw_of(vector) for vector in VALID])))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, min(len(raw) - 1, 250)) | st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.sampled_from((0, 1, 2, 3, 31, 32, 255)) | st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))])
    assert verdict(forest.decode, cut) == verdict(forest._decode, cut)


def test_replies_are_decoded_by_the_fast_decoder() -> None:
    replies = [raw for raw in map(raw_of, VALID) if isinstance(forest._decode(raw), Reply)]
    assert len(replies) > 5
    assert all(forest._decode_usual(raw) == forest._decode(raw) for raw in replies)
