"""A small client of each protocol, each as simple as its protocol allows: for `trellis demo` and the tests.

They share nothing with the adapters, so that a mistake there cannot hide here. Only the making and reading of Arbor
nodes, which needs keys, is handed in (`Forge`).
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import quote

import httpx
from websockets.asyncio.client import ClientConnection, connect

from .sse import EventReader

WAIT = 10.0  # seconds for anything that should take a moment


class Heard(NamedTuple):
    """What a client was told: a message to everybody or to it alone."""

    channel: str
    content: Any
    direct: bool = False


class Node(NamedTuple):
    """An Arbor node: its id, its bytes."""

    id: str
    raw: bytes


class Read(NamedTuple):
    """What a Reply says; *keys* are its TWIG keys."""

    community: str
    text: str
    keys: frozenset[str]


class Forge(Protocol):
    """Makes and reads Arbor nodes for one author."""

    def identity(self) -> Node:
        """The author."""

    def reply(self, community: str, text: str, twig: dict[str, str]) -> Node:
        """A signed Reply, child of the community."""

    def read(self, raw: bytes) -> Read | None:
        """What a node says, None if it is no Reply."""


class Client(ABC):
    """One peer. What it is told is put into `heard`, in order."""

    protocol: ClassVar[str]

    def __init__(self, http: str) -> None:
        self.http = http
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Client:
        await self.open()
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.close()

    async def next(self, wait: float = WAIT) -> Heard:
        """The next thing the peer is told; `TimeoutError` after *wait* seconds."""
        return await asyncio.wait_for(self.heard.get(), wait)

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Hang up."""

    @abstractmethod
    async def subscribe(self, channel: str) -> None:
        """Hear *channel* from when this returns."""

    @abstractmethod
    async def say(self, channel: str, content: Any) -> None:
        """Say *content* to everybody in *channel*."""

    @abstractmethod
    async def _listen(self) -> None:
        """Put what arrives into `heard`."""


class WebSocketClient(Client):
    """What the two WebSocket protocols have in common: requests that are answered by frames."""

    path: ClassVar[str]

    def __init__(self, http: str) -> None:
        super().__init__(http)
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    async def open(self) -> None:
        """Connect."""
        self._socket: ClientConnection = await connect(f"ws://{self.http}{self.path}", compression=None)

    async def close(self) -> None:
        """Hang up."""
        await self._socket.close()

    async def _send(self, frame: Any) -> None:
        await self._socket.send(json.dumps(frame))

    async def _answer(self) -> Any:
        return await asyncio.wait_for(self._answers.get(), WAIT)


class RelayClient(WebSocketClient):
    """A peer of the topic relay."""

    protocol = "topic_relay"
    path = "/relay"
    OWN: ClassVar[frozenset[str]] = frozenset({"type", "topic", "src", "dst", "error"})

    async def subscribe(self, channel: str) -> None:
        """Hear the topic *channel*."""
        await self._send({"type": 2, "topic": channel})
        answer = await self._answer()
        if "error" in answer:
            raise ValueError(answer["error"])

    async def say(self, channel: str, content: Any) -> None:
        """Broadcast *content*."""
        extra = content if self._travels_as_fields(content) else {"json": content}
        await self._send({"type": 6, "topic": channel, **extra})

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Say *content* to the peer with *number* alone."""
        extra = content if self._travels_as_fields(content) else {"json": content}
        await self._send({"type": 4, "topic": channel, "dst": number, **extra})

    def _travels_as_fields(self, content: Any) -> bool:
        return isinstance(content, dict) and not (self.OWN & content.keys()) and content.keys() != {"json"}

    async def _listen(self) -> None:
        async for text in self._socket:
            packet = json.loads(text)
            if packet["type"] in (4, 6) and "src" in packet:
                extra = {key: value for key, value in packet.items() if key not in self.OWN}
                content = extra["json"] if extra.keys() == {"json"} else extra
                self.heard.put_nowait(Heard(packet["topic"], content, packet["type"] == 4))
            elif packet["type"] == 2:
                self._answers.put_nowait(packet)


class StreamrClient(WebSocketClient):
    """A Streamr client without a key: control v2, message v32, unsigned."""

    protocol = "streamr"
    path = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"

    def __init__(self, http: str) -> None:
        super().__init__(http)
        self._sequence = 0
        self.errors: list[Any] = []

    async def subscribe(self, channel: str) -> None:
        """Hear partition 0 of the stream *channel*."""
        await self._send([2, 9, f"subscribe {channel}", channel, 0, None])
        answer = await self._answer()
        if answer[1] != 2:
            raise ValueError(answer[3])

    async def say(self, channel: str, content: Any) -> None:
        """Publish *content*."""
        self._sequence += 1
        message_id = [channel, 0, time.time_ns() // 1_000_000, self._sequence, "", "demo"]
        message = [32, message_id, None, 27, 0, 0, None, json.dumps(content), None, 0, None]
        await self._send([2, 8, f"publish {self._sequence}", message, None])

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Say *content* to the peer with *number* alone: publish to its inbox."""
        await self.say(f"{channel}/@{number}", content)

    async def _listen(self) -> None:
        async for text in self._socket:
            frame = json.loads(text)
            if frame[1] == 0:
                stream, _, inbox = frame[3][1][0].partition("/@")
                self.heard.put_nowait(Heard(stream, json.loads(frame[3][7]), bool(inbox)))
            elif frame[1] == 7 and frame[2].startswith("publish"):
                self.errors.append(frame)
            else:
                self._answers.put_nowait(frame)


class RestClient(Client):
    """A program: publishes with POST, hears with server-sent events."""

    protocol = "rest"

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http)
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._listening: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Make the client."""
        self.client = httpx.AsyncClient(base_url=f"http://{self.http}", headers=self._headers, timeout=WAIT)

    async def close(self) -> None:
        """Hang up."""
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await self.client.aclose()

    async def subscribe(self, channel: str) -> None:
        """Hear *channel*."""
        welcome = asyncio.Event()
        self._listening.add(asyncio.create_task(self._events(channel, welcome)))
        await asyncio.wait_for(welcome.wait(), WAIT)

    async def say(self, channel: str, content: Any) -> None:
        """Publish *content*; it is on disk when this returns."""
        await self._post(f"/v1/channels/{quote(channel, safe='')}/messages", content)

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Say *content* to the peer with *number* alone."""
        await self._post(f"/v1/channels/{quote(channel, safe='')}/peers/{number}/messages", content)

    async def _post(self, path: str, content: Any) -> None:
        headers = {"Content-Type": "application/json"}
        response = await self.client.post(path, content=json.dumps(content), headers=headers)
        response.raise_for_status()

    async def _events(self, channel: str, welcome: asyncio.Event) -> None:
        path = f"/v1/channels/{quote(channel, safe='')}/events"
        async with self.client.stream("GET", path, timeout=None) as response:
            response.raise_for_status()
            reader = EventReader()
            async for data in response.aiter_bytes():
                for event in reader.receive_data(data):
                    if event.name == "welcome":
                        welcome.set()
                    elif event.name in ("message", "direct"):
                        content = json.loads(event.data)["content"]
                        self.heard.put_nowait(Heard(channel, content, event.name == "direct"))

    async def _listen(self) -> None:
        """Each subscription has a task of its own."""


class SproutClient(Client):
    """An Arbor client over TCP."""

    protocol = "sprout"
    DIRECT: ClassVar[frozenset[str]] = frozenset({"to/1", "private/1"})

    def __init__(self, http: str, sprout: str, forge: Forge) -> None:
        super().__init__(http)
        self._address = sprout
        self._forge = forge
        self._next_id = 0
        self._communities: dict[str, str] = {}
        self._statuses: dict[int, asyncio.Future[int]] = {}

    async def open(self) -> None:
        """Connect."""
        host, _, port = self._address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=1 << 20)

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)

    async def subscribe(self, channel: str) -> None:
        """Hear the community that *channel* is."""
        await self._request("subscribe {} " + await self.community(channel))

    async def say(self, channel: str, content: Any) -> None:
        """Announce a Reply; it is on disk when this returns."""
        await self._announce(await self.community(channel), content, {})

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Announce a Reply that is for the peer with *number* alone."""
        await self._announce(await self.community(channel), content, {"to/1": str(number)})

    async def community(self, channel: str) -> str:
        """The id of the community that *channel* is; made if need be, as an operator would."""
        if channel in self._communities:
            return self._communities[channel]
        path = f"http://{self.http}/v1/channels/{quote(channel, safe='')}"
        async with httpx.AsyncClient(timeout=WAIT) as client:
            (await client.put(path)).raise_for_status()
            while channel not in self._communities:
                if (community := (await client.get(path)).json().get("community")) is not None:
                    self._communities[channel] = community
                await asyncio.sleep(0.02)
        return self._communities[channel]

    async def _announce(self, community: str, content: Any, twig: dict[str, str]) -> None:
        plain = isinstance(content, dict) and content.keys() == {"content"} and isinstance(content["content"], str)
        text = content["content"] if plain else json.dumps(content)
        reply = self._forge.reply(community, text, twig if plain else {**twig, "json/1": "true"})
        await self._request("announce {} 2\n" + _line(self._forge.identity()) + "\n" + _line(reply))

    async def _request(self, text: str) -> None:
        number, self._next_id = self._next_id, self._next_id + 1
        status = self._statuses[number] = asyncio.get_running_loop().create_future()
        self._writer.write(text.format(number).encode() + b"\n")
        if code := await asyncio.wait_for(status, WAIT):
            raise ValueError(f"status {code} to {text.split()[0]}")

    async def _listen(self) -> None:
        while line := await self._reader.readline():
            verb, number, value, *_ = [*line.split(), b"", b""]
            if verb == b"status":
                self._statuses.pop(int(number)).set_result(int(value))
            elif verb in (b"announce", b"response"):
                for _ in range(int(value)):
                    self._take((await self._reader.readline()).split()[1])
                if verb == b"announce":
                    self._writer.write(b"status %b 0\n" % number)
            elif verb in (b"query", b"ancestry"):
                for _ in range(int(value) if verb == b"query" else 0):
                    await self._reader.readline()
                self._writer.write(b"response %b 0\n" % number)

    def _take(self, text: bytes) -> None:
        reply = self._forge.read(urlsafe_b64decode(text + b"=" * (-len(text) % 4)))
        channels = {community: channel for channel, community in self._communities.items()}
        if reply is not None and reply.community in channels and "activity/1" not in reply.keys:
            content = json.loads(reply.text) if "json/1" in reply.keys else {"content": reply.text}
            self.heard.put_nowait(Heard(channels[reply.community], content, bool(self.DIRECT & reply.keys)))


def _line(node: Node) -> str:
    return f"{node.id} {urlsafe_b64encode(node.raw).rstrip(b'=').decode()}"
