"""The session tokens that were logged out, until they would have ended by themselves; in a file beside the secrets.

Laws of this file. The number of entries is bounded. When it is reached, the network address that logged out most often
loses its oldest entry, so nobody can make the gateway forget the logout of somebody else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.access.auth import SecretFileError, read_secret

MAX_ENDED = 8_192  # tokens, some 1 MiB of memory and of file
FILE = "streamr-logouts.json"

Row = tuple[bytes, str, int]  # the id of a token, the network address that ended it, when it expires (ms)


def read_logouts(path: Path) -> list[Row]:
    """The rows in the file at *path*, none if there is no file yet; `SecretFileError` where it is of no use."""
    if not path.exists():
        return []
    data = read_secret(path)
    try:
        return [(bytes.fromhex(id), str(where), int(expires)) for id, where, expires in json.loads(data)["ended"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SecretFileError(
            f"{path} holds no logouts ({error}); move it away, and those tokens are good until they expire"
        ) from None


class Logouts:
    """Which tokens are over. *changed* is called when the file has to be written."""

    def __init__(self, known: list[Row], changed: Callable[[], None] = lambda: None) -> None:
        self.changed = changed
        self._ended: dict[bytes, tuple[str, int]] = {}
        self._by: dict[str, dict[bytes, None]] = {}  # by network address, oldest first
        for id, where, expires in known:
            self._put(id, where, expires)

    def __contains__(self, id: bytes) -> bool:
        return id in self._ended

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, id: bytes, where: str, expires: int, now: int) -> None:
        """Remember that the token *id* is over; *now* is in ms."""
        if id in self._ended:
            return
        if len(self._ended) >= MAX_ENDED:
            self._sweep(now)
        if len(self._ended) >= MAX_ENDED:
            most = max(self._by.values(), key=len)
            self._drop(next(iter(most)))
        self._put(id, where, expires)
        self.changed()

    def data(self) -> bytes:
        """The contents of the file."""
        rows: list[Any] = [[id.hex(), where, expires] for id, (where, expires) in self._ended.items()]
        return json.dumps({"ended": rows}).encode()

    def _put(self, id: bytes, where: str, expires: int) -> None:
        self._ended[id] = where, expires
        self._by.setdefault(where, {})[id] = None

    def _sweep(self, now: int) -> None:
        """Forget the tokens that have expired by themselves."""
        for id in [id for id, (_, expires) in self._ended.items() if expires < now]:
            self._drop(id)

    def _drop(self, id: bytes) -> None:
        where, _ = self._ended.pop(id)
        del self._by[where][id]
        if not self._by[where]:
            del self._by[where]
