"""Rights: a verb and a pattern of channels, granted or denied, and the order in which they are matched.

Laws of this file. The first right in a list that covers a verb on a channel decides; if none does, the verb is denied.
`denials_first` puts denials before grants, so the order within one list has no effect. A question that concerns no one
channel has an empty channel name: only a pattern that covers every channel grants it, and a denial of the verb on any
channel denies it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import translate

from gateway.core.channels import INBOX, MAX_NAME, valid_name

VERBS = ("subscribe", "publish", "direct", "history", "admin")
ALL = "*"  # every verb but admin in a grant, every verb in a denial
DENY_PREFIX = "!"  # the prefix of a denial
_WILD = re.compile(r"[*?\[]")
_SET = re.compile(r"\[!?\]?[^\]]*\]")  # a set of characters, which matches one


@dataclass(frozen=True, slots=True)
class Right:
    """Permission to use one verb (`*`: all but admin) on the channels that match a pattern; with `!`, its denial."""

    verb: str
    pattern: str
    denies: bool = False
    _matches: Callable[[str], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_matches", _matcher(self.pattern))

    @classmethod
    def parse(cls, text: str) -> Right:
        """Parse `verb:pattern` or `!verb:pattern`; raises a `ValueError` that says what is wrong."""
        denies = text.startswith(DENY_PREFIX)
        verb, colon, pattern = text.removeprefix(DENY_PREFIX).partition(":")
        if not colon or not pattern or verb not in (*VERBS, ALL):
            raise ValueError(f"{text!r} is not VERB:PATTERN or !VERB:PATTERN with a verb of {', '.join(VERBS)} or *")
        if (reason := _impossible(pattern)) is not None:
            raise ValueError(f"{text!r} matches no channel: {reason}")
        return cls(verb, pattern, denies)

    def __str__(self) -> str:
        return f"{DENY_PREFIX if self.denies else ''}{self.verb}:{self.pattern}"

    def covers(self, verb: str, channel: str) -> bool:
        """Whether this right applies to *verb* on *channel*."""
        if self.verb != verb and (self.verb != ALL or (verb == "admin" and not self.denies)):
            return False
        return bool(self._matches(channel)) or (self.denies and not channel)


Rights = tuple[Right, ...]


def denials_first(rights: Iterable[Right]) -> Rights:
    """*rights* in the order in which they are matched: denials first."""
    return tuple(sorted(rights, key=lambda right: not right.denies))


def first_match(rights: Rights, verb: str, channel: str) -> Right | None:
    """The first of *rights* that covers *verb* on *channel*; None, which refuses, if there is none."""
    for right in rights:
        if right.covers(verb, channel):
            return right
    return None


def _matcher(pattern: str) -> Callable[[str], object]:
    """A function that matches channels against *pattern* as `fnmatchcase` does; most patterns are names, or `*`."""
    if pattern == "*":
        return _always
    if _WILD.search(pattern) is None:
        return pattern.__eq__
    return re.compile(translate(pattern)).match


def _always(_channel: str) -> bool:
    return True


def _impossible(pattern: str) -> str | None:
    """Why no channel name can match *pattern*; None if one can."""
    if INBOX in pattern:
        return f"no name has {INBOX!r} in it"
    if not all(map(valid_name, pattern)):
        return "no name has control characters"
    if len(_SET.sub("x", pattern).replace("*", "")) > MAX_NAME:
        return f"no name has more than {MAX_NAME} characters"
    return None
