"""Arbor nodes made without our own code: pysequoia signs, `struct` lays out."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pysequoia

from gateway.demo_clients import ArborNode, ReplyContent

VECTORS = Path(__file__).parent.parent / "vectors" / "sprout"
NULL = b"\x00\x00\x00"
HASH = b"\x01\x00\x20"  # SHA512/256, 32 bytes
REPLY = 2
PREFIX = "SHA512_B32__"


class SequoiaForge:
    """Alice of the vectors, or Bob; the identity node is the one that the genuine program made."""

    _moment = 0

    def __init__(self, name: str = "alice") -> None:
        vector = next(v for v in vectors() if v["name"].startswith(f"identity_{name}"))
        raw = urlsafe_b64decode(pad(vector["node"]["raw_b64u"]))
        self._identity = ArborNode(vector["node"]["id"], raw)
        self._signer = pysequoia.Tsk.from_bytes((VECTORS / "keys" / f"{name}.privkey").read_bytes()).signer()

    def identity(self) -> ArborNode:
        """The author."""
        return self._identity

    def reply(self, community: str, text: str, twig: dict[str, str], parent: ArborNode | None = None) -> ArborNode:
        """A signed Reply: a child of *parent*, a Reply, or else of the community."""
        above, depth, conversation = (hash_of(community), 1, NULL) if parent is None else place_below(parent)
        metadata = b"\0".join(part.encode() for pair in twig.items() for part in pair)
        body = b"".join(
            (
                struct.pack(">HB", 1, 2),
                above,
                bytes.fromhex("010020"),
                struct.pack(">IQ", depth, self._now()),
                content(2, metadata),
                hash_of(self._identity.id),
                hash_of(community),
                conversation,
                content(1, text.encode()),
            )
        )
        signature = dearmor(pysequoia.sign(self._signer, body, mode=pysequoia.SignatureMode.DETACHED))
        raw = body + content(1, signature)
        return ArborNode(id_of(raw), raw)

    @classmethod
    def _now(cls) -> int:
        """The time in milliseconds, later with each call: two nodes never share one."""
        cls._moment = max(cls._moment + 1, time.time_ns() // 1_000_000)
        return cls._moment

    def read(self, raw: bytes) -> ReplyContent | None:
        """What a Reply says."""
        if raw[2] != REPLY:
            return None
        reply = fields_of(raw)
        return ReplyContent(PREFIX + b64u(reply.community), reply.content.decode(), frozenset(reply.twig))

    def parent(self, raw: bytes) -> str:
        """The id of a Reply's parent."""
        return PREFIX + b64u(fields_of(raw).parent)

    def name(self, raw: bytes) -> str:
        """The name of an Identity."""
        _parent, offset = field(raw, 3)
        _metadata, offset = field(raw, offset + 3 + 4 + 8)
        _author, offset = field(raw, offset)
        return field(raw, offset)[0].decode()

    def activity(self, raw: bytes) -> tuple[str, str, str] | None:
        """The community, the author and the value, if a node says who is there (`activity/1`)."""
        reply = fields_of(raw) if raw[2] == REPLY else None
        if reply is None or "activity/1" not in reply.twig:
            return None
        return PREFIX + b64u(reply.community), PREFIX + b64u(reply.author), reply.twig["activity/1"]


class Fields(NamedTuple):
    """What stands in a Reply."""

    parent: bytes
    depth: int
    twig: dict[str, str]
    author: bytes
    community: bytes
    conversation: bytes
    content: bytes


def fields_of(raw: bytes) -> Fields:
    """The fields of a Reply."""
    parent, offset = field(raw, 3)
    depth = int(struct.unpack_from(">I", raw, offset + 3)[0])
    offset += 3 + 4 + 8  # the id's descriptor, the depth, the creation
    metadata, offset = field(raw, offset)
    author, offset = field(raw, offset)
    community, offset = field(raw, offset)
    conversation, offset = field(raw, offset)
    text, offset = field(raw, offset)
    parts = [part.decode() for part in metadata.split(b"\0")] if metadata else []
    return Fields(parent, depth, dict(zip(parts[::2], parts[1::2], strict=True)), author, community, conversation, text)


def place_below(parent: ArborNode) -> tuple[bytes, int, bytes]:
    """The parent, the depth and the conversation of a Reply to *parent*: below the first one a conversation begins."""
    fields, id = fields_of(parent.raw), hash_of(parent.id)
    return id, fields.depth + 1, HASH + fields.conversation if fields.conversation else id


@cache
def vectors() -> list[Any]:
    """The nodes of the genuine program."""
    found: list[Any] = json.loads((VECTORS / "valid.json").read_text())
    return found


def field(raw: bytes, offset: int) -> tuple[bytes, int]:
    """The bytes of the qualified field at *offset*, and where the next one begins."""
    start = offset + 3
    end = start + int(struct.unpack_from(">H", raw, offset + 1)[0])
    return raw[start:end], end


def b64u(data: bytes) -> str:
    """Base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def hash_of(text: str) -> bytes:
    """A qualified hash from the text of an id."""
    return HASH + urlsafe_b64decode(pad(text.removeprefix(PREFIX)))


def id_of(raw: bytes) -> str:
    """The id of a node: SHA-512/256 of all its bytes."""
    return PREFIX + b64u(hashlib.new("sha512_256", raw).digest())


def content(kind: int, data: bytes) -> bytes:
    """Any qualified field: its type, its length, its bytes."""
    return struct.pack(">BH", kind, len(data)) + data


def dearmor(text: bytes) -> bytes:
    """The bytes inside an ASCII-armoured OpenPGP block."""
    lines = text.decode().split("\n\n", 1)[1].splitlines()
    return b64decode("".join(line for line in lines if line and line[0] not in "=-"))


def pad(text: str) -> str:
    """Base64 with the padding that Python wants."""
    return text + "=" * (-len(text) % 4)
