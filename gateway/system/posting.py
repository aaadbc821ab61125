"""Runs calls of other threads, and of signal handlers, on the event loop of asyncio or trio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import sniffio

Post = Callable[[Callable[[], None]], None]  # runs a call on the loop


def poster() -> Post:
    """How to run a call on the current event loop, from any thread or signal handler."""
    if sniffio.current_async_library() == "asyncio":
        loop = asyncio.get_running_loop()

        def post(call: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(call)

        return post
    import trio

    token = trio.lowlevel.current_trio_token()

    def post_trio(call: Callable[[], None]) -> None:
        token.run_sync_soon(call)

    return post_trio
