"""Creating a channel counts as many requests, by whatever protocol; using it counts as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from gateway.access.limits import CREATION_COST
from tests.server import Server

CREATED = 3
BURST = CREATED * CREATION_COST  # the last one is created on credit
STREAMR = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"TRELLIS_LIMITS__RATES": "on", "TRELLIS_LIMITS__ADDRESS": f'{{"rate": 0.001, "burst": {BURST}}}'}
    with Server(tmp_path_factory.mktemp("creation"), env=limits) as server:
        yield server


def client(server: Server, network: str) -> httpx.Client:
    return httpx.Client(base_url=f"http://{server.http}", transport=httpx.HTTPTransport(local_address=network))


def by_requests(method: str, path: str, body: Any, server: Server, network: str, channels: Sequence[str]) -> None:
    with client(server, network) as program:
        for channel in channels:
            program.request(method, path.format(channel), json=body and {**body, "id": channel})


def by_messages(
    path: str, message: Callable[[str], Any], server: Server, network: str, channels: Sequence[str]
) -> None:
    with connect(f"ws://{server.http}{path}", compression=None, source_address=(network, 0)) as socket:
        for channel in channels:
            socket.send(json.dumps(message(channel)))  # all of them are handled before the close is answered


def unsigned(stream: str) -> Any:
    return [2, 8, "p", [32, [stream, 0, 1, 0, "", "c"], None, 27, 0, 0, None, "1", None, 0, None], None]


PUBLISHERS: dict[str, Callable[[Server, str, Sequence[str]], None]] = {
    "POST": partial(by_requests, "POST", "/v1/channels/{}/messages", {"n": 1}),
    "PUT": partial(by_requests, "PUT", "/v1/channels/{}", None),
    "data": partial(by_requests, "POST", "/api/v1/streams/{}/data", {"n": 1}),
    "streams": partial(by_requests, "POST", "/api/v1/streams", {"description": "one"}),
    "ws": partial(by_messages, "/v1/ws", lambda channel: {"type": "publish", "channel": channel, "content": 1}),
    "relay": partial(by_messages, "/relay", lambda topic: {"type": 6, "topic": topic, "n": 1}),
    "streamr": partial(by_messages, STREAMR, unsigned),
}


@pytest.mark.parametrize("name", PUBLISHERS)
def test_a_new_channel_counts_as_many_requests(server: Server, name: str) -> None:
    place = 2 * [*PUBLISHERS].index(name)
    PUBLISHERS[name](server, f"127.0.0.{100 + place}", [f"{name}.{n}" for n in range(CREATED + 4)])
    with client(server, f"127.0.0.{101 + place}") as program:
        known = [each["name"] for each in program.get("/v1/channels").json()["channels"]]
    assert [each for each in known if each.startswith(f"{name}.")] == [f"{name}.{n}" for n in range(CREATED)]


def test_a_known_channel_counts_as_one(server: Server) -> None:
    with client(server, "127.0.0.90") as program:
        for n in range(CREATION_COST):
            answer = program.post("/v1/channels/known/messages", json=n)
            assert answer.status_code == 201, answer.text
