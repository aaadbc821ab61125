"""How far the log of a gateway is in the stream: what the next start need not read again."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from .position import Position


class State(TypedDict):
    """The *place* of the last batch that the log has in the stream, and the `Position` behind it."""

    place: int
    number: int
    holder: str
    next_seq: int


class Bookmark:
    """A file with a state; one that is missing or damaged costs time, no more."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def state(position: Position, place: int) -> State:
        """The state at *position*, behind the batch at *place*."""
        return State(place=place, number=position.number, holder=position.holder, next_seq=position.next_seq)

    def save(self, state: State) -> None:
        """Write *state*, whose records are on disk; an error is ignored."""
        with suppress(OSError):
            temporary = self._path.with_suffix(".new")
            temporary.write_text(json.dumps(state))
            temporary.replace(self._path)

    def load(self, position: Position, next_seq: int) -> int:
        """Move *position* to the saved one, for a log that ends before *next_seq*; return where to read on, or 0."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.read_text())
            place, number, end = int(found["place"]), int(found["number"]), int(found["next_seq"])
            if 0 < end <= next_seq and place > 0 < number:
                position.number, position.holder, position.next_seq = number, str(found["holder"]), end
                return place
        return 0
