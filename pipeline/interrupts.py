"""Runs a job in a thread, so that SIGINT and SIGTERM end it soon, whatever it waits for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from py4j.protocol import Py4JError

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
CANCEL_SECONDS: Final = 0.2  # between two attempts: a thread may start another Spark job after one was cancelled
GIVE_UP_SECONDS: Final = 5.0  # a thread that waits for something else is then left behind; the process ends anyway

Outcome = signal.Signals | BaseException | None


class Interrupts:
    """Receives SIGINT and SIGTERM from its creation on; a second one ends the process at once.

    PySpark raises an exception in the main thread instead, wherever that is, also in the middle of a request to the
    JVM, whose connection cannot be used afterwards.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()  # a signal handler may put something into this kind
        self.listen()

    def listen(self) -> None:
        """Install the handlers, again once there is a Spark session, which has installed one of its own."""
        for number in SIGNALS:
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: object) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self.received = signal.Signals(number)
        self._outcomes.put(self.received)

    def run(self, work: Callable[[], object], cancel: Callable[[], None]) -> None:
        """Run *work* in a thread until it ends or a signal is received; *cancel* ends what it waits for in Spark.

        Exceptions of *work* are raised here, except after a signal.
        """
        thread = threading.Thread(target=self._work, args=(work,), name="job", daemon=True)
        thread.start()
        outcome = self._outcomes.get()
        if self.received is None and outcome is not None:
            assert isinstance(outcome, BaseException)
            raise outcome
        for _ in range(round(GIVE_UP_SECONDS / CANCEL_SECONDS)):
            if self.received is None or not thread.is_alive():
                break
            with suppress(Py4JError, OSError):  # the JVM may have received the signal too
                cancel()
            thread.join(CANCEL_SECONDS)

    def _work(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self._outcomes.put(error)
        else:
            self._outcomes.put(None)
