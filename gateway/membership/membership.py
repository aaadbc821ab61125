"""This gateway as a member of a cluster: it joins, accepts when it is its turn, and logs what the others accepted.

See `gateway.cluster.accepting_turn` for whose turn it is, and docs/how-to/cluster.md.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, Final

import anyio
import structlog

from gateway.cluster.accepting_turn import LEASE_SECONDS, STALLED_SECONDS, Turn
from gateway.cluster.agreed_clock import AgreedClock
from gateway.cluster.batch import Batch, member
from gateway.cluster.bookmark import Bookmark
from gateway.cluster.lag import Lag, LagMeter
from gateway.cluster.leaving_reasons import ELSEWHERE, LOG_DIFFERS, QUIET, REMOVED, STRAY, STREAM_DAMAGED
from gateway.cluster.log_comparison import LogComparison, records_of
from gateway.cluster.roster import MEMBER_SILENCE_SECONDS
from gateway.cluster.signalling import Signalling
from gateway.cluster.signals import Heartbeat
from gateway.core.bus import Bus
from gateway.core.directs import first_direct_number
from gateway.core.errors import Unavailable
from gateway.core.message import Message
from gateway.core.subscriber import Subscriber
from gateway.storage.log import MAX_UNSYNCED_BYTES, Log
from gateway.storage.record import Entry, Fact

from .joining import join
from .log_reading import LogReading
from .remote_entries import ForeignEntries
from .transport import TICK_SECONDS, Call, CannotJoin, ClusterTransport

LEAVE_SECONDS: Final = 5.0  # to give it up
NUMBERS: Final = 1 << 16  # peer numbers that are reserved at once, since none can be reserved while others accept
SLICE_SECONDS: Final = 0.01  # after which other things get the loop
SAVE_SECONDS: Final = 60.0
SERVERS_SILENCE_SECONDS: Final = 10.0  # without an answer of the servers, also if no request waits for one
LAGGING_SECONDS: Final = 10.0  # behind the cluster, after which the gateway is not ready
KEEP_TIME: Final = "synchronise it with NTP; until then messages get the time of the other members"
FILE: Final = "stream-position.json"  # in the data directory
DAMAGED: Final = "log-damaged.txt"  # there as well: why this log is not to be used

_VERSION: Final = version("trellis-gateway")

logger = structlog.get_logger("trellis")


def _refuse(reason: str) -> None:
    raise CannotJoin(reason)


class Membership:
    """The gateway *name* in a cluster; *transport* is its connection to the stream, *terms* what all have in common.

    It implements the `TurnCallbacks` of its turn and the `Sequencer` of the gateway: it has messages and facts taken at
    once while it is this gateway's turn, and refuses them otherwise.
    """

    def __init__(
        self,
        name: str,
        transport: ClusterTransport,
        clock: Callable[[], float] = monotonic,
        *,
        lease: float = LEASE_SECONDS,
        terms: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.transport = transport
        self.failure: str | None = None  # why it stops
        self._leaving = False  # whether it stops already
        self._clock = clock
        self._time: AgreedClock | None = None  # once the gateway starts
        self._ahead = 0  # ms by which its clock was ahead of all others at the last tick
        self.turn = Turn(member(name, time_ns() // 1_000_000), self, transport, clock, lease=lease)
        self.comparison = LogComparison(lambda: self.signalling.roster.members())  # noqa: PLW0108  (it is made below)
        self._reading: LogReading | None = None  # once the gateway has started
        self.signalling = Signalling(
            transport, clock, self.turn.wanted, self._heartbeat, terms, _refuse, lambda: transport.status().silence
        )
        transport.on_signal = self.signalling.hear
        self.signalling.on_heartbeat, self.signalling.on_leaving = self._compare, self.turn.left
        self._stray: Batch | None = None  # the last one that was logged as a warning
        self._lag_meter = LagMeter(clock)
        self.lag = Lag(0, 0, 0.0)  # how far it is, at the last tick
        self._calls = deque[Call]()  # that wait for the turn
        self._parked: list[Call] = []  # requests that wait for the turn, or to be refused
        self._events: list[anyio.Event] = []
        self._save_at = 0.0  # by the clock; at once, because a backup needs it

    # Joining and leaving

    def join(self, data: Path, index: Callable[[], object] = lambda: None) -> None:
        """Write what the stream has into the log in *data*, *index* that, and get the turn; raises `CannotJoin`."""
        self._bookmark, self._damaged = Bookmark(data / FILE), data / DAMAGED
        if self._damaged.exists():
            raise CannotJoin(self._damaged.read_text())
        agreement = self.signalling.agreement
        join(data / "log", self._bookmark, self.turn, self.transport, agreement, self._clock, index)

    def start(self, log: Log, bus: Bus, foreign: ForeignEntries) -> None:
        """Log into *log* and deliver by *bus* what this gateway accepts, and by *foreign* what others do."""
        self._log, self._bus, self._foreign = log, bus, foreign
        log.divert, self.transport.is_full = self.turn.logged, lambda: log.unsynced_bytes > MAX_UNSYNCED_BYTES
        bus.acceptance.on_waiting = self.turn.want
        bus.peers.block, bus.peers.reserve = NUMBERS, 0
        bus.peers.top_up()
        bus.directs.next_id = count(first_direct_number(bus.peers.free - NUMBERS))
        self.signalling.start(bus, foreign.flaw, foreign.hear)
        self.turn.callbacks = self

    def agreed_clock(self, clock: Callable[[], int]) -> Callable[[], int]:
        """The time (ms since 1970) of what this gateway accepts, where its own *clock* says so."""
        self._time = AgreedClock(clock, self._other_times)
        return self._time.now

    def _other_times(self) -> list[int]:
        """The time by the clocks of other members, and of the server, which counts if there are others."""
        times, (time, read) = self.signalling.roster.times(), self.transport.time
        heard = self.turn.heard_other
        others = times or (heard is not None and self._clock() - heard <= MEMBER_SILENCE_SECONDS)
        if others and time and (since := monotonic() - read) <= MEMBER_SILENCE_SECONDS:
            times.append(time + int(since * 1000))
        return times

    def started(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Let others have the turn; *post* runs a call on the loop of the gateway."""
        self.signalling.agreement.refresh()  # files may have been made
        self._post = post
        self.transport.on_call = lambda: post(self._receive)
        self.turn.pinned = False
        self._reading = LogReading(self._log, self.comparison, post)
        self._receive()

    def _receive(self) -> None:
        """Do what is due, for a moment; a gateway that catches up serves its peers meanwhile."""
        end = self._clock() + SLICE_SECONDS
        while (call := self.transport.receive(0)) is not None:
            self._run(call)
            if self._clock() >= end:
                self._post(self._receive)
                return

    def goodbye(self) -> None:
        """Refuse publishers that wait for the turn, since the gateway stops."""
        if not self.turn.acting:
            self.hold("the gateway is stopping")

    def leave(self) -> None:
        """Give the turn up for good, and send what is not in the stream yet."""
        self._leaving, self.transport.on_call = True, lambda: None
        if self._reading is not None:
            self._reading.stop()
        end = self._clock() + LEAVE_SECONDS
        while not self.turn.leave() and self._clock() < end:
            if (call := self.transport.receive(TICK_SECONDS)) is not None:
                self._run(call)
            else:
                self.turn.tick()
        self.signalling.leave()  # not before: others claim the turn at once
        self.transport.close()

    def tick(self) -> None:
        """Send a heartbeat; at first and each minute save how far the log is, for the next start."""
        self.signalling.beat()
        self._check_clock()
        self._check_log()
        me, *others = self.signalling.members()
        stored = self.transport.status().stored
        self.lag = self._lag_meter.measure(me, others, stored.last if stored is not None else 0)
        if self._clock() >= self._save_at and not self.turn.over:
            self._save_at = self._clock() + SAVE_SECONDS
            state = self._bookmark.state(self.turn.position, self.transport.place, self.transport.digest)
            self._log.when_synced(state["next_seq"] - 1, partial(self._bookmark.save, state), hurry=False)

    def _check_clock(self) -> None:
        """Log a warning when the clock begins to be ahead of all others."""
        was, self._ahead = self._ahead, 0 if self._time is None else self._time.refresh()
        if self._ahead and not was:
            logger.warning(
                "the clock of this machine is not believed", ahead_seconds=self._ahead // 1000, remedy=KEEP_TIME
            )

    def _check_log(self) -> None:
        """Stop the gateway if its log is damaged, and do not let it start again with that."""
        if self.failure is None and (block := self.comparison.find_damage()):
            self.failure = LOG_DIFFERS.format(*records_of(block))
            with suppress(OSError):
                self._damaged.write_text(self.failure)
            logger.error("the log is damaged", reason=self.failure, consequence="the gateway stops, and does not start")
            os.kill(os.getpid(), signal.SIGTERM)  # in order: what it accepted is in the stream

    def closed(self) -> None:
        """Save how far the closed log is, unless it lacks something, as that of a gateway that lost its turn does."""
        if not self.turn.over and self._log.is_complete:
            self._bookmark.save(self._bookmark.state(self.turn.position, self.transport.place, self.transport.digest))

    def _heartbeat(self) -> Heartbeat:
        turn = self.turn
        clock = 0 if self._time is None else self._time.own()
        place, number, end = self.transport.place, turn.position.number, turn.position.next_seq
        heartbeat = Heartbeat(turn.me, _VERSION, end, place, turn.is_mine, clock=clock, batches=number)
        heartbeat.block, heartbeat.digest = self.comparison.told
        return heartbeat

    def _compare(self, heartbeat: Heartbeat) -> None:
        """Compare the stream with that of a member that has read as far; name in the log who disturbs it."""
        if heartbeat.place >= self.transport.place:
            self.turn.compare(heartbeat.batches)
        self.comparison.hear(heartbeat.member, heartbeat.block, heartbeat.digest)
        stray, self._stray = self._stray, self.turn.stray
        if self._stray is not None and self._stray is not stray:
            logger.warning(
                "a batch in the stream does not follow the one before, and is ignored",
                sender=self._stray.member,
                number=self._stray.number,
                expected=self.turn.position.number + 1,
                remedy=STRAY,
            )

    @property
    def trouble(self) -> str | None:
        """Why this gateway does not accept, or is behind; None if that is only for a moment."""
        status = self.transport.status()
        waited, silence = self.turn.waited, status.silence
        if waited > STALLED_SECONDS or silence > SERVERS_SILENCE_SECONDS:
            return f"the cluster has not answered for {max(waited, silence):.0f} s: {status.error or QUIET}"
        if (lag := self.lag).seconds > LAGGING_SECONDS:
            return f"the gateway has been behind the cluster for {lag.seconds:.0f} s, by {lag.records:,} records"
        return None

    # The sequencer

    def submit(self, run: Sequence[Message], origins: Sequence[Subscriber | None]) -> None:
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

    def park(self, request: Call) -> None:
        """Run *request* as soon as it is this gateway's turn, or turns out that the cluster does not answer."""
        self._parked.append(request)
        self.turn.want()

    @property
    def awaits_turn(self) -> bool:
        """Whether another gateway accepts now, and the cluster answers."""
        return not self.turn.acting and self._log.failing is None

    async def until_acting(self) -> None:
        """Wait until it is this gateway's turn, or until the cluster turns out not to answer."""
        while self.awaits_turn:
            self.turn.want()
            self._events.append(event := anyio.Event())
            await event.wait()

    @contextmanager
    def keeping(self) -> Iterator[Callable[[], None]]:
        """Keep the turn for a request that needs it, until the request is over or calls the function that it gets."""
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
        """Run the calls that waited for the turn."""
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

    def turn_lost(self) -> None:
        """Stop the process: its peers were shown messages that the cluster did not accept."""
        self._fail("another gateway claimed the turn, and what this one had in memory was not accepted")

    def stream_damaged(self) -> None:
        """Stop the process: its stream lacks a batch that the others have."""
        self._fail(STREAM_DAMAGED)

    def _fail(self, reason: str) -> None:
        logger.error("the gateway cannot be a member any more", reason=reason, consequence="it stops; start it again")
        self.turn.over, self.turn.acting = True, False
        self.failure = reason
        self._log.hold(reason)
        if not self._leaving:
            os.kill(os.getpid(), signal.SIGTERM)

    def _run(self, call: Call) -> None:
        try:
            call()
        except CannotJoin as error:
            self._fail(str(error))
        except Exception:  # a bug; the others are called all the same
            logger.exception("a call that waited for the turn failed")

    def _wake(self) -> None:
        parked, self._parked = self._parked, []
        for request in parked:
            self._run(request)
        events, self._events = self._events, []
        for event in events:
            event.set()
