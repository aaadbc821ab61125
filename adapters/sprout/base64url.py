"""base64url without padding (RFC 4648, section 5), of which every value has exactly one spelling."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import Final

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/=", b"+/!!!")
# What a text can end in, by its length modulo 4: the bits behind the last whole byte are zero.
_LAST: Final = (_ALPHABET, b"", _ALPHABET[::16], _ALPHABET[::4])


def encode(raw: bytes) -> bytes:
    """*raw* as text."""
    return b2a_base64(raw, newline=False).rstrip(b"=").translate(_TO_URL)


def decode(text: bytes) -> bytes:
    """The bytes of *text*; a `ValueError` where `encode` would not have written it."""
    raw = a2b_base64(text.translate(_FROM_URL) + b"=" * (-len(text) % 4), strict_mode=True)
    if text[-1:] not in _LAST[len(text) % 4]:
        raise ValueError("bits behind the last byte")
    return raw
