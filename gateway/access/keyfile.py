"""The file of API keys: names, digests, rights and times of expiry, of mode 0600.

A secret is 32 random bytes, of which only the SHA-256 is kept: it cannot be guessed, and looking a digest up does not
reveal how much of a guess was right. Every key has a random id. Rights and connections belong to the id, so that the
rights of a removed key are gone even if a new key has its name; the name is for people, and is shown as the sender.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time_ns
from typing import Any

from gateway.core.message import REST

from .right_patterns import Right
from .secretfile import SecretFileError, read_secret, write_secret

KEYS_FILE = "api-keys.json"  # in the folder of secrets
SECRET_PREFIX = "trellis_"
DEFAULT_RIGHTS = ("subscribe:*", "publish:*", "direct:*", "history:*")  # the rights of a key that is added without any
RESERVED_NAMES = (REST,)  # the protocol of HTTP callers; a key of that name could be taken for it
MAX_KEY_NAME = 64  # characters; the name is shown with every message
MAX_EXPIRY = 253_402_300_800_000  # ms since 1970: the year 10000, which is beyond any date
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{16}")


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time_ns() // 1_000_000


def digest(secret: str) -> str:
    """The SHA-256 in hex of *secret*, which is all that is kept of it; any text has one, even with lone surrogates."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as it is kept: the digest of its secret, its rights as text, and its expiry (ms since 1970, or None).

    Without an *id* (older files have none) the id is derived from the digest, so that it is always the same.
    """

    name: str
    hash: str
    rights: tuple[str, ...] = DEFAULT_RIGHTS
    id: str = ""
    expires: int | None = None

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", digest(f"id of {self.hash}")[:16])

    def is_valid_at(self, now: int) -> bool:
        """Whether it has not expired at *now* (ms since 1970)."""
        return self.expires is None or now < self.expires


@dataclass
class KeyFile:
    """The key file of a gateway. A lock is held during changes, so that two commands at once lose nothing."""

    path: Path
    _loaded: tuple[int, int] | None = field(default=None, init=False)

    def load(self) -> list[ApiKey]:
        """All keys, even expired ones; none if there is no file. Raises `SecretFileError` if the file is damaged."""
        self._loaded = self._version()
        if self._loaded is None:
            return []
        data = read_secret(self.path)
        try:
            return keys_of(data)
        except ValueError as error:
            raise SecretFileError(f"{self.path} is not a key file ({error}); restore it from a backup") from None

    def changed(self) -> bool:
        """Whether the file has changed since the last `load`."""
        return self._version() != self._loaded

    def add(self, name: str, rights: Iterable[str] = DEFAULT_RIGHTS, expires: int | None = None) -> str:
        """Add a key called *name* and return its secret, which is not kept."""
        rights = tuple(rights)
        check_name(name)
        check_rights(rights)
        with self._locked():
            keys = self.load()
            if any(key.name == name and key.is_valid_at(now_ms()) for key in keys):
                raise ValueError(f"there is a key called {name!r} already; remove it first, or rotate it")
            kept = [key for key in keys if key.name != name]
            return self._save_with(kept, name, rights, expires)

    def rotate(self, name: str, overlap_ms: int) -> str:
        """Add a new secret for the key called *name* and return it; the old one expires in *overlap_ms*."""
        with self._locked():
            keys, now = self.load(), now_ms()
            old = [key for key in keys if key.name == name and key.is_valid_at(now)]
            if not old:
                raise ValueError(f"there is no key called {name!r}; `trellis key list` lists the keys")
            newest = old[-1]
            ends = now + overlap_ms
            ending = {key.id: replace(key, expires=min(ends, key.expires or ends)) for key in old}
            kept = [ending.get(key.id, key) for key in keys if key.name != name or key.is_valid_at(now)]
            return self._save_with([key for key in kept if key.is_valid_at(now)], name, newest.rights, newest.expires)

    def remove(self, name: str) -> bool:
        """Remove every key called *name*; False if there is none."""
        with self._locked():
            keys = self.load()
            kept = [key for key in keys if key.name != name]
            self._save(kept)
            return len(kept) < len(keys)

    def replace(self, before: list[ApiKey], keys: list[ApiKey]) -> bool:
        """Save *keys* if the file has the keys *before*; return whether it had."""
        with self._locked():
            if self.load() != before:
                return False
            self._save(keys)
            return True

    def _save_with(self, keys: list[ApiKey], name: str, rights: tuple[str, ...], expires: int | None) -> str:
        secret = SECRET_PREFIX + secrets.token_urlsafe(32)
        self._save([*keys, ApiKey(name, digest(secret), rights, secrets.token_hex(8), expires)])
        return secret

    def _version(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _save(self, keys: list[ApiKey]) -> None:
        write_secret(self.path, text_of(keys))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file against changes by others."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def text_of(keys: Iterable[ApiKey]) -> bytes:
    """The text of a key file with *keys*."""
    return json.dumps([_to_json(key) for key in keys], indent=1).encode()


def keys_of(data: bytes) -> list[ApiKey]:
    """The keys in the text of a key file; raises `ValueError` if it is not one."""
    try:
        rows = json.loads(data)
        if not isinstance(rows, list):
            raise TypeError("no list")
        keys = [_from_json(row) for row in rows]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if len({key.id for key in keys}) < len(keys) or len({key.hash for key in keys}) < len(keys):
        raise ValueError("it has a key twice")
    return keys


def check_name(name: str) -> None:
    """Raise `ValueError` unless *name* is valid for a key."""
    if not 0 < len(name) <= MAX_KEY_NAME or not name.isprintable():
        raise ValueError(f"a key's name has 1 to {MAX_KEY_NAME} printable characters, not {name!r}")
    if name in RESERVED_NAMES:
        raise ValueError(f"no key can be called {name!r}, the name of callers without a key")


def check_rights(rights: Sequence[str]) -> None:
    """Raise `ValueError` unless *rights* are valid, and at least one grants something."""
    if all(Right.parse(right).denies for right in rights):
        raise ValueError("these rights grant nothing; add a rule without `!`")


def _to_json(key: ApiKey) -> dict[str, Any]:
    expires = {} if key.expires is None else {"expires": key.expires}
    return {"id": key.id, "name": key.name, "hash": key.hash, "rights": list(key.rights), **expires}


def _from_json(row: dict[str, Any]) -> ApiKey:
    name, hash, rights, id, expires = row["name"], row["hash"], row["rights"], row.get("id", ""), row.get("expires")
    if not (isinstance(name, str) and isinstance(rights, list) and _DIGEST.fullmatch(hash)):
        raise ValueError("an invalid name, digest or list of rights")
    if (id and not _ID.fullmatch(id)) or not (expires is None or (type(expires) is int and 0 < expires < MAX_EXPIRY)):
        raise ValueError("an invalid id or expiry")
    for right in rights:
        Right.parse(right)
    return ApiKey(name, hash, tuple(rights), id, expires)
