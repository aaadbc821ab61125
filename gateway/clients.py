"""A small client of each protocol, each as simple as its protocol allows: for `trellis demo` and the tests.

They share nothing with the adapters, so that a mistake there cannot hide here. Only the making and reading of Arbor
nodes, which needs keys, is handed in (`Forge`).
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from abc import ABC, abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, Self
from urllib.parse import quote

import httpx
from websockets.asyncio.client import ClientConnection, connect

from .sse import EventReader

WAIT = 10.0  # seconds for anything that should take a moment

_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Heard:
    """What a client was told: a message to everybody or to it alone, and what that looked like in its protocol."""

    channel: str
    content: Any
    direct: bool = False
    raw: Any = field(default=None, compare=False)


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
    """One peer of the gateway at *http*: `HOST:PORT`, or a URL. What it is told is put into `heard`, in order.

    *key* is an API key.
    """

    protocol: ClassVar[str]

    def __init__(self, http: str, key: str | None = None) -> None:
        self.url = http.rstrip("/") if "://" in http else f"http://{http}"
        self.key = key
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.close()

    @property
    def rest(self) -> httpx.AsyncClient:
        """A client of the gateway's REST interface, for what the protocol itself has no words for."""
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=WAIT, verify=_trust())

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

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    async def open(self) -> None:
        """Connect."""
        self._socket: ClientConnection = await self.dial()

    async def dial(self) -> ClientConnection:
        """A connection."""
        url = f"ws{self.url.removeprefix('http')}{self.path}"
        if self.key is not None:
            url += f"{'&' if '?' in url else '?'}key={quote(self.key, safe='')}"
        return await connect(url, compression=None)

    async def close(self) -> None:
        """Hang up."""
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
        """Sort a frame: an answer, or something to be heard."""


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

    def _take(self, frame: Any) -> None:
        if frame["type"] in (4, 6) and "src" in frame:
            extra = {key: value for key, value in frame.items() if key not in self.OWN}
            content = extra["json"] if extra.keys() == {"json"} else extra
            self.heard.put_nowait(Heard(frame["topic"], content, frame["type"] == 4, frame))
        elif frame["type"] == 2:
            self._answers.put_nowait(frame)


class StreamrClient(WebSocketClient):
    """A Streamr client without a key: control v2, message v32, unsigned."""

    protocol = "streamr"
    path = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
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
        await self._publish(self._message(channel, content))

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Say *content* to the peer with *number* alone: publish to its inbox."""
        await self.say(f"{channel}/@{number}", content)

    def _message(self, stream: str, content: Any) -> list[Any]:
        self._sequence += 1
        message_id = [stream, 0, time.time_ns() // 1_000_000, self._sequence, "", "demo"]
        return [32, message_id, None, 27, 0, 0, None, dumps(content), None, 0, None]

    async def _publish(self, message: list[Any]) -> None:
        await self._send([2, 8, f"publish {self._sequence}", message, None])

    def _take(self, frame: Any) -> None:
        if frame[1] == 0:
            stream, _, inbox = frame[3][1][0].partition("/@")
            self.heard.put_nowait(Heard(stream, json.loads(frame[3][7]), bool(inbox), frame[3]))
        elif frame[1] == 7 and frame[2].startswith("publish"):
            self.errors.append(frame)
        else:
            self._answers.put_nowait(frame)


class RestClient(Client):
    """A program: publishes with POST, hears with server-sent events."""

    protocol = "rest"

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
        self._listening: dict[str, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Make the client."""
        self.client = self.rest

    async def close(self) -> None:
        """Hang up."""
        for task in self._listening.values():
            task.cancel()
        await asyncio.gather(*self._listening.values(), return_exceptions=True)
        await self.client.aclose()

    async def subscribe(self, channel: str) -> None:
        """Hear *channel*."""
        welcome = asyncio.Event()
        self._listening[channel] = asyncio.create_task(self._events(channel, welcome))
        await asyncio.wait_for(welcome.wait(), WAIT)

    async def say(self, channel: str, content: Any) -> None:
        """Publish *content*; it is on disk when this returns."""
        await self._post(f"/v1/channels/{quote(channel, safe='')}/messages", content)

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Say *content* to the peer with *number* alone."""
        await self._post(f"/v1/channels/{quote(channel, safe='')}/peers/{number}/messages", content)

    async def _post(self, path: str, content: Any) -> None:
        headers = {"Content-Type": "application/json"}
        response = await self.client.post(path, content=dumps(content), headers=headers)
        response.raise_for_status()

    async def _events(self, channel: str, welcome: asyncio.Event) -> None:
        path = f"/v1/channels/{quote(channel, safe='')}/events"
        async with self.client.stream("GET", path, timeout=None) as response:
            response.raise_for_status()
            reader = EventReader()
            async for data in response.aiter_bytes():
                for event in reader.receive_data(data):
                    self._take(channel, event.name, json.loads(event.data))
                    if event.name == "welcome":
                        welcome.set()

    def _take(self, channel: str, event: str, data: Any) -> None:
        if event in ("message", "direct"):
            self.heard.put_nowait(Heard(channel, data["content"], event == "direct", data))

    async def _listen(self) -> None:
        """Each subscription has a task of its own."""


class SproutClient(Client):
    """An Arbor client over TCP."""

    protocol = "sprout"
    DIRECT: ClassVar[frozenset[str]] = frozenset({"to/1", "private/1"})

    def __init__(self, http: str, sprout: str, forge: Forge, key: str | None = None) -> None:
        """*sprout* is `HOST:PORT`, with `tls://` before it where that is spoken; *key* is for REST alone."""
        super().__init__(http, key)
        self._address = sprout
        self._forge = forge
        self._next_id = 0
        self._communities: dict[str, str] = {}
        self._statuses: dict[int, asyncio.Future[int]] = {}
        self._responses: dict[int, asyncio.Future[list[Node]]] = {}

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await self.dial()

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection."""
        host, _, port = self._address.rpartition("/")[2].rpartition(":")
        tls = _trust() if self._address.startswith("tls://") else None
        return await asyncio.open_connection(host, int(port), limit=1 << 20, ssl=tls)

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
        path = f"/v1/channels/{quote(channel, safe='')}"
        async with self.rest as client:
            (await client.put(path)).raise_for_status()
            while channel not in self._communities:
                if (community := (await client.get(path)).json().get("community")) is not None:
                    self._communities[channel] = community
                await asyncio.sleep(0.02)
        return self._communities[channel]

    async def _announce(self, community: str, content: Any, twig: dict[str, str]) -> None:
        plain = isinstance(content, dict) and content.keys() == {"content"} and isinstance(content["content"], str)
        text = content["content"] if plain else dumps(content)
        await self._tell(self._forge.reply(community, text, twig if plain else {**twig, "json/1": "true"}))

    async def _tell(self, reply: Node) -> None:
        await self._request("announce {} 2\n" + _line(self._forge.identity()) + "\n" + _line(reply))

    async def _request(self, text: str) -> None:
        number, self._next_id = self._next_id, self._next_id + 1
        status = self._statuses[number] = asyncio.get_running_loop().create_future()
        self._writer.write(text.format(number).encode() + b"\n")
        if code := await asyncio.wait_for(status, WAIT):
            raise ValueError(f"status {code} to {text.split()[0]}")

    async def _ask(self, text: str) -> list[Node]:
        """What a question that is answered with nodes is answered with."""
        number, self._next_id = self._next_id, self._next_id + 1
        response = self._responses[number] = asyncio.get_running_loop().create_future()
        self._writer.write(text.format(number).encode() + b"\n")
        return await asyncio.wait_for(response, WAIT)

    async def _listen(self) -> None:
        while line := await self._reader.readline():
            verb, number, value, *_ = [*line.split(), b"", b""]
            if verb == b"status":
                self._statuses.pop(int(number)).set_result(int(value))
            elif verb == b"response":
                self._responses.pop(int(number)).set_result([await self._node() for _ in range(int(value))])
            elif verb == b"announce":
                for _ in range(int(value)):
                    self._take(await self._node())
                self._writer.write(b"status %b 0\n" % number)
            elif verb in (b"query", b"ancestry"):
                for _ in range(int(value) if verb == b"query" else 0):
                    await self._reader.readline()
                self._writer.write(b"response %b 0\n" % number)

    async def _node(self) -> Node:
        id, text = (await self._reader.readline()).decode().split()
        return Node(id, urlsafe_b64decode(text + "=" * (-len(text) % 4)))

    def _take(self, node: Node) -> None:
        if (heard := self._heard_as(node)) is not None:
            self.heard.put_nowait(heard)

    def _heard_as(self, node: Node) -> Heard | None:
        """What *node* says on a channel that this client knows, if it says anything there."""
        reply = self._forge.read(node.raw)
        channels = {community: channel for channel, community in self._communities.items()}
        if reply is None or reply.community not in channels or "activity/1" in reply.keys:
            return None
        content = json.loads(reply.text) if "json/1" in reply.keys else {"content": reply.text}
        return Heard(channels[reply.community], content, bool(self.DIRECT & reply.keys), node)


def dumps(value: Any) -> str:
    """*value* as JSON; escaped only where half a character stands, which nothing else can write."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if _HALF.search(text) else text


@cache
def _trust() -> ssl.SSLContext:
    """Whom the system trusts; read once, because that takes longer than most requests."""
    return ssl.create_default_context()


def _line(node: Node) -> str:
    return f"{node.id} {urlsafe_b64encode(node.raw).rstrip(b'=').decode()}"
