"""A gateway that speaks all four protocols, in a directory and without an event loop."""

from __future__ import annotations

import asyncio
import atexit
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from adapters import ADAPTERS
from gateway import runtime
from gateway.http.rest import Rest
from gateway.membership.membership import Membership
from gateway.runtime import Gateway
from gateway.settings.settings import settings_model
from tests.still import Clock, Posted

NOW = 1_795_240_000_000  # ms, an hour after the keys of the vectors were made
NAMES = ("lobby", "hall")  # of the channels


class InProcessGateway:
    """A gateway in a directory, without a loop."""

    def __init__(self, data: Path, membership: Membership | None = None) -> None:
        self.data = data
        self.posted = Posted()
        self.gateway = Gateway(
            settings_model(ADAPTERS).model_validate({"data": data, "limits": {"rates": "off"}}),
            ADAPTERS,
        )
        self.gateway.membership = membership
        self.gateway.start(self.posted.put)
        self.adapters: dict[str, Any] = {adapter.name: adapter for adapter in self.gateway.adapters}
        self.rest = Rest(self.gateway)
        self.loop = asyncio.Runner()  # for one request at a time; nothing else runs in it

    def settle(self, *, synced: bool = False) -> None:
        """Run what is posted until all forms are made and, if need be, everything is on disk."""
        for _ in range(2):  # what the worker made may be what another form waits for
            self._run_until(lambda done: self.adapters["sprout"].services.work(lambda: None, lambda _: done()))
            if synced:
                self._run_until(lambda done: self.gateway.log.when_synced(self.gateway.log.next_seq - 1, done))

    def stop(self) -> None:
        """Stop cleanly."""
        self.gateway.stop()
        self.posted.drain()
        self.loop.close()

    def _run_until(self, begin: Callable[[Callable[[], None]], object]) -> None:
        self.posted.until_called(begin)
        self.posted.drain()


@cache
def template() -> Path:
    """A directory with keys and with the channels, so that each run begins at once.

    All in it is from `NOW`, whichever test asks first: the clock of a log never goes back behind its last record.
    """
    folder = Path(mkdtemp(prefix="trellis-direct-"))
    atexit.register(shutil.rmtree, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "clock", Clock(NOW))
        instance = InProcessGateway(folder)
        for name in NAMES:
            instance.gateway.channels.register(name)
        instance.settle(synced=True)
        instance.stop()
    return folder
