"""The session tokens that were logged out, until they expire; they are kept in a file beside the secrets.

The number of entries is bounded. At the bound, the network address with most logouts loses its oldest one, so nobody
can make the gateway forget the logouts of others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gateway.access.authorization import SecretFileError, read_secret
from gateway.storage.record_schema import MAX_NUMBER

MAX_LOGOUTS = 8_192  # tokens, some 1 MiB of memory and of file
LOGOUTS_FILE = "streamr-logouts.json"

LogoutRow = tuple[bytes, str, int]  # the id of a token, the network address that ended it, when it expires (ms)


def read_logouts(path: Path) -> list[LogoutRow]:
    """The rows in the file at *path*, none if there is no file yet; `SecretFileError` if it is malformed."""
    if not path.exists():
        return []
    data = read_secret(path)
    try:
        return [(bytes.fromhex(id), str(network), int(expires)) for id, network, expires in json.loads(data)["ended"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SecretFileError(
            f"{path} holds no logouts ({error}); move it away, and those tokens are valid again until they expire"
        ) from None


class ToldLogout(msgspec.Struct):
    """The *logout* of the token with that id, as gateways of a cluster send it to each other."""

    logout: Annotated[bytes, Meta(max_length=64)]
    network: Annotated[str, Meta(max_length=64)]
    expires: Annotated[int, Meta(ge=0, le=MAX_NUMBER)]


_TOLD: Final = msgspec.json.Decoder(ToldLogout)


class Logouts:
    """The ids of logged-out tokens. `on_change` is called when the file has to be written, `tell` with each logout.

    `when_written` calls back once the file has all of them, with True, or could not be written, with False.
    """

    def __init__(self, known: list[LogoutRow]) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.tell: Callable[[bytes], None] = lambda _data: None
        self.when_written: Callable[[Callable[[bool], None]], None] = lambda call: call(True)
        self.count = 0  # of all that were ever known, also those that are forgotten
        self._ended: dict[bytes, tuple[str, int]] = {}
        self._by_network: dict[str, dict[bytes, None]] = {}  # by network address, oldest first
        for id, network, expires in known:
            self._put(id, network, expires)

    def __contains__(self, id: bytes) -> bool:
        return id in self._ended

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, id: bytes, network: str, expires: int, now: int) -> None:
        """Record the logout of the token *id*, and tell the other gateways of a cluster; *now* is in ms."""
        if id not in self._ended:
            self._add(id, network, expires, now)
            self.tell(msgspec.json.encode(ToldLogout(id, network, expires)))

    def hear(self, data: bytes, now: int) -> None:
        """Record the logout that another gateway sent; raises `ValueError` if it is not a logout."""
        fact = _TOLD.decode(data)
        if fact.logout not in self._ended and fact.expires >= now:
            self._add(fact.logout, fact.network, fact.expires, now)

    def _add(self, id: bytes, network: str, expires: int, now: int) -> None:
        if len(self._ended) >= MAX_LOGOUTS:
            self._sweep(now)
        if len(self._ended) >= MAX_LOGOUTS:
            most = max(self._by_network.values(), key=len)
            self._drop(next(iter(most)))
        self._put(id, network, expires)
        self.on_change()

    def data(self) -> bytes:
        """The contents of the file."""
        rows: list[Any] = [[id.hex(), network, expires] for id, (network, expires) in self._ended.items()]
        return json.dumps({"ended": rows}).encode()

    def _put(self, id: bytes, network: str, expires: int) -> None:
        self.count += 1
        self._ended[id] = network, expires
        self._by_network.setdefault(network, {})[id] = None

    def _sweep(self, now: int) -> None:
        """Forget expired tokens."""
        for id in [id for id, (_, expires) in self._ended.items() if expires < now]:
            self._drop(id)

    def _drop(self, id: bytes) -> None:
        network, _ = self._ended.pop(id)
        del self._by_network[network][id]
        if not self._by_network[network]:
            del self._by_network[network]
