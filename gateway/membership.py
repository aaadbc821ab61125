"""This gateway as a member of a cluster: it joins, accepts when it is its turn, and logs what the others accepted.

See `gateway.cluster.turn` for whose turn it is, and docs/how-to/cluster.md.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, Final, Protocol

import anyio
import structlog

from gateway.cluster.batch import member
from gateway.cluster.bookmark import Bookmark
from gateway.cluster.lag import Lag, LagMeter
from gateway.cluster.reasons import ELSEWHERE, QUIET, REMOVED, TOO_SHORT, TORN
from gateway.cluster.signalling import Signalling
from gateway.cluster.signals import Heartbeat
from gateway.cluster.turn import LEASE, STALLED, Link, Turn
from gateway.core.bus import Bus
from gateway.core.directs import first_direct_number
from gateway.core.errors import OperatorError, Unavailable
from gateway.core.member import Member
from gateway.core.message import Message
from gateway.jetstream.status import JetStreamStatus
from gateway.storage.log import MAX_UNSYNCED_BYTES, Log
from gateway.storage.record import Entry, Fact
from gateway.storage.segments import Segments, parse_header

from .foreign import ForeignEntries

TICK: Final = 0.1  # seconds
JOIN_SECONDS: Final = 60.0  # to get the turn for the first time, once the stream was read
LEAVE_SECONDS: Final = 5.0  # to give it up
NUMBERS: Final = 1 << 16  # peer numbers that are reserved at once, since none can be reserved while others accept
SAVE_SECONDS: Final = 60.0
SILENT: Final = 10.0  # seconds without an answer of the servers, also if nobody waits for one
LAGGING: Final = 10.0  # seconds behind the cluster, after which the gateway is not ready
FILE: Final = "stream-position.json"  # in the data directory

_VERSION: Final = version("trellis-gateway")

logger = structlog.get_logger("trellis")
Call = Callable[[], object]


class CannotJoin(OperatorError):
    """The gateway cannot be a member of the cluster; the text says why, and what to do about it."""


class StreamLink(Link, Protocol):
    """A connection to the stream, which gives the gateway calls to run on its loop."""

    on_call: Callable[[], None]  # told, in any thread, that there is something to `receive`
    on_signal: Callable[[bytes], None]  # called, as one of the calls, with what others tell
    is_full: Callable[[], bool]  # asked whether so much waits for the disk that no more is to be read
    place: int  # of what was given to the turn last, in the stream
    digest: int | None  # of that; None if it is not known
    lost: int  # signals that came too fast

    def open(self, turn: Turn, place: int) -> None:
        """Give *turn* all that is in the stream behind *place*."""

    @property
    def caught_up(self) -> bool:
        """Whether the turn was given all that was in the stream when it was opened."""

    def receive(self, seconds: float) -> Call | None:
        """The next call; None if there is none for so many *seconds*. It may raise `CannotJoin`."""

    def tell(self, data: bytes, to: str = "") -> None:
        """Tell *data* to all others, or to the member *to*; it may be lost."""

    def status(self) -> JetStreamStatus:
        """How it is doing."""

    @property
    def refused(self) -> int:
        """How many values that members share could not be read."""

    def close(self) -> None:
        """End the connection."""


def _refuse(reason: str) -> None:
    raise CannotJoin(reason)


class _Joining:
    """Takes what the others logged before this gateway starts, straight into its log."""

    def __init__(self, folder: Path, post: Callable[[Callable[[], None]], None]) -> None:
        segments = Segments(folder)
        seqs = segments.first_seqs
        self._last = segments.last_line(seqs[-1])[0].rstrip(b"\n") if seqs else b""
        self._last_seq = parse_header(self._last)[0] if self._last else 0
        self.log = Log(segments, post, lambda: 0)
        self.log.start()

    def take(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Log those of *lines* that are not in the log yet."""
        have = self.log.next_seq - entries[0].seq
        if have < 0:
            raise CannotJoin(TOO_SHORT.format(self.log.next_seq - 1, entries[0].seq))
        if entries[0].seq <= self._last_seq <= entries[-1].seq:
            theirs = lines[self._last_seq - entries[0].seq].rstrip(b"\n")
            if self._last != theirs:
                raise CannotJoin(
                    f"record {self._last_seq} of the log is not the one in the stream: this is the log of another "
                    "gateway. Start with an empty log"
                )
        if have < len(entries):
            self.log.adopt(entries[have:], lines[have:])

    def confirm(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Nothing is logged while the gateway joins."""

    def begin(self) -> None:
        """The turn is kept until the gateway has started."""

    def hold(self, why: str | None) -> None:
        """Nothing is published yet."""

    def removed(self) -> None:
        """Let it not start."""
        raise CannotJoin(REMOVED)

    def lost(self) -> None:
        """Nothing was accepted yet."""

    def torn(self) -> None:
        """Let it not start."""
        raise CannotJoin(TORN)


class Membership:
    """The gateway *name* in a cluster; *link* is its connection to the stream, *terms* what all have in common.

    It is the `Taker` of its turn and the `Sequencer` of the gateway, whose messages and facts it has taken at once
    while it is this gateway's turn, and refuses otherwise.
    """

    def __init__(
        self,
        name: str,
        link: StreamLink,
        clock: Callable[[], float] = monotonic,
        *,
        lease: float = LEASE,
        terms: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.link = link
        self.failure: str | None = None  # why it stops
        self._clock = clock
        self.turn = Turn(member(name, time_ns() // 1_000_000), self, link, clock, lease=lease)
        self.signalling = Signalling(
            link, clock, self.turn.wanted, self._heartbeat, terms, _refuse, lambda: link.status().silence
        )
        link.on_signal = self.signalling.hear
        self._lag_meter = LagMeter(clock)
        self.lag = Lag(0, 0, 0.0)  # how far it is, at the last tick
        self._calls = deque[Call]()  # that wait for the turn
        self._events: list[anyio.Event] = []
        self._save_at = 0.0  # by the clock; at once, because a backup needs it

    # Joining and leaving

    def join(self, data: Path) -> None:
        """Write what the stream has into the log in *data*, and get the turn; raises `CannotJoin`."""
        turn, link = self.turn, self.link
        self._bookmark = Bookmark(data / FILE)
        turn.taker = joining = _Joining(data / "log", lambda _call: None)
        turn.pinned, turn.base = True, joining.log.next_seq
        try:
            place, link.digest = self._bookmark.load(turn.position, joining.log.next_seq)
            link.open(turn, place)
            begun, asked = self._clock(), False
            self.signalling.agreement.refresh()
            while not turn.acting:
                if link.caught_up:
                    self._check(joining)
                    if not asked:  # who passes the turn on answers this first
                        self.signalling.agreement.ask()
                        asked = True
                    turn.want()
                elif turn.position.number:
                    begun = self._clock()
                if (call := link.receive(TICK)) is not None:
                    call()
                else:
                    turn.tick()
                if self._clock() - begun > JOIN_SECONDS:
                    raise CannotJoin(
                        f"no turn in the cluster for {JOIN_SECONDS:.0f} seconds: {link.status().error or QUIET}"
                    )
            self._check(joining)
        except BaseException:
            link.close()
            raise
        finally:
            joining.log.close()

    def _check(self, joining: _Joining) -> None:
        end = self.turn.position.next_seq
        if end and joining.log.next_seq < end:
            raise CannotJoin(TOO_SHORT.format(joining.log.next_seq - 1, end))
        if end and joining.log.next_seq > end:
            raise CannotJoin(
                f"the log has record {joining.log.next_seq - 1}, and the stream ends with {end - 1}: the stream was "
                "lost, or is another one's. Start with an empty log, or name another cluster (cluster.name)"
            )

    def start(self, log: Log, bus: Bus, foreign: ForeignEntries) -> None:
        """Log into *log* and deliver by *bus* what this gateway accepts, and by *foreign* what others do."""
        self._log, self._bus, self._foreign = log, bus, foreign
        log.divert, self.link.is_full = self.turn.logged, lambda: log.unsynced_bytes > MAX_UNSYNCED_BYTES
        bus.acceptance.on_waiting = self.turn.want
        bus.peers.block, bus.peers.reserve = NUMBERS, 0
        bus.peers.top_up()
        bus.directs.next_id = count(first_direct_number(bus.peers.free - NUMBERS))
        self.signalling.start(bus, foreign.flaw, foreign.hear)
        self.turn.taker = self

    def started(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Let others have the turn; *post* runs a call on the loop of the gateway."""
        self.signalling.agreement.refresh()  # files may have been made
        self.link.on_call = lambda: post(self._receive)
        self.turn.pinned = False
        self._receive()

    def _receive(self) -> None:
        while (call := self.link.receive(0)) is not None:
            self._run(call)

    def goodbye(self) -> None:
        """Let nobody wait for the turn any more, since the gateway stops."""
        if not self.turn.acting:
            self.hold("the gateway is stopping")

    def leave(self) -> None:
        """Give the turn up for good, and send what is not in the stream yet."""
        self.link.on_call = lambda: None
        self.signalling.leave()
        end = self._clock() + LEAVE_SECONDS
        while not self.turn.leave() and self._clock() < end:
            if (call := self.link.receive(TICK)) is not None:
                call()
            else:
                self.turn.tick()
        self.link.close()

    def tick(self) -> None:
        """Send a heartbeat, and note at first and each minute how far the log is, for the next start."""
        self.signalling.beat()
        me, *others = self.signalling.members()
        stored = self.link.status().stored
        self.lag = self._lag_meter.measure(me, others, stored.last if stored is not None else 0)
        if self._clock() >= self._save_at and not self.turn.over:
            self._save_at = self._clock() + SAVE_SECONDS
            state = self._bookmark.state(self.turn.position, self.link.place, self.link.digest)
            self._log.when_synced(state["next_seq"] - 1, partial(self._bookmark.save, state), hurry=False)

    def closed(self) -> None:
        """Note how far the log is, which was closed; a gateway that lost its turn has not taken what it read last."""
        if not self.turn.over:
            self._bookmark.save(self._bookmark.state(self.turn.position, self.link.place, self.link.digest))

    def _heartbeat(self) -> Heartbeat:
        turn = self.turn
        return Heartbeat(turn.me, _VERSION, turn.position.next_seq, self.link.place, turn.acting)

    @property
    def trouble(self) -> str | None:
        """Why this gateway does not accept, or is behind; None if it is only for a moment."""
        status = self.link.status()
        waited, silence = self.turn.waited, status.silence
        if waited > STALLED or silence > SILENT:
            return f"the cluster has not answered for {max(waited, silence):.0f} s: {status.error or QUIET}"
        if (lag := self.lag).seconds > LAGGING:
            return f"the gateway has been behind the cluster for {lag.seconds:.0f} s, by {lag.records:,} records"
        return None

    # The sequencer

    def submit(self, run: Sequence[Message], origins: Sequence[Member | None]) -> None:
        """Take a *run*; raises `Unavailable` while another gateway accepts."""
        self._require_turn()
        self._bus.take(run, origins)

    def submit_fact(self, kind: str, fields: dict[str, Any]) -> Fact:
        """Log a fact; raises `Unavailable` while another gateway accepts."""
        self._require_turn()
        return self._log.fact(kind, fields)

    def _require_turn(self) -> None:
        if not self.turn.acting:
            self.turn.want()
            raise Unavailable(ELSEWHERE)

    # Waiting for the turn

    def when_acting(self, call: Call) -> None:
        """Run *call* now, if it is this gateway's turn, or as soon as it is."""
        if self.turn.acting and not self._calls:
            call()
        else:
            self._calls.append(call)
            self.turn.want()

    async def until_acting(self) -> None:
        """Wait until it is this gateway's turn, or until the cluster turns out not to answer."""
        while not self.turn.acting and self._log.failing is None:
            self.turn.want()
            self._events.append(event := anyio.Event())
            await event.wait()

    @contextmanager
    def keeping(self) -> Iterator[Callable[[], None]]:
        """Keep the turn for a moment, for a request that needs it, until it is over or calls what this gives it."""
        self.turn.requests += 1
        kept = True

        def done() -> None:
            nonlocal kept
            if kept:
                kept = False
                self.turn.finished()

        try:
            yield done
        finally:
            done()

    # What the turn calls

    def take(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Log and deliver what another gateway accepted."""
        self._foreign.take(entries, lines)

    def confirm(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Write what this gateway accepted."""
        self._log.put(entries, lines)
        self._log.hurry()

    def begin(self) -> None:
        """Handle what has waited."""
        self._bus.acceptance.elsewhere = False
        self._bus.peers.top_up(NUMBERS // 2)
        for _ in range(len(self._calls)):
            self._run(self._calls.popleft())
        self._log.release()
        self._wake()

    def hold(self, why: str | None) -> None:
        """Let publishers wait, or refuse them."""
        self._bus.gathering.publish()
        self._bus.acceptance.elsewhere = why is None
        self._log.hold(why)
        if why is not None:
            self._wake()

    def removed(self) -> None:
        """Stop the process: the others go on without it."""
        self._fail(REMOVED)

    def lost(self) -> None:
        """Stop the process: what it told its peers is not what the cluster accepted."""
        self._fail("another gateway claimed the turn, and what this one had in memory was not accepted")

    def torn(self) -> None:
        """Stop the process: it cannot know what the others know."""
        self._fail(TORN)

    def _fail(self, reason: str) -> None:
        logger.error("the gateway cannot be a member any more", reason=reason, consequence="it stops; start it again")
        self.turn.over, self.turn.acting = True, False
        self.failure = reason
        self._log.hold(reason)
        os.kill(os.getpid(), signal.SIGTERM)

    def _run(self, call: Call) -> None:
        try:
            call()
        except CannotJoin as error:
            self._fail(str(error))
        except Exception:  # a bug; the others are called all the same
            logger.exception("a call that waited for the turn failed")

    def _wake(self) -> None:
        events, self._events = self._events, []
        for event in events:
            event.set()
