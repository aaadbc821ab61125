"""Which channels a listener asks for: by name, and by patterns.

A pattern is the beginning of names, and a star: `news/*`, or `*` for every channel. Names may contain a star, so only
where a caller may give either one is a star taken for a pattern.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.channels import valid_name
from gateway.core.errors import UnknownChannel

from .problems import Problem, shortened

STAR = "*"
MAX_SELECTED = 100  # channels and patterns of one event stream

NOTHING_SELECTED = "name what to listen to: `channels=a,b` or `channels=news/*`"
TOO_MANY = f"an event stream has at most {MAX_SELECTED} channels and patterns; open another one"
NO_PATTERN = "%s is not a pattern: that is the beginning of names and a star, `news/*`"
AMBIGUOUS = "%s is neither a name nor a pattern, which ends with its only star; give a name with a star as `channel=`"


@dataclass(frozen=True, slots=True)
class Selection:
    """Channels by name, and by the *prefixes* of their names."""

    channels: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    def covers(self, channel: str) -> bool:
        """Whether *channel* is selected."""
        return channel in self.channels or channel.startswith(self.prefixes)

    @property
    def only(self) -> str | None:
        """The one channel that is selected; None if others are too, or may be."""
        return self.channels[0] if len(self.channels) == 1 and not self.prefixes else None


def parse_selection(lists: Iterable[str], names: Iterable[str], patterns: Iterable[str] = ()) -> Selection:
    """Return what *lists*, of names and patterns between commas, *names* and *patterns*, taken as they are, select.

    Raises `UnknownChannel`, or `Problem` 422.
    """
    channels, prefixes = dict.fromkeys(names), dict.fromkeys(map(prefix_of, patterns))
    for item in (item for text in lists for item in text.split(",")):
        if STAR not in item:
            channels[item] = None
        elif item.endswith(STAR) and STAR not in item[:-1]:
            prefixes[prefix_of(item)] = None
        else:
            raise Problem("invalid-parameter", AMBIGUOUS % shortened(item))
    if not channels and not prefixes:
        raise Problem("invalid-parameter", NOTHING_SELECTED)
    if len(channels) + len(prefixes) > MAX_SELECTED:
        raise Problem("invalid-parameter", TOO_MANY)
    if (invalid := next((name for name in channels if not valid_name(name)), None)) is not None:
        raise UnknownChannel(invalid)
    return Selection(tuple(channels), tuple(prefixes))


def prefix_of(pattern: str) -> str:
    """Return the prefix in *pattern*; raise `Problem` 422 if it is no pattern."""
    prefix = pattern[:-1]
    if not pattern.endswith(STAR) or STAR in prefix or (prefix and not valid_name(prefix)):
        raise Problem("invalid-parameter", NO_PATTERN % shortened(pattern))
    return prefix


def pattern_of(prefix: str) -> str:
    """Return the pattern that selects the channels that begin with *prefix*."""
    return prefix + STAR
