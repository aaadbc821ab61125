"""Paces how fast connections are read: by bytes for each network, and by a pause for each refused request.

A connection that sends too much is read more slowly, which TCP tells its peer; nothing is lost. Requests over the rate
limit and malformed input pause the reading of their connection as well, beyond a few that every connection may send:
refusing a request costs about as much as serving one. For `PENALTY_SECONDS` after each, the penalised connections of
one network together get `PENALTY_SHARE` of the loop's time; connections that behave are not slowed. A connection that
keeps sending malformed input is closed. When a penalised connection ends, the next connection of its network inherits
the penalty, so reconnecting does not help. Each connection has a share of its own: within it, it never waits for what
others of its network have sent, and while the log is crowded it gets no more.

While peers of other networks have input, the HTTP requests and handshakes of one network get `REQUEST_SHARE` of the
loop's time, and its long reads and long answers `READING_SHARE`: each takes up to some milliseconds, and whoever comes
in the middle of it waits for the rest, however the loop is shared.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from .bounded_maps import BoundedMap
from .buckets import TokenBuckets
from .memory_budget import MemoryBudget
from .message import Message, Peer

REFUSAL_PAUSE = 0.125  # seconds of reading that a refused request costs its connection
FREE_REFUSALS = 20  # refused requests that cost nothing, gained again at the rate that `REFUSAL_PAUSE` allows
MAX_MALFORMED = 300  # malformed requests at once after which a connection is closed; one a second more is allowed
PENALTY_SECONDS = 10.0  # for which a refused request penalises its connection
PENALTY_SHARE, PENALTY_BURST = 0.1, 0.05  # of the loop's time, and seconds of it at once, for a penalised network
REQUEST_SHARE = 0.1  # of the loop's time, for the HTTP requests of a network
READING_SHARE = 0.15  # of the loop's time, for the long reads and long answers of a network
SHARE_BURST = 0.1  # seconds of each at once
PAUSE_SECONDS = 0.0002  # of the loop, that pausing a connection and resuming it takes
SEVERAL_SECONDS = 1.0  # for which a network counts that had input, or whose input was handled
MALFORMED_FACTOR = 3  # times its bytes that a malformed body is charged in addition
MIN_MALFORMED_SIZE = 1 << 16  # bytes that a malformed body is taken to have at least
UNLIMITED = 1 << 62  # bytes
MAX_PAUSE = 2.0  # seconds that one pause lasts at most
MAX_INHERITED = 1_024  # penalties of closed connections that are kept for one network
MAX_NETWORKS = 10_000  # for which any are kept
CONNECTION_RATE, CONNECTION_BURST = 256 << 10, 64 << 10  # bytes a second, and at once, of one connection


class Penalty:
    """The misbehaviour of one connection, as times on the pacer's clock (seconds).

    It is not read before `paused_until`; the last refusal was at `since`; once `malformed_until` is in the future there
    was too much malformed input, and the connection is closed.
    """

    __slots__ = ("malformed_until", "paused_until", "since")

    def __init__(self) -> None:
        self.paused_until = self.since = self.malformed_until = -inf


class Penalizable(Protocol):
    """A connection that can be penalised."""

    penalty: Penalty | None

    @property
    def network(self) -> str:
        """The network of its peer; see `gateway.core.networks`."""


class PenalizableSession(Penalizable, Protocol):
    """A penalisable connection on the bus: it has a number, and can be closed."""

    peer: Peer

    def close(self, code: int, reason: str) -> None:
        """End the connection."""


class ReadPacer:
    """Records what the shells read, and says how many seconds they wait before they read more.

    *bytes* has a bucket for each network; without it nothing is paced and nobody is penalised. *clock* gives seconds.
    The *budget* is charged for what is read, since sessions may keep it. *crowded* says whether the log is crowded.
    """

    def __init__(
        self,
        bytes: TokenBuckets | None,
        clock: Callable[[], float],
        budget: MemoryBudget | None = None,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.budget = budget or MemoryBudget(UNLIMITED)
        self._bytes = bytes
        # Of penalised connections, and of all, by network. Nobody waits longer than one pause for what others did.
        self._loop_time = TokenBuckets(PENALTY_SHARE, PENALTY_BURST, clock, PENALTY_SHARE * MAX_PAUSE)
        self._request_time, self._reading_time = (
            TokenBuckets(share, SHARE_BURST, clock, share * MAX_PAUSE) for share in (REQUEST_SHARE, READING_SHARE)
        )
        self._last_network = ""  # that had input, or whose input was handled
        self._last_switch = -inf  # when that was another network than before
        self._inherited = BoundedMap[str, deque[Penalty]](MAX_NETWORKS)  # from closed connections, by network
        # By connection; used while its network waits, or the log is crowded.
        self._connection_bytes = TokenBuckets(CONNECTION_RATE, CONNECTION_BURST, clock)
        self._crowded = crowded
        self._clock = clock

    def set_rate(self, bytes: TokenBuckets) -> None:
        """Pace by *bytes* from now on, if reading is paced at all; all debts are forgotten."""
        if self._bytes is not None:
            self._bytes = bytes

    def connection_opened(self, connection: Penalizable) -> float:
        """Let *connection* inherit a penalty of its network; return the seconds to wait before it is read.

        The penalty is that of the connection that closed last, which is the likeliest one to come again.
        """
        inherited = self._inherited.get(connection.network)
        if inherited is None:
            return 0.0
        connection.penalty = inherited.pop()
        if not inherited or not self.is_penalized(connection):  # the others are older
            self._inherited.pop(connection.network)
        if not self.is_penalized(connection):
            connection.penalty = None
            return 0.0
        wait = max(connection.penalty.paused_until - self._clock(), self.charge_loop_time(connection, 0.0))
        return min(wait, MAX_PAUSE) if wait > 0 else 0.0

    def connection_closed(self, connection: Penalizable) -> None:
        """Keep the penalty of *connection*, which has ended, for the next one of its network."""
        if connection.penalty is None or not connection.network or not self.is_penalized(connection):
            return
        inherited = self._inherited.get(connection.network) or deque(maxlen=MAX_INHERITED)
        inherited.append(connection.penalty)
        self._inherited[connection.network] = inherited

    def record_read(self, session: PenalizableSession, size: int, seconds: float = 0.0) -> float:
        """Record *size* bytes, read for *session*; return the seconds to wait before more.

        *seconds* is how long it took to handle them, 0 if that was not measured because it was short.
        """
        if self._bytes is None:  # spares two calls for each read where nothing is paced
            self.budget.record_read(size)
            return 0.0
        wait = self.record_bytes(session.network, size, session.peer.number)
        if seconds:
            wait = max(wait, self._charge_reading(session.network, seconds))
        if session.penalty is not None:
            wait = max(wait, session.penalty.paused_until - self._clock(), self.charge_loop_time(session, seconds))
        return min(wait, MAX_PAUSE) if wait > 0 else 0.0

    def record_bytes(self, network: str, size: int, connection: int | None) -> float:
        """Record *size* bytes, read from *network* (empty for a link); return the seconds to wait before more.

        *connection* is a number that no other one ever has (an address in memory is used again), None where it has no
        share: it would be new for each request.
        """
        self.budget.record_read(size)
        if not network or self._bytes is None:
            return 0.0
        self._note(network)
        wait, crowded = self._bytes.spend(network, size), self._crowded()
        if wait or crowded:
            own = self._connection_bytes.spend(network if connection is None else connection, size)
            wait = max(wait if connection is None else min(wait, own), own if crowded else 0.0)
        return min(wait, MAX_PAUSE)

    def is_penalized(self, connection: Penalizable) -> bool:
        """Whether *connection* has had a request refused within the last `PENALTY_SECONDS`."""
        penalty = connection.penalty
        return penalty is not None and penalty.since > self._clock() - PENALTY_SECONDS

    def charge_loop_time(self, connection: Penalizable, seconds: float) -> float:
        """Charge *seconds* of the loop to *connection*; return those to wait before more, 0 if it is not penalised."""
        if not self.is_penalized(connection):
            return 0.0
        return min(MAX_PAUSE, self._loop_time.spend(connection.network, seconds))

    @property
    def is_shared(self) -> bool:
        """Whether several networks had input lately, or some was handled: the loop's time is shared among them."""
        return self._bytes is not None and self._clock() - self._last_switch <= SEVERAL_SECONDS

    def serves_others(self, network: str) -> bool:
        """Whether the loop's time is shared, or the last input was that of another network than *network*.

        False for an empty *network*, which is not paced.
        """
        if not network or self._bytes is None:
            return False
        return self.is_shared or self._last_network != network

    def charge_network(self, network: str, seconds: float) -> float:
        """Charge *seconds* of the loop, for an HTTP request, to *network*; return those to wait before it has another.

        That is 0 while the network is alone.
        """
        return self._charge(self._request_time, network, seconds)

    def charge_records(self, network: str, seconds: float) -> float:
        """Charge *seconds* of decrypting what *network* sent; return those to wait before more is read."""
        return self._charge(self._reading_time, network, seconds)

    def charge_answer(self, network: str, seconds: float) -> None:
        """Charge *seconds* of the loop, for a slice of a long answer, to *network*, whose long reads wait for that."""
        self._charge(self._reading_time, network, seconds)

    def _charge_reading(self, network: str, seconds: float) -> float:
        """Charge *seconds* of a long read to *network*, and the pause if it has to wait; return the seconds to wait."""
        is_paused = self._charge(self._reading_time, network, seconds) > 0
        return self._charge(self._reading_time, network, PAUSE_SECONDS) if is_paused else 0.0

    def _charge(self, buckets: TokenBuckets, network: str, seconds: float) -> float:
        if not network:
            return 0.0
        self._note(network)
        return min(MAX_PAUSE, buckets.spend(network, seconds)) if self.is_shared else 0.0

    def _note(self, network: str) -> None:
        """Note that *network* has input, which may have been read long before it is handled."""
        if network != self._last_network:
            self._last_switch = self._clock() if self._last_network else -inf
            self._last_network = network

    def charge_malformed_body(self, network: str, size: int) -> None:
        """Charge *network* for a malformed body of *size* bytes, which may have come on a connection of its own."""
        if network and self._bytes is not None:
            self._bytes.spend(network, MALFORMED_FACTOR * max(size, MIN_MALFORMED_SIZE))

    def record_published(self, run: Sequence[Message]) -> None:
        """Charge the senders of an accepted *run* for its bytes, from whatever network they are connected."""
        if self._bytes is not None:
            sizes: dict[int, int] = defaultdict(int)
            for message in run:
                sizes[message.sender.number] += len(message.content)
            for number, size in sizes.items():
                self._bytes.spend(number, size)

    def publish_delay(self, peer: Peer) -> float:
        """Seconds until *peer* may publish again, 0 unless it has published more bytes than its share."""
        return 0.0 if self._bytes is None else self._bytes.spend(peer.number, 0)

    def record_refused(self, connection: Penalizable) -> None:
        """Penalise *connection* for a request over a rate limit, or a malformed HTTP request."""
        if self._bytes is None:
            return
        now, penalty = self._clock(), self._penalty(connection)
        penalty.since = now
        penalty.paused_until = max(penalty.paused_until, now - FREE_REFUSALS * REFUSAL_PAUSE) + REFUSAL_PAUSE

    def record_malformed(self, session: PenalizableSession) -> None:
        """Penalise *session* for input that its protocol does not allow, or an invalid signature; perhaps close it."""
        if self._bytes is None:
            return
        self.record_refused(session)
        now, penalty = self._clock(), self._penalty(session)
        penalty.malformed_until = max(penalty.malformed_until, now - MAX_MALFORMED) + 1.0
        if penalty.malformed_until > now:
            session.close(1008, "too much malformed input")

    def _penalty(self, connection: Penalizable) -> Penalty:
        if connection.penalty is None:
            connection.penalty = Penalty()
        return connection.penalty
