"""Makes retention and compaction run all the time in a gateway of the harness, with short waits."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import anyio

from gateway import app
from gateway.runtime import Gateway
from gateway.storage import compaction
from gateway.storage.retention import Retention

PAUSE: Final = 0.05  # seconds between two looks at what is to be retired; a gateway looks once a minute
MIN_FACTS_BYTES: Final = 3_000  # bytes of facts that may be left before they are compacted
GRACE_SECONDS: Final = 0.3  # seconds for whoever holds what was forgotten


def retain_frequently() -> None:
    """From now on every gateway of this process retires and compacts all the time."""
    compaction.GRACE_SECONDS = GRACE_SECONDS
    defaults = Retention.__init__.__kwdefaults__
    assert defaults is not None
    defaults["min_facts_bytes"] = MIN_FACTS_BYTES
    app._tick = partial(_tick, app._tick)


async def _tick(each_second: Callable[[Gateway], Coroutine[Any, Any, None]], gateway: Gateway) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(each_second, gateway)
        while True:
            await anyio.sleep(PAUSE)
            gateway.retention.tick()
