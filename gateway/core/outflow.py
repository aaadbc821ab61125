"""Long answers: how many are under way at once, and when each of them may go on.

An answer that may be long is made a slice at a time, at the pace at which its reader takes it. This file decides whose
turn it is: one slice in each turn of the loop, the networks one after the other, and a small share of the loop's time
for all of them together while somebody says something. An answer also needs a place. Where there is none it waits for
one; the network with the fewest answers under way comes first, and who has waited for `PATIENCE` is refused.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from time import monotonic, thread_time

from .buckets import Buckets
from .watchdog import Progress

SHARE = 0.05  # of the loop's time that all long answers together take while somebody talks
WRITE = 2e-9  # seconds, about, that it takes to write a byte
BURST = 0.1  # seconds of it that they may take at once
CALM = 1_000  # ms without a message after which nobody talks
PLACES = 256  # long answers under way at once
PLACES_EACH = 32  # those of one network
WAITING = 4_096  # that wait for a place
WAITING_EACH = 512  # those of one network
PATIENCE = 10.0  # seconds that they wait at most, and after which those that are refused may ask again

Call = Callable[[], None]


class State(Enum):
    """What became of a `Place` that somebody asked for."""

    WAITING = "waiting"
    TAKEN = "taken"
    REFUSED = "refused"
    OVER = "over"


class Place:
    """A place for one long answer: asked for, and then taken or refused."""

    __slots__ = ("_outflow", "decided", "network", "since", "state")

    def __init__(self, outflow: Outflow, network: str, decided: Call, since: float) -> None:
        self.network = network
        self.decided = decided
        self.since = since
        self.state = State.WAITING
        self._outflow = outflow

    def leave(self) -> None:
        """The answer is over, or is not wanted any more."""
        self._outflow.leave(self)


class Outflow:
    """Gives long answers their places and their turns.

    *post* runs a call on the loop, *later* after some seconds. *next_seq* tells whether anything was said; *clock* is
    in ms, *seconds* in seconds.
    """

    def __init__(
        self,
        post: Callable[[Call], None],
        later: Callable[[float, Call], None],
        next_seq: Callable[[], int],
        clock: Callable[[], int],
        seconds: Callable[[], float] = monotonic,
    ) -> None:
        self._post = post
        self._later = later
        self._next_seq = next_seq
        self._clock = clock
        self._seconds = seconds
        self._last = (0, 0)  # the next sequence, and since when it is that
        self._slices: OrderedDict[str, deque[Call]] = OrderedDict()  # by network; the first one is next
        self._due = False  # a call of `_run` is on its way
        self._runs = 0
        self._time = Buckets(SHARE, BURST, seconds)
        self._taken: Counter[str] = Counter()  # places, by network
        self._asking: dict[str, deque[Place]] = {}

    # Slices

    @property
    def progress(self) -> Progress:
        """What waits, and what was done."""
        return Progress(sum(map(len, self._slices.values())), self._runs)

    def give(self, call: Call, network: str) -> None:
        """Run *call*, which makes a slice of an answer to *network*, when its turn has come. It must not raise."""
        self._slices.setdefault(network, deque()).append(call)
        self._call()

    def spend(self, seconds: float) -> None:
        """A slice, or writing it, has taken so many *seconds* of the loop; what `give` runs is counted there."""
        if self.talking():
            self._time.spend("", seconds)

    def talking(self) -> bool:
        """Whether anybody has said something lately."""
        now, seq = self._clock(), self._next_seq()
        if seq != self._last[0]:
            self._last = seq, now
        return now - self._last[1] < CALM

    def _call(self) -> None:
        if self._due or not self._slices:
            return
        self._due = True
        wait = self._time.spend("", 0) if self.talking() else 0.0
        if wait > 0:
            self._later(wait, self._run)
        else:
            self._post(self._run)

    def _run(self) -> None:
        self._due = False  # first: whatever happens below, the next `give` is heard
        self._runs += 1
        network, calls = self._slices.popitem(last=False)
        call = calls.popleft()
        if calls:
            self._slices[network] = calls
        begin = thread_time()
        try:
            call()
        finally:
            self.spend(thread_time() - begin)
            self._call()

    # Places

    def ask(self, network: str, decided: Call) -> Place:
        """A place for an answer to *network*: taken, refused, or waiting; *decided* is called when it waits no more."""
        place = Place(self, network, decided, self._seconds())
        if network not in self._asking and self._has_room(network):
            self._take(place)
        elif len(self._asking.get(network, ())) >= WAITING_EACH or sum(map(len, self._asking.values())) >= WAITING:
            place.state = State.REFUSED
        else:
            self._asking.setdefault(network, deque()).append(place)
        return place

    def leave(self, place: Place) -> None:
        """*place* is free again, or not waited for any more."""
        state, place.state = place.state, State.OVER
        if state is State.TAKEN:
            self._taken[place.network] -= 1
            if not self._taken[place.network]:
                del self._taken[place.network]
            self._admit()
        elif state is State.WAITING:
            self._remove(place)

    def tick(self) -> None:
        """A second has passed: who has waited for too long is refused."""
        since = self._seconds() - PATIENCE
        for place in [place for places in self._asking.values() for place in places if place.since <= since]:
            self._remove(place)
            place.state = State.REFUSED
            place.decided()

    def _has_room(self, network: str) -> bool:
        return self._taken.total() < PLACES and self._taken[network] < PLACES_EACH

    def _take(self, place: Place) -> None:
        self._taken[place.network] += 1
        place.state = State.TAKEN

    def _admit(self) -> None:
        """Let those in that there is room for now."""
        while candidates := [network for network in self._asking if self._has_room(network)]:
            place = self._asking[min(candidates, key=self._taken.__getitem__)][0]
            self._remove(place)
            self._take(place)
            place.decided()

    def _remove(self, place: Place) -> None:
        places = self._asking[place.network]
        places.remove(place)
        if not places:
            del self._asking[place.network]
