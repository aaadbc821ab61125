"""The keys and signatures of the vectors, by their names, and keys that are changed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pysequoia
from hypothesis import strategies as st

from adapters.sprout.forest import forest, packets
from adapters.sprout.forest.openpgp import PublicKey, SecretKey
from adapters.sprout.wire import base64url

VECTORS = Path(__file__).parents[3] / "vectors/sprout"
NODES: dict[str, Any] = {vector["name"]: vector["node"] for vector in json.loads((VECTORS / "valid.json").read_text())}
RAW = {name: base64url.decode(node["raw_b64u"].encode()) for name, node in NODES.items()}
NAMES = {node["id"]: name for name, node in NODES.items()}
OWNERS = {"identity_alice": "alice", "identity_bob_unicode_twig": "bob", "identity_carol_gpg": "carol-gpg"}
CREATED = 1_795_235_963  # the keys of the vectors, in seconds since 1970


@cache
def key_of(owner: str) -> SecretKey:
    return SecretKey((VECTORS / f"keys/{owner}.privkey").read_bytes())


@cache
def new_key() -> SecretKey:
    return SecretKey.generate(CREATED - 1)


def author_of(name: str) -> str:
    """The name of the identity that signed a vector."""
    node = forest.decode(RAW[name])
    return name if isinstance(node, forest.Identity) else NAMES[node.author]


def public_key_of(identity: str) -> PublicKey:
    node = forest.decode(RAW[identity])
    assert isinstance(node, forest.Identity)
    return PublicKey(node.public_key)


def signed(name: str) -> tuple[bytes, bytes]:
    """What is signed in a vector, and the signature."""
    node = forest.decode(RAW[name])
    return forest.signed_part(node, RAW[name]), node.signature


def sequoia_agrees(key: SecretKey, data: bytes, signature: bytes) -> bool:
    certificate = pysequoia.Cert.from_bytes(key.public_key)
    try:
        pysequoia.verify(bytes=data, store=lambda _: [certificate], signature=pysequoia.Sig.from_bytes(signature))
    except Exception:  # its errors have no common base
        return False
    return True


def repacked(data: bytes, change: dict[int, bytes | None]) -> bytes:
    """A key with packets of some tags replaced, or left out."""
    parts = [(tag, change.get(tag, body)) for tag, body in packets.read_packets(data)]
    return b"".join(packets.write_packet(tag, body) for tag, body in parts if body is not None)


def cut_and_broken(whole: bytes) -> st.SearchStrategy[bytes]:
    """*whole* with a byte changed and some left out."""
    place = st.integers(0, len(whole) - 1)
    return st.builds(
        lambda at, value, start, size: (whole[:at] + bytes((value,)) + whole[at + 1 :])[:start] + whole[start + size :],
        place,
        st.integers(0, 255),
        place,
        st.integers(0, 3),
    )


def key_id_of(name: str) -> bytes:
    return key_of(name).fingerprint[-8:]
