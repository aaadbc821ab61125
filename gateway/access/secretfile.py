"""Files of secrets: written whole and readable by their owner alone, refused where others could read them."""

from __future__ import annotations

import os
from pathlib import Path


class SecretFileError(ValueError):
    """A file of secrets cannot be used: which, why, and what to do about it, in one sentence."""


def write_secret(path: Path, data: bytes) -> None:
    """Replace the file at *path* by *data*, readable by its owner alone, durably."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # one that a crash left behind keeps its mode when it is opened again
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.rename(path)


def read_secret(path: Path) -> bytes:
    """The bytes of the file at *path*; `SecretFileError` where others may read it, or its owner may not."""
    try:
        if path.stat().st_mode & 0o077:
            raise SecretFileError(
                f"{path} may be read by others than its owner; make it secret with `chmod 600 {path}`"
            )
        return path.read_bytes()
    except OSError as error:
        raise SecretFileError(f"{path} cannot be read: {error.strerror}") from None
