"""Measures how long each step of an ASGI application holds the event loop, and reports the status of its response."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from functools import partial
from time import perf_counter
from typing import Any, Protocol, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .cpu_time import CpuTime


class StepObserver(Protocol):
    """Receives the measurements: the connection that the request came on."""

    def begin_step(self) -> CpuTime | None:
        """Note that a step begins; return what `worked` needs."""

    def worked(self, seconds: float, began: CpuTime | None) -> None:
        """Record that the step took *seconds*; *began* is what `begin_step` returned."""


class RequestObserver(StepObserver, Protocol):
    """Receives the status as well."""

    def answered(self, status: int) -> None:
        """Record the *status* of the response."""


class ObservedApp:
    """An ASGI application that reports its steps and the status of its response to an observer."""

    def __init__(self, app: ASGIApp, observer: RequestObserver) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""
        observer = self._observer

        async def report(message: Message) -> None:
            if message["type"] == "http.response.start":
                observer.answered(message["status"])
            await send(message)

        await TimedSteps(cast("Coroutine[Any, Any, None]", self._app(scope, receive, report)), observer)


class TimedSteps:
    """Awaits a coroutine, and reports how many seconds each of its steps took."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], observer: StepObserver) -> None:
        self._coroutine = coroutine
        self._observer = observer

    def __await__(self) -> Generator[Any, Any, None]:
        """Yield what the coroutine waits for, and send it the results."""
        step = partial(self._coroutine.send, None)
        while True:
            began, begin = self._observer.begin_step(), perf_counter()
            try:
                waits_for = step()
            except StopIteration:
                return
            finally:
                del step  # it may hold the exception raised here, and that holds this frame: a cycle
                self._observer.worked(perf_counter() - begin, began)
            try:
                step = partial(self._coroutine.send, (yield waits_for))
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
