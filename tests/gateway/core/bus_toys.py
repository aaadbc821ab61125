"""Messages for the bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gateway.core.message import Message

if TYPE_CHECKING:
    from tests.conftest import ToySession


Make = Callable[..., "ToySession"]


def to(session: ToySession, number: int, content: bytes = b"1", **fields: Any) -> int:
    return session.bus.direct(Message("lobby", session.who, "toy", content, **fields), number)
