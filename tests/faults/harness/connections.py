"""The connections of the harness: as little of each protocol as publishing, listening and reading history take.

They share nothing with the adapters, and stop where the gateway does: a connection that ends raises `OSError`.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from coincurve import PrivateKey
from Crypto.Hash import keccak
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from gateway.demo_clients import ArborNode

PATIENCE = 20.0  # seconds for an answer; far more than any fault lasts
LIMIT = 1 << 22


class ConnectionClosed(OSError):
    """The connection has ended."""


class RequestRefused(Exception):
    """A question was answered with an error."""


def abort(writer: asyncio.StreamWriter) -> None:
    """End a connection now: what is still to be sent would keep it after the loop that it belongs to."""
    writer.transport.abort()


class HttpConnection:
    """One HTTP connection that is kept; requests go one after another."""

    def __init__(self, http: str) -> None:
        self._host, _, port = http.rpartition(":")
        self._port = int(port)
        self._writer: asyncio.StreamWriter | None = None
        self._reader = asyncio.StreamReader()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        if self._writer is not None:
            abort(self._writer)
            self._writer = None

    async def connect(self) -> None:
        """Connect, if that is not done or was ended by the gateway, which keeps no idle connection for long."""
        if self._writer is None or self._reader.at_eof():
            self.close()
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=LIMIT)

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """The status and the body of the answer; `OSError` if there is none."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.begin(method, path, {"content-length": str(len(body))} | _named(headers), body)
                status, answered = await self.head()
                return status, await self._body(answered)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise ConnectionClosed(repr(error)) from error
        except BaseException:
            self.close()
            raise

    async def json(self, path: str) -> Any:
        """What a GET is answered with."""
        return json.loads((await self.ask("GET", path))[1])

    async def begin(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Send the beginning of a request."""
        await self.connect()
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", *(f"{name}: {text}" for name, text in headers.items())]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def send(self, data: bytes) -> None:
        """Send more of it."""
        if self._writer is None or self._writer.is_closing():
            raise ConnectionClosed("it has ended")
        self._writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the answer."""
        try:
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except (EOFError, OSError) as error:
            raise ConnectionClosed(repr(error)) from error
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        return int(first.split()[1]), headers

    async def pieces(self) -> AsyncIterator[bytes]:
        """The pieces of an answer that comes in such."""
        try:
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readexactly(2)
        except (EOFError, OSError) as error:
            raise ConnectionClosed(repr(error)) from error

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join([piece async for piece in self.pieces()])
        else:
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.close()
        return body


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in headers.items()}


class Socket:
    """A WebSocket that carries JSON."""

    def __init__(self, http: str, path: str) -> None:
        self._url = f"ws://{http}{path}"

    async def __aenter__(self) -> Self:
        try:
            self.inner: ClientConnection = await connect(
                self._url, compression=None, max_size=None, open_timeout=PATIENCE, close_timeout=0.2, ping_interval=None
            )
        except (WebSocketException, TimeoutError) as error:
            raise ConnectionClosed(repr(error)) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self.inner.transport.abort()

    async def send(self, text: str) -> None:
        """Send a message."""
        try:
            await self.inner.send(text)
        except WebSocketException as error:
            raise ConnectionClosed(repr(error)) from error

    async def receive(self) -> Any:
        """The next message."""
        try:
            return json.loads(await self.inner.recv())
        except WebSocketException as error:
            raise ConnectionClosed(repr(error)) from error

    async def answer(self, wanted: Callable[[Any], bool]) -> Any:
        """The next message that is *wanted*; the others are passed over."""
        async with asyncio.timeout(PATIENCE):
            while not wanted(frame := await self.receive()):
                pass
        return frame


class Sprout:
    """A connection of Sprout. `on_node` is called with what is announced, `on_status` with an id and a code.

    Who is asked for a node that is in `held` gives it: facts that nobody needed may have left the log.
    """

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._next = 0
        self.held: dict[str, ArborNode] = {}
        self.on_node: Callable[[ArborNode], None] = lambda _node: None
        self.on_status: Callable[[int, int], None] = lambda _number, _code: None

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=LIMIT)
        return self

    async def __aexit__(self, *_: object) -> None:
        abort(self._writer)

    def announce(self, nodes: list[ArborNode]) -> int:
        """Announce *nodes*; the number that the status will have."""
        return self.ask(f"announce {{}} {len(nodes)}", map(line_of, nodes))

    def ask(self, request: str, lines: Any = ()) -> int:
        """Send a request; its number."""
        number, self._next = self._next, self._next + 1
        if self._writer.is_closing():
            raise ConnectionClosed("it has ended")
        self._writer.write("\n".join([request.format(number), *lines, ""]).encode())
        return number

    async def response(self, request: str, lines: Any = ()) -> list[ArborNode]:
        """What a request is answered with; `RequestRefused` where that is a status instead."""
        number = self.ask(request, lines)
        async with asyncio.timeout(PATIENCE):
            while (found := await self.read()) is None or found[0] != number:
                pass
        if isinstance(found[1], int):
            raise RequestRefused(f"status {found[1]} to {request.format(number)}")
        return found[1]

    async def read(self) -> tuple[int, list[ArborNode] | int] | None:
        """Read one message and answer it; a response or a status is returned, with the number of its request."""
        line = await self._line()
        verb, number, count, *_ = [*line.split(), "0", "0"]
        if verb == "status":
            self.on_status(int(number), int(count))
            return int(number), int(count)
        if verb == "announce":
            for _ in range(int(count)):
                self.on_node(await self._node())
            self._writer.write(f"status {number} 0\n".encode())
        elif verb == "response":
            return int(number), [await self._node() for _ in range(int(count))]
        elif verb in ("query", "ancestry"):
            asked = [(await self._line()).strip() for _ in range(int(count) if verb == "query" else 0)]
            given = [line_of(self.held[id]) for id in asked if id in self.held]
            self._writer.write("\n".join([f"response {number} {len(given)}", *given, ""]).encode())
        return None

    async def _line(self) -> str:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionClosed("it has ended")
        return line.decode()

    async def _node(self) -> ArborNode:
        id, text = (await self._line()).split()
        return ArborNode(id, urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def line_of(node: ArborNode) -> str:
    """A node as a line of Sprout, without its end."""
    return f"{node.id} {urlsafe_b64encode(node.raw).rstrip(b'=').decode()}"


class SigningKey:
    """A Streamr publisher's key."""

    def __init__(self, number: int) -> None:
        self._key = PrivateKey.from_int(number)
        self.address = "0x" + _keccak(self._key.public_key.format(compressed=False)[1:])[12:].hex()

    def sign(self, text: str) -> str:
        """The signature of *text* (EIP-191)."""
        data = text.encode()
        digest = _keccak(b"\x19Ethereum Signed Message:\n%d%b" % (len(data), data))
        raw = self._key.sign_recoverable(digest, hasher=None)
        return f"0x{raw[:64].hex()}{raw[64] + 27:02x}"

    def message(
        self, stream: str, place: tuple[int, int], chain: str, content: str, group_key: str | None = None
    ) -> list[Any]:
        """A signed message of version 32 at *place*, a timestamp and a number; with *group_key* it is encrypted."""
        id = [stream, 0, *place, self.address, chain]
        signed = f"{stream}0{place[0]}{place[1]}{self.address}{chain}{content}"
        encryption = 0 if group_key is None else 2
        return [32, id, None, 27, 0, encryption, group_key, content, None, 2, self.sign(signed)]


def unsigned(stream: str, place: tuple[int, int], chain: str, content: str) -> list[Any]:
    """An unsigned message."""
    return [32, [stream, 0, *place, "", chain], None, 27, 0, 0, None, content, None, 0, None]


def _keccak(data: bytes) -> bytes:
    return keccak.new(data=data, digest_bits=256).digest()


async def until_disconnected(work: Any) -> None:
    """Do *work* as long as its connection lives."""
    try:
        await work
    except* (OSError, EOFError, TimeoutError):
        pass
