"""Searches the words of messages in a thread, one search at a time, so that no search blocks the event loop."""

from __future__ import annotations

from functools import partial

import anyio.to_thread

from gateway.runtime import Gateway
from gateway.storage import word_index

from .callers import Caller
from .fair_queue import FairQueue
from .history import TextQuery
from .problems import Problem

COST = 20  # requests that one search counts as
MAX_WAITING = 32  # searches that wait for the one under way
DISABLED = "the words of messages are not indexed here; the operator sets log.search and restarts the gateway"


class Searches:
    """Runs the searches of a *gateway* one at a time; networks take turns."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._queue = FairQueue(MAX_WAITING)

    async def run(self, caller: Caller, query: TextQuery) -> None:
        """Find the places of *query*, one more than it shows; raise `RequestError` if it is refused or stopped."""
        if not self._gateway.index.searchable:
            raise Problem("search-disabled", DISABLED)
        asked = query.search
        caller.charge(COST)
        async with self._queue.turn(caller.principal.network):
            call = partial(word_index.search, self._gateway.index.path, asked, query.limit + 1)
            query.places = await anyio.to_thread.run_sync(call)
