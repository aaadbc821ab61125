"""Ranges of time in the query of a request: `since=10m`, or `from` and `to` as RFC 3339 or milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

from gateway.core.durations import EXAMPLES, milliseconds_of
from gateway.storage.index_queries import TimeCursor

from .problems import Problem, shortened

MAX_TIME: Final = 1 << 61  # ms; beyond every author's time

_MILLISECONDS: Final = re.compile(r"-?[0-9]{1,15}")
_CURSOR: Final = re.compile(r"(-?[0-9]{1,18})\.([0-9]{1,18})")
_DATE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_LOST_PLUS: Final = re.compile(r" (\d\d:\d\d)$", re.ASCII)  # a plus sign that was not encoded means a space in a query


class TimeRange(NamedTuple):
    """From *since* until before *until* (ms since 1970); None is no bound."""

    since: int | None = None
    until: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound."""
        return self != (None, None)


def parse_range(since: str | None, start: str | None, end: str | None, now: int) -> TimeRange:
    """Return the range of the parameters `since`, `from` and `to`; raise `Problem` 422 if one is not valid.

    *now* is in ms.
    """
    if since is not None and start is not None:
        raise Problem("invalid-parameter", "since, from: give one of them")
    if since is not None:
        return TimeRange(now - _duration(since), _time("to", end))
    return TimeRange(_time("from", start), _time("to", end))


def parse_cursor(text: str | None) -> TimeCursor | None:
    """Return the place that the parameter `cursor` names; raise `Problem` 422 if it is not valid."""
    if text is None:
        return None
    if (match := _CURSOR.fullmatch(text)) is None:
        raise Problem("invalid-parameter", f"cursor: {shortened(text)} is not one that `next` had")
    return TimeCursor(int(match[1]), int(match[2]))


def _duration(text: str) -> int:
    try:
        return milliseconds_of(text)
    except ValueError:
        detail = f"since: {shortened(text)} is not a duration such as {EXAMPLES}"
        raise Problem("invalid-parameter", detail) from None


def _time(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    text = _LOST_PLUS.sub(r"+\1", text)
    try:
        if _DATE_TIME.fullmatch(text):
            return round(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    detail = f"{name}: {shortened(text)} is neither milliseconds since 1970 nor a time such as 2026-11-23T10:00:00Z"
    raise Problem("invalid-parameter", detail)
