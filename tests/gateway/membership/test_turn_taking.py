"""Requests and WebSockets wait for the turn only if they may log something, and always get it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.app import TurnTaking
from tests.properties.cluster import ClusterInstance, Stream, copy_of, next_seq
from tests.properties.in_process_gateway import template

KEY = (b"authorization", b"Bearer a-key")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[ClusterInstance]]:
    """Two gateways, of which the first has the turn."""
    folders = [copy_of(template(), tmp_path / name) for name in "ab"]
    stream = Stream(next_seq(folders[0]))
    nodes = [ClusterInstance(stream, folder) for folder in folders]
    nodes[0].catch_up()
    yield nodes
    for node in nodes:
        node.stop()


class Application:
    """Notes for each request whether the gateway accepts when it comes."""

    def __init__(self, node: ClusterInstance) -> None:
        self.acted: list[bool] = []
        self._turn = node.turn
        self._answer = asyncio.Event()

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self.acted.append(self._turn.acting)
        await send({"type": "websocket.accept"})
        await self._answer.wait()


def begin(
    node: ClusterInstance, application: Application, scope: dict[str, Any], middleware: TurnTaking | None = None
) -> asyncio.Task[None]:
    """A client of *node* sends a request."""

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(_message: Message) -> None:
        pass

    whole = {"path": "/v1/ws", "query_string": b"", "headers": [], **scope}
    return asyncio.create_task((middleware or TurnTaking(application, node.membership))(whole, receive, send))


async def rest() -> None:
    """Let all tasks go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def _contend(nodes: list[ClusterInstance]) -> list[bool]:
    """The other gateway wants the turn whenever it has not got it, as under load; what the application noted."""
    other, here = nodes
    application = Application(here)
    task = begin(here, application, {"type": "websocket", "headers": [KEY]})
    for _ in range(20):
        await rest()
        other.take(9)
        while not here.transport.caught_up:
            here.turn.wanted(other.turn.me)
            here.take(1)  # no time passes
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not here.turn.requests, "it keeps the turn no longer than it has to"
    return application.acted


def test_a_websocket_gets_the_turn_under_contention(nodes: list[ClusterInstance]) -> None:
    assert asyncio.run(_contend(nodes)) == [True]


async def _shown_twice(node: ClusterInstance) -> list[int]:
    """A client shows its key, gives up while it waits, and shows it again; how often it was served after each."""
    application, counts = Application(node), list[int]()
    scope: dict[str, Any] = {"type": "websocket", "headers": [KEY]}
    middleware = TurnTaking(application, node.membership)
    for _ in range(2):
        task = begin(node, application, scope, middleware)
        await rest()
        counts.append(len(application.acted))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return counts


def test_a_key_is_not_known_before_its_sender_had_the_turn(nodes: list[ClusterInstance]) -> None:
    assert asyncio.run(_shown_twice(nodes[1])) == [0, 0]


async def _waits(node: ClusterInstance, scope: dict[str, Any]) -> bool:
    application = Application(node)
    task = begin(node, application, scope)
    await rest()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return not application.acted


def test_requests_that_log_nothing_do_not_wait_for_the_turn(nodes: list[ClusterInstance]) -> None:
    """A listener connects, and its history is read, while other gateways accept, or nobody can."""
    _, here = nodes
    assert not here.turn.acting
    for scope, waits in (
        ({"type": "websocket"}, False),
        ({"type": "websocket", "headers": [KEY]}, True),
        ({"type": "websocket", "query_string": b"key=another"}, True),
        ({"type": "http", "method": "GET"}, False),
        ({"type": "http", "method": "POST"}, True),
        ({"type": "http", "method": "POST", "path": "/readyz"}, False),
    ):
        assert asyncio.run(_waits(here, scope)) == waits, scope


async def _known_after_a_read(node: ClusterInstance) -> list[bool]:
    """Whether a key is known, to requests and to WebSockets, once it has asked for a page."""
    application = Application(node)
    middleware = TurnTaking(application, node.membership)
    task = begin(node, application, {"type": "http", "method": "GET", "headers": [KEY]}, middleware)
    await rest()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert application.acted
    shown = {"query_string": b"", "headers": [KEY]}
    return [not middleware._unknown_credentials({"type": kind, **shown}) for kind in ("http", "websocket")]


def test_a_key_that_has_read_waits_for_its_first_websocket(nodes: list[ClusterInstance]) -> None:
    """It has no number yet; its WebSocket was refused while another gateway accepted."""
    assert asyncio.run(_known_after_a_read(next(node for node in nodes if node.turn.acting))) == [True, False]
