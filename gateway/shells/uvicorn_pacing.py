"""uvicorn's HTTP protocol, which waits where too much was sent, refused or asked for (`gateway.core.read_pacer`)."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from .first_requests import first_requests_of
from .uvicorn_direct import DirectHttp

if TYPE_CHECKING:
    from gateway.core.read_pacer import Penalty, ReadPacer

REFUSED_STATUSES = frozenset({400, 413, 414, 422, 429, 431})  # of responses to malformed requests, or over a limit

_numbers = count(-1, -1)  # of connections; negative, unlike those of sessions


class PacedHttp(DirectHttp):
    """A protocol that parses nothing while its connection is paused, and says for how long a request has to wait."""

    network = ""  # of the client, while the connection is counted
    penalty: Penalty | None = None
    _paused = False  # nothing is parsed for a while
    _in_line = False  # it is paused until its first turn
    _answered = False  # a request was; before that a connection has no share of its own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._number = next(_numbers)
        self._first_requests = first_requests_of(self.loop)

    def answered(self, status: int) -> None:
        """The answer to a request has *status*."""
        if status in REFUSED_STATUSES and (read_pacer := self._read_pacer) is not None:
            read_pacer.record_refused(self)

    @property
    def network_wait(self) -> float:
        """Return the seconds until the network may have more of the loop."""
        return 0.0 if (read_pacer := self._read_pacer) is None else read_pacer.charge_network(self.network, 0.0)

    def take_first_turn(self) -> None:
        """Parse what has waited in line."""
        self._paused = self._in_line = False
        self._resume()

    def _pace(self, size: int) -> None:
        """Record that *size* bytes were read, and pause if they were too many or the first request has to wait."""
        if (read_pacer := self._read_pacer) is None:
            return
        wait = read_pacer.record_bytes(self.network, size, self._number if self._answered else None)
        if self._paused:
            return
        if not self._answered and self.penalty is not None:
            wait = max(wait, read_pacer.charge_loop_time(self, 0.0))
        if wait:
            self._pause_for(wait)
        else:
            self._wait_in_line()

    def _pause_for(self, seconds: float) -> None:
        self._paused = True
        self.loop.call_later(seconds, self._pause_over)

    def _pause_over(self) -> None:
        self._wait_in_line()
        if not self._paused:
            self._resume()

    def _wait_in_line(self) -> None:
        """Let the head of a first request wait as long as its network has to; an answer waits for its turn."""
        is_shared = self._read_pacer is not None and self._read_pacer.is_shared
        self._paused = self._in_line = is_shared and self.cycle is None and self._first_requests.must_wait(self)

    def _resume(self) -> None:
        """Parse what was postponed, and read more."""
        raise NotImplementedError

    def _charge(self, seconds: float) -> float:
        """Charge *seconds* of work; return how long to pause until what its requests cost is paid off."""
        if (read_pacer := self._read_pacer) is None:
            return 0.0
        pause = 0.0 if self.penalty is None else read_pacer.charge_loop_time(self, seconds)
        return max(pause, read_pacer.charge_network(self.network, seconds))

    @property
    def _read_pacer(self) -> ReadPacer | None:
        return None if self.gateway is None else self.gateway.bus.read_pacer
