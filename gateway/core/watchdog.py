"""Detects threads and queues that have work and make no progress, and an event loop that is stuck.

Each watched object tells how much work waits and how much was done. If work waits and nothing is done for
`STALL_SECONDS`, it is stalled: that is reported once, and shown by `stalled` until there is progress. The loop cannot
watch itself, so a thread checks whether it still ticks, and reports where it is.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

STALL_SECONDS = 10.0  # without progress; a disk may take some of them for one sync
LATE_SECONDS = 5.0  # between two ticks of the loop, which come once a second


class Progress(NamedTuple):
    """How much work waits, and how much was done since the start, in any unit."""

    waiting: int
    done: int


@dataclass(slots=True)
class _Watched:
    read: Callable[[], Progress]
    done: int = -1
    since: float = 0.0
    stalled: bool = False


class Watchdog:
    """Watches objects by name.

    *on_stall* is called on the loop with the name of what stalls; *on_late* is called in the watchdog's thread with the
    seconds by which the loop is late and its stack.
    """

    def __init__(
        self,
        on_stall: Callable[[str], None],
        on_late: Callable[[float, str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._on_stall = on_stall
        self._on_late = on_late
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._ticked = clock()
        self._stopping = threading.Event()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def watch(self, name: str, read: Callable[[], Progress]) -> None:
        """Watch the object called *name*, whose progress *read* returns."""
        self._watched[name] = _Watched(read, since=self._clock())

    @property
    def stalled(self) -> list[str]:
        """The names of the watched objects that have work and make no progress."""
        return [name for name, watched in self._watched.items() if watched.stalled]

    def start(self) -> None:
        """Watch the loop that runs in this thread; it must call `tick` once a second."""
        self._loop_thread = threading.get_ident()
        self._ticked = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def tick(self) -> None:
        """Check all that is watched; call this once a second."""
        self._ticked = now = self._clock()
        for name, watched in self._watched.items():
            waiting, done = watched.read()
            if not waiting or done != watched.done:
                watched.done, watched.since, watched.stalled = done, now, False
            elif now - watched.since >= STALL_SECONDS and not watched.stalled:
                watched.stalled = True
                self._on_stall(name)

    # The watchdog's thread

    def _run(self) -> None:
        reported: float | None = None
        while not self._stopping.wait(1.0):
            late = self._clock() - self._ticked
            if late >= LATE_SECONDS and self._ticked != reported:
                reported = self._ticked
                self._on_late(late, self._where())

    def _where(self) -> str:
        """The stack of the loop's thread."""
        frame = sys._current_frames().get(self._loop_thread)
        return "" if frame is None else "".join(traceback.format_stack(frame, limit=12))
