"""Decodes and verifies wire texts with the gateway's own codecs; the results are plain tuples that a table can hold.

Each function takes a value from the log and returns fields or a verdict. It never raises: an invalid value has a
`fault`, or the verdict `BAD`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from adapters.sprout.forest import forest
from adapters.sprout.forest.openpgp import PublicKey
from adapters.sprout.forest.packets import OpenPGPError
from adapters.streamr.crypto.batch import verify_all
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import ETH_LEGACY, NONE, UNSIGNED, StreamMessage, parse_message
from adapters.topic_relay.codec import PacketError
from adapters.topic_relay.codec import decode as decode_packet
from gateway.storage.record import decode_base64url

OK, BAD, UNVERIFIABLE = "ok", "bad", "unverifiable"
NO_AUTHOR: Final = "its author's identity is not in the log"
_KEYS: Final = 4096  # parsed keys that a worker keeps, about 2 KiB each
_TYPES: Final = {kind: number for number, kind in forest.TYPES.items()}
_MAX_LONG: Final = (1 << 63) - 1
_MAX_INT: Final = (1 << 31) - 1


class StreamFields(NamedTuple):
    """The columns of a stream message; `fault` says why it cannot be read."""

    stream: str | None = None
    partition: int | None = None
    publisher: str | None = None
    chain: str | None = None
    ts: int | None = None
    seq: int | None = None
    prev_ts: int | None = None
    prev_seq: int | None = None
    version: int | None = None
    message_type: int | None = None
    encryption_type: int | None = None
    signature_type: int | None = None
    content: str | None = None
    signature: str | None = None
    fault: str | None = None


class NodeFields(NamedTuple):
    """The columns of a node: `raw` is its encoding; `fault` says why it cannot be read."""

    type: int | None = None
    parent: str | None = None
    community: str | None = None
    conversation: str | None = None
    depth: int | None = None
    created: int | None = None
    author: str | None = None
    raw: bytes | None = None
    fault: str | None = None


class PacketFields(NamedTuple):
    """The columns of a packet of the topic relay; `extra` is the JSON text of its content."""

    type: int | None = None
    topic: str | None = None
    extra: str | None = None
    fault: str | None = None


class CheckResult(NamedTuple):
    """The verdict of one check: `OK`, `BAD` or `UNVERIFIABLE`, and the reason unless it is `OK`."""

    verdict: str
    reason: str | None = None


class Check(NamedTuple):
    """The verdict of the check called *check*, the reason unless it is `OK`, and whose signature it claims to be."""

    check: str
    verdict: str
    reason: str | None = None
    publisher: str | None = None


def stream(wire: str, content: str | None = None) -> StreamFields:
    """Decode the stream message *wire*; a reference without a sequence number means 0, as in genuine clients.

    *content* is the content of the record: the plain text of an encrypted message that the gateway could decrypt.
    """
    try:
        found = parse_message(wire)
    except StreamrError as error:
        return StreamFields(fault=str(error))
    id, prev = found.id, found.prev_ref
    if id.stream_partition > _MAX_INT:
        return StreamFields(fault=f"partition {id.stream_partition} is too large")
    return StreamFields(
        without_surrogates(id.stream_id),
        id.stream_partition,
        _publisher(found),
        without_surrogates(id.msg_chain_id),
        id.timestamp,
        id.sequence_number,
        None if prev is None else prev.timestamp,
        None if prev is None else prev.sequence_number or 0,
        found.version,
        found.message_type,
        found.encryption_type,
        found.signature_type,
        without_surrogates(found.content if content is None or not _was_decrypted(found, content) else content),
        None if found.signature is None else without_surrogates(found.signature),
    )


def _was_decrypted(message: StreamMessage, content: str) -> bool:
    """Whether *content* is the plain text of the encrypted *message*, and not its ciphertext."""
    return message.encryption_type != NONE and content != message.json_content().decode()


def node(wire: str) -> NodeFields:
    """Decode the node *wire*, which is base64url."""
    try:
        raw = decode_base64url(wire)
        found = forest.decode(raw)
    except (forest.NodeError, ValueError) as error:
        return NodeFields(fault=str(error))
    reply = found if isinstance(found, forest.Reply) else None
    return NodeFields(
        _TYPES[type(found)],
        found.parent,
        None if reply is None else reply.community,
        None if reply is None else reply.conversation,
        found.depth,
        min(found.created, _MAX_LONG),
        found.author,
        raw,
    )


def packet(wire: str) -> PacketFields:
    """Decode the packet *wire*."""
    try:
        found = decode_packet(wire.encode())
    except (PacketError, ValueError) as error:
        return PacketFields(fault=str(error))
    if not abs(found.kind) <= _MAX_INT:
        return PacketFields(fault="its type is too large")
    return PacketFields(int(found.kind), without_surrogates(found.topic), found.content.decode("utf-8", "replace"))


def _check_name(signature_type: int | None) -> str:
    """Return the name of the check for signatures of *signature_type*."""
    return "eth_legacy" if signature_type == ETH_LEGACY else "eth"


def check_stream(wire: str) -> Check:
    """Verify the signature of the stream message *wire*."""
    return check_streams([wire])[0]


def check_streams(wires: Sequence[str]) -> list[Check]:
    """Verify the signatures of *wires*, those of one publisher together; the result is that of `check_stream`."""
    claims = [_claim(wire) for wire in wires]
    genuine = iter(verify_all([claim for claim in claims if isinstance(claim, StreamMessage)]))
    return [_check_of(claim, next(genuine)) if isinstance(claim, StreamMessage) else claim for claim in claims]


def _claim(wire: str) -> StreamMessage | Check:
    """Return the stream message *wire* if it has a signature to verify, else its verdict."""
    try:
        found = parse_message(wire)
    except StreamrError as error:
        return Check("eth", BAD, str(error))
    if found.signature:
        return found
    if found.signature_type == UNSIGNED:
        return Check("eth", UNVERIFIABLE, "it is not signed", _publisher(found))
    return Check(_check_name(found.signature_type), BAD, "its signature is missing", _publisher(found))


def _check_of(message: StreamMessage, genuine: bool) -> Check:
    verdict, reason = (OK, None) if genuine else (BAD, "a forged signature")
    return Check(_check_name(message.signature_type), verdict, reason, _publisher(message))


def _publisher(message: StreamMessage) -> str:
    return without_surrogates(message.id.publisher_id).lower()


def node_bytes(text: str) -> bytes | None:
    """Decode the bytes of a node in the log; return None if *text* is not base64url."""
    try:
        return decode_base64url(text)
    except ValueError:
        return None


def author_of(id: str, raw: bytes) -> str | None:
    """Return the id of the identity that signed the node *raw*: an identity signs itself. None if it is not a node."""
    try:
        found = forest.decode(raw)
    except forest.NodeError:
        return None
    return id if isinstance(found, forest.Identity) else found.author


def check_id(native: str, raw: bytes) -> CheckResult:
    """Check that *native* is the id of the node *raw*."""
    return CheckResult(OK) if forest.node_id(raw) == native else CheckResult(BAD, "not the node of that id")


def check_node(raw: bytes, identity: bytes | None) -> CheckResult:
    """Verify the signature of the node *raw* with the key in its author's identity node *identity*."""
    try:
        found = forest.decode(raw)
        if identity is None:
            return CheckResult(UNVERIFIABLE, NO_AUTHOR)
        _key(identity).verify(forest.signed_part(found, raw), found.signature)
    except (forest.NodeError, OpenPGPError, ValueError) as error:
        return CheckResult(BAD, str(error))
    return CheckResult(OK)


@lru_cache(_KEYS)
def _key(identity: bytes) -> PublicKey:
    found = forest.decode(identity)
    if not isinstance(found, forest.Identity):
        raise forest.NodeError("the author is not an identity")
    return PublicKey(found.public_key)


def without_surrogates(text: str) -> str:
    """Replace lone surrogates in *text*, which UTF-8 and so Parquet cannot encode."""
    return text.encode("utf-8", "replace").decode()
