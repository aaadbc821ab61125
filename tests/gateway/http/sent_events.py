"""Server-sent events, parsed."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Event(NamedTuple):
    name: str
    id: int | None
    data: Any


def parse(data: bytes | list[bytes]) -> list[Event]:
    """What the bytes of a stream say, comments left out (WHATWG HTML, section 9.2.6)."""
    text = data if isinstance(data, bytes) else b"".join(data)
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append(
                Event(fields["event"], int(fields["id"]) if "id" in fields else None, json.loads(fields["data"]))
            )
    return found


def ids(heard: list[Event]) -> list[int]:
    """Those of everything but the welcome."""
    return [event.id for event in heard if event.id is not None and event.name != "welcome"]
