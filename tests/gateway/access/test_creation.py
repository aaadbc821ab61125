"""Creating a channel and leaving a crowd are charged as many requests, on every protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from gateway.core.channels import CREATION_COST
from gateway.core.presence import LEAVE_NOTICES_PER_REQUEST
from tests.server import Server

CREATED = 3
BURST = CREATED * CREATION_COST  # the last one is created on credit
WAIT = 20.0
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
    with connect(f"ws://{server.http}{path}", compression=None, max_queue=None, source_address=(network, 0)) as socket:
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


def opened(server: Server, path: str, network: str) -> ClientConnection:
    return connect(f"ws://{server.http}{path}", compression=None, max_queue=None, source_address=(network, 0))


@pytest.fixture(scope="module")
def observer(server: Server) -> Iterator[ClientConnection]:
    """A page in a channel with as many others as count as two requests."""
    with ExitStack() as stack:
        for n in range(2 * LEAVE_NOTICES_PER_REQUEST):
            socket = stack.enter_context(opened(server, "/v1/ws", f"127.0.1.{n // 8}"))
            socket.recv()
            socket.send(json.dumps({"type": "subscribe", "channel": "crowd"}))
        yield socket


@pytest.mark.parametrize(
    ("place", "path", "join", "leave"),
    [
        (1, "/v1/ws", {"type": "subscribe", "channel": "crowd"}, {"type": "unsubscribe", "channel": "crowd"}),
        (2, "/relay", {"type": 2, "topic": "crowd"}, {"type": 3, "topic": "crowd"}),
        (3, STREAMR, [2, 9, "s", "crowd", 0, None], [2, 10, "s", "crowd", 0, None]),
    ],
)
def test_joins_and_leaves_are_charged_by_the_number_of_notices(
    server: Server, observer: ClientConnection, place: int, path: str, join: Any, leave: Any
) -> None:
    with opened(server, path, f"127.0.2.{place}") as visitor:
        for _ in range(BURST):
            visitor.send(json.dumps(join))
            visitor.send(json.dumps(leave))
    rounds = 0
    with opened(server, "/v1/ws", f"127.0.3.{place}") as last:
        number = json.loads(last.recv())["number"]
        last.send(json.dumps({"type": "subscribe", "channel": "crowd"}))
        while (told := json.loads(observer.recv(WAIT))).get("number") != number:
            rounds += told["type"] == "left"
    assert BURST / 4 - 1 <= rounds <= BURST / 3 + 1, "two for those that are told, and one or two requests"
