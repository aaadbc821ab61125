"""The list of what is in a backup: each file with its size and its SHA-256, before any of them."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from .errors import BackupError

FORMAT = 1
# Below the data directory. There is no other name, so nothing is written anywhere else.
NAME = re.compile(r"(?:log|keys|tls|config|index|files)/[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
LOG = re.compile(r"log/[0-9]{20}(?:-[0-9]{20})?(?:\.facts)?\.jsonl")
MAX_BYTES = 64 << 20  # of a manifest


class BackupFile(NamedTuple):
    """One file: its name in the backup (`log/00000000000000000001.jsonl`), its size in bytes, its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


class Manifest(NamedTuple):
    """Which gateway a backup is of, when it began (ms since 1970), its last record, and its files in order.

    *origins* says where files lay that are not in the data directory, such as the certificate, by their names.
    """

    gateway: str
    version: str
    created: int
    last_seq: int
    files: tuple[BackupFile, ...]
    origins: dict[str, str]

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(entry.size for entry in self.files)

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        values = self._asdict() | {"format": FORMAT, "files": [entry._asdict() for entry in self.files]}
        return json.dumps(values, indent=1).encode()


def decode(data: bytes) -> Manifest:
    """Read a manifest; raises `BackupError` if it is not valid, or of a later format."""
    try:
        values: dict[str, Any] = json.loads(data)
        version = values.pop("format")
        if version != FORMAT:
            raise BackupError(f"its format is {version}, and this version of Trellis reads format {FORMAT}")
        files = tuple(BackupFile(str(row["name"]), int(row["size"]), str(row["sha256"])) for row in values.pop("files"))
        manifest = Manifest(**values, files=files)
        _check_types(manifest)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BackupError(f"its manifest is not valid ({type(error).__name__}: {error})") from None
    names = [entry.name for entry in files]
    if bad := [name for name in names if not is_allowed(name)]:
        raise BackupError(f"its manifest names a file that no backup has: {bad[0]!r}")
    if len(set(names)) < len(names) or any(entry.size < 0 for entry in files):
        raise BackupError("its manifest names a file twice, or with an impossible size")
    if "keys/gateway.json" not in names:
        raise BackupError("its manifest does not name keys/gateway.json, which every gateway has")
    return manifest


def _check_types(manifest: Manifest) -> None:
    """Raise `TypeError` unless its values are what `Manifest` says."""
    origins = manifest.origins
    texts = [manifest.gateway, manifest.version, *origins, *origins.values()]
    numbers = (manifest.created, manifest.last_seq)
    if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
        raise TypeError("a value has the wrong type")


def is_allowed(name: str) -> bool:
    """Whether a file in a backup can be called *name*."""
    return (LOG if name.startswith("log/") else NAME).fullmatch(name) is not None
