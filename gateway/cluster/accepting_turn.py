"""One gateway accepts at a time: the member of a cluster whose turn it is.

It has taken everything before, so it accepts as a gateway does that runs alone, and sends what it logged. All others
log the same lines. When another member wants the turn, or is expected to (`busy_members`), the holder passes it on with
its last batch. If the holder sends nothing for the lease while a member wants the turn and the servers answer, that
member claims it. Before others may claim the turn, the holder rests: it accepts nothing until the stream has brought
another batch of its own. So a gateway that is cut off neither accepts nor refuses what it cannot judge.

Laws of this file. Batches are sent one after another, and nothing goes to the disk before the stream has it: what the
log has is a beginning of the stream, whenever the process ends. If a gateway accepted something that did not reach the
stream, because another one claimed the turn, it has to start again (`TurnCallbacks.turn_lost`). No clock decides what
counts. A batch is sent when its sender has read the one before, so one that does not follow shows that something is
missing in the stream as it is read here. A gateway that sees such a batch, and none that follows for the lease, ends
if it would accept: it would continue alone, from another state than the others (`TurnCallbacks.stream_damaged`). If
another member read as far and counted as many batches, nothing is missing: the sender of that batch is faulty, or is
not a member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gateway.core.bounded_maps import BoundedMap
from gateway.storage.record import Entry

from .batch import MAX_BATCH, NOBODY, BadBatch, Batch, decode_batch, encode_batch, entries_of, name_of
from .busy_members import BusyMembers
from .removal import decode_removal
from .turn_contracts import TurnCallbacks, TurnTransport
from .turn_position import Position
from .wishes import Wishes

LEASE_SECONDS: Final = 5.0  # without a batch of the holder, after which a waiting member claims the turn; the default
REST_SHARE: Final = 0.6  # of the lease, without a batch, after which the holder rests
QUANTUM_SECONDS: Final = 0.01  # that a busy gateway keeps the turn while another one wants it
MAX_LEFT: Final = 256  # members that gave the turn up for good, and are remembered
MAX_HOLD_SECONDS: Final = 0.05  # as `QUANTUM_SECONDS`, while requests that began in this turn are under way
STALLED_SECONDS: Final = 3.0  # of waiting after which publishers are refused instead of waiting
MAX_AHEAD: Final = 16 << 20  # bytes that may wait for the stream; beyond it publishers are not read
HEADER: Final = 256  # bytes that a header has at most

Logged = tuple[Sequence[Entry], list[bytes]]  # entries, and their lines


class _Sent(NamedTuple):
    data: bytes
    batch: Batch
    logged: Sequence[Logged]
    since: float


class Turn:
    """The turn of the member *me*, by a *clock* in seconds."""

    def __init__(
        self,
        me: str,
        callbacks: TurnCallbacks,
        transport: TurnTransport,
        clock: Callable[[], float],
        *,
        lease: float = LEASE_SECONDS,
    ) -> None:
        self.me = me
        self.callbacks = callbacks
        self.position = Position()
        self.heard_other: float | None = None  # when the last batch of another member came
        self.acting = False  # whether this gateway accepts
        self.pinned = False  # keeps the turn, as while the gateway starts
        self.requests = 0  # that need the turn: they wait for it, or are under way
        self.ignored = 0  # batches that did not count
        self.base = 1  # the sequence of the first line, if the stream is empty
        self.over = False  # after `TurnCallbacks.turn_lost`, or another end
        self.stray: Batch | None = None  # the last batch that did not follow
        self._gap_since: float | None = None  # since when there has been a batch that does not follow
        self._transport = transport
        self._clock = clock
        self._lease = lease
        self._pending = deque[Logged]()
        self._ahead = 0  # bytes that are pending or sent
        self._sent: _Sent | None = None
        self._next: str | None = None  # to whom the turn is passed when nothing is pending
        self._wanting: float | None = None  # since when
        self._unsaid = False  # whether it did not say so, because it claims it, or is expected to want it
        self._removed: set[str] = set()  # names of gateways for which nobody waits
        self._left = BoundedMap[str, None](MAX_LEFT)  # members for which nobody waits
        self._busy = BusyMembers()
        self._wishes = Wishes()
        self._holder = NOBODY  # as of the batch that was followed last
        self._heard = self._sure_since = self._begun = clock()  # `_sure_since`: others claim the turn a lease later
        self._postponed = False  # whether its turn begins once it has read what was received
        self._refuses = False  # whether publishers are refused, because the stream did not answer
        self._due = self._timed = False  # whether a flush is due, and whether passing the turn on is timed

    # What the gateway calls

    def logged(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Send *lines*, which this gateway just logged; those of one turn of the loop are sent together."""
        size = sum(map(len, lines))
        if size < MAX_BATCH - HEADER:
            self._pending.append((entries, lines))
        else:
            self._pending += [((entry,), [line]) for entry, line in zip(entries, lines, strict=True)]
        self._ahead += size
        if self._ahead > MAX_AHEAD:
            self.callbacks.hold(None)
        if not self._due:
            self._due = True
            self._transport.later(0, self._flush)

    def want(self) -> None:
        """Ask for the turn, unless it is this gateway's."""
        if not self.acting and self._wanting is None:
            self._wanting = now = self._clock()
            self._unsaid = self._postponed or (self._busy.contains(self.me, now) and not self.is_mine)
            if not self._unsaid:
                self._ask()

    def wanted(self, member: str, batches: int = 0) -> None:
        """Note that another *member* wants the turn, which it said after so many *batches* that counted; 0: unknown."""
        if member != self.me and member not in self._left:
            self._wishes.hear(member, batches, self._clock())
            self._pass_on_if_wanted()

    def left(self, member: str) -> None:
        """Note that another *member* has given the turn up for good, and stops: it is not to get it, nor waited for."""
        self._left[member] = None
        self._wishes.forget(member)
        self._busy.forget(member)

    def compare(self, batches: int) -> None:
        """Note that of the stream up to here, or further, *batches* counted at another member."""
        if batches == self.position.number:
            self._gap_since = None

    def finished(self) -> None:
        """Note that a request that needed the turn is over."""
        self.requests -= 1
        self._pass_on_if_wanted()

    def leave(self) -> bool:
        """Give the turn up for good; return whether everything is in the stream, else call it again later."""
        self.pinned, self._wanting = False, None
        if self.is_mine:
            self._pass(self._next_holder() or NOBODY)
        return self.over or (self._sent is None and not self._pending and self._next is None)

    @property
    def is_mine(self) -> bool:
        """Whether it is this gateway's turn; it may rest, or not have read that another one claimed the turn."""
        return self.position.holder == self.me and self._next is None and not self.over

    @property
    def is_namesakes(self) -> bool:
        """Whether it is the turn of another life of this gateway, or of another gateway with its name."""
        return self.position.holder != self.me and name_of(self.position.holder) == name_of(self.me)

    @property
    def waited(self) -> float:
        """How many seconds the gateway has waited for the turn, or for its batch to come into the stream."""
        since = self._wanting if self._sent is None else self._sent.since
        return 0.0 if since is None else self._clock() - since

    def tick(self) -> None:
        """Ask for the turn again, or claim one that is not used; call this ten times a second."""
        now = self._clock()
        if not self._transport.answers():  # the holder cannot be heard: its batch, if it has one, comes before a claim
            self._heard = now
            self._gap_since = None if self._gap_since is None else now  # nor what others counted
        if self._gap_since is not None and now - self._gap_since > self._lease and self.waited:
            self.over, self.acting, self._gap_since = True, False, None
            self.callbacks.stream_damaged()
            return
        if self.acting and not self.pinned and self._is_unsure:
            self.callbacks.hold(None)  # which publishes what was gathered
            self.acting = False
        if self._wanting is not None and not self._postponed:
            self._ask()
        if self.waited > STALLED_SECONDS:
            self._refuses = True
            self.callbacks.hold("the cluster does not answer")
        self._pass_on_if_wanted()

    # What the stream brings

    def arrived(self, data: bytes, *, has_more: bool = False) -> None:
        """Take the next element of the stream; with *has_more*, the one behind it was received as well.

        Until that was read, the gateway does not accept: another one may have claimed the turn.
        """
        if self.over:
            return
        try:
            batch, entries = self._decoded(data)
        except BadBatch:
            if (name := decode_removal(data)) is not None:
                self._remove(name)
            else:
                self.ignored += 1
        else:
            if self.position.admit(batch):
                self._follow(batch, entries)
            else:
                self._ignore(batch)
        if self._postponed and self.is_mine and not has_more:
            self._begin_turn()
            self._flush()

    def _ignore(self, batch: Batch) -> None:
        self.ignored += 1
        if batch.number > self.position.number:
            self.stray = batch
            self._gap_since = self._clock() if self._gap_since is None else self._gap_since

    def _follow(self, batch: Batch, entries: Sequence[Entry]) -> None:
        """Do what *batch* says, which just counted, and whose records are *entries*."""
        self._gap_since, self._heard, self._postponed = None, self._clock(), False
        self._busy.note(batch, self._heard)
        if batch.member in self._left:  # which was heard before this, its last batch
            self._busy.forget(batch.member)
        self.heard_other = self.heard_other if batch.member == self.me else self._heard
        self._removed -= {name_of(batch.member), name_of(batch.holder)}  # which came back under its name
        sent, self._sent = self._sent, None
        self._sure_since = self._heard if sent is None or batch.member != self.me else sent.since
        if batch.member == self.me and sent is not None:
            self._confirm(sent)
        elif (sent is not None and sent.logged) or self._pending:
            self.over, self.acting = True, False
            self.callbacks.turn_lost()
            return
        else:
            self._take(batch, entries)
        self._follow_turn()
        is_served = self._postponed or self._busy.contains(self.me, self._heard)
        if self._wanting is not None and self._unsaid and not is_served:
            self._ask()

    def _decoded(self, data: bytes) -> tuple[Batch, Sequence[Entry]]:
        """Return the batch in *data*, and its records unless it was just sent here; raise `BadBatch` if it is none."""
        if self._sent is not None and data == self._sent.data:
            return self._sent.batch, ()
        batch = decode_batch(data)
        return batch, entries_of(batch)

    def _take(self, batch: Batch, entries: Sequence[Entry]) -> None:
        acted, self.acting, self._next = self.acting, False, None
        if acted:
            self.callbacks.hold(None)
        if entries:
            self.callbacks.take(entries, list(batch.lines))

    def _remove(self, name: str) -> None:
        """Wait no longer for the gateway *name*, which an operator removed; if it is this one, end."""
        if name == name_of(self.me):
            self.over, self.acting = True, False
            self.callbacks.removed()
        else:
            self._removed.add(name)

    def _confirm(self, sent: _Sent) -> None:
        was_full = self._ahead > MAX_AHEAD or self._clock() - sent.since > STALLED_SECONDS
        for entries, lines in sent.logged:
            self._ahead -= sum(map(len, lines))
            self.callbacks.confirm(entries, lines)
        if self.acting and was_full and self._ahead <= MAX_AHEAD:
            self._begin()

    def _begin(self) -> None:
        self._refuses = False
        self.callbacks.begin()

    def _begin_turn(self) -> None:
        """Accept from now on, or send an empty batch first if another member may have claimed the turn."""
        self._postponed = False
        if self._is_unsure:
            self._wanting = self._clock() if self._wanting is None else self._wanting
            self._ask()
        else:
            self.acting, self._wanting, self._begun = True, None, self._clock()
            self._begin()

    def _follow_turn(self) -> None:
        """Begin or end this gateway's turn, if the batch that just counted says so, and send what is pending."""
        holder = self.position.holder
        if holder != self._holder:
            self._holder = holder
            self._wishes.grant(holder, self.position.number)
        if self.is_mine and not self.acting:
            self._postponed = True
        elif holder != self.me:
            self._next = None
            if self._refuses and not self.waited:
                self._refuses = False
                self.callbacks.hold(None)  # the stream answers: publishers wait again
        self._flush()

    # Sending

    def _flush(self) -> None:
        self._due = False
        if self._sent is None and self.position.holder == self.me and (self._pending or self._next is not None):
            if self.acting and not (self.pinned or self.requests) and (member := self._next_holder()) is not None:
                self._end(member)  # what waited was said, so the turn goes on with that
            self._send(self._gather())
        self._pass_on_if_wanted()

    def _gather(self) -> list[Logged]:
        """Take as much of what is pending as one batch can have."""
        logged, size = list[Logged](), HEADER
        while self._pending and (size := size + sum(map(len, self._pending[0][1]))) <= MAX_BATCH:
            logged.append(self._pending.popleft())
        return logged

    def _send(self, logged: Sequence[Logged], holder: str | None = None) -> None:
        """Send *logged*, and give the turn to *holder*: by default to the next member once nothing is pending."""
        if holder is None:
            holder = self.me if self._pending or self._next is None else self._next
        lines = [line for _, each in logged for line in each]
        batch = Batch(self.me, self.position.number + 1, holder, self.first_seq(logged), lines)
        self._sent = _Sent(encode_batch(batch), batch, logged, self._clock())
        self._transport.publish(self._sent.data)

    def first_seq(self, logged: Sequence[Logged]) -> int:
        """The sequence of the first line of a batch of *logged*."""
        return logged[0][0][0].seq if logged else self.position.next_seq or self.base

    # Passing the turn on

    def _ask(self) -> None:
        """Tell others that the turn is wanted here, or claim it if nobody uses it."""
        holder, now = self.position.holder, self._clock()
        unused = holder == NOBODY or holder in self._left or name_of(holder) in (name_of(self.me), *self._removed)
        silent = self._wanting is not None and now - max(self._wanting, self._heard) > self._lease
        if self._gap_since is not None and not self.is_mine:
            return
        self._unsaid = (unused or silent) and self._sent is None
        if self._unsaid:
            self._send((), self.me)
        elif not self.is_mine:
            self._transport.want(self.me, self.position.number)

    def _pass_on_if_wanted(self) -> None:
        """Pass the turn on if another member wants it, and this one had it long enough or does not need it."""
        if not self.is_mine or self.pinned or self._postponed:
            return
        is_idle = not (self._pending or self._sent or self.requests)
        if (member := self._next_holder() if is_idle else self._wishes.first(self._clock())) is None:
            return
        had = self._clock() - self._begun
        if is_idle or had >= (MAX_HOLD_SECONDS if self.requests else QUANTUM_SECONDS):
            self._pass(member)
        elif not self._timed:
            self._timed = True
            self._transport.later(QUANTUM_SECONDS, self._pass_on_later)

    def _next_holder(self) -> str | None:
        """Return the member that has waited for the turn longest, or else one that is expected to want it."""
        return self._wishes.first(self._clock()) or self._busy.first(self._clock(), self.me)

    @property
    def _is_unsure(self) -> bool:
        """Whether another member may claim the turn before long."""
        return self._clock() - self._sure_since > REST_SHARE * self._lease

    def _pass_on_later(self) -> None:
        self._timed = False
        self._pass_on_if_wanted()

    def _pass(self, member: str) -> None:
        self._end(member)
        if self._sent is None:
            self._flush()

    def _end(self, member: str) -> None:
        self.callbacks.hold(None)
        self.acting, self._next = False, member
