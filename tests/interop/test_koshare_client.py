"""The genuine client of the topic relay and a real gateway (`@yume-chan/koshare-router-client`, from npm)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import httpx
import pytest

from gateway.demo_clients import RestClient, StreamrClient
from tests.npm import NodeClient, node_client, require_clients
from tests.ports import reserved_port
from tests.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_clients()
    with Server(tmp_path_factory.mktemp("data")) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def koshare(server: Server, *form: str) -> AbstractAsyncContextManager[NodeClient]:
    """A connected client."""
    return node_client("koshare.cjs", f"ws://{server.http}/relay", *form)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_two_clients_exchange_broadcasts_and_direct_messages(server: Server) -> None:
    async def scenario() -> None:
        async with koshare(server) as alice, koshare(server) as bob:
            await alice.subscribe(topic="talk")
            await bob.subscribe(topic="talk")
            async with httpx.AsyncClient(base_url=f"http://{server.http}") as client:
                _, second = (await client.get("/v1/channels/talk/peers")).json()["peers"]
            alice.do("broadcast", topic="talk", body={"text": "héllo \U0001f333", "n": [1, 2.5, None]})
            heard = (await bob.next_event("packet"))["packet"]
            assert (heard["text"], heard["n"], heard["type"]) == ("héllo \U0001f333", [1, 2.5, None], 6)
            alice.do("message", topic="talk", dst=second["number"], body={"text": "for you"})
            direct = (await bob.next_event("packet"))["packet"]
            assert (direct["type"], direct["dst"], direct["text"]) == (4, second["number"], "for you")
            bob.do("unsubscribe", topic="talk")
            await bob.next_event("unsubscribed")

    run(scenario)


def test_the_client_exchanges_messages_with_other_protocols(server: Server) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(koshare(server))
            rest = await stack.enter_async_context(RestClient(server.http))
            streamr = await stack.enter_async_context(StreamrClient(server.http))
            await client.subscribe(topic="bridge")
            await rest.subscribe("bridge")
            await streamr.subscribe("bridge")
            client.do("broadcast", topic="bridge", body={"from": "koshare"})
            for peer in (rest, streamr):
                assert (await peer.next()).content == {"from": "koshare"}
            await rest.publish("bridge", {"from": "rest"})
            assert (await client.next_event("packet"))["packet"]["from"] == "rest"
            await streamr.publish("bridge", "a string")
            assert (await client.next_event("packet"))["packet"]["json"] == "a string"

    run(scenario)


def test_the_reconnecting_client_resubscribes_after_a_restart(tmp_path: Path) -> None:
    """It waits five seconds, subscribes to all its topics again, and goes on as if nothing had been."""
    require_clients()
    port = str(reserved_port())
    servers = [Server(tmp_path, "--port", port)]

    async def scenario() -> None:
        async with koshare(servers[0], "reconnecting") as client:
            for topic in ("one", "two"):
                await client.subscribe(topic=topic)
            assert servers.pop().stop() == 0
            await client.next_event("closed")
            servers.append(await asyncio.to_thread(Server, tmp_path, "--port", port))
            async with httpx.AsyncClient(base_url=f"http://{servers[0].http}") as rest:
                for topic in ("one", "two"):
                    while not (await rest.get(f"/v1/channels/{topic}/peers")).json()["peers"]:
                        await asyncio.sleep(0.05)
                    (
                        await rest.post(f"/v1/channels/{topic}/messages", content=f'{{"to":"{topic}"}}')
                    ).raise_for_status()
                    assert (await client.next_event("packet"))["packet"]["to"] == topic
                client.do("broadcast", topic="one", body={"text": "I am back"})
                await client.next_event("sent")
                while len(page := (await rest.get("/v1/channels/one/messages")).json()["messages"]) < 2:
                    await asyncio.sleep(0.05)
                assert page[1]["content"] == {"text": "I am back"}

    try:
        run(scenario)
        assert "Traceback" not in servers[0].log
    finally:
        for server in servers:
            server.stop()
