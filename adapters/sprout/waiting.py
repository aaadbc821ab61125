"""Nodes that arrived before their author or parent, and what we have asked the peer for; one of each a connection.

A node waits for one missing node at a time, the first that stood in its way, and is looked at anew when that has
come. Everything is bounded, and ends after `PATIENCE`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from .codec import NodeLine

MAX_WAITING: Final = 1024  # nodes
MAX_WAITING_BYTES: Final = 4 << 20
MAX_ASKED: Final = 64  # questions without an answer
PATIENCE: Final = 60_000  # ms, as the reference's


class Waiting:
    """The nodes that wait, by what they wait for."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[NodeLine]] = {}
        self._ids: set[str] = set()
        self._size = 0

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    def add(self, missing: str, line: NodeLine) -> bool:
        """Keep *line* until *missing* is there; False where that would be too much."""
        if line.id in self._ids:
            return True
        if len(self._ids) >= MAX_WAITING or self._size + len(line.line) > MAX_WAITING_BYTES:
            return False
        self._nodes.setdefault(missing, []).append(line)
        self._ids.add(line.id)
        self._size += len(line.line)
        return True

    def pop(self, missing: str) -> list[NodeLine]:
        """Those that wait for *missing*, in the order in which they came; they wait no more."""
        lines = self._nodes.pop(missing, None)
        if lines is None:
            return []
        self._ids.difference_update(line.id for line in lines)
        self._size -= sum(len(line.line) for line in lines)
        return lines


class Question(NamedTuple):
    """What a request of ours asks for, and when we stop waiting for the answer (ms)."""

    missing: str
    deadline: int


class Questions:
    """Our own requests that are not answered yet, by message id."""

    def __init__(self) -> None:
        self._open: dict[int, Question] = {}
        self._missing: set[str] = set()

    def asked(self, missing: str) -> bool:
        """Whether there is a question for *missing*."""
        return missing in self._missing

    @property
    def full(self) -> bool:
        """Whether no more can be asked now."""
        return len(self._open) >= MAX_ASKED

    def add(self, id: int, missing: str, now: int) -> None:
        """The request *id* asks for *missing*."""
        self._open[id] = Question(missing, now + PATIENCE)
        self._missing.add(missing)

    def answered(self, id: int) -> str | None:
        """What the request *id* asked for; None where it is none of ours, or answered."""
        question = self._open.pop(id, None)
        if question is None:
            return None
        self._missing.discard(question.missing)
        return question.missing

    def overdue(self, now: int) -> Iterable[str]:
        """What has been waited for too long; it is no more."""
        late = [id for id, question in self._open.items() if question.deadline <= now]
        return [missing for id in late if (missing := self.answered(id)) is not None]
