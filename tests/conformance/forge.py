"""Arbor nodes made without our own code: pysequoia signs, `struct` lays out."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

import pysequoia

from gateway.clients import Node, Read

VECTORS = Path(__file__).parent.parent / "vectors" / "sprout"
NULL = b"\x00\x00\x00"
PREFIX = "SHA512_B32__"


class SequoiaForge:
    """Alice of the vectors, or Bob; the identity node is the one that the genuine program made."""

    _moment = 0

    def __init__(self, name: str = "alice") -> None:
        vectors = json.loads((VECTORS / "valid.json").read_text())
        vector = next(v for v in vectors if v["name"].startswith(f"identity_{name}"))
        raw = urlsafe_b64decode(pad(vector["node"]["raw_b64u"]))
        self._identity = Node(vector["node"]["id"], raw)
        self._signer = pysequoia.Tsk.from_bytes((VECTORS / "keys" / f"{name}.privkey").read_bytes()).signer()

    def identity(self) -> Node:
        """The author."""
        return self._identity

    def reply(self, community: str, text: str, twig: dict[str, str]) -> Node:
        """A signed Reply of depth 1."""
        metadata = b"\0".join(part.encode() for pair in twig.items() for part in pair)
        body = b"".join(
            (
                struct.pack(">HB", 1, 2),
                hash_of(community),
                bytes.fromhex("010020"),
                struct.pack(">IQ", 1, self._now()),
                content(2, metadata),
                hash_of(self._identity.id),
                hash_of(community),
                NULL,
                content(1, text.encode()),
            )
        )
        signature = dearmor(pysequoia.sign(self._signer, body, mode=pysequoia.SignatureMode.DETACHED))
        raw = body + content(1, signature)
        return Node(id_of(raw), raw)

    @classmethod
    def _now(cls) -> int:
        """The time in milliseconds, later with each call: two nodes never share one."""
        cls._moment = max(cls._moment + 1, time.time_ns() // 1_000_000)
        return cls._moment

    def read(self, raw: bytes) -> Read | None:
        """What a Reply says."""
        if raw[2] != 2:
            return None
        _parent, offset = field(raw, 3)
        offset += 3 + 4 + 8  # the id's descriptor, the depth, the creation
        metadata, offset = field(raw, offset)
        _author, offset = field(raw, offset)
        community, offset = field(raw, offset)
        _conversation, offset = field(raw, offset)
        text, offset = field(raw, offset)
        keys = metadata.split(b"\0")[::2] if metadata else []
        return Read(PREFIX + b64u(community), text.decode(), frozenset(key.decode() for key in keys))


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
    return b"\x01\x00\x20" + urlsafe_b64decode(pad(text.removeprefix(PREFIX)))


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
