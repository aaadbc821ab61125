"""Threads: one for long calls, such as RSA signatures, and one for timers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from gateway.core.watchdog import Progress

from .posting import Post

Work = Callable[[Callable[[], Any], Callable[[Any], None]], None]  # runs a call, then the other with its result


class Worker:
    """One thread for long calls (RSA): they run in order, and their results are delivered on the loop."""

    def __init__(self, post: Post, on_fault: Callable[[Exception], None]) -> None:
        self._post = post
        self._on_fault = on_fault
        self._submitted = self._done = 0  # calls
        self._queue: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run *call* in the thread, then *done* on the loop, with its result, or None if it raised."""
        self._submitted += 1
        self._queue.put((call, done))

    @property
    def progress(self) -> Progress:
        """Return how many calls wait, and how many were done."""
        return Progress(self._submitted - self._done, self._done)

    def stop(self) -> None:
        """Finish the calls that were submitted, and stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            call, done = task
            try:
                result = call()
            except Exception as error:
                result = None
                self._post(partial(self._on_fault, error))
            self._done += 1
            self._post(partial(done, result))


class Timer:
    """Runs calls on the loop after delays, one after another: each delay begins when the one before it has ended."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._queue: SimpleQueue[tuple[float, Callable[[], None]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Run *call* on the loop after *seconds*."""
        self._queue.put((seconds, call))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="alarm", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop is gone, and so is everybody who waits
            while True:
                seconds, call = self._queue.get()
                time.sleep(seconds)
                self._post(call)
