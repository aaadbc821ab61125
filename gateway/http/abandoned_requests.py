"""Work for a request that is done only while the client waits for it and the gateway does not stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import Request

from gateway.runtime import Gateway


@asynccontextmanager
async def while_wanted(gateway: Gateway, request: Request) -> AsyncIterator[None]:
    """Cancel the context once the client of *request* disconnects, or the *gateway* begins to stop.

    The body of *request* has to be read before.
    """
    async with anyio.create_task_group() as tasks:
        cancel = tasks.cancel_scope.cancel
        tasks.start_soon(_until_gone, request, tasks.cancel_scope)
        gateway.at_goodbye.add(cancel)
        try:
            yield
        finally:
            gateway.at_goodbye.discard(cancel)
            cancel()


async def _until_gone(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
