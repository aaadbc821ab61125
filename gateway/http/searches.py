"""Searches the words of messages in a thread, one search at a time, so that no search blocks the event loop."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.to_thread

from gateway.core.errors import Throttled
from gateway.runtime import Gateway
from gateway.storage import texts

from .callers import Caller
from .history import TextQuery
from .problems import Problem

COST = 20  # requests that one search counts as
MAX_WAITING = 32  # searches that wait for the one under way
RETRY_SECONDS = 1.0  # after which clients are asked to try again, if too many searches wait
DISABLED = "the words of messages are not indexed here; the operator sets log.search and restarts the gateway"


class Searches:
    """Runs the searches of a *gateway* in turn."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._turn = anyio.Lock()
        self._waiting = 0

    async def run(self, caller: Caller, query: TextQuery) -> None:
        """Find the places of *query*, one more than it shows; raise `RequestError` if it is refused or stopped."""
        if not self._gateway.index.searchable:
            raise Problem("search-disabled", DISABLED)
        asked = query.search
        caller.charge(COST)
        if self._waiting >= MAX_WAITING:
            raise Throttled(RETRY_SECONDS)
        self._waiting += 1
        try:
            async with self._turn:
                call = partial(texts.search, self._gateway.index.path, asked, query.limit + 1)
                query.places = await anyio.to_thread.run_sync(call)
        finally:
            self._waiting -= 1
