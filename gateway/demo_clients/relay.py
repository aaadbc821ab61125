"""A client of the topic relay."""

from __future__ import annotations

from typing import Any, ClassVar

from .client import ReceivedMessage
from .websocket import WebSocketClient


class RelayClient(WebSocketClient):
    """A peer of the topic relay."""

    protocol = "topic_relay"
    path = "/relay"
    OWN: ClassVar[frozenset[str]] = frozenset({"type", "topic", "src", "dst", "error", "trellisId"})

    async def subscribe(self, channel: str) -> None:
        """Subscribe to the topic *channel*."""
        await self._send({"type": 2, "topic": channel})
        answer = await self._answer()
        if "error" in answer:
            raise ValueError(answer["error"])

    async def publish(self, channel: str, content: Any) -> None:
        """Broadcast *content*."""
        await self._send({"type": 6, "topic": channel, **self._fields(content)})

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Send *content* to only the peer with *number*."""
        await self._send({"type": 4, "topic": channel, "dst": number, **self._fields(content)})

    def _fields(self, content: Any) -> dict[str, Any]:
        """Return *content* as fields of a packet."""
        plain = isinstance(content, dict) and not (self.OWN & content.keys()) and content.keys() != {"json"}
        return content if plain else {"json": content}

    def _take(self, frame: Any) -> None:
        if frame["type"] in (4, 6) and "src" in frame:
            extra = {key: value for key, value in frame.items() if key not in self.OWN}
            content = extra["json"] if extra.keys() == {"json"} else extra
            self.received.put_nowait(ReceivedMessage(frame["topic"], content, frame["type"] == 4, frame))
        elif frame["type"] == 2:
            self._answers.put_nowait(frame)
