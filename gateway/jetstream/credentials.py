"""The credentials of a member at NATS servers: an nkey, alone or with the JSON web token of a user.

A key is Ed25519; its texts are base32 of a prefix, 32 bytes and a CRC-16 (https://docs.nats.io/reference/reference-protocols/nats-protocol).
"""

from __future__ import annotations

import re
from base64 import b32decode, b32encode, b64encode
from binascii import crc_hqx
from pathlib import Path
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.core.errors import OperatorError

SEED_PREFIX: Final = 18 << 3  # `S`
USER_PREFIX: Final = 20 << 3  # `U`
SEED: Final = re.compile(r"(?m)^SU[A-Z2-7]{56}\s*$")
TOKEN: Final = re.compile(r"-BEGIN NATS USER JWT-+\s+(\S+)\s")


class BadCredentials(OperatorError):
    """A file holds no credentials; the text says why."""


class Credentials(NamedTuple):
    """The *key* of a user, and its *token*, empty without one."""

    key: Ed25519PrivateKey
    token: str

    @property
    def public(self) -> str:
        """The text of the public key."""
        raw = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return _text(bytes([USER_PREFIX]) + raw)

    def options(self) -> dict[str, Any]:
        """What the client of NATS needs to know."""
        options: dict[str, Any] = {"signature_cb": self.sign}
        if self.token:
            options["user_jwt_cb"] = lambda: bytearray(self.token.encode())
        return options

    def sign(self, nonce: str) -> bytes:
        """The signature of what the server asks for, in base64."""
        return b64encode(self.key.sign(nonce.encode()))


def read_credentials(path: Path) -> Credentials:
    """The credentials in the file at *path*: a seed (`SU...`), perhaps with a token; raises `BadCredentials`."""
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise BadCredentials(f"{path} cannot be read: {error}") from None
    seed, token = SEED.search(text), TOKEN.search(text)
    if seed is None:
        raise BadCredentials(f"{path} holds no key of a NATS user (a line that begins with SU)")
    data = b32decode(seed[0].strip() + "=" * 6)
    head, raw, check = data[:2], data[2:34], data[34:]
    if head != bytes([SEED_PREFIX | USER_PREFIX >> 5, USER_PREFIX << 3 & 0xFF]) or check != _check(data[:34]):
        raise BadCredentials(f"the key in {path} is damaged")
    return Credentials(Ed25519PrivateKey.from_private_bytes(raw), "" if token is None else token[1])


def _text(data: bytes) -> str:
    return b32encode(data + _check(data)).decode().rstrip("=")


def _check(data: bytes) -> bytes:
    return crc_hqx(data, 0).to_bytes(2, "little")
