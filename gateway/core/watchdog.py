"""Tells when something that has work to do makes no progress: a thread, a queue, or the event loop itself.

What is watched says how much work waits and how much was done. If work waits and nothing is done for `PATIENCE`, it is
stalled: that is logged once, counted, and shown by `stalled` until it moves on. The loop cannot watch itself, so a
thread looks whether it still ticks, and logs where it stands.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

PATIENCE = 10.0  # seconds without progress; a disk may take some of them for one sync
LATE = 5.0  # seconds between two ticks of the loop, which come once a second


class Progress(NamedTuple):
    """How much work waits, and how much was done since the start, in any units."""

    waiting: int
    done: int


@dataclass(slots=True)
class _Watched:
    read: Callable[[], Progress]
    done: int = -1
    since: float = 0.0
    stalled: bool = False


class Watchdog:
    """Watches by name.

    *on_stall* hears on the loop of what stalls, *on_late* in the watchdog's thread how late the loop is, and where.
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
        """Watch what *read* tells of."""
        self._watched[name] = _Watched(read, since=self._clock())

    @property
    def stalled(self) -> list[str]:
        """The names of all that makes no progress although it should."""
        return [name for name, watched in self._watched.items() if watched.stalled]

    def start(self) -> None:
        """Watch the loop that runs in this thread; it is to call `tick` once a second."""
        self._loop_thread = threading.get_ident()
        self._ticked = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def tick(self) -> None:
        """A second has passed: look at everything."""
        self._ticked = now = self._clock()
        for name, watched in self._watched.items():
            waiting, done = watched.read()
            if not waiting or done != watched.done:
                watched.done, watched.since, watched.stalled = done, now, False
            elif now - watched.since >= PATIENCE and not watched.stalled:
                watched.stalled = True
                self._on_stall(name)

    # The watchdog's thread

    def _run(self) -> None:
        told: float | None = None
        while not self._stopping.wait(1.0):
            late = self._clock() - self._ticked
            if late >= LATE and self._ticked != told:
                told = self._ticked
                self._on_late(late, self._where())

    def _where(self) -> str:
        """Where the loop's thread is."""
        frame = sys._current_frames().get(self._loop_thread)
        return "" if frame is None else "".join(traceback.format_stack(frame, limit=12))
