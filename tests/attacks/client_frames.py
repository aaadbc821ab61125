"""Frames and requests of clients, for attackers: nothing here checks what it sends."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from .target import Target
from .wire import Raw

Headers = Mapping[str, str]
NO_HEADERS: Headers = {}

RELAY = "/relay"
STREAMR = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"
WS = "/v1/ws"
TRACKER = "/tracker?address=attacker"
TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


def frame(payload: bytes | str, opcode: int = TEXT, *, final: bool = True) -> bytes:
    """A client's WebSocket frame, masked with zeros (RFC 6455, section 5.2)."""
    data = payload.encode() if isinstance(payload, str) else payload
    first, size = (0x80 if final else 0) | opcode, len(data)
    if size < 126:
        return bytes((first, 0x80 | size)) + bytes(4) + data
    head = struct.pack(">BBH", first, 0xFE, size) if size < 1 << 16 else struct.pack(">BBQ", first, 0xFF, size)
    return head + bytes(4) + data


def text_frame(value: Any) -> bytes:
    """The frame of a JSON text."""
    return frame(json.dumps(value, separators=(",", ":")))


def texts(data: bytes) -> list[Any]:
    """The JSON texts in *data*, frames of a server; one that is not whole ends them."""
    found, place = [], 0
    while len(data) - place >= 2:
        opcode, size, start = data[place] & 15, data[place + 1], place + 2
        if size > 125:
            start += 2 if size == 126 else 8
            size = int.from_bytes(data[place + 2 : start])
        if len(data) < start + size:
            break
        if opcode == TEXT:
            found.append(json.loads(data[start : start + size]))
        place = start + size
    return found


def request(target: Target, path: str, method: str = "GET", body: bytes = b"", headers: Headers = NO_HEADERS) -> bytes:
    """An HTTP request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {target.host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def upgrade(target: Target, path: str, headers: Headers = NO_HEADERS) -> bytes:
    """The request that makes a WebSocket."""
    wanted = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    return request(target, path, headers={**wanted, **headers})


def websocket(target: Target, path: str, feed: bytes = b"", headers: Headers = NO_HEADERS, *, window: int = 0) -> Raw:
    """An open WebSocket; `first` is the answer to its handshake."""
    raw = Raw(target.http, feed, upgrade(target, path, headers), window=window)
    raw.first = raw.receive_until(b"\r\n\r\n")
    return raw


def subscribe_relay(topic: str) -> bytes:
    """The topic relay's Subscribe."""
    return text_frame({"type": 2, "topic": topic})


def broadcast(topic: str, text: str) -> bytes:
    """The topic relay's Broadcast."""
    return text_frame({"type": 6, "topic": topic, "text": text})


def ask(kind: str, **fields: Any) -> bytes:
    """A request on `/v1/ws`."""
    return text_frame({"type": kind, **fields})


def subscribe_streamr(stream: str) -> bytes:
    """A SubscribeRequest."""
    return text_frame([2, 9, "s", stream, 0, None])


def message(stream: str, content: str, time: int, sequence: int = 0, publisher: str = "", signature: str = "") -> Any:
    """A stream message, as a PublishRequest carries it."""
    kind = (2, signature) if signature else (0, None)
    return [32, [stream, 0, time, sequence, publisher, "attack"], None, 27, 0, 0, None, content, None, *kind]


def publish(row: Any) -> bytes:
    """A PublishRequest."""
    return text_frame([2, 8, "p", row, None])


def http(target: Target, path: str, method: str = "GET", body: bytes = b"", headers: Headers = NO_HEADERS) -> bytes:
    """The whole answer to one request, on a connection of its own."""
    raw = Raw(target.http)
    raw.send(request(target, path, method, body, {"Connection": "close", **headers}))
    answer = raw.receive_until(b"\0no such end\0", 1 << 28)
    raw.socket.close()
    return answer
