"""The group keys that publishers gave the gateway, in a file of mode 0600 beside its other secrets.

Invariants. A key belongs to a stream and to the publisher that signed for it: nobody can replace the key of another.
The number of keys is bounded; the least recently used one is dropped. The worker thread writes the whole file, and one
write covers all keys that were learned before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gateway.access.authorization import SecretFileError, read_secret
from gateway.core.bounded_maps import BoundedMap

from .background_file import BackgroundFile, Work
from .group_keys import GroupKey, decode_group_key

MAX_KEYS = 4096  # some half a megabyte of file
KEYRING_FILE = "streamr-group-keys.json"


class KeyOwner(NamedTuple):
    """The owner of a key: a publisher (in lower case) on a stream."""

    stream_id: str
    publisher: str


def read_keys(path: Path) -> list[tuple[KeyOwner, GroupKey]]:
    """The keys in the file at *path*, none if there is no file yet; `SecretFileError` if it is malformed."""
    if not path.exists():
        return []
    data = read_secret(path)
    try:
        rows = json.loads(data)["keys"]
        return [
            (KeyOwner(stream, publisher), GroupKey(id, decode_group_key(hex_text)))
            for stream, publisher, id, hex_text in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise SecretFileError(
            f"{path} holds no group keys ({error}); move it away, and the gateway requests the keys again"
        ) from None


class Keyring:
    """The keys in memory, some of them *known* before, and in the file *path*; *work* is as in `adapter.Services`."""

    def __init__(self, path: Path, known: Iterable[tuple[KeyOwner, GroupKey]], work: Work) -> None:
        self._file = BackgroundFile(path, self._data, work)
        self._keys = BoundedMap[tuple[KeyOwner, str], bytes](MAX_KEYS, self._forget)
        self._latest: dict[KeyOwner, str] = {}
        for owner, key in known:
            self._put(owner, key)

    def tick(self) -> None:
        """Write again what could not be written; called once a second."""
        self._file.tick()

    def find(self, owner: KeyOwner, id: str | None) -> GroupKey | None:
        """The key of *owner* called *id*, or the one learned last if *id* is None."""
        name = self._latest.get(owner) if id is None else id
        secret = self._keys.touch((owner, name)) if name is not None else None
        return None if name is None or secret is None else GroupKey(name, secret)

    def add(self, owner: KeyOwner, key: GroupKey) -> None:
        """Keep *key*, replacing one of the same id."""
        if self._keys.get((owner, key.id)) != key.secret:
            self._put(owner, key)
            self._file.save()
        self._latest[owner] = key.id

    def _put(self, owner: KeyOwner, key: GroupKey) -> None:
        self._keys[owner, key.id] = key.secret
        self._latest[owner] = key.id

    def _forget(self, key: tuple[KeyOwner, str], _secret: bytes) -> None:
        owner, name = key
        if self._latest.get(owner) == name:
            del self._latest[owner]

    def _data(self) -> bytes:
        rows = [[*owner, name, secret.hex()] for (owner, name), secret in self._keys.items()]
        return json.dumps({"keys": rows}).encode()
