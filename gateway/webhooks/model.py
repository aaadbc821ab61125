"""A webhook, and a message that it could not deliver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gateway.access.authorization import Right

MAX_URL = 2_048  # characters
ROTATION_MS = 24 * 3_600_000  # for which the secret before the newest one signs as well


class DeadLetter(NamedTuple):
    """A message that a receiver refused again and again: its sequence, and what was tried."""

    seq: int
    message: str  # its canonical id
    channel: str
    time: int  # of the last attempt, ms
    attempts: int
    error: str

    def as_json(self) -> dict[str, Any]:
        """Return it as REST shows it."""
        return {"sequence": self.seq} | {name: value for name, value in self._asdict().items() if name != "seq"}


@dataclass(slots=True)
class Webhook:
    """A channel pattern and the URL that its messages are sent to. Times are ms since 1970.

    Everything up to the sequence `position` was delivered, is a dead letter, or does not match. `failing_since` is when
    the first attempt since the last success failed. The fields after it are forgotten when the gateway stops.
    """

    id: str
    url: str
    pattern: str  # of channels
    created: int
    created_by: str | None
    position: int
    generation: int = 1
    rotated: int = 0
    enabled: bool = True
    reason: str | None = None  # why it is disabled
    failing_since: int | None = None
    failures: int = 0  # attempts since the last success
    slow_until: float = 0.0  # when its receiver no longer counts as slow, by the clock of the loop
    last_status: int | None = None
    last_error: str | None = None
    dead_letters: int = 0
    _right: Right = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._right = parse_pattern(self.pattern)

    @property
    def host(self) -> str:
        """The host of the URL, which logs may show; paths and queries of receivers may contain secrets."""
        return urlsplit(self.url).hostname or ""

    def matches(self, channel: str) -> bool:
        """Whether messages of *channel* are sent to this webhook."""
        return self._right.covers("history", channel)

    def generations(self, now: int) -> list[int]:
        """The generations whose secrets sign at *now*, newest first."""
        return [self.generation, *([self.generation - 1] if now - self.rotated < ROTATION_MS else [])]

    def as_json(self) -> dict[str, Any]:
        """Return it as REST shows it."""
        return {
            "id": self.id,
            "url": self.url,
            "channels": self.pattern,
            "enabled": self.enabled,
            "reason": self.reason,
            "position": self.position,
            "created": self.created,
            "createdBy": self.created_by,
            "failingSince": self.failing_since,
            "failures": self.failures,
            "lastStatus": self.last_status,
            "lastError": self.last_error,
            "deadLetters": self.dead_letters,
        }


def parse_pattern(channels: str) -> Right:
    """Return the pattern *channels*, with the wildcards of rights; raise a `ValueError` that says what is wrong."""
    return Right.parse(f"history:{channels}")
