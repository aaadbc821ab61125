"""uvicorn's HTTP protocol with time limits: to send the head of a request, to read a response, to shut down."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .serve import HANDSHAKE_SECONDS, LINGER_SECONDS, STALLED_SECONDS


class TimedHttp(HttpToolsProtocol):
    """A connection that is aborted if its client sends no complete head, or reads no part of a response, in time."""

    head_seconds = HANDSHAKE_SECONDS
    stalled_seconds = STALLED_SECONDS
    _head_timer: asyncio.TimerHandle | None = None  # for the head of a request
    _head_size = 0  # bytes of the head so far
    _stall_timer: asyncio.TimerHandle | None = None  # for the client to read again

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_timers()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The gateway stops: abort the connection if it has not ended soon after the goodbye."""
        super().shutdown()
        if not self.transport.is_closing():
            self.loop.call_later(2 * LINGER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """The client does not read; abort the connection if that lasts."""
        super().pause_writing()
        self._watch_stall(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stop_stall_timer()
        super().resume_writing()

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        self._stop_stall_timer()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_stall(self, left: int) -> None:
        self._stall_timer = self.loop.call_later(self.stalled_seconds, self._check_stall, left)

    def _check_stall(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        else:
            self._watch_stall(left)

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_size = 0
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
