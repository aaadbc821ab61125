"""Who may do what: principals, and the one question that every session asks at every verb.

Authentication is on as soon as there is one key or one grant; until then everybody may do everything but administer.
Rights belong to a key, or by `[auth.grants]` to a principal without one, such as `sprout:anonymous`. In which order
they are looked at is in `Access.rules`; a question that cannot be decided is answered with no. What adapters need of
keys, rights and files of secrets, they import from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import structlog

from gateway.core.channels import OWN
from gateway.core.networks import network
from gateway.core.principal import Principal

from .keyfile import USUAL, Key, KeyFile, digest, now_ms
from .origins import Origins
from .rights import VERBS, Right, Rights, deciding, ordered
from .secretfile import BadSecret, read_secret, write_secret

# fmt: off
__all__ = [
    "ANYBODY", "KEY", "USUAL", "VERBS",
    "Access", "BadSecret", "Key", "KeyFile", "Right", "Rule", "Verdict",
    "bearer", "digest", "identity_of", "read_secret", "write_secret",
]
# fmt: on

KEY = "key:"  # how the principal of a key begins
ANYBODY = "anonymous"  # how the principal of those who did not say who they are ends; alone: of whatever protocol
NOBODY = "(no key)"  # the durable identity of all who come by REST without a key
MAX_GATHERED = 4096  # principals whose rights are kept together; others are gathered again
MAX_KEPT_NAME = 128  # characters of their names: peers choose some of these, and memory is not theirs to fill

logger = structlog.get_logger("trellis")


class Rule(NamedTuple):
    """A right, and whose it is: of a key, a grant, or given by users."""

    right: Right
    source: str


class Verdict(NamedTuple):
    """Whether something is allowed, and why, in words."""

    allowed: bool
    reason: str


@dataclass
class Access:
    """Answers who somebody is, and whether they may. *clock* gives ms since 1970.

    Whoever remembers an answer adds to `on_change` what looks again: it is called after keys, grants or given rights
    have changed, and must not raise.
    """

    keys: Iterable[Key] = ()
    grants: Mapping[str, Iterable[str]] = field(default_factory=dict)
    origins: Origins = field(default_factory=Origins)
    clock: Callable[[], int] = now_ms

    def __post_init__(self) -> None:
        self.enabled = False
        self.on_change: list[Callable[[], None]] = []
        self.used: set[str] = set()  # ids of keys that somebody showed; `LastUse` takes them
        self._given: dict[str, Rights] = {}
        self._rights_of = lru_cache(maxsize=MAX_GATHERED)(self._gather)
        self.grant(self.grants)
        self.use(self.keys)

    # What operators and users say

    def use(self, keys: Iterable[Key]) -> None:
        """Take these keys in the place of the former ones; authentication that is on stays on, even without a key."""
        keys = list(keys)
        rights = {key.id: ordered(map(Right.parse, key.rights)) for key in keys}
        self._keys = {key.id: key for key in keys}
        self._ids = {key.hash: key.id for key in keys}
        self._key_rights = rights
        self.enabled = self.enabled or bool(keys)
        self._expire()
        self._changed()

    def grant(self, grants: Mapping[str, Iterable[str]]) -> None:
        """Take these grants in the place of the former ones."""
        self._grants = {name: ordered(map(Right.parse, rights)) for name, rights in grants.items()}
        self.enabled = self.enabled or bool(self._grants)
        self._changed()

    def give(self, name: str, rights: Iterable[Right]) -> None:
        """Let the principal called *name* have these *rights* too, in the place of those it was given before.

        They are what users give to each other; authentication is switched on by operators alone.
        """
        given = tuple(rights)
        if given == self._given.get(name, ()):
            return
        self._given[name] = given
        if not given:
            del self._given[name]
        self._changed()

    def tick(self) -> None:
        """A second has passed: keys that have expired are worth nothing from now on."""
        over = self._expire()
        for key in over:
            logger.info("a key has expired", key=key.name, id=key.id)
        if over:
            self._changed()

    # Who somebody is

    def find(self, secret: str) -> Key | None:
        """The key that *secret* is, None if it is none, or has expired."""
        id = self._ids.get(digest(secret))
        if id is None or not self._keys[id].lives(self.clock()):
            return None
        self.used.add(id)
        return self._keys[id]

    def name_of(self, secret: str) -> str | None:
        """The name of the key that *secret* is, None if it is none."""
        key = self.find(secret)
        return None if key is None else key.name

    def holder(self, secret: str, address: str = "") -> Principal | None:
        """The principal behind *secret*, who came from *address*; None if it is no key of ours."""
        key = self.find(secret)
        return None if key is None else Principal(KEY + key.name, address, key.id)

    def authenticate(self, protocol: str, token: str | None, address: str = "") -> Principal | None:
        """The principal behind a connection; None when *token* was given and is no key of ours."""
        address = network(address)
        return Principal(f"{protocol}:{ANYBODY}", address) if token is None else self.holder(token, address)

    def ended(self, principal: Principal) -> bool:
        """Whether *principal* came with a key that was removed or has expired."""
        return bool(principal.key) and principal.key not in self._keys

    def listed(self) -> list[Key]:
        """The keys that are worth something now."""
        return list(self._keys.values())

    def ids(self) -> list[str]:
        """Their ids."""
        return list(self._keys)

    # What they may

    def allowed(self, principal: Principal, verb: str, channel: str) -> bool:
        """Whether *principal* may *verb* on *channel*: the one place where that is decided."""
        try:
            verb = _needed(verb, channel)
            if not self.enabled:
                return verb != "admin"
            found = deciding(self._rights(principal), verb, channel)
            return found is not None and not found.takes
        except Exception as error:  # whatever it is: who cannot be told to have a right has none
            logger.error("a right cannot be decided, and is refused", error=repr(error))
            return False

    def verdict(self, principal: Principal, verb: str, channel: str) -> Verdict:
        """What `allowed` answers, and the rule that decides."""
        asked = _needed(verb, channel)
        if not self.enabled:
            return Verdict(asked != "admin", "there is no key and no grant: everybody may do everything but administer")
        for right, source in self.rules(principal):
            if right.covers(asked, channel):
                return Verdict(not right.takes, f"{right} of {source}")
        needs = f" ({verb} needs {asked} here)" if asked != verb else ""
        return Verdict(False, f"no rule of {principal.name} covers it{needs}")

    def known(self, principal: Principal) -> bool:
        """Whether *principal* may do anything at all, on whatever channel."""
        return not self.enabled or not all(right.takes for right in self._rights(principal))

    def holders(self, verb: str, channels: Iterable[str]) -> list[str]:
        """The principals without a key that have a right of their own to *verb* on one of *channels*."""
        channels = tuple(channels)
        names = dict.fromkeys((*self._grants, *self._given))
        own = {name: (*self._grants.get(name, ()), *self._given.get(name, ())) for name in names}
        return [name for name, rights in own.items() if any(_gives(rights, verb, channel) for channel in channels)]

    def rules(self, principal: Principal) -> list[Rule]:
        """Every rule about *principal*, in the order in which they are looked at: the first that covers it decides.

        A key has its own rights and no other. Who has none: first the grant in its own name, then that of the
        strangers of its protocol, then that of all strangers, then what users gave it, then what they gave everybody.
        In each of these what takes away comes before what gives.
        """
        if principal.key or principal.name.startswith(KEY):
            rights = self._key_rights.get(principal.key, ())
            return [Rule(right, f"the key {principal.name.removeprefix(KEY)!r}") for right in rights]
        names = _names(principal.name)
        granted = [Rule(right, f"auth.grants {name!r}") for name in names for right in self._grants.get(name, ())]
        given = [Rule(right, f"what users gave {name!r}") for name in names for right in self._given.get(name, ())]
        return granted + given

    def unwelcome(self, origin: str | None, host: str | None) -> str | None:
        """Why a request with these headers may not come in; None if it may."""
        return self.origins.refusal(origin, host, keyless=not self.enabled)

    # How it is looked up

    def _rights(self, principal: Principal) -> Rights:
        """The rights of `rules`; of a key without asking for more than its id."""
        if principal.key:
            return self._key_rights.get(principal.key, ())
        name = principal.name
        return self._rights_of(name) if len(name) <= MAX_KEPT_NAME else self._gather(name)

    def _gather(self, name: str) -> Rights:
        return tuple(rule.right for rule in self.rules(Principal(name)))

    def _expire(self) -> list[Key]:
        """Forget the keys whose time is over, and tell which."""
        now = self.clock()
        over = [key for key in self._keys.values() if not key.lives(now)]
        for key in over:
            del self._keys[key.id], self._ids[key.hash], self._key_rights[key.id]
        return over

    def _changed(self) -> None:
        self._rights_of.cache_clear()
        for call in self.on_change:
            call()


def _needed(verb: str, channel: str) -> str:
    """The verb that is needed: only who administers speaks on the gateway's own channels."""
    return "admin" if channel.startswith(OWN) and verb in ("publish", "direct") else verb


def _names(name: str) -> list[str]:
    """Whose rights the principal called *name* has: to say who one is takes nothing away."""
    return list(dict.fromkeys((name, f"{name.partition(':')[0]}:{ANYBODY}", ANYBODY)))


def _gives(rights: Rights, verb: str, channel: str) -> bool:
    found = deciding(rights, verb, channel)
    return found is not None and not found.takes


def identity_of(key: str | None) -> str:
    """The durable identity of the key with this name, or of all who have none; no two are the same."""
    if key is None:
        return NOBODY
    return KEY + key if key.endswith(NOBODY) else key


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization: Bearer` header."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
