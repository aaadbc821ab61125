"""The lock of a data directory: one gateway at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gateway.core.errors import OperatorError


class DataDirectoryInUse(OperatorError):
    """Another gateway uses this data directory."""


def lock(data: Path) -> int:
    """Lock the data directory until the returned descriptor is closed; raises `DataDirectoryInUse` if it is locked."""
    descriptor = os.open(data / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise DataDirectoryInUse(f"{data} is in use by another gateway; stop it or choose another --data") from None
    return descriptor
