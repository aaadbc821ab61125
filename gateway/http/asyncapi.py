"""Describes what OpenAPI cannot, WebSockets and TCP, as an AsyncAPI 3.0 document made from the tables of the adapters.

It takes the gateway's side: clients send what the document says is received.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gateway.adapter import WireMessage

VERSION = "3.0.0"
WEBSOCKETS = "websockets"  # what the server of all WebSockets is called; a TCP listener has its own name
_UNFIT = re.compile(r"[^A-Za-z0-9]+")


class Described(Protocol):
    """A protocol that can describe its messages: an adapter, or REST on its WebSocket."""

    @property
    def name(self) -> str:
        """Its name in keys of the document."""

    @property
    def title(self) -> str:
        """Its name in sentences."""

    @property
    def paths(self) -> Sequence[str]:
        """Where its WebSockets are."""

    def wire_messages(self) -> Mapping[str, list[WireMessage]]:
        """Return its messages, by path or by listener."""


class Endpoint(NamedTuple):
    """A path or a listener of a protocol, and its messages."""

    key: str
    title: str
    server: str
    address: str | None
    messages: list[WireMessage]


def servers(host: str, listening: Mapping[str, str | None], *, secure: bool) -> dict[str, Any]:
    """The servers of a gateway that is reached at *host* and is *listening* on TCP there, by the listeners' names."""
    web = {WEBSOCKETS: {"host": host, "protocol": "wss" if secure else "ws"}}
    return web | {
        name: {"host": address, "protocol": "tcp"} for name, address in listening.items() if address is not None
    }


def document(adapters: Iterable[Described], version: str, listening: Mapping[str, str | None]) -> dict[str, Any]:
    """The document of a gateway that is *listening* on TCP, without its `servers`; to make it takes some 8 ms."""
    endpoints = [endpoint for adapter in adapters for endpoint in _endpoints(adapter, listening)]
    return {
        "asyncapi": VERSION,
        "info": {"title": "Trellis", "version": version, "description": "REST is described at `/openapi.json`."},
        "defaultContentType": "application/json",
        "channels": {endpoint.key: _channel(endpoint) for endpoint in endpoints},
        "operations": {name: operation for endpoint in endpoints for name, operation in _operations(endpoint)},
        "components": {
            "messages": {
                _message_key(endpoint, message): _message(message)
                for endpoint in endpoints
                for message in endpoint.messages
            }
        },
    }


def _endpoints(adapter: Described, listening: Mapping[str, str | None]) -> Iterator[Endpoint]:
    for endpoint_name, messages in adapter.wire_messages().items():
        key = "_".join(filter(None, (adapter.name, _UNFIT.sub("_", endpoint_name).strip("_"))))
        if endpoint_name in adapter.paths:
            yield Endpoint(key, f"{adapter.title} at {endpoint_name}", WEBSOCKETS, endpoint_name, messages)
        elif listening.get(endpoint_name) is not None:
            yield Endpoint(key, f"{adapter.title} on TCP", endpoint_name, None, messages)


def _channel(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "address": endpoint.address,
        "title": endpoint.title,
        "servers": [{"$ref": f"#/servers/{endpoint.server}"}],
        "messages": {
            message.name: {"$ref": f"#/components/messages/{_message_key(endpoint, message)}"}
            for message in endpoint.messages
        },
    }


def _operations(endpoint: Endpoint) -> Iterator[tuple[str, dict[str, Any]]]:
    for action, chosen in (
        ("receive", [message for message in endpoint.messages if message.received]),
        ("send", [message for message in endpoint.messages if message.sent]),
    ):
        yield (
            f"{endpoint.key}_{action}",
            {
                "action": action,
                "channel": {"$ref": f"#/channels/{endpoint.key}"},
                "messages": [{"$ref": f"#/channels/{endpoint.key}/messages/{message.name}"} for message in chosen],
            },
        )


def _message_key(endpoint: Endpoint, message: WireMessage) -> str:
    return f"{endpoint.key}.{message.name}"


def _message(message: WireMessage) -> dict[str, Any]:
    summary = {"summary": message.summary} if message.summary else {}
    return {"name": message.name, **summary, "contentType": message.media_type, "payload": dict(message.schema)}
