"""What the members of a cluster must have in common: settings, secrets, and the version of their signals.

Each member tells its *terms*, by name, when it joins and when another member has different ones. Of two members that
never agreed, the one that started later is refused. Two that agreed continue if the settings of one change later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from gateway.core.bounded_maps import BoundedMap

from .batch import name_of
from .roster import MAX_MEMBERS, epoch_of
from .signals import MAX_TEXT, PROTOCOL, Heartbeat, Signal, Terms

OLDEST: Final = 1  # the oldest `PROTOCOL` of a member with which this program works
MAX_SHOWN: Final = 3  # differences that a text names
FILES: Final = "keys/"  # what names of secret files begin with
ADVICE: Final = (
    "make them equal; to change a setting of a cluster, change it at every member and stop all before the first starts "
    "again (docs/how-to/cluster.md)"
)


def stated(value: object) -> str:
    """The text by which members compare *value*, which is JSON; long ones are shortened to a digest."""
    data = msgspec.json.encode(value, order="deterministic")
    return data.decode() if len(data) <= MAX_TEXT // 4 else f"{data[:60].decode(errors='ignore')}... ({_digest(data)})"


class Agreement:
    """Compares the terms of the member *me* with those of others; *tell* sends a signal to all or to one.

    *terms* returns the terms as they are now. *refuse* is told why this gateway cannot be a member.
    """

    def __init__(
        self,
        me: str,
        version: str,
        terms: Callable[[], Mapping[str, str]],
        tell: Callable[[Signal, str], None],
        refuse: Callable[[str], None],
    ) -> None:
        self.differences: dict[str, list[str]] = {}  # by member: the names of the terms that differ
        self._me = me
        self._version = version
        self._read = terms
        self._tell = tell
        self._refuse = refuse
        self._agreed = BoundedMap[str, None](MAX_MEMBERS)  # members with which this one has agreed once, also if gone
        self._compared: dict[str, tuple[str, str]] = {}  # by member: the digests of its terms and of ours
        self._terms = dict[str, str]()
        self.digest = ""  # of the terms; empty until they are read

    def refresh(self) -> None:
        """Read the terms again; call this when the settings have changed."""
        self._terms = dict(self._read())
        self.digest = _digest_of(self._terms)

    def ask(self, member: str = "") -> None:
        """Tell the terms to all, or to *member*; they answer with their own."""
        self._tell(self._mine(asks=True), member)

    def answer(self, member: str) -> None:
        """Tell the terms to *member*, which asked for them."""
        self._tell(self._mine(asks=False), member)

    def take_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Ask for the terms of the member that sent *heartbeat* if they differ; older programs send no digest."""
        self._check_version(heartbeat.member, heartbeat.version, heartbeat.speaks, heartbeat.oldest)
        if heartbeat.terms == self.digest:
            self._agree(heartbeat.member)
        elif heartbeat.terms and self._compared.get(heartbeat.member) != (heartbeat.terms, self.digest):
            self.ask(heartbeat.member)

    def take(self, terms: Terms) -> None:
        """Compare with the *terms* of another member, and answer with ours if it asks."""
        if terms.asks:
            self.answer(terms.member)
        self._check_version(terms.member, terms.version, terms.speaks, terms.oldest)
        theirs = terms.terms
        found = sorted(name for name, mine in self._terms.items() if theirs.get(name, mine) != mine)
        if not found:
            self._agree(terms.member)
            return
        if len(self.differences) < MAX_MEMBERS:
            self._compared[terms.member] = _digest_of(theirs), self.digest
            self.differences[terms.member] = found
        if terms.member not in self._agreed and self._is_later_than(terms.member):
            self._refuse(self._text(terms.member, theirs, found))

    def gone(self, member: str) -> None:
        """Forget *member*, but not whether it agreed: it may be back when the servers answer again."""
        self.differences.pop(member, None)
        self._compared.pop(member, None)

    def _agree(self, member: str) -> None:
        self._agreed[member] = None
        self.differences.pop(member, None)

    def _mine(self, *, asks: bool) -> Terms:
        return Terms(self._me, self._version, self._terms, asks, PROTOCOL, OLDEST)

    def _is_later_than(self, member: str) -> bool:
        return (epoch_of(self._me), self._me) > (epoch_of(member), member)

    def _check_version(self, member: str, version: str, speaks: int, oldest: int) -> None:
        if (speaks >= OLDEST and oldest <= PROTOCOL) or not self._is_later_than(member):
            return
        older = f"the member {name_of(member)}" if speaks < OLDEST else "this gateway"
        self._refuse(
            f"this gateway (version {self._version}, protocol {PROTOCOL}) and the member {name_of(member)} (version "
            f"{version}, protocol {speaks}) do not understand each other: {older} is too old. Remedy: upgrade it, to a "
            "version between the two first (docs/how-to/cluster.md)"
        )

    def _text(self, member: str, theirs: Mapping[str, str], names: list[str]) -> str:
        shown = [
            f"{name} is another file"
            if name.startswith(FILES)
            else f"{name} is {self._terms[name]} here and {theirs[name]} there"
            for name in names[:MAX_SHOWN]
        ]
        more = f"; and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
        return f"this gateway differs from the member {name_of(member)}: {'; '.join(shown)}{more}. Remedy: {ADVICE}"


def _digest_of(terms: Mapping[str, str]) -> str:
    return _digest(msgspec.json.encode(terms, order="deterministic"))


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
