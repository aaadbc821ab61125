"""base64url without padding (RFC 4648, section 5), in which every value has exactly one encoding."""

from __future__ import annotations

from typing import Final

from pybase64 import b64decode, b64encode

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_OWN: Final = b"-_"  # in place of + and /
_PADDING: Final = (b"", b"===", b"==", b"=")  # by the length modulo 4; no text has a remainder of 1
# The last characters that are valid, by the same: the bits after the last whole byte are zero.
_LAST: Final = (_ALPHABET, b"", _ALPHABET[::16], _ALPHABET[::4])
_PAD, _PLUS, _SLASH = b"=+/"


def encode(raw: bytes) -> bytes:
    """Encode *raw*."""
    return b64encode(raw, _OWN).rstrip(b"=")


def decode(text: bytes) -> bytes:
    """Decode *text*; raise `ValueError` if `encode` could not have written it."""
    if _PAD in text or _PLUS in text or _SLASH in text:  # ints: five times faster
        raise ValueError("not base64url without padding")
    rest = len(text) % 4
    raw = b64decode(text + _PADDING[rest], _OWN, validate=True)
    if rest and text[-1] not in _LAST[rest]:
        raise ValueError("bits behind the last byte")
    return raw
