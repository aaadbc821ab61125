"""How far in the stream the log of a gateway is, so that the next start need not read that again."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from .turn_position import Position


class BookmarkState(TypedDict):
    """The *place* in the stream of the last batch that the log has, and the `Position` after it.

    *digest* is the CRC-32 of that batch's bytes.
    """

    place: int
    digest: int | None
    number: int
    holder: str
    next_seq: int


class Bookmark:
    """A file with a state; if it is missing or damaged, the gateway reads more of the stream, and loses nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def state(position: Position, place: int, digest: int | None) -> BookmarkState:
        """The state at *position*, behind the batch at *place*, which has the *digest*."""
        return BookmarkState(
            place=place, digest=digest, number=position.number, holder=position.holder, next_seq=position.next_seq
        )

    def save(self, state: BookmarkState) -> None:
        """Write *state*, whose records are on disk; an error is ignored."""
        with suppress(OSError):
            temporary = self._path.with_name(f".{self._path.name}.new")  # backups leave it out
            temporary.write_text(json.dumps(state))
            temporary.replace(self._path)

    def load(self, position: Position, next_seq: int) -> tuple[int, int | None]:
        """Move *position* to the saved one if the log, which ends before *next_seq*, has it.

        Return its place, 0 for none, and the digest.
        """
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.read_text())
            place, number, end = int(found["place"]), int(found["number"]), int(found["next_seq"])
            if 0 < end <= next_seq and place > 0 < number:
                position.number, position.holder, position.next_seq = number, str(found["holder"]), end
                return place, found.get("digest")
        return 0, None
