"""uvicorn's HTTP protocol with time limits: for the head of a request, reading a response, being idle, and shutdown.

A timer is started only where something may last: for a head that was not read as a whole, and for a connection that has
none yet when it becomes idle. Starting and cancelling two timers for each request would take a tenth of the time of a
short one.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .portable_shell import HANDSHAKE_SECONDS, LINGER_SECONDS, STALLED_SECONDS


class TimedHttp(HttpToolsProtocol):
    """A connection that is aborted if its client sends no complete head, or reads no part of a response, in time."""

    head_seconds = HANDSHAKE_SECONDS
    stalled_seconds = STALLED_SECONDS
    _in_head = False  # the head of a request is to come, or to be continued
    _heads = 0  # that have begun
    _head_size = 0  # bytes of the head so far
    _head_timer: asyncio.TimerHandle | None = None  # for the rest of the head
    _head_left = 0.0  # seconds for the rest of the head, while the timer is stopped
    _idle_since: float | None = None  # (`loop.time`) the last response, while no request has come
    _idle_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None  # for the client to read again

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_timers()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Say goodbye as the gateway stops, and abort the connection if it has not ended soon after."""
        super().shutdown()
        if not self.transport.is_closing():
            self.loop.call_later(2 * LINGER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """Note that the client does not read, and abort the connection if it reads nothing for long."""
        super().pause_writing()
        self._watch_stall(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        self._stop_stall_timer()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Begin with the request that waits, or become idle."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._check_idle)

    def _check_idle(self) -> None:
        """Close the connection if it was idle for long."""
        self._idle_timer = None
        if self._idle_since is None or self.transport.is_closing():
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._check_idle)
        else:
            self.transport.close()

    def _unset_keepalive_if_required(self) -> None:
        """End idleness: uvicorn calls this when something was read."""
        self._idle_since = None

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        self._stop_stall_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

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

    def _begin_head(self) -> None:
        if not self._in_head:
            self._in_head = True
            self._heads += 1
            self._head_size = 0
            self._head_left = self.head_seconds

    def _end_head(self) -> None:
        self._in_head = False
        self._stop_head_timer()

    def _watch_head(self) -> None:
        """Limit the time for the rest of the head, if there is one."""
        if self._in_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_left, self.transport.abort)

    def _stop_head_timer(self) -> None:
        """Stop the timer; `_watch_head` continues it, so that a head in many pieces gets no more time than another."""
        if self._head_timer is not None:
            self._head_left = max(0.0, self._head_timer.when() - self.loop.time())
            self._head_timer.cancel()
            self._head_timer = None
