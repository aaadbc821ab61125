"""Nodes that arrived before their author or parent, and what we have asked the peer for; one of each a connection.

A node waits for one missing node at a time, the first that stood in its way, and is looked at anew when that has
come. Of a node for which there is no more room only the id is kept, and it is asked for again when the time has come.
Everything is bounded, and a question ends after `PATIENCE`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from .codec import NO_ID, Frame, NodeLine, Query

MAX_WAITING: Final = 1024  # nodes
MAX_WAITING_BYTES: Final = 4 << 20
MAX_PUT_OFF: Final = 16_384  # nodes of which only the id is kept, some 200 bytes each
MAX_RECALLED: Final = 1024  # nodes that are asked for again at once, unless more have the same parent
MAX_QUERIED: Final = 40  # in one question: nodes of the usual largest size fill no more than `MAX_BODY`
MAX_ASKED: Final = 64  # questions without an answer; further ones queue, at most two for each node that waits
PATIENCE: Final = 60_000  # ms, as the reference's


class Waiting:
    """The nodes that wait, by what they wait for."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[NodeLine]] = {}
        self._ids: set[str] = set()
        self._size = 0
        self._put_off: dict[str, list[str]] = {}
        self._put_off_ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids) + len(self._put_off_ids)

    def __contains__(self, id: str) -> bool:
        return id in self._ids or id in self._put_off_ids

    def add(self, missing: str, line: NodeLine) -> bool:
        """Keep *line*, or its id alone, until *missing* is there; False where that would be too much."""
        if line.id in self:
            return True
        if len(self._ids) < MAX_WAITING and self._size + len(line.line) <= MAX_WAITING_BYTES:
            self._nodes.setdefault(missing, []).append(line)
            self._ids.add(line.id)
            self._size += len(line.line)
            return True
        if len(self._put_off_ids) < MAX_PUT_OFF:
            self._put_off.setdefault(missing, []).append(line.id)
            self._put_off_ids.add(line.id)
            return True
        return False

    def awaited(self, missing: str) -> bool:
        """Whether anything waits for *missing*."""
        return missing in self._nodes or missing in self._put_off

    def pop(self, missing: str) -> list[NodeLine]:
        """Those that wait for *missing*, in the order in which they came; they wait no more."""
        lines = self._nodes.pop(missing, None)
        if lines is None:
            return []
        self._ids.difference_update(line.id for line in lines)
        self._size -= sum(len(line.line) for line in lines)
        return lines

    def recall(self, here: str) -> list[str]:
        """The ids of those put off until *here* is there, and of those below them, parents first; no more put off."""
        found: list[str] = []
        parents = deque([here])
        while parents and len(found) < MAX_RECALLED:
            ids = self._forget(parents.popleft())
            found += ids
            parents += ids
        return found

    def lose(self, missing: str) -> list[str]:
        """The ids of all that wait for *missing*; they wait no more."""
        return [line.id for line in self.pop(missing)] + self._forget(missing)

    def _forget(self, missing: str) -> list[str]:
        ids = self._put_off.pop(missing, [])
        self._put_off_ids.difference_update(ids)
        return ids


class Question(NamedTuple):
    """What a request of ours asks for, and when we stop waiting for the answer (ms)."""

    missing: tuple[str, ...]
    deadline: int


class Questions:
    """Our own requests: those that are not answered yet, by message id, and those that still have to be made."""

    def __init__(self) -> None:
        self._open: dict[int, Question] = {}
        self._queue: deque[tuple[tuple[str, ...], Frame]] = deque()
        self._missing: set[str] = set()

    def __bool__(self) -> bool:
        """Whether any still has to be made."""
        return bool(self._queue)

    def asked(self, missing: str) -> bool:
        """Whether there is a question for *missing*, made or not."""
        return missing in self._missing

    def queue(self, frame: Frame, *missing: str) -> None:
        """The request *frame* is to be made, for what is *missing*."""
        self._queue.append((missing, frame))
        self._missing.update(missing)

    def queue_queries(self, ids: Iterable[str]) -> None:
        """The nodes with these ids are to be asked for, unless they are."""
        left = [id for id in ids if id not in self._missing]
        for at in range(0, len(left), MAX_QUERIED):
            part = left[at : at + MAX_QUERIED]
            self.queue(Query(NO_ID, tuple(part)), *part)

    def next(self) -> tuple[tuple[str, ...], Frame] | None:
        """The next request that can be made now, and what it asks for."""
        return self._queue.popleft() if self._queue and len(self._open) < MAX_ASKED else None

    def add(self, id: int, missing: tuple[str, ...], now: int) -> None:
        """The request *id* asks for what is *missing*."""
        self._open[id] = Question(missing, now + PATIENCE)

    def drop(self, missing: tuple[str, ...]) -> None:
        """There is no question for these any more."""
        self._missing.difference_update(missing)

    def answered(self, id: int) -> tuple[str, ...]:
        """What the request *id* asked for; nothing where it is none of ours, or answered."""
        question = self._open.pop(id, None)
        if question is None:
            return ()
        self.drop(question.missing)
        return question.missing

    def overdue(self, now: int) -> list[str]:
        """What has been waited for too long; it is no more."""
        late = [id for id, question in self._open.items() if question.deadline <= now]
        return [missing for id in late for missing in self.answered(id)]
