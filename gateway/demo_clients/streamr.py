"""A client of Streamr."""

from __future__ import annotations

import json
import time
from typing import Any

from gateway.client.jsontext import dumps

from .client import ReceivedMessage
from .websocket import WebSocketClient


class StreamrClient(WebSocketClient):
    """A Streamr client without a key: control v2, message v32, unsigned."""

    protocol = "streamr"
    path = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
        self._sequence = 0
        self.errors: list[Any] = []

    async def subscribe(self, channel: str) -> None:
        """Subscribe to partition 0 of the stream *channel*."""
        await self._send([2, 9, f"subscribe {channel}", channel, 0, None])
        answer = await self._answer()
        if answer[1] != 2:
            raise ValueError(answer[3])

    async def publish(self, channel: str, content: Any) -> None:
        """Publish *content*."""
        await self._publish(self._message(channel, content))

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Send *content* to only the peer with *number*, by publishing to its inbox."""
        await self.publish(f"{channel}/@{number}", content)

    def _message(self, stream: str, content: Any) -> list[Any]:
        self._sequence += 1
        message_id = [stream, 0, time.time_ns() // 1_000_000, self._sequence, "", "demo"]
        return [32, message_id, None, 27, 0, 0, None, dumps(content), None, 0, None]

    async def _publish(self, message: list[Any]) -> None:
        await self._send([2, 8, f"publish {self._sequence}", message, None])

    def _take(self, frame: Any) -> None:
        if frame[1] == 0:
            stream, _, inbox = frame[3][1][0].partition("/@")
            self.received.put_nowait(ReceivedMessage(stream, json.loads(frame[3][7]), bool(inbox), frame[3]))
        elif frame[1] == 7 and frame[2].startswith("publish"):
            self.errors.append(frame)
        else:
            self._answers.put_nowait(frame)
