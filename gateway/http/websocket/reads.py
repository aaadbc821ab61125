"""What one connection on `/v1/ws` is to be sent from the log and the lists, made a slice at a time.

Laws of this file. A slice is made in a turn of `AnswerScheduler` and not where its request is handled, so it counts as
a part of a long answer. A connection has one slice under way and asks for its next turn when the client has room for
more, so a client that does not read costs nothing. Answers keep their order; pages of what the client missed come
between them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gateway.core.answer_scheduler import AnswerScheduler
from gateway.core.errors import INTERNAL_ERROR, RequestError
from gateway.core.message import Form
from gateway.core.session import Session

MAX_SLICES: Final = 16  # that wait; beyond them the connection's next request waits

logger = logging.getLogger(__name__)

Slice = Callable[[], None]  # reads something and queues the frames; what it raises ends the connection


class Reads:
    """The slices that *session* waits for. *send_page* sends a page of what it missed; False if there is none now."""

    def __init__(self, session: Session, scheduler: AnswerScheduler, send_page: Callable[[], bool]) -> None:
        self._session = session
        self._scheduler = scheduler
        self._send_page = send_page
        self._slices: deque[Slice] = deque()
        self._behind = False  # there may be a page of what was missed
        self._page_is_next = False  # pages and slices take turns
        self._under_way = False  # a turn was asked for, or what the last one brought waits to be read

    @property
    def is_full(self) -> bool:
        """Whether no further request may be handled now."""
        return len(self._slices) >= MAX_SLICES

    def add(self, slices: Iterable[Slice]) -> None:
        """Queue *slices*, to be made in this order."""
        self._slices += slices
        self._continue()

    def catch_up(self) -> None:
        """Send what the client missed."""
        self._behind = True
        self._continue()

    def discard(self) -> None:
        """Discard all slices and pages that are queued."""
        self._slices.clear()
        self._behind = False

    def _continue(self) -> None:
        if not self._under_way and (self._slices or self._behind):
            self._under_way = True
            self._scheduler.schedule(self._take_turn, self._session.network)

    def _take_turn(self) -> None:
        session = self._session
        if session.closing is not None:
            self.discard()
            return
        try:
            self._make_slice()
        except RequestError as error:  # the log cannot be read; a client that reconnects continues where this ends
            session.close(1011, str(error))
        except Exception:  # a bug in one session must not affect the others
            logger.exception("a connection failed; the others go on")
            session.close(1011, INTERNAL_ERROR)
        else:
            session.stream(self._when_read())

    def _make_slice(self) -> None:
        self._page_is_next = not self._page_is_next
        if self._behind and (self._page_is_next or not self._slices):
            self._behind = self._send_page()
        elif self._slices:
            self._slices.popleft()()

    def _when_read(self) -> Iterator[Form]:
        """Ask for the next turn: the outbox pulls this once it has room for more."""
        self._under_way = False
        self._continue()
        yield from ()
