"""A genuine Arbor client (sprout-go, forest-go) and a real gateway: they list, subscribe, publish and receive.

The client is in tests/interop/arbor. Where it cannot be built the tests are skipped, unless TRELLIS_REQUIRE_INTEROP=1.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from gateway.demo_clients import RelayClient
from tests.arbor import WAIT, arbor, community, require_arbor, run
from tests.server import Server


@pytest.fixture(scope="module")
def program() -> Path:
    """The client, built."""
    return require_arbor()


@pytest.fixture(scope="module")
def server(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway, which must have nothing to complain about in the end."""
    del program
    with Server(tmp_path_factory.mktemp("data"), env={"TRELLIS_SPROUT__PRESENCE": "tell"}) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def test_the_client_receives_and_verifies_messages_of_the_topic_relay(server: Server, program: Path) -> None:
    async def scenario() -> None:
        lobby = await community(server, "lobby")
        async with arbor(program, server.sprout) as client, RelayClient(server.http) as relay:
            await client.do("version")
            assert (await client.do("list 10"))["count"] >= 1
            listed = await client.next("answered", type="community", name="lobby")
            assert (listed["id"], listed["metadata"]) == (lobby, {"channel/1": "lobby"})
            await client.do("bootstrap")
            await client.do(f"subscribe {lobby}")
            await relay.publish("lobby", {"content": "hello, forest"})
            who = await client.next("announced", type="identity")
            said = await client.next("announced", type="reply", content="hello, forest")
            assert said["author"] == who["id"]
            assert who["name"].endswith("(topic relay)")
            await client.next("stored", id=said["id"])  # its library fetched what was missing, and took it
            ids = [listed["author"], lobby, said["conversation"], who["id"], said["id"]]
        nodes = [await raw(server, id) for id in ids]
        judged = subprocess.run(
            [program, "verify"], input="\n".join(nodes), capture_output=True, text=True, timeout=WAIT, check=True
        )
        verdicts = [json.loads(line) for line in judged.stdout.splitlines()]
        assert [verdict["id"] for verdict in verdicts] == ids
        for verdict in verdicts:
            assert verdict["checks"] == {"internal": "", "references": "", "signature": ""}, verdict

    run(scenario)


async def raw(server: Server, id: str) -> str:
    """The bytes of a node, as base64url."""
    host, _, port = server.sprout.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    writer.write(f"query 0 1\n{id}\n".encode())
    assert await asyncio.wait_for(reader.readline(), WAIT) == b"response 0 1\n"
    line = await asyncio.wait_for(reader.readline(), WAIT)
    writer.close()
    return line.split()[1].decode()


def test_messages_of_the_client_reach_other_protocols_and_get_a_status(server: Server, program: Path) -> None:
    async def scenario() -> None:
        lounge = await community(server, "lounge")
        async with arbor(program, server.sprout) as client, RelayClient(server.http) as relay:
            await relay.subscribe("lounge")
            await client.do(f"subscribe {lounge}")
            said = await client.do(f"say {lounge} hello, relay")
            assert (await relay.next()).content == {"content": "hello, relay"}
            answer = await client.do(f"say {said['id']} and more")
            heard = (await relay.next()).content
            assert heard["content"] == "and more"
            async with httpx.AsyncClient(base_url=f"http://{server.http}", timeout=WAIT) as rest:
                found = (await rest.get(f"/v1/channels/lounge/messages/{said['id']}")).json()
                assert found["id"] == heard["inReplyTo"]
                assert found["native"] == {"sprout": said["id"]}
            assert (await client.do(f"ancestry {answer['id']} 9"))["count"] == 2
            assert (await client.do(f"leaves {lounge} 9"))["count"] == 3

    run(scenario)


def test_communities_of_the_client_are_channels(server: Server, program: Path) -> None:
    async def scenario() -> None:
        async with arbor(program, server.sprout) as client, RelayClient(server.http) as relay:
            made = await client.do("community from arbor")
            await client.do(f"subscribe {made['id']}")
            await relay.publish("from arbor", {"n": 1})
            said = await client.next("announced", type="reply")
            assert (said["community"], json.loads(said["content"])) == (made["id"], {"n": 1})
            assert said["metadata"]["json/1"] == "true"

    run(scenario)


def test_two_clients_exchange_messages(server: Server, program: Path) -> None:
    async def scenario() -> None:
        hall = await community(server, "hall")
        async with arbor(program, server.sprout) as one, arbor(program, "-name", "two", server.sprout) as two:
            for client in (one, two):
                await client.do("bootstrap")
                await client.do(f"subscribe {hall}")
            said = await one.do(f"say {hall} hello, two")
            await two.next("stored", id=said["id"])
            answer = await two.do(f"say {said['id']} hello, one")
            await one.next("stored", id=answer["id"])

    run(scenario)


def test_the_client_and_other_peers_see_each_others_presence(server: Server, program: Path) -> None:
    """Who is there, by the convention of Arbor's own clients: what it writes is read, what it is told it takes."""

    async def scenario() -> None:
        yard = await community(server, "yard")
        async with (
            arbor(program, server.sprout) as client,
            connect(f"ws://{server.http}/relay") as relay,
            httpx.AsyncClient(base_url=f"http://{server.http}", timeout=WAIT) as rest,
        ):
            await client.do("bootstrap")
            await client.do(f"subscribe {yard}")
            await relay.send('{"type":2,"topic":"yard"}')
            (number,) = json.loads(await relay.recv())["peers"]  # a connection of which nothing is known
            told = await client.next("announced", type="reply", community=yard)
            assert (told["metadata"]["activity/1"], told["metadata"]["invisible/1"]) == ("0", "true")
            await client.next("stored", id=told["id"])
            await client.do(f"twig {yard} activity/1=0,invisible/1=true x")
            hello = json.loads(await relay.recv())
            peers = (await rest.get("/v1/channels/yard/peers")).json()["peers"]
            (author,) = [peer for peer in peers if peer["protocol"] == "sprout"]
            assert hello == {"type": 7, "topic": "yard", "src": author["number"]}
            assert author["number"] != number
            assert author["identity"] is not None
            await client.do(f"twig {yard} activity/1=1,invisible/1=true x")
            peers = (await rest.get("/v1/channels/yard/peers")).json()["peers"]
            assert [peer["protocol"] for peer in peers] == ["topic_relay"]
            await relay.close()
            left = await client.next("announced", type="reply", community=yard)
            assert (left["author"], left["metadata"]["activity/1"]) == (told["author"], "1")
            assert (await rest.get("/v1/channels/yard/messages")).json()["messages"] == []

    run(scenario)
