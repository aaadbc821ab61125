"""Secret files: replaced atomically, readable by their owner alone, and refused if others can read them."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.core.errors import OperatorError
from gateway.system.directories import sync_directory


class SecretFileError(OperatorError, ValueError):
    """A secret file cannot be used; the message says which, why, and what to do about it."""


def write_secret(path: Path, data: bytes) -> None:
    """Replace the file at *path* by *data*, durably, and readable by its owner alone."""
    made = not path.parent.exists()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # a file that a crash left behind keeps its mode when it is opened
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.rename(path)
    sync_directory(path.parent)
    if made:
        sync_directory(path.parent.parent)


def read_secret(path: Path) -> bytes:
    """The bytes of the file at *path*; raises `SecretFileError` if others can read it, or it cannot be read."""
    try:
        if path.stat().st_mode & 0o077:
            raise SecretFileError(
                f"{path} may be read by others than its owner; make it secret with `chmod 600 {path}`"
            )
        return path.read_bytes()
    except OSError as error:
        raise SecretFileError(f"{path} cannot be read: {error.strerror}") from None
