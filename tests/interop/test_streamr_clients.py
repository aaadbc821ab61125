"""Genuine Streamr clients and peers of every other protocol exchange messages through a real gateway.

The clients come from npm (see tests/npm.py). Where that is missing the tests are skipped, unless
TRELLIS_REQUIRE_INTEROP=1. Each scenario is one Node process with several clients.

Clients before version 4 count the length that an Ethereum signature begins with in UTF-16 units, those after it in
bytes of UTF-8. So neither believes what the other signed unless it is ASCII, whatever is between them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from gateway.demo_clients import ReceivedMessage, RelayClient, SproutClient
from tests.adapters.streamr.conftest import Publisher
from tests.conformance.forge import SequoiaForge
from tests.interop.streamr import ALL, UTF16, GenuineClient, clients
from tests.npm import require_clients
from tests.server import Server

WORLD: dict[str, Any] = {"hello": "héllo \U0001f333 日本", "n": [1, 2.5, None]}
PARTITIONS = {"a": 4, "b": 1, "key-1": 2}  # of 5: all genuine clients agree
QUIET = 0.5  # seconds in which nothing may be heard


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_clients()
    env = {"TRELLIS_STREAMR__STREAMS": '{"wide": 5}'}
    with Server(tmp_path_factory.mktemp("data"), env=env) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 110))


def old(everybody: list[GenuineClient]) -> list[GenuineClient]:
    """Those before version 4."""
    return [client for client in everybody if client.version in UTF16]


def new(everybody: list[GenuineClient]) -> list[GenuineClient]:
    """Those from version 4 on."""
    return [client for client in everybody if client.version not in UTF16]


async def nothing(client: GenuineClient) -> None:
    """Whether *client* is told nothing for a while."""
    with pytest.raises(TimeoutError):
        await client.next_event("message", QUIET)


def test_clients_of_all_versions_exchange_live_and_resent_messages(server: Server) -> None:
    async def scenario() -> None:
        async with clients() as pool:
            everybody = await pool.each(server, 0x1111)
            for client in everybody:
                await client.subscribe("crossed/over")
            said, places = [], []
            for number, writer in enumerate([*everybody, *everybody]):
                said.append({"from": writer.version, "n": number})
                await writer.publish("crossed/over", said[-1])
                heard = [await reader.expect_messages(said[-1]) for reader in everybody]
                assert len({json.dumps(message["id"]) for (message,) in heard}) == 1
                places.append(heard[0][0]["id"][2])
            for reader in everybody:
                assert await reader.resend_contents("crossed/over", {"last": 4}) == said[-4:]
                assert await reader.resend_contents("crossed/over", {"from": {"timestamp": places[2]}}) == said[2:]
                span = {"from": {"timestamp": places[1]}, "to": {"timestamp": places[4]}}
                assert await reader.resend_contents("crossed/over", span) == said[1:5]
                assert await reader.resend_contents("crossed/nothing", {"last": 4}) == []
                await reader.done("unsubscribe", "unsubscribed", stream="crossed/over")
            await everybody[0].publish("crossed/over", {"n": "to nobody"})
            for reader in everybody:
                await nothing(reader)

    run(scenario)


def test_non_ascii_signatures_verify_within_a_generation_of_clients(server: Server) -> None:
    async def scenario() -> None:
        async with clients() as pool:
            everybody = await pool.each(server, 0x2111)
            for stream, generation in (("old", old(everybody)), ("new", new(everybody))):
                for client in generation:
                    await client.subscribe(stream)
                for writer in generation:
                    await writer.publish(stream, WORLD)
                    for reader in generation:
                        await reader.expect_messages(WORLD)
            careless = await pool.each(server, 0x2211, {"verifySignatures": "never"})
            for client in careless:
                await client.subscribe("both")
            for writer in everybody:
                await writer.publish("both", WORLD)
                for reader in careless:
                    await reader.expect_messages(WORLD)

    run(scenario)


def test_keyed_messages_go_to_the_partition_all_agree_on(server: Server) -> None:
    async def scenario() -> None:
        async with clients() as pool:
            everybody = await pool.each(server, 0x3111)
            for client in everybody:
                for partition in PARTITIONS.values():
                    await client.subscribe("wide", partition)
            for writer in everybody:
                for key, partition in PARTITIONS.items():
                    content = {"key": key, "from": writer.version}
                    await writer.publish("wide", content, key=key)
                    for reader in everybody:
                        (heard,) = await reader.expect_messages(content)
                        assert (heard["partition"], heard["id"][1]) == (partition, partition)
            for reader in everybody:
                found = await reader.resend_contents("wide", {"last": 2}, PARTITIONS["a"])
                assert found == [{"key": "a", "from": version} for version in ALL[-2:]]

    run(scenario)


def test_clients_exchange_messages_with_topic_relay_and_sprout_peers(server: Server) -> None:
    async def scenario() -> None:
        sprout = SproutClient(server.http, server.sprout, SequoiaForge())
        async with clients() as pool, RelayClient(server.http) as relay, sprout:
            everybody = await pool.each(server, 0x4111)
            for peer in (relay, sprout):
                await peer.subscribe("market")
            for client in everybody:
                await client.subscribe("market")
            for generation, other in ((new(everybody), old(everybody)), (old(everybody), new(everybody))):
                for client in generation:
                    await client.publish("market", WORLD)
                    assert [await peer.next() for peer in (relay, sprout)] == [ReceivedMessage("market", WORLD)] * 2
                    for reader in generation:
                        await reader.expect_messages(WORLD)
                    for reader in other:  # see above
                        assert "ignature" in (await reader.next_event("error"))["message"]
            for peer, others in ((relay, sprout), (sprout, relay)):
                for content in (WORLD, {"content": "just text, é"}, {"n": 1}):
                    await peer.publish("market", content)
                    assert await others.next() == ReceivedMessage("market", content)
                    for client in everybody:
                        (heard,) = await client.expect_messages(content)
                        assert heard["id"][5] == peer.protocol

    run(scenario)


@pytest.mark.parametrize("version", ALL)
def test_each_version_exchanges_non_ascii_messages_with_other_protocols(server: Server, version: str) -> None:
    async def scenario() -> None:
        stream = f"alone/{version}"
        sprout = SproutClient(server.http, server.sprout, SequoiaForge("bob"))
        async with clients() as pool, RelayClient(server.http) as relay, sprout:
            client = await pool.open(server, version, 0x5111)
            for peer in (relay, sprout):
                await peer.subscribe(stream)
            await client.subscribe(stream)
            await client.publish(stream, WORLD)
            await client.expect_messages(WORLD)
            assert [await peer.next() for peer in (relay, sprout)] == [ReceivedMessage(stream, WORLD)] * 2
            await relay.publish(stream, WORLD)
            await client.expect_messages(WORLD)  # before the next one is sent: nothing orders what two connections say
            await sprout.publish(stream, {"content": "é"})
            await client.expect_messages({"content": "é"})
            resent = await client.resend_contents(
                stream, {"last": 3}
            )  # in the order of what their authors say of the time
            assert sorted(resent, key=json.dumps) == sorted([WORLD, WORLD, {"content": "é"}], key=json.dumps)

    run(scenario)


def test_clients_read_their_user_and_use_streams_they_create(server: Server) -> None:
    async def scenario() -> None:
        async with clients() as pool:
            everybody = await pool.each(server, 0x7111)
            for key, client in enumerate(everybody, 0x7111):
                user = (await client.done("me", "me"))["user"]
                assert user["username"].lower() == Publisher(key).address
                made = await client.done("create", "created", id=f"made/by/{client.version}")
                assert made["id"] == f"made/by/{client.version}"
                await client.subscribe(made["id"])
                await client.publish(made["id"], {"by": key})
                await client.expect_messages({"by": key})

    run(scenario)


def test_clients_without_a_login_can_only_read(server: Server) -> None:
    async def scenario() -> None:
        async with clients() as pool, RelayClient(server.http) as relay:
            readers = [await pool.open(server, version, 0, {}) for version in ("4.1.6", "5.1.0")]
            for reader in readers:
                await reader.subscribe("public")
            await relay.publish("public", {"n": 1})
            for reader in readers:
                await reader.expect_messages({"n": 1})
                assert await reader.resend_contents("public", {"last": 1}) == [{"n": 1}]

    run(scenario)


@pytest.mark.parametrize("version", ALL)
def test_direct_messages_reach_the_inbox_of_a_genuine_client(server: Server, version: str) -> None:
    async def scenario() -> None:
        relay = RelayClient(server.http)
        async with clients() as pool, relay:
            client = await pool.open(server, version, 0x6111 + ALL.index(version))
            address = (await client.done("me", "me"))["user"]["username"]
            await relay.subscribe("inboxes")
            await client.subscribe(f"inboxes/@{address}")
            await client.publish("inboxes", {"n": 1})
            assert await relay.next() == ReceivedMessage("inboxes", {"n": 1})
            number = await number_of(server, "inboxes", address)
            await relay.direct("inboxes", number, {"psst": "é"})
            (heard,) = await client.expect_messages({"psst": "é"})
            assert heard["stream"] == f"inboxes/@{address}"

    run(scenario)


def test_clients_before_4_0_publish_to_the_partition_instead_of_its_inbox(server: Server) -> None:
    """Those before version 4 ask REST for it with a bare `#`, get the stream, and say it to all (docs/protocols.md)."""

    async def scenario() -> None:
        async with clients() as pool, RelayClient(server.http) as relay, httpx.AsyncClient() as http:
            await relay.subscribe("wide#3")
            (peer,) = (await http.get(f"http://{server.http}/v1/channels/wide%233/peers")).json()["peers"]
            for client in await pool.each(server, 0x8111):
                mark = {"a secret of": client.version}
                if client.version in UTF16:
                    await client.subscribe("wide", PARTITIONS["a"])
                    await client.publish(f"wide#3/@{peer['number']}", mark, key="a")
                    await client.expect_messages(mark)  # where everybody hears it
                    await client.publish(f"wide%233/@{peer['number']}", mark)
                else:
                    await client.publish(f"wide#3/@{peer['number']}", mark)
                heard = await relay.next()
                assert (heard.content, heard.direct) == (mark, True)

    run(scenario)


async def number_of(server: Server, channel: str, identity: str) -> int:
    """The number of the peer that *identity* is."""
    async with httpx.AsyncClient() as http:
        peers = (await http.get(f"http://{server.http}/v1/channels/{channel}/peers")).json()["peers"]
    return int(next(peer["number"] for peer in peers if peer["identity"] == identity.lower()))
