"""Genuine clients without all rights get errors, and other clients are not disturbed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import pytest

from gateway.demo_clients import ReceivedMessage, RelayClient
from tests.adapters.streamr.conftest import Publisher
from tests.interop.streamr import ALL, GenuineClient, clients
from tests.npm import require_clients
from tests.server import Server

KEYS = dict(zip(ALL, range(0xE100, 0xE100 + len(ALL)), strict=True))
ADDRESSES = {version: Publisher(key).address for version, key in KEYS.items()}
GRANTS = {f"streamr:{address}": ["*:mine", "*:wide", "*:closed"] for address in ADDRESSES.values()}
GRANTS["topic_relay:anonymous"] = ["*:closed"]
STREAMS = {"wide": 2, "closed": {"decrypt": True, "require_encrypted_data": True}}
STRANGER = 0xBAD
UNSEEN = ("Not allowed to see stream", "returned with error code 403")  # the answer to the question before


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_clients()
    env = {"TRELLIS_AUTH__GRANTS": json.dumps(GRANTS), "TRELLIS_STREAMR__STREAMS": json.dumps(STREAMS)}
    with Server(tmp_path_factory.mktemp("data"), env=env) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 110))


async def refused(client: GenuineClient, *words: str) -> None:
    """The next error must have one of these words; the older clients hang up then, by themselves."""
    error = await client.next_event("error")
    client.expected.add(error["message"])
    assert any(word in error["message"] for word in words), error
    if not client.version.startswith("5"):
        while (await asyncio.wait_for(client.events.get(), 10))["event"] != "disconnected":
            pass


@pytest.mark.parametrize("version", ALL)
def test_a_client_gets_errors_only_for_forbidden_requests(server: Server, version: str) -> None:
    async def scenario() -> None:
        async with clients() as pool:
            client = await pool.open(server, version, KEYS[version])
            await client.subscribe("mine")
            await client.publish("mine", {"n": version})
            await client.expect_messages({"n": version})
            client.do("subscribe", stream="theirs")
            await refused(client, "not allowed to subscribe to stream theirs", *UNSEEN)
            writer = await pool.open(server, version, KEYS[version])
            writer.do("publish", stream="theirs", content={"n": 1})
            await refused(writer, "is not a publisher on stream theirs", *UNSEEN)
            reader = await pool.open(server, version, KEYS[version])
            reader.do("subscribe", stream="wide", partition=2)
            await refused(reader, "Partition 2 is out of range (0..1)")
            if version == "5.1.0":
                await client.publish("mine", {"still": "here"})
                await client.expect_messages({"still": "here"})

    run(scenario)


def test_a_client_without_rights_gets_nothing_and_disturbs_no_other(server: Server) -> None:
    async def scenario() -> None:
        async with clients() as pool:
            one = await pool.open(server, "5.1.0", KEYS["5.1.0"])
            await one.subscribe("mine")
            stranger = await pool.open(server, "5.1.0", STRANGER)
            for stream in ("mine", f"SYSTEM/keyexchange/{ADDRESSES['5.1.0']}"):
                stranger.do("subscribe", stream=stream)
                await refused(stranger, f"You are not allowed to subscribe to stream {stream}", *UNSEEN)
            stranger.do("publish", stream="mine", content={"forged": 1})
            await refused(stranger, "not a publisher on stream mine", *UNSEEN)
            own = f"SYSTEM/keyexchange/{ADDRESSES['5.1.0']}"
            await one.subscribe(own)
            await one.publish("mine", {"n": 1})
            await one.expect_messages({"n": 1})

    run(scenario)


def test_group_keys_are_exchanged_with_the_gateway_on_a_restricted_stream(server: Server) -> None:
    async def scenario() -> None:
        async with clients() as pool, RelayClient(server.http) as relay:
            client = await pool.open(server, "5.1.0", KEYS["5.1.0"])
            await asyncio.gather(*(peer.subscribe("closed") for peer in (relay, client)))
            await client.publish("closed", {"n": 1})
            assert await relay.next() == ReceivedMessage("closed", {"n": 1})
            await client.expect_messages({"n": 1})
            await relay.publish("closed", {"n": 2})
            await client.expect_messages({"n": 2})

    run(scenario)
