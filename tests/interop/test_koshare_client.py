"""The genuine client of the topic relay and a real gateway (`@yume-chan/koshare-router-client`, from npm)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.clients import RestClient, StreamrClient
from tests.npm import NODE, require_clients
from tests.server import Server

WAIT = 30.0  # seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_clients()
    with Server(tmp_path_factory.mktemp("data")) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


class Koshare:
    """A client in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def do(self, verb: str, **fields: Any) -> None:
        """Give it a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": verb, **fields}).encode() + b"\n")

    async def told(self, event: str) -> Any:
        """The next *event*; an error is one that nobody expected."""
        assert self._process.stdout is not None
        while line := await asyncio.wait_for(self._process.stdout.readline(), WAIT):
            found = json.loads(line)
            assert found["event"] not in {"error", "closed"} - {event}, found
            if found["event"] == event:
                return found
        raise AssertionError(f"the client ended before it told {event!r}")

    async def subscribe(self, topic: str) -> None:
        """Hear *topic*."""
        self.do("subscribe", topic=topic)
        await self.told("subscribed")


@asynccontextmanager
async def koshare(server: Server) -> AsyncIterator[Koshare]:
    """A connected client."""
    process = await asyncio.create_subprocess_exec(
        "node",
        "koshare.cjs",
        f"ws://{server.http}/relay",
        cwd=NODE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        client = Koshare(process)
        await client.told("ready")
        yield client
        client.do("quit")
        await asyncio.wait_for(process.wait(), WAIT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_two_of_them_hear_each_other_and_send_direct_messages(server: Server) -> None:
    async def scenario() -> None:
        async with koshare(server) as alice, koshare(server) as bob:
            await alice.subscribe("talk")
            await bob.subscribe("talk")
            async with httpx.AsyncClient(base_url=f"http://{server.http}") as client:
                _, second = (await client.get("/v1/channels/talk/peers")).json()["peers"]
            alice.do("broadcast", topic="talk", body={"text": "héllo \U0001f333", "n": [1, 2.5, None]})
            heard = (await bob.told("packet"))["packet"]
            assert (heard["text"], heard["n"], heard["type"]) == ("héllo \U0001f333", [1, 2.5, None], 6)
            alice.do("message", topic="talk", dst=second["number"], body={"text": "for you"})
            direct = (await bob.told("packet"))["packet"]
            assert (direct["type"], direct["dst"], direct["text"]) == (4, second["number"], "for you")
            bob.do("unsubscribe", topic="talk")
            await bob.told("unsubscribed")

    run(scenario)


def test_it_hears_and_is_heard_by_other_protocols(server: Server) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(koshare(server))
            rest = await stack.enter_async_context(RestClient(server.http))
            streamr = await stack.enter_async_context(StreamrClient(server.http))
            await client.subscribe("bridge")
            await rest.subscribe("bridge")
            await streamr.subscribe("bridge")
            client.do("broadcast", topic="bridge", body={"from": "koshare"})
            for peer in (rest, streamr):
                assert (await peer.next()).content == {"from": "koshare"}
            await rest.say("bridge", {"from": "rest"})
            assert (await client.told("packet"))["packet"]["from"] == "rest"
            await streamr.say("bridge", "a string")
            assert (await client.told("packet"))["packet"]["json"] == "a string"

    run(scenario)
