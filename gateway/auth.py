"""Who may do what: principals, API keys, and the one question that every session asks at every verb.

Authentication is on as soon as there is one key or one grant. A key is 32 random bytes, so its SHA-256 is all
that is kept of it: there is nothing to guess. Rights are pairs of a verb and a channel pattern, such as
`publish:lobby` or `*:weather/*`; they belong to a key, or by `[auth.grants]` to a principal without one, such as
`sprout:anonymous`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from .channels import OWN
from .networks import network
from .origins import Origins
from .session import Principal

VERBS = ("subscribe", "publish", "direct", "history", "admin")
PREFIX = "trellis_"
KEY = "key:"  # how the principal of a key begins
ANYBODY = "anonymous"  # how the principal of those who did not say who they are ends
USUAL = ("subscribe:*", "publish:*", "direct:*", "history:*")  # what a key may do unless it says otherwise
MAX_GATHERED = 4096  # principals whose rights are kept together; others are gathered again


@dataclass(frozen=True, slots=True)
class Right:
    """Leave to use one verb (`*`: each but admin) on the channels that match a pattern."""

    verb: str
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Right:
        """Read `verb:pattern`; a `ValueError` says what is wrong with it."""
        verb, colon, pattern = text.partition(":")
        if not colon or not pattern or verb not in (*VERBS, "*"):
            raise ValueError(f"{text!r} is not VERB:PATTERN with a verb of {', '.join(VERBS)} or *")
        return cls(verb, pattern)

    def allows(self, verb: str, channel: str) -> bool:
        """Whether this right covers *verb* on *channel*."""
        return (self.verb == verb or (self.verb == "*" and verb != "admin")) and fnmatchcase(channel, self.pattern)


@dataclass(frozen=True, slots=True)
class Key:
    """An API key as it is kept: its name, its SHA-256 in hex, and its rights as text."""

    name: str
    hash: str
    rights: tuple[str, ...] = USUAL


class KeyFile:
    """The keys of a gateway, in a file of mode 0600."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loaded: tuple[int, int] | None = None

    def load(self) -> list[Key]:
        """All keys; none if there is no file. A `ValueError` says that it is damaged."""
        self._loaded = self._version()
        if self._loaded is None:
            return []
        try:
            return [Key(row["name"], row["hash"], tuple(row["rights"])) for row in json.loads(self.path.read_text())]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{self.path} is no key file: {error!r}") from None

    def changed(self) -> bool:
        """Whether the file is another one than at the last `load`."""
        return self._version() != self._loaded

    def add(self, name: str, rights: Iterable[str] = USUAL) -> str:
        """Make a key called *name* and return it, the only time it is ever shown."""
        keys, rights = self.load(), tuple(rights)
        for right in rights:
            Right.parse(right)
        if any(key.name == name for key in keys):
            raise ValueError(f"there is a key called {name!r} already; remove it first")
        secret = PREFIX + secrets.token_urlsafe(32)
        self._save([*keys, Key(name, digest(secret), rights)])
        return secret

    def remove(self, name: str) -> bool:
        """Remove the key called *name*; False if there is none."""
        keys = self.load()
        kept = [key for key in keys if key.name != name]
        self._save(kept)
        return len(kept) < len(keys)

    def _version(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _save(self, keys: list[Key]) -> None:
        rows = [{"name": key.name, "hash": key.hash, "rights": list(key.rights)} for key in keys]
        write_secret(self.path, json.dumps(rows, indent=1).encode())


def write_secret(path: Path, data: bytes) -> None:
    """Replace the file at *path* by *data*, readable by its owner alone, durably."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.rename(path)


class BadSecret(ValueError):
    """A file of secrets cannot be used: which, why, and what to do about it, in one sentence."""


def read_secret(path: Path) -> bytes:
    """The bytes of the file at *path*; `BadSecret` where others may read it, or its owner may not."""
    try:
        if path.stat().st_mode & 0o077:
            raise BadSecret(f"{path} may be read by others than its owner; make it secret with `chmod 600 {path}`")
        return path.read_bytes()
    except OSError as error:
        raise BadSecret(f"{path} cannot be read: {error.strerror}") from None


def digest(secret: str) -> str:
    """What is kept of an API key."""
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass
class Access:
    """Answers who somebody is, and whether they may."""

    keys: Iterable[Key] = ()
    grants: Mapping[str, Iterable[str]] = field(default_factory=dict)
    origins: Origins = field(default_factory=Origins)

    def __post_init__(self) -> None:
        self.enabled = False
        self._given: dict[str, tuple[Right, ...]] = {}
        self.use(self.keys)

    def use(self, keys: Iterable[Key]) -> None:
        """Take these keys in the place of the former ones; authentication that is on stays on, even without a key."""
        keys = list(keys)
        allowed = {KEY + key.name: key.rights for key in keys} | dict(self.grants)
        self._rights = {name: tuple(map(Right.parse, rights)) for name, rights in allowed.items()}
        self._names = {key.hash: key.name for key in keys}
        self.enabled = self.enabled or bool(self._rights)
        self._rights_of = lru_cache(maxsize=MAX_GATHERED)(self._gather)

    def give(self, name: str, rights: Iterable[Right]) -> None:
        """Let the principal called *name* have these *rights* too, in the place of those it was given before.

        They are what users give to each other; authentication is switched on by operators alone.
        """
        self._given[name] = tuple(rights)
        if not self._given[name]:
            del self._given[name]
        self._rights_of.cache_clear()

    def name_of(self, secret: str) -> str | None:
        """The name of the key that *secret* is, None if it is none."""
        return self._names.get(digest(secret))

    def authenticate(self, protocol: str, token: str | None, address: str = "") -> Principal | None:
        """The principal behind a connection; None when *token* was given and is no key of ours."""
        address = network(address)
        if token is None:
            return Principal(f"{protocol}:{ANYBODY}", address)
        name = self.name_of(token)
        return None if name is None else Principal(KEY + name, address)

    def allowed(self, principal: Principal, verb: str, channel: str) -> bool:
        """Whether *principal* may *verb* on *channel*: the one place where that is decided."""
        if channel.startswith(OWN) and verb in ("publish", "direct"):
            verb = "admin"
        if not self.enabled:
            return verb != "admin" or not channel.startswith(OWN)
        return any(right.allows(verb, channel) for right in self._rights_of(principal.name))

    def known(self, principal: Principal) -> bool:
        """Whether *principal* may do anything at all, on whatever channel."""
        return not self.enabled or bool(self._rights_of(principal.name))

    def holders(self, verb: str, channels: Iterable[str]) -> list[str]:
        """The principals that have a right of their own to *verb* on one of *channels*."""
        named, channels = (*self._rights.items(), *self._given.items()), tuple(channels)
        return [name for name, rights in named if any(r.allows(verb, c) for r in rights for c in channels)]

    def _gather(self, name: str) -> tuple[Right, ...]:
        """What *name* has, and what its protocol's strangers have: to say who one is takes nothing away."""
        names = {name: None} if name.startswith(KEY) else {name: None, f"{name.partition(':')[0]}:{ANYBODY}": None}
        return tuple(right for rights in (self._rights, self._given) for who in names for right in rights.get(who, ()))

    def unwelcome(self, origin: str | None, host: str | None) -> str | None:
        """Why a request with these headers may not come in; None if it may."""
        return self.origins.refusal(origin, host, keyless=not self.enabled)


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization: Bearer` header."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
