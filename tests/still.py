"""What stands for the event loop and for the time where a test says when anything happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from gateway.core.contracts import Receipt
from gateway.core.message import Message

PATIENCE = 60.0  # seconds; nothing waits that long unless it is broken


class Clock:
    """Milliseconds that pass when a test says so, from *now* on."""

    def __init__(self, now: int = 1_763_700_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class Posted(SimpleQueue[Callable[[], None]]):
    """What threads post to the loop (`put`): it waits until a test runs it."""

    def drain(self) -> None:
        """Run what has been posted so far."""
        while True:
            try:
                self.get_nowait()()
            except Empty:
                return

    def until(self, true: Callable[[], bool]) -> None:
        """Run what is posted until something is *true*."""
        while not true():
            self.get(timeout=PATIENCE)()

    def until_called(self, begin: Callable[[Callable[[], None]], object]) -> None:
        """Run what is posted until the function is called that *begin* is given."""
        called: list[bool] = []
        begin(lambda: called.append(True))
        self.until(lambda: bool(called))


class Memory:
    """A log in memory: what is appended is on disk at once."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.congested = False
        self.failing: str | None = None

    @property
    def next_seq(self) -> int:
        return len(self.messages) + 1

    def extend(self, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)

    def find(self, id: str) -> Receipt | None:
        return next((Receipt(m.seq, m.id, m.time) for m in self.messages if id in (m.id, *m.ids)), None)

    def find_message(self, id: str) -> Message | None:
        return next((m for m in self.messages if id in (m.id, *m.ids)), None)

    def when_synced(self, seq: int, callback: Callable[[], None], *_: Any, **__: Any) -> None:
        assert seq < self.next_seq
        callback()
