"""uvicorn's HTTP protocol, slowed where a client sends or asks too much, or is refused (`gateway.core.read_pacer`)."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from .http_gateway import MAX_DISCARDED
from .uvicorn_fast_publish import DirectHttp
from .waiting_requests import QueueName, network_queues_of

if TYPE_CHECKING:
    from gateway.core.read_pacer import Penalty, ReadPacer

REFUSED_STATUSES = frozenset({400, 413, 414, 422, 429, 431})  # of responses to malformed requests, or over a limit
MAX_DISCARD_PAUSE = 0.25  # seconds between two reads of those bytes; the connection is aborted after `LINGER_SECONDS`
CONNECTION_SECONDS = 0.0003  # of the loop that it takes to accept and close a connection

_numbers = count(-1, -1)  # of connections; negative, unlike those of sessions


class PacedHttp(DirectHttp):
    """A protocol that parses nothing while its connection is paused, and decides how long a request has to wait."""

    network = ""  # of the client, while the connection is counted
    penalty: Penalty | None = None
    _paused = False  # nothing is parsed for a while
    _in_queue = False  # `_paused`, because the head of its first request waits in the queue
    _answered = False  # a request has been answered; before that a connection has no share of its own
    _discarded = 0  # bytes that came after the last response

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._number = next(_numbers)
        self._queues = network_queues_of(self.loop)

    def answered(self, status: int) -> None:
        """Record the *status* of an answer; refusals count against the connection."""
        if status in REFUSED_STATUSES and (read_pacer := self._read_pacer) is not None:
            read_pacer.record_refused(self)

    @property
    def queue_name(self) -> QueueName:
        """Return the queue that the next request waits in; new connections and kept ones have one each."""
        read_pacer = self._read_pacer
        return QueueName(self.network, self.cycle is None, read_pacer is not None and read_pacer.is_penalized(self))

    @property
    def queue_wait(self) -> float:
        """Return the seconds until the network may use the loop, and a penalised connection its own share of it."""
        return self._charge(0.0)

    def admit(self) -> None:
        """Parse the head that has waited in the queue."""
        self._paused = self._in_queue = False
        self._resume()

    def _pace_opened(self) -> None:
        """Charge the network for a new connection, which may have to wait before it is read."""
        if (read_pacer := self._read_pacer) is not None:
            read_pacer.charge_network(self.network, CONNECTION_SECONDS)
            if wait := read_pacer.connection_opened(self):
                self._pause_for(wait)

    def _discard(self, size: int) -> None:
        """Record that *size* bytes came after the last response; read no more until the network may send more."""
        self._discarded += size
        if self._discarded > MAX_DISCARDED:
            self.transport.abort()
        elif (pacer := self._read_pacer) is not None and (wait := pacer.record_bytes(self.network, size, None)):
            self.flow.pause_reading()
            self.loop.call_later(min(wait, MAX_DISCARD_PAUSE), self._discard_more)

    def _discard_more(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _pace(self, size: int) -> None:
        """Record that *size* bytes were read; pause if they were too many, or while the network is in debt.

        The head of a connection's first request waits in a queue before it is parsed. A later head is parsed at once,
        and waits in one to be answered. The rest of a head or body that has begun waits only until the debt is paid.
        """
        if (read_pacer := self._read_pacer) is None:
            return
        wait = read_pacer.record_bytes(self.network, size, self._number if self._answered else None)
        if self._paused:
            return
        if self.cycle is not None and (self.cycle.more_body or (self._in_head and self._head_size)):
            wait = max(wait, self._charge(0.0))
        elif not self._answered and self.penalty is not None:
            wait = max(wait, read_pacer.charge_loop_time(self, 0.0))
        if wait:
            self._pause_for(wait)
        else:
            self._wait_in_queue()

    def _pause_for(self, seconds: float) -> None:
        self._paused = True
        self.loop.call_later(seconds, self._pause_over)

    def _pause_over(self) -> None:
        self._wait_in_queue()
        if not self._paused:
            self._resume()

    def _wait_in_queue(self) -> None:
        """Put a connection in the queue whose first head has not been parsed, if its network has to wait."""
        is_shared = self._read_pacer is not None and self._read_pacer.is_shared
        self._paused = self._in_queue = is_shared and self.cycle is None and self._queues.must_wait(self)

    def _resume(self) -> None:
        """Parse what was postponed, and read more."""
        raise NotImplementedError

    def _charge(self, seconds: float) -> float:
        """Charge *seconds* of work; return the seconds until everything charged so far is paid off."""
        if (read_pacer := self._read_pacer) is None:
            return 0.0
        pause = 0.0 if self.penalty is None else read_pacer.charge_loop_time(self, seconds)
        return max(pause, read_pacer.charge_network(self.network, seconds))

    @property
    def _read_pacer(self) -> ReadPacer | None:
        return None if self.gateway is None else self.gateway.bus.read_pacer
