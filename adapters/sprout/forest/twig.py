"""TWIG, the pairs in a node's metadata: `name/version NUL value NUL name/version NUL value`.

There is no NUL at the end, an empty text has no pairs, a value may be empty. A key splits at its last `/`;
the name is not empty, the version is an unsigned decimal. The reference ignores blanks before the digits of a
version and whatever follows them; no genuine program writes that, and it is refused here. The reference writes
pairs in no fixed order; this module sorts them, so that equal pairs give equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from gateway.core.errors import RequestError

_KEY: Final = re.compile(rb"([^\0]+)/([0-9]{1,20})", re.DOTALL)
_MAX_VERSION: Final = (1 << 64) - 1
_MAX_KEYS: Final = 64  # cached in encoded form; the gateway uses fewer


class TwigError(RequestError):
    """Bytes that are not TWIG, or pairs that TWIG cannot express."""


def decode(blob: bytes) -> dict[str, bytes]:
    """The pairs in *blob*, by `name/version`; the last of a repeated key counts.

    Versions have no leading zeros. Bytes of a name that are not UTF-8 become lone surrogates.
    """
    if not blob:
        return {}
    pieces = blob.split(b"\0")
    if len(pieces) % 2:
        raise TwigError("a TWIG key without a value")
    return {_canonical(key): value for key, value in zip(pieces[::2], pieces[1::2], strict=True)}


def encode(pairs: Mapping[str, bytes]) -> bytes:
    """Encode *pairs*, sorted by key; the inverse of `decode`."""
    pieces: list[bytes] = []
    for key, value in sorted((_to_bytes(key), value) for key, value in pairs.items()):
        if b"\0" in value:
            raise TwigError("a TWIG value with a NUL")
        pieces += (key, value)
    return b"\0".join(pieces)


def _canonical(key: bytes) -> str:
    match = _KEY.fullmatch(key)
    if match is None or (version := int(match[2])) > _MAX_VERSION:
        raise TwigError("a TWIG key that is not name/version")
    return f"{match[1].decode('utf-8', 'surrogateescape')}/{version}"


@lru_cache(_MAX_KEYS)
def _to_bytes(key: str) -> bytes:
    try:
        raw = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise TwigError("a TWIG key that is not text") from None
    if _canonical(raw) != key:
        raise TwigError("a TWIG version with leading zeros")
    return raw
