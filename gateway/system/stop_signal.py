"""The signals that stop the gateway: SIGTERM, and SIGINT (Ctrl-C)."""

from __future__ import annotations

import signal
from typing import Final

import anyio

from .posting import poster

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """The first of these signals from now on; until the process ends, others change nothing: it stops soon anyway."""

    def __init__(self) -> None:
        self._came, post = anyio.Event(), poster()
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: post(self._came.set))

    async def wait(self) -> None:
        """Wait until it has come."""
        await self._came.wait()
        for number in STOP_SIGNALS:  # they may come when the loop is closed
            signal.signal(number, signal.SIG_IGN)
