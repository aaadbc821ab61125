"""The signals that stop the gateway: SIGTERM, and SIGINT (Ctrl-C)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio

from .posting import poster

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Waits for the first SIGTERM or SIGINT; later ones are ignored until the process ends.

    While the gateway has not started (*has_started*), a signal ends the process at once: nothing was accepted yet, and
    the loop may be blocked, as while it joins a cluster that does not answer.
    """

    def __init__(self, has_started: Callable[[], bool]) -> None:
        self._has_started = has_started
        self._has_come, self._event, self._post = False, anyio.Event(), poster()
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    async def wait(self) -> None:
        """Wait until it has come."""
        await self._event.wait()

    def _handle(self, number: int, _frame: object) -> None:
        if self._has_come:
            return
        if not self._has_started():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._has_come = True
        with suppress(RuntimeError):  # the loop has ended
            self._post(self._event.set)
