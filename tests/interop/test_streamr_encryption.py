"""Genuine clients exchange encrypted messages with each other and with the gateway."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from adapters.streamr.crypto.decrypt import KEY_WAIT
from gateway.demo_clients import ReceivedMessage, RelayClient, SproutClient
from tests.adapters.streamr.conftest import Publisher
from tests.conformance.forge import SequoiaForge
from tests.gateway.cluster.test_cluster import Cluster
from tests.interop.streamr import STRICT, clients
from tests.npm import require_clients
from tests.server import Server

STREAMS = {
    "read/it": {"decrypt": True},
    "sealed": {"require_encrypted_data": True},
    "both": {"decrypt": True, "require_encrypted_data": True},
}
WORLD: dict[str, Any] = {"hello": "héllo \U0001f333 日本", "n": [1, 2.5, None]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_clients()
    env = {"TRELLIS_STREAMR__STREAMS": json.dumps(STREAMS)}
    with Server(tmp_path_factory.mktemp("data"), env=env) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 110))


async def history(server: Server, channel: str) -> list[Any]:
    """What REST tells of *channel*."""
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"http://{server.http}/v1/channels/{channel.replace('/', '%2F')}/messages")
    return [message["content"] for message in answer.json()["messages"]]


async def history_becomes(server: Server, channel: str, expected: list[Any]) -> None:
    """Wait until REST tells that: a message is delivered before it is on disk, and a relay answers no broadcast."""
    while await history(server, channel) != expected:
        await asyncio.sleep(0.02)


def test_keys_are_exchanged_and_rotated_end_to_end_and_others_see_the_envelope(server: Server) -> None:
    async def scenario() -> None:
        async with clients() as pool, RelayClient(server.http) as relay:
            writer = await pool.open(server, "5.1.0", 0x4444)
            reader = await pool.open(server, "5.1.0", 0x5555)
            await relay.subscribe("secret")
            await reader.subscribe("secret")
            for content in ({"n": 42}, WORLD):
                await writer.done("rotate", "rotated", stream="secret")
                await writer.publish("secret", content)
                await reader.expect_messages(content)
                assert (await relay.next()).content.keys() == {"encrypted"}
            assert await reader.resend_contents("secret", {"last": 2}) == [{"n": 42}, WORLD]

    run(scenario)


def test_messages_of_an_encrypting_publisher_are_plain_text_elsewhere(server: Server) -> None:
    async def scenario() -> None:
        sprout = SproutClient(server.http, server.sprout, SequoiaForge())
        async with clients() as pool, RelayClient(server.http) as relay, sprout:
            writer = await pool.open(server, "5.1.0", 0x6666)
            reader = await pool.open(server, "5.1.0", 0x7777)
            await asyncio.gather(*(peer.subscribe("read/it") for peer in (relay, sprout, reader)))
            said: list[Any] = []
            for _ in range(2):
                await writer.done("rotate", "rotated", stream="read/it")
                for content in ({"n": len(said)}, WORLD, {"content": "é"}):
                    await writer.publish("read/it", content)
                    said.append(content)
            for content in said:
                assert [await peer.next() for peer in (relay, sprout)] == [ReceivedMessage("read/it", content)] * 2
            await reader.expect_messages(*said)
            await history_becomes(server, "read/it", said)

    run(scenario)


def test_a_genuine_subscriber_decrypts_foreign_messages(server: Server) -> None:
    async def scenario() -> None:
        sprout = SproutClient(server.http, server.sprout, SequoiaForge("bob"))
        async with clients() as pool, RelayClient(server.http) as relay, sprout:
            reader = await pool.open(server, "5.1.0", 0x8888)
            await asyncio.gather(*(peer.subscribe("sealed") for peer in (relay, sprout, reader)))
            for content in (WORLD, {"n": 1}):
                await relay.publish("sealed", content)
                await reader.expect_messages(content)
            await sprout.publish("sealed", {"content": "é"})
            await reader.expect_messages({"content": "é"})
            resent = await reader.resend_contents("sealed", {"last": 3})
            assert sorted(resent, key=json.dumps) == sorted([WORLD, {"n": 1}, {"content": "é"}], key=json.dumps)

    run(scenario)


def test_messages_without_a_key_are_bridged_encrypted_after_a_timeout(server: Server) -> None:
    async def scenario() -> None:
        url = f"ws://{server.http}/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"
        async with RelayClient(server.http) as relay, connect(url) as writer:
            await relay.subscribe("read/it")
            now = time.time_ns() // 1_000_000
            row = Publisher(0xDEAD).message("read/it", "ab" * 32, now, encryption=2, group_key="lost")
            await writer.send(json.dumps([2, 8, "r", row, None]))
            before = time.monotonic()
            found = await relay.next(3 * KEY_WAIT / 1000)
            assert found.content == {"encrypted": {"groupKeyId": "lost", "content": "ab" * 32}}
            assert time.monotonic() - before > KEY_WAIT / 2000
        async with httpx.AsyncClient() as http:
            metrics = (await http.get(f"http://{server.http}/metrics")).text
        assert 'trellis_undecrypted_total{protocol="streamr"} 1.0' in metrics

    run(scenario)


def test_both_directions_work_on_a_stream_that_is_encrypted_and_read(server: Server) -> None:
    async def scenario() -> None:
        async with clients() as pool, RelayClient(server.http) as relay:
            client = await pool.open(server, "5.1.0", 0x9999)
            reader = await pool.open(server, "5.1.0", 0xAAAA)
            await asyncio.gather(*(peer.subscribe("both") for peer in (relay, reader)))
            await client.publish("both", WORLD)
            assert await relay.next() == ReceivedMessage("both", WORLD)
            await reader.expect_messages(WORLD)  # it asks another publisher for the next key: nothing orders the two
            await relay.publish("both", {"answer": "é"})
            await reader.expect_messages({"answer": "é"})

    run(scenario)


def test_encrypted_messages_and_keys_survive_a_restart(tmp_path: Path) -> None:
    require_clients()
    env = {"TRELLIS_STREAMR__STREAMS": json.dumps(STREAMS)}
    group_key = {"groupKeyId": "one", "groupKeyHex": "ab" * 32}
    writing = {**STRICT, "groupKeys": {"read/it": {"one": group_key}}}

    async def before(server: Server) -> None:
        async with clients() as pool, RelayClient(server.http) as relay:
            writer = await pool.open(server, "5.1.0", 0xBBBB, writing)
            await asyncio.gather(relay.subscribe("read/it"), relay.subscribe("sealed"))
            await writer.publish("read/it", {"n": 1})
            assert await relay.next() == ReceivedMessage("read/it", {"n": 1})
            await relay.publish("sealed", WORLD)
            await history_becomes(server, "sealed", [WORLD])

    async def after(server: Server) -> None:
        async with clients() as pool, RelayClient(server.http) as relay:
            reader = await pool.open(server, "5.1.0", 0xCCCC)
            assert await reader.resend_contents("sealed", {"last": 1}) == [WORLD]
            writer = await pool.open(server, "5.1.0", 0xBBBB, writing)
            await relay.subscribe("read/it")
            await writer.publish("read/it", {"n": 2})
            assert await relay.next() == ReceivedMessage("read/it", {"n": 2})
            await history_becomes(server, "read/it", [{"n": 1}, {"n": 2}])

    for part in (before, after):
        with Server(tmp_path, env=env) as server:
            run(partial(part, server))
            assert server.stop() == 0
    stored = b"".join(path.read_bytes() for path in (tmp_path / "log").iterdir())
    assert (b"ab" * 32) not in stored


def test_clients_at_two_gateways_of_a_cluster_exchange_keys(tmp_path: Path) -> None:
    require_clients()
    cluster = Cluster(tmp_path)

    async def scenario() -> None:
        async with clients() as pool:
            writer = await pool.open(cluster.gateways["one"], "5.1.0", 0x4444)
            reader = await pool.open(cluster.gateways["two"], "5.1.0", 0x5555)
            await reader.subscribe("secret")
            for content in ({"n": 42}, WORLD):
                await writer.done("rotate", "rotated", stream="secret")
                await writer.publish("secret", content)
                await reader.expect_messages(content)

    try:
        cluster.start("one")
        cluster.start("two", keys_of="one")
        run(scenario)
    finally:
        cluster.stop()
