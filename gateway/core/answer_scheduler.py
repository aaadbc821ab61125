"""Schedules long answers: how many are under way at once, and when each of them continues.

An answer that may be long is made a slice at a time, at the pace at which its reader takes it. This module decides
whose turn it is: one slice in each turn of the loop, round-robin by network, and a share of the loop's time for all of
them together while messages are published (`loop_share`). An answer also needs a slot. If none is free it waits for
one; the network with the fewest answers under way comes first, and an answer that has waited for `MAX_WAIT_SECONDS` is
refused.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from time import monotonic, thread_time

from .buckets import TokenBuckets
from .loop_share import BUSY_SHARE, LoopShare
from .watchdog import Progress

BURST = 0.1  # seconds of the loop that they may take at once
WRITE_SECONDS = 2e-9  # about what writing one byte takes
QUIET_MS = 1_000  # without a message after which the whole of the loop's time is free for answers
MAX_SLOTS = 256  # long answers under way at once
MAX_SLOTS_PER_NETWORK = 32
MAX_WAITING = 4_096  # answers that wait for a slot
MAX_WAITING_PER_NETWORK = 512
MAX_WAIT_SECONDS = 10.0  # that they wait, and after which a refused client may ask again

Callback = Callable[[], None]


class SlotState(Enum):
    """The state of an `AnswerSlot`."""

    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    RELEASED = "released"


class AnswerSlot:
    """Permission to make one long answer: requested, then granted or refused, and released in the end."""

    __slots__ = ("_scheduler", "network", "on_decided", "since", "state")

    def __init__(self, scheduler: AnswerScheduler, network: str, on_decided: Callback, since: float) -> None:
        self.network = network
        self.on_decided = on_decided
        self.since = since
        self.state = SlotState.WAITING
        self._scheduler = scheduler

    def release(self) -> None:
        """Give the slot back, or stop waiting for it."""
        self._scheduler.release(self)


def _nothing() -> None:
    """Stand in for what was to be called, once a slot is released."""


class AnswerScheduler:
    """Gives long answers their slots and their turns.

    *post* runs a callback on the loop, *later* after a number of seconds. *next_seq* tells whether a message was
    published; *clock* is in ms, *seconds* in seconds. *charge_network* is told what each slice took, in seconds.
    """

    def __init__(
        self,
        post: Callable[[Callback], None],
        later: Callable[[float, Callback], None],
        next_seq: Callable[[], int],
        clock: Callable[[], int],
        seconds: Callable[[], float] = monotonic,
        charge_network: Callable[[str, float], None] = lambda _network, _seconds: None,
    ) -> None:
        self._post = post
        self._later = later
        self._next_seq = next_seq
        self._clock = clock
        self._seconds = seconds
        self._charge_network = charge_network
        self._last = (0, 0)  # the next sequence number, and when (ms) it last changed
        self._slices: OrderedDict[str, deque[Callback]] = OrderedDict()  # by network; the first one is next
        self._due = False  # a call of `_run` is posted
        self._runs = 0
        self._time = TokenBuckets(BUSY_SHARE, BURST, seconds)
        self._share = LoopShare(seconds)
        self._granted: Counter[str] = Counter()  # slots, by network
        self._waiting: dict[str, deque[AnswerSlot]] = {}  # by network

    # Slices

    @property
    def progress(self) -> Progress:
        """How many slices wait, and how many were run."""
        return Progress(sum(map(len, self._slices.values())), self._runs)

    def schedule(self, make_slice: Callback, network: str) -> None:
        """Run *make_slice*, a step of an answer to *network*, when its turn has come. It must not raise."""
        self._slices.setdefault(network, deque()).append(make_slice)
        self._schedule_run()

    def charge(self, seconds: float) -> None:
        """Count *seconds* of the loop for a slice or its writing; slices that are run here are counted here."""
        if self.has_recent_messages():
            self._time.spend("", self._share.price(seconds))

    def has_recent_messages(self) -> bool:
        """Whether a message was published within the last `QUIET_MS`."""
        now, seq = self._clock(), self._next_seq()
        if seq != self._last[0]:
            self._last = seq, now
        return now - self._last[1] < QUIET_MS

    def _schedule_run(self) -> None:
        if self._due or not self._slices:
            return
        self._due = True
        wait = self._time.spend("", 0) if self.has_recent_messages() else 0.0
        if wait > 0:
            self._later(wait, self._run)
        else:
            self._post(self._run)

    def _run(self) -> None:
        self._due = False  # first, so that `schedule` works whatever happens below
        self._runs += 1
        network, slices = self._slices.popitem(last=False)
        make_slice = slices.popleft()
        if slices:
            self._slices[network] = slices
        begin = thread_time()
        try:
            make_slice()
        finally:
            used = thread_time() - begin
            self.charge(used)
            self._charge_network(network, used)
            self._schedule_run()

    # Slots

    def request_slot(self, network: str, on_decided: Callback) -> AnswerSlot:
        """A slot for an answer to *network*: granted, refused, or waiting until *on_decided* is called."""
        slot = AnswerSlot(self, network, on_decided, self._seconds())
        if network not in self._waiting and self._has_room(network):
            self._grant(slot)
        elif self._is_queue_full(network):
            slot.state = SlotState.REFUSED
        else:
            self._waiting.setdefault(network, deque()).append(slot)
        return slot

    def release(self, slot: AnswerSlot) -> None:
        """Free a granted *slot*, or remove a waiting one from the queue."""
        slot.on_decided = _nothing  # whatever waited for the slot refers to it: a cycle would keep both
        state, slot.state = slot.state, SlotState.RELEASED
        if state is SlotState.GRANTED:
            self._granted[slot.network] -= 1
            if not self._granted[slot.network]:
                del self._granted[slot.network]
            self._grant_waiting()
        elif state is SlotState.WAITING:
            self._remove(slot)

    def tick(self) -> None:
        """Refuse the slots that have waited for too long; call this once a second."""
        since = self._seconds() - MAX_WAIT_SECONDS
        for slot in [slot for slots in self._waiting.values() for slot in slots if slot.since <= since]:
            self._remove(slot)
            slot.state = SlotState.REFUSED
            slot.on_decided()

    def _has_room(self, network: str) -> bool:
        return self._granted.total() < MAX_SLOTS and self._granted[network] < MAX_SLOTS_PER_NETWORK

    def _is_queue_full(self, network: str) -> bool:
        waiting = self._waiting
        return (
            len(waiting.get(network, ())) >= MAX_WAITING_PER_NETWORK or sum(map(len, waiting.values())) >= MAX_WAITING
        )

    def _grant(self, slot: AnswerSlot) -> None:
        self._granted[slot.network] += 1
        slot.state = SlotState.GRANTED

    def _grant_waiting(self) -> None:
        """Grant waiting slots as long as there is room."""
        while candidates := [network for network in self._waiting if self._has_room(network)]:
            slot = self._waiting[min(candidates, key=self._granted.__getitem__)][0]
            self._remove(slot)
            self._grant(slot)
            slot.on_decided()

    def _remove(self, slot: AnswerSlot) -> None:
        slots = self._waiting[slot.network]
        slots.remove(slot)
        if not slots:
            del self._waiting[slot.network]
