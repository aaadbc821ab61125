"""How fast connections are read: bytes for each network, and a pause for each request that had to be refused.

A connection that sends too much is read more slowly, which TCP tells its peer; nothing is lost. Requests over the rate
limit and malformed input pause the reading of their connection as well, beyond a few that everybody may send: refusing
a request costs about as much as serving one. For ten seconds after each, the loop works no more than a tenth of its
time for that connection and all others of its network to which the same applies; those that behave are not slowed by
it. A connection that goes on sending malformed input is closed. Who hangs up leaves what is held against it to the next
connection of its network: to come again is no way out. Each connection has a share of its own: within it,
nobody waits for what others of the network have sent, and while the log is crowded nobody gets more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from .bounded import BoundedMap
from .buckets import Buckets
from .budget import Budget
from .message import Message, Peer

PAUSE = 0.125  # seconds of reading that a refused request costs its connection
FREE = 20  # refused requests that cost nothing, gained again at the rate that `PAUSE` allows
STRIKES = 300  # malformed requests at once after which a connection is closed; one a second more is allowed
BLAME = 10.0  # seconds that each refused request is held against its connection
BLAMED, BLAMED_AT_ONCE = 0.1, 0.05  # of the loop's time, and seconds of it at once, for a network's misbehaviour
WASTE, LEAST = 3, 1 << 16  # a malformed body counts as so many times its bytes more, as if it had at least so many
UNLIMITED = 1 << 62  # bytes
LONGEST = 2.0  # seconds that one pause lasts at most
MAX_LEFT = 1_024  # connections of one network that went, of which is known what is held against them
MAX_NETWORKS = 10_000  # of which any is known
SHARE, SHARE_AT_ONCE = 256 << 10, 64 << 10  # bytes a second, and at once, of one connection


class Conduct:
    """What is held against one connection: until when it pauses, since when, how near its end it is (seconds)."""

    __slots__ = ("paused", "since", "struck")

    def __init__(self) -> None:
        self.paused = self.since = self.struck = -inf


class Accused(Protocol):
    """A connection that something may be held against."""

    conduct: Conduct | None

    @property
    def network(self) -> str:
        """Where its peer is."""


class Connected(Accused, Protocol):
    """An accused that is on the bus: it has a number, and can be closed."""

    peer: Peer

    def close(self, code: int, reason: str) -> None:
        """End the connection."""


class Inflow:
    """Hears of all that shells read, and says how long to wait before more is read.

    *bytes* has a bucket for each network; without it nothing is paced, and nothing is held against anybody. *clock*
    gives seconds. What is read may be kept, so the *budget* hears of it as well. *crowded* tells whether the log is.
    """

    def __init__(
        self,
        bytes: Buckets | None,
        clock: Callable[[], float],
        budget: Budget | None = None,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.budget = budget or Budget(UNLIMITED)
        self._bytes = bytes
        self._blamed = Buckets(BLAMED, BLAMED_AT_ONCE, clock)  # by network
        self._left = BoundedMap[str, deque[Conduct]](MAX_NETWORKS)  # what was held against those that went
        # By connection; used while its network waits, or the log is crowded.
        self._shares = Buckets(SHARE, SHARE_AT_ONCE, clock)
        self._crowded = crowded
        self._clock = clock

    def pace(self, bytes: Buckets) -> None:
        """Read as fast as *bytes* says from now on, where reading is paced at all; all debts are forgotten."""
        if self._bytes is not None:
            self._bytes = bytes

    def enter(self, connection: Accused) -> float:
        """A connection begins, with what is held against one of its network that went; the seconds before it is read.

        The last that went is the first that comes again, as far as anybody can tell.
        """
        left = self._left.get(connection.network)
        if left is None:
            return 0.0
        connection.conduct = left.pop()
        if not left or not self.blames(connection):  # those before it went earlier
            self._left.pop(connection.network)
        if not self.blames(connection):
            connection.conduct = None
            return 0.0
        wait = max(connection.conduct.paused - self._clock(), self.worked(connection, 0.0))
        return min(wait, LONGEST) if wait > 0 else 0.0

    def leave(self, connection: Accused) -> None:
        """A connection is over."""
        if connection.conduct is None or not connection.network or not self.blames(connection):
            return
        left = self._left.get(connection.network) or deque(maxlen=MAX_LEFT)
        left.append(connection.conduct)
        self._left[connection.network] = left

    def read(self, session: Connected, size: int, seconds: float = 0.0) -> float:
        """*size* bytes were read for *session* and handled in *seconds*; the seconds to wait before more is read."""
        if self._bytes is None:  # spares two calls for each read where nothing is paced
            self.budget.grew(size)
            return 0.0
        wait = self.bytes(session.network, size, session.peer.number)
        if session.conduct is not None:
            wait = max(wait, session.conduct.paused - self._clock(), self.worked(session, seconds))
        return min(wait, LONGEST) if wait > 0 else 0.0

    def bytes(self, network: str, size: int, connection: int | None) -> float:
        """*size* bytes were read from *network*, which a link has none of; the seconds to wait before more is read.

        *connection* is a number that no other one ever has (an address in memory is used again), None where it has no
        share: it would be new for each request.
        """
        self.budget.grew(size)
        if not network or self._bytes is None:
            return 0.0
        wait, crowded = self._bytes.spend(network, size), self._crowded()
        if wait or crowded:
            own = self._shares.spend(network if connection is None else connection, size)
            wait = max(wait if connection is None else min(wait, own), own if crowded else 0.0)
        return min(wait, LONGEST)

    def blames(self, connection: Accused) -> bool:
        """Whether *connection* misbehaved so lately that it is still held against it."""
        conduct = connection.conduct
        return conduct is not None and conduct.since > self._clock() - BLAME

    def worked(self, connection: Accused, seconds: float) -> float:
        """The loop worked *seconds* for *connection*; the seconds to wait before it does more, 0 without blame."""
        return min(LONGEST, self._blamed.spend(connection.network, seconds)) if self.blames(connection) else 0.0

    def wasted(self, network: str, size: int) -> None:
        """A body of *size* bytes from *network* was malformed; it may have come on a connection of its own."""
        if network and self._bytes is not None:
            self._bytes.spend(network, WASTE * max(size, LEAST))

    def published(self, run: Sequence[Message]) -> None:
        """Messages of one sender were taken: their bytes count for the sender, wherever it is connected from."""
        if self._bytes is not None:
            self._bytes.spend(run[0].sender.number, sum([len(message.content) for message in run]))

    def owes(self, peer: Peer) -> float:
        """Seconds until *peer* may publish again, 0 unless it has published more bytes than its share."""
        return 0.0 if self._bytes is None else self._bytes.spend(peer.number, 0)

    def refused(self, connection: Accused) -> None:
        """A request of *connection* was over a rate limit, or on HTTP malformed."""
        if self._bytes is None:
            return
        now, conduct = self._clock(), self._conduct(connection)
        conduct.paused, conduct.since = max(conduct.paused, now - FREE * PAUSE) + PAUSE, now

    def malformed(self, session: Connected) -> None:
        """*session* sent something that its protocol has no place for, or a signature that is none."""
        if self._bytes is None:
            return
        self.refused(session)
        now, conduct = self._clock(), self._conduct(session)
        conduct.struck = max(conduct.struck, now - STRIKES) + 1.0
        if conduct.struck > now:
            session.close(1008, "too much malformed input")

    def _conduct(self, connection: Accused) -> Conduct:
        if connection.conduct is None:
            connection.conduct = Conduct()
        return connection.conduct
