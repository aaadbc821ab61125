"""Every protocol to every protocol: what one says, the others hear, once and in order.

A new protocol adds one line to SPEAKERS and no test.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from gateway.clients import Client, RelayClient, RestClient, SproutClient, StreamrClient
from tests.conformance.forge import SequoiaForge
from tests.server import Server

SPEAKERS: dict[str, Callable[[Server, str], Client]] = {
    "topic_relay": lambda server, _name: RelayClient(server.http),
    "sprout": lambda server, name: SproutClient(server.http, server.sprout, SequoiaForge(name)),
    "streamr": lambda server, _name: StreamrClient(server.http),
    "rest": lambda server, _name: RestClient(server.http),
}
PAIRS = list(product(SPEAKERS, SPEAKERS))

CONTENTS: dict[str, Any] = {
    "object": {"n": 1, "list": [1, 2.5, None, True], "nested": {"a": {"b": "c"}}},
    "text": {"content": "hello, forest"},
    "unicode": {"content": 'héllo \U0001f333 日本\u2028\t"quoted" \\ back'},
    "lines": {"content": "one\ntwo\r\nthree"},
    "string": "just a string",
    "number": 12345,
    "null": None,
    "true": True,
    "array": [1, "two", {"three": 3}],
    "empty": {},
    "empty text": {"content": ""},
    "reserved keys": {"type": 6, "topic": "elsewhere", "src": 99, "dst": 1, "error": "no"},
    "json key": {"json": {"a": 1}},
    "encrypted-like": {"encrypted": {"groupKeyId": "k", "content": "ab"}},
}


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("data"), "--loop", request.param) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(("speaker", "listener"), PAIRS)
def test_what_one_says_the_other_hears_once(server: Server, speaker: str, listener: str) -> None:
    async def scenario() -> None:
        channel = f"{speaker} to {listener}"[:30]
        async with SPEAKERS[speaker](server, "alice") as mouth, SPEAKERS[listener](server, "bob") as ear:
            await ear.subscribe(channel)
            for content in CONTENTS.values():
                await mouth.say(channel, content)
            await mouth.say(channel, "the end")
            heard = [await ear.next() for _ in range(len(CONTENTS) + 1)]
            assert [h.content for h in heard] == [*CONTENTS.values(), "the end"]
            assert {(h.channel, h.direct) for h in heard} == {(channel, False)}
            await asyncio.sleep(0.05)
            assert ear.heard.empty(), "nothing comes twice"

    run(scenario)


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_all_listeners_hear_the_same_order(server: Server, speaker: str) -> None:
    async def scenario() -> None:
        channel = f"order {speaker}"
        async with AsyncExitStack() as stack:
            mouth = await stack.enter_async_context(SPEAKERS[speaker](server, "alice"))
            ears = [await stack.enter_async_context(make(server, "bob")) for make in SPEAKERS.values()]
            for ear in ears:
                await ear.subscribe(channel)
            for number in range(50):
                await mouth.say(channel, {"n": number})
            for ear in ears:
                assert [(await ear.next()).content["n"] for _ in range(50)] == list(range(50)), ear.protocol

    run(scenario)


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_history_holds_what_was_said_with_its_sender(server: Server, speaker: str) -> None:
    async def scenario() -> None:
        channel = f"history {speaker}"
        async with SPEAKERS[speaker](server, "alice") as mouth, SPEAKERS["rest"](server, "") as ear:
            await ear.subscribe(channel)
            await mouth.say(channel, {"n": 1})
            await ear.next()
            async with httpx.AsyncClient(base_url=f"http://{server.http}") as client:
                page = (await client.get(f"/v1/channels/{channel}/messages")).json()
                (message,) = page["messages"]
                assert message["content"] == {"n": 1}
                assert message["sender"]["protocol"] == speaker
                again = (await client.get(f"/v1/channels/{channel}/messages/{message['id']}")).json()
                assert again == message

    run(scenario)


def test_exact_numbers_and_odd_spacing_pass_through(server: Server) -> None:
    text = '{"type":6,"topic":"exact","n": 12345678901234567890123 , "f":1.10, "e":1E5}'

    async def scenario() -> None:
        async with SPEAKERS["rest"](server, "") as ear, connect(f"ws://{server.http}/relay") as socket:
            await ear.subscribe("exact")
            await socket.send(text)
            await ear.next()
            async with httpx.AsyncClient(base_url=f"http://{server.http}") as client:
                body = (await client.get("/v1/channels/exact/messages")).text
            assert '12345678901234567890123 , "f":1.10, "e":1E5}' in body

    run(scenario)


def test_one_bad_peer_disturbs_nobody(server: Server) -> None:
    async def scenario() -> None:
        host, _, port = server.sprout.rpartition(":")
        async with SPEAKERS["rest"](server, "") as mouth, SPEAKERS["topic_relay"](server, "") as ear:
            await ear.subscribe("calm")
            for garbage in (b"\xff" * 1000, b"list 1 1 -1\n" * 100, b"announce 1 99999999999\n", b"x" * 300_000):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(garbage)
                await asyncio.gather(writer.drain(), return_exceptions=True)
                writer.close()
                del reader
            for path in ("/relay", "/api/v1/ws"):
                for bad in ("[" * 5_000, "\ud83d".encode("utf-16-le", "surrogatepass"), "null", "x" * 70_000):
                    async with connect(f"ws://{server.http}{path}", compression=None) as socket:
                        await socket.send(bad)
                        answer = await asyncio.wait_for(socket.recv(), 5)
                        assert "error" in json.loads(answer) or json.loads(answer)[1] == 7
            await mouth.say("calm", "still here")
            assert (await ear.next()).content == "still here"
        assert "Traceback" not in server.log

    run(scenario)


def test_a_channel_is_one_thing_with_four_names(server: Server, tmp_path: Path) -> None:
    del tmp_path

    async def scenario() -> None:
        async with SPEAKERS["sprout"](server, "alice") as mouth:
            await mouth.say("four names", {"n": 1})
            async with httpx.AsyncClient(base_url=f"http://{server.http}") as client:
                channel = (await client.get("/v1/channels/four%20names")).json()
        assert channel["topic"] == channel["stream"] == "four names"
        assert channel["community"].startswith("SHA512_B32__")

    run(scenario)
