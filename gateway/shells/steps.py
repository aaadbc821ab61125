"""Tells what answering an HTTP request takes of the loop, step by step, and what became of the request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from time import perf_counter
from typing import Any, Protocol, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RequestObserver(Protocol):
    """The connection that the request came on."""

    def worked(self, seconds: float) -> None:
        """A step took *seconds*."""

    def answered(self, status: int) -> None:
        """The answer has *status*."""


class ObservedApp:
    """An ASGI application whose steps, and whose answer's status, a connection is told."""

    def __init__(self, app: ASGIApp, told: RequestObserver) -> None:
        self._app = app
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the application does."""
        told = self._told

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                told.answered(message["status"])
            await send(message)

        await TimedSteps(cast("Coroutine[Any, Any, None]", self._app(scope, receive, tell)), told.worked)


class TimedSteps:
    """Awaits a coroutine, and tells of each of its steps how many seconds it took."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], tell: Callable[[float], None]) -> None:
        self._coroutine = coroutine
        self._tell = tell

    def __await__(self) -> Generator[Any, Any, None]:
        """Give on what the coroutine waits for, and what comes of that."""
        step = partial(self._coroutine.send, None)
        while True:
            begin = perf_counter()
            try:
                waits_for = step()
            except StopIteration:
                return
            finally:
                del step  # which may hold the error that passes here, and the error holds this frame
                self._tell(perf_counter() - begin)
            try:
                step = partial(self._coroutine.send, (yield waits_for))
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
