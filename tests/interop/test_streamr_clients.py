"""Genuine Streamr clients and a real gateway: they log in, hear and are heard, and believe every signature.

The clients come from npm (see tests/npm.py). Where that is missing the tests are skipped, unless
TRELLIS_REQUIRE_INTEROP=1.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.npm import WAIT, NodeClient, node_client, require_clients
from tests.server import Server

STRICT = {"verifySignatures": "always"}
CONTENTS: list[dict[str, Any]] = [{"hello": "ascii"}, {"hello": "héllo \U0001f333 日本", "n": [1, 2.5, None]}]
ALL = ["2.2.7", "4.1.6", "5.1.0"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_clients()
    env = {"TRELLIS_STREAMR__STREAMS": '{"wide": 5}'}
    with Server(tmp_path_factory.mktemp("data"), env=env) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def genuine(
    server: Server, version: str, key: int = 0x1111, options: dict[str, Any] | None = None
) -> AbstractAsyncContextManager[NodeClient]:
    """A connected client; *key* 0 is one without a login."""
    addresses = (f"ws://{server.http}/api/v1/ws", f"http://{server.http}/api/v1")
    secret = f"0x{key:064x}" if key else ""
    return node_client("streamr.cjs", version, *addresses, secret, json.dumps(STRICT if options is None else options))


async def relay(server: Server, topic: str) -> ClientConnection:
    """A peer of the topic relay that listens to *topic*."""
    socket = await connect(f"ws://{server.http}/relay")
    await socket.send(json.dumps({"type": 2, "topic": topic}))
    assert json.loads(await socket.recv())["type"] == 2
    return socket


async def broadcast(socket: ClientConnection) -> Any:
    """The content of the next Broadcast."""
    while True:
        packet = json.loads(await asyncio.wait_for(socket.recv(), WAIT))
        if packet["type"] == 6:
            return {key: value for key, value in packet.items() if key not in ("type", "topic", "src")}


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 110))


@pytest.mark.parametrize("version", ALL)
def test_a_genuine_client_and_a_topic_relay_peer_hear_each_other(server: Server, version: str) -> None:
    async def scenario() -> None:
        stream = f"interop/{version}"
        async with genuine(server, version) as client, await relay(server, stream) as peer:
            await client.subscribe(stream=stream)
            for content in CONTENTS:
                client.do("publish", stream=stream, content=content)
                assert await broadcast(peer) == content
                echo = await client.told("message")
                assert (echo["content"], echo["signed"]) == (content, True)
            for content in CONTENTS:
                await peer.send(json.dumps({"type": 6, "topic": stream, **content}))
                heard = await client.told("message")
                assert (heard["content"], heard["signed"]) == (content, True)
                assert heard["id"][:2] == [stream, 0]
                assert heard["id"][5] == "topic_relay"
            client.do("unsubscribe", stream=stream)
            await client.told("unsubscribed")

    run(scenario)


def test_genuine_clients_of_different_versions_hear_each_other(server: Server) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(genuine(server, version, key))
                for key, version in enumerate(ALL, 0x2222)
            ]
            for client in clients:
                await client.subscribe(stream="crossed")
            for number, client in enumerate(clients):
                client.do("publish", stream="crossed", content={"from": number})
                for reader in clients:
                    heard = await reader.told("message")
                    assert (heard["content"], heard["signed"]) == ({"from": number}, True)

    run(scenario)


def test_clients_without_a_login_only_read(server: Server) -> None:
    async def scenario() -> None:
        async with genuine(server, "5.1.0", 0, {}) as reader, await relay(server, "public") as peer:
            await reader.subscribe(stream="public")
            await peer.send(json.dumps({"type": 6, "topic": "public", "n": 1}))
            assert (await reader.told("message"))["content"] == {"n": 1}

    run(scenario)


@pytest.mark.parametrize("version", ALL)
def test_keyed_messages_go_to_the_partition_all_agree_on(server: Server, version: str) -> None:
    async def scenario() -> None:
        async with genuine(server, version) as writer:
            peers = {key: await relay(server, f"wide#{partition}") for key, partition in (("a", 4), ("b", 1))}
            for key, peer in peers.items():
                writer.do("publish", stream="wide", content={"key": key}, key=key)
                assert await broadcast(peer) == {"key": key}
                await peer.close()

    run(scenario)


def test_direct_messages_reach_the_inbox_of_a_genuine_client(server: Server) -> None:
    async def scenario() -> None:
        async with genuine(server, "5.1.0", 0x3333) as client, await relay(server, "inboxes") as peer:
            client.do("publish", stream="inboxes", content={"n": 1})
            packet = json.loads(await asyncio.wait_for(peer.recv(), WAIT))
            published = await client.told("published")
            assert published
            number = packet["src"]
            await client.subscribe(stream=f"inboxes/@{number}")
            await peer.send(json.dumps({"type": 4, "topic": "inboxes", "dst": number, "psst": "é"}))
            heard = await client.told("message")
            assert (heard["stream"], heard["content"]) == (f"inboxes/@{number}", {"psst": "é"})

    run(scenario)


def test_group_keys_are_exchanged_and_messages_decrypted_end_to_end(server: Server) -> None:
    async def scenario() -> None:
        async with (
            genuine(server, "5.1.0", 0x4444) as writer,
            genuine(server, "5.1.0", 0x5555) as reader,
            await relay(server, "secret") as peer,
        ):
            await reader.subscribe(stream="secret")
            writer.do("rotate", stream="secret")
            await writer.told("rotated")
            writer.do("publish", stream="secret", content={"n": 42})
            assert (await reader.told("message"))["content"] == {"n": 42}
            assert (await broadcast(peer)).keys() == {"encrypted"}

    run(scenario)
