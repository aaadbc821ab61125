"""Runs a job in a thread, so that SIGINT and SIGTERM end it soon, whatever it waits for."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
CANCEL_SECONDS: Final = 0.2  # between two attempts: a thread may start another Spark job after one was cancelled
GIVE_UP_SECONDS: Final = 5.0  # a thread that waits for something else is then left behind; the process ends anyway


class Interrupts:
    """Receives SIGINT and SIGTERM from its creation on; a second one ends the process at once.

    PySpark would raise an exception in the main thread instead, also in the middle of a request to the JVM, whose
    connection cannot be used afterwards. It does so only if Spark is started in the main thread.
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._stop = threading.Event()
        self._wake: SimpleQueue[None] = SimpleQueue()  # a signal handler may put something into this kind
        self._error: BaseException | None = None
        self._done = False
        for number in SIGNALS:
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: object) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._received = signal.Signals(number)
        self._wake.put(None)

    def run(self, work: Callable[[threading.Event], object], cancel: Callable[[], bool]) -> signal.Signals | None:
        """Run *work* in a thread; return the signal that ended it, None if it was done.

        After a signal the event that *work* got is set, and *cancel* is called until the thread ends or there is
        nothing to cancel. Exceptions of *work* are raised here, except after a signal.
        """
        thread = threading.Thread(target=self._work, args=(work,), name="job", daemon=True)
        thread.start()
        self._wake.get()
        if self._received is not None:
            self._stop.set()
            ends = time.monotonic() + GIVE_UP_SECONDS
            while thread.is_alive() and time.monotonic() < ends and cancel():
                thread.join(CANCEL_SECONDS)
        elif self._error is not None:
            raise self._error
        return None if self._done else self._received

    def _work(self, work: Callable[[threading.Event], object]) -> None:
        try:
            work(self._stop)
            self._done = True
        except BaseException as error:
            self._error = error
        self._wake.put(None)
