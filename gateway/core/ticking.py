"""Ticks the sessions of a bus once a second, a few of them in each turn of the loop: there may be tens of thousands."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from time import perf_counter

from .errors import INTERNAL_ERROR
from .subscriber import Subscriber

TICK_SECONDS = 0.0005  # of ticks, after which others have a turn of the loop

logger = logging.getLogger(__name__)


def tick_sessions(sessions: Collection[Subscriber], now: int) -> Iterator[None]:
    """Tick each of *sessions* that is still in it; yield whenever that took `TICK_SECONDS`. *now* is in ms."""
    begin = perf_counter()
    for session in list(sessions):
        if session in sessions:
            _tick(session, now)
        if perf_counter() - begin > TICK_SECONDS:
            yield
            begin = perf_counter()


def _tick(session: Subscriber, now: int) -> None:
    try:
        session.tick(now)
    except Exception:  # a bug in one session must not stop the rest
        logger.exception("a connection failed; the others go on")
        session.close(1011, INTERNAL_ERROR)
