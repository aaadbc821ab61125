"""The base class of the clients of the two WebSocket protocols."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from typing import Any, ClassVar
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect

from gateway.client.jsontext import dumps

from .client import WAIT, Client


class WebSocketClient(Client):
    """A peer on a WebSocket; some of the frames that it sends are answered by frames."""

    path: ClassVar[str]

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    async def open(self) -> None:
        """Connect."""
        self._socket: ClientConnection = await self.dial()

    async def dial(self) -> ClientConnection:
        """Open a connection."""
        url = f"ws{self.url.removeprefix('http')}{self.path}"
        if self.key is not None:
            url += f"{'&' if '?' in url else '?'}key={quote(self.key, safe='')}"
        return await connect(url, compression=None)

    async def close(self) -> None:
        """Disconnect."""
        await self._socket.close()

    async def _send(self, frame: Any) -> None:
        await self._socket.send(dumps(frame))

    async def _answer(self) -> Any:
        return await asyncio.wait_for(self._answers.get(), WAIT)

    async def _listen(self) -> None:
        async for text in self._socket:
            self._take(json.loads(text))

    @abstractmethod
    def _take(self, frame: Any) -> None:
        """Put *frame* into `received` if it is a message, and into `_answers` if it is an answer."""
