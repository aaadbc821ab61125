"""The file with the key that signs the gateway's nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.forest.packets import OpenPGPError
from gateway.access.authorization import SecretFileError, read_secret, write_secret

KEY_FILE: Final = "sprout.privkey"  # in the folder of secrets


def read_key(path: Path) -> SecretKey | None:
    """The key in the file at *path*; None if there is no file; raise `SecretFileError` if it cannot be used."""
    if not path.exists():
        return None
    try:
        return SecretKey(read_secret(path))
    except OpenPGPError as error:
        raise SecretFileError(
            f"{path} holds {error}; restore it from a backup, or move it away for a new identity"
        ) from None


def make_key(path: Path, now_ms: int) -> SecretKey:
    """Generate a key and write it to a new file at *path*."""
    key = SecretKey.generate(now_ms // 1000)
    write_secret(path, key.file)
    return key
