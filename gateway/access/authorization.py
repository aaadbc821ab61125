"""Authentication and authorisation: who a principal is, and whether it may use a verb on a channel.

Authentication is enabled as soon as there is one key or one grant; until then everybody may do everything but
administer. Rights belong to a key, or by `[auth.grants]` to a principal without one, such as `sprout:anonymous`.
`Access.rules` defines their order; what cannot be decided is denied. Adapters import what they need of keys, rights and
secret files from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import structlog

from gateway.core.channels import GATEWAY_PREFIX
from gateway.core.networks import network
from gateway.core.principal import Principal

from .keyfile import DEFAULT_RIGHTS, ApiKey, KeyFile, digest, now_ms
from .origins import Origins
from .right_patterns import ALL, VERBS, Right, Rights, denials_first, first_match
from .secretfile import SecretFileError, read_secret, write_secret

# fmt: off
__all__ = [
    "ANONYMOUS",
    "DEFAULT_RIGHTS",
    "KEY_PREFIX",
    "VERBS",
    "Access",
    "AccessDecision",
    "AccessRule",
    "ApiKey",
    "KeyFile",
    "Right",
    "SecretFileError",
    "bearer_token",
    "digest",
    "key_identity",
    "read_secret",
    "write_secret",
]
# fmt: on

KEY_PREFIX = "key:"  # the prefix of the principal of a key
ANONYMOUS = "anonymous"  # an anonymous principal of any protocol, and what follows the protocol in those of one
NO_KEY = "(no key)"  # the durable identity of all REST callers without a key
MAX_CACHED_PRINCIPALS = 4096  # principals whose rights are cached
MAX_CACHED_NAME = 128  # characters of their names; peers choose some of these, and could fill the memory

logger = structlog.get_logger("trellis")


class AccessRule(NamedTuple):
    """A right, and where it comes from: a key, a grant, or users."""

    right: Right
    source: str


class AccessDecision(NamedTuple):
    """Whether something is allowed, and the reason as text."""

    allowed: bool
    reason: str


@dataclass
class Access:
    """Authenticates principals and checks their rights. *clock* gives ms since 1970.

    Code that caches an answer adds a callback to `on_change`, which is called after keys, grants or given rights have
    changed, and must not raise. `look_for_keys` is called before a key is refused because it is unknown.
    """

    keys: Iterable[ApiKey] = ()
    grants: Mapping[str, Iterable[str]] = field(default_factory=dict)
    origins: Origins = field(default_factory=Origins)
    clock: Callable[[], int] = now_ms

    def __post_init__(self) -> None:
        self.enabled = False
        self.on_change: list[Callable[[], None]] = []
        self.look_for_keys: Callable[[], None] = lambda: None
        self.used_key_ids: set[str] = set()  # ids of keys that were presented, until `AccessManager` takes them
        self._given: dict[str, Rights] = {}
        self._rights_of = lru_cache(maxsize=MAX_CACHED_PRINCIPALS)(self._gather)
        self.set_grants(self.grants)
        self.set_keys(self.keys)

    # Keys, grants and given rights

    def set_keys(self, keys: Iterable[ApiKey]) -> None:
        """Replace the keys; authentication that is enabled stays enabled, even without a key."""
        keys = list(keys)
        rights = {key.id: denials_first(map(Right.parse, key.rights)) for key in keys}
        self._keys = {key.id: key for key in keys}
        self._ids = {key.hash: key.id for key in keys}
        self._key_rights = rights
        self.enabled = self.enabled or bool(keys)
        self._expire()
        self._changed()

    def set_grants(self, grants: Mapping[str, Iterable[str]]) -> None:
        """Replace the grants; authentication that is enabled stays enabled."""
        self._grants = {name: denials_first(map(Right.parse, rights)) for name, rights in grants.items()}
        self.enabled = self.enabled or bool(self._grants)
        self._changed()

    def set_given_rights(self, name: str, rights: Iterable[Right]) -> None:
        """Replace the rights that users gave to the principal called *name*, in addition to its grants.

        Given rights do not enable authentication; only operators do.
        """
        given = tuple(rights)
        if given == self._given.get(name, ()):
            return
        self._given[name] = given
        if not given:
            del self._given[name]
        self._changed()

    def tick(self) -> None:
        """Drop the keys that have expired; call this once a second."""
        over = self._expire()
        for key in over:
            logger.info("a key has expired", key=key.name, id=key.id)
        if over:
            self._changed()

    # Authentication

    def find_key(self, secret: str) -> ApiKey | None:
        """The key with this *secret*; None if there is none, or it has expired."""
        hash = digest(secret)
        if hash not in self._ids:
            self.look_for_keys()
        id = self._ids.get(hash)
        if id is None or not self._keys[id].is_valid_at(self.clock()):
            return None
        self.used_key_ids.add(id)
        return self._keys[id]

    def key_name(self, secret: str) -> str | None:
        """The name of the key with this *secret*; None if there is none."""
        key = self.find_key(secret)
        return None if key is None else key.name

    def principal_of(self, secret: str, address: str = "") -> Principal | None:
        """The principal of the key with this *secret*, connected from *address*; None if there is no such key."""
        key = self.find_key(secret)
        return None if key is None else Principal(KEY_PREFIX + key.name, address, key.id)

    def authenticate(self, protocol: str, token: str | None, address: str = "") -> Principal | None:
        """The principal of a connection; None if a *token* was given and is not a valid key."""
        address = network(address)
        return Principal(f"{protocol}:{ANONYMOUS}", address) if token is None else self.principal_of(token, address)

    def key_has_ended(self, principal: Principal) -> bool:
        """Whether *principal* authenticated with a key that was removed or has expired."""
        return bool(principal.key) and principal.key not in self._keys

    def valid_keys(self) -> list[ApiKey]:
        """The keys that have not expired."""
        return list(self._keys.values())

    def valid_key_ids(self) -> list[str]:
        """The ids of the keys that have not expired."""
        return list(self._keys)

    # Authorisation

    def allowed(self, principal: Principal, verb: str, channel: str) -> bool:
        """Whether *principal* may *verb* on *channel*; every check ends here."""
        try:
            verb = _needed(verb, channel)
            if not self.enabled:
                return verb != "admin"
            found = first_match(self._rights(principal), verb, channel)
            return found is not None and not found.denies
        except Exception as error:  # whatever it is, deny
            logger.error("a right cannot be decided, and is refused", error=repr(error))
            return False

    def explain(self, principal: Principal, verb: str, channel: str) -> AccessDecision:
        """What `allowed` returns, with the rule that decides."""
        asked = _needed(verb, channel)
        if not self.enabled:
            return AccessDecision(
                asked != "admin", "there is no key and no grant: everybody may do everything except administer"
            )
        for right, source in self.rules(principal):
            if right.covers(asked, channel):
                return AccessDecision(not right.denies, f"{right} of {source}")
        needs = f" ({verb} needs {asked} here)" if asked != verb else ""
        return AccessDecision(False, f"no rule of {principal.name} covers it{needs}")

    def has_any_right(self, principal: Principal, verbs: Collection[str] = VERBS) -> bool:
        """Whether *principal* may do any of *verbs* on any channel: whether a rule gives it one of them."""
        if not self.enabled:
            return True
        wanted = {*verbs} if {*verbs} == {"admin"} else {*verbs, ALL}
        return any(right.verb in wanted for right in self._rights(principal) if not right.denies)

    def principals_with(self, verb: str, channels: Iterable[str]) -> list[str]:
        """The principals without a key that have a right of their own to *verb* on any of *channels*."""
        channels = tuple(channels)
        names = dict.fromkeys((*self._grants, *self._given))
        own = {name: (*self._grants.get(name, ()), *self._given.get(name, ())) for name in names}
        return [name for name, rights in own.items() if any(_allows(rights, verb, channel) for channel in channels)]

    def rules(self, principal: Principal) -> list[AccessRule]:
        """The rules about *principal* in the order in which they are matched: the first that covers a question decides.

        A key has its own rights only. A principal without a key has the grant in its own name, then that of anonymous
        principals of its protocol, then that of all anonymous principals, then the rights given by users, in the same
        order of names. In each of these, denials come before grants.
        """
        if principal.key or principal.name.startswith(KEY_PREFIX):
            rights = self._key_rights.get(principal.key, ())
            return [AccessRule(right, f"the key {principal.name.removeprefix(KEY_PREFIX)!r}") for right in rights]
        names = _names(principal.name)
        granted = [AccessRule(right, f"auth.grants {name!r}") for name in names for right in self._grants.get(name, ())]
        given = [
            AccessRule(right, f"the rights given to {name!r}") for name in names for right in self._given.get(name, ())
        ]
        return granted + given

    def origin_refusal(self, origin: str | None, host: str | None) -> str | None:
        """Why a request with these headers is refused; None if it is not."""
        return self.origins.refusal(origin, host, keyless=not self.enabled)

    # Lookup

    def _rights(self, principal: Principal) -> Rights:
        """The rights of `rules`; those of a key are found by its id."""
        if principal.key:
            return self._key_rights.get(principal.key, ())
        name = principal.name
        return self._rights_of(name) if len(name) <= MAX_CACHED_NAME else self._gather(name)

    def _gather(self, name: str) -> Rights:
        return tuple(rule.right for rule in self.rules(Principal(name)))

    def _expire(self) -> list[ApiKey]:
        """Remove and return the keys that have expired."""
        now = self.clock()
        over = [key for key in self._keys.values() if not key.is_valid_at(now)]
        for key in over:
            del self._keys[key.id], self._ids[key.hash], self._key_rights[key.id]
        return over

    def _changed(self) -> None:
        self._rights_of.cache_clear()
        for call in self.on_change:
            call()


def _needed(verb: str, channel: str) -> str:
    """The verb whose right is needed: only administrators publish on the gateway's own channels."""
    return "admin" if channel.startswith(GATEWAY_PREFIX) and verb in ("publish", "direct") else verb


def _names(name: str) -> list[str]:
    """The names whose rights the principal called *name* has: its own, and those of anonymous principals."""
    return list(dict.fromkeys((name, f"{name.partition(':')[0]}:{ANONYMOUS}", ANONYMOUS)))


def _allows(rights: Rights, verb: str, channel: str) -> bool:
    found = first_match(rights, verb, channel)
    return found is not None and not found.denies


def key_identity(key: str | None) -> str:
    """The durable identity of the key with this name, or of all callers without one; no two are the same."""
    if key is None:
        return NO_KEY
    return KEY_PREFIX + key if key.endswith(NO_KEY) else key


def bearer_token(header: str | None) -> str | None:
    """The token of an `Authorization: Bearer` header; None if there is none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
