"""Parses server-sent events from bytes in pieces of any size (WHATWG HTML, section 9.2.6).

Lines end only at LF, CR or CR LF, because JSON may contain other characters that Python takes for line breaks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the end of the buffer may be half of a CR LF
MAX_LINES = 1_000  # of data in an event; a gateway writes one
MAX_EVENT = 16 << 20  # bytes; a message has a MiB of content, which may be escaped


class Event(NamedTuple):
    """One event; *id* is the last event id, to resume after; None if there has been none."""

    name: str
    data: str
    id: str | None


class EventReader:
    """Parses one stream; *comment* is its last comment, in which the gateway says why it ends a stream."""

    def __init__(self) -> None:
        self.comment = ""
        self._rest = bytearray()
        self._size = 0  # bytes since the last event
        self._name = ""
        self._data: list[str] = []
        self._id: str | None = None

    def receive_data(self, data: bytes) -> list[Event]:
        """Return the events that *data* completes; raises `ValueError` if one is longer than any of a gateway."""
        self._size += len(data)
        if self._size > MAX_EVENT:
            raise ValueError("the event is too long")
        if b"\n" not in data and b"\r" not in data and not self._rest.endswith(b"\r"):
            self._rest += data
            return []
        *lines, rest = _END.split(bytes(self._rest) + data)
        self._rest = bytearray(rest)
        events = (self._line(line.decode(errors="replace")) for line in lines)
        return [event for event in events if event is not None]

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not field:
            self.comment = value
        elif field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
            if len(self._data) > MAX_LINES:
                raise ValueError("the event has too many lines")
        elif field == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> Event | None:
        event = Event(self._name or "message", "\n".join(self._data), self._id) if self._data else None
        self._name, self._data, self._size = "", [], 0
        return event
