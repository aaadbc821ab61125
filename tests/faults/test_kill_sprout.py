"""Messages that REST answered with 201 and Sprout with status 0 survive kill -9 under mixed load.

`TRELLIS_SOAK` says how many runs; each has its seed in its name.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.commands.arbor_author import ArborAuthor
from gateway.demo_clients import ArborNode
from gateway.storage.record import decode
from gateway.storage.segments import parse_header
from tests.adapters.sprout.conftest import Forge
from tests.server import Server

RUNS = int(os.environ.get("TRELLIS_SOAK", "2"))
ROUNDS = 2  # how often each run is killed
NODES = 300  # that are signed beforehand, for each round
PAGE = 256

Accepted = tuple[dict[str, str], set[str]]  # by REST: canonical id to content; by Sprout: node ids


@pytest.mark.parametrize("seed", range(RUNS))
def test_messages_accepted_by_rest_and_sprout_survive_a_kill(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    posted: dict[str, str] = {}
    announced: set[str] = set()
    community, author = "", ArborAuthor("survivor")
    for _ in range(ROUNDS):
        with Server(tmp_path) as server:
            community = community or asyncio.run(_community(server))
            nodes = [author.identity(), *(author.reply(community, str(n), {}) for n in range(NODES))]
            asyncio.run(_say(server, nodes, chance, (posted, announced)))
            assert "Traceback" not in server.log
    assert posted
    assert announced
    with Server(tmp_path) as server:
        asyncio.run(_check(server, (posted, announced)))
        server.stop()
    assert [parse_header(line)[0] for line in _lines(tmp_path)] == list(range(1, len(list(_lines(tmp_path))) + 1))
    assert all(decode(line) for line in _lines(tmp_path))


@pytest.mark.parametrize("brought", [False, True])
def test_a_reply_that_waited_for_its_parent_survives_a_kill_after_status_0(tmp_path: Path, brought: bool) -> None:
    """A reply waits for its parent; one connection brings that, and the gateway is killed at once."""
    author = Forge()
    community = author.community("lobby")
    top = author.reply(community, "top")
    leaf = author.reply(top, "leaf")

    async def announced(server: Server) -> set[str]:
        """What was answered with status 0."""
        host, _, port = server.sprout.rpartition(":")
        (reader, writer), (other, bring) = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        bring.write(f"announce 1 2\n{author.identity}\n{community}\n".encode())
        while await other.readline() != b"status 1 0\n":
            pass
        writer.write(f"announce 7 1\n{leaf}\n".encode())
        while not (await reader.readline()).startswith(b"ancestry "):
            pass
        if brought:
            bring.write(f"announce 2 1\n{top}\n".encode())
            while await other.readline() != b"status 2 0\n":
                pass
        try:
            told = await asyncio.wait_for(reader.readline(), 10 if brought else 0.3)
        except TimeoutError:
            told = b""
        server.kill()
        for each in (writer, bring):
            each.close()
        return {leaf.split(" ")[0]} if told == b"status 7 0\n" else set()

    with Server(tmp_path) as server:
        accepted = asyncio.run(announced(server))
    assert bool(accepted) is brought
    with Server(tmp_path) as server:
        assert asyncio.run(_missing(server, sorted(accepted))) == set()
        assert asyncio.run(_missing(server, [leaf.split(" ")[0]])) == (set() if brought else {leaf.split(" ")[0]})
        assert server.stop() == 0


async def _say(server: Server, nodes: list[ArborNode], chance: random.Random, accepted: Accepted) -> None:
    """Post and announce at the same time, until so many are accepted that the gateway is killed."""
    before, enough = sum(map(len, accepted)), chance.randint(1, NODES)
    tasks = [asyncio.create_task(_post(server, accepted[0])) for _ in range(4)]
    tasks.append(asyncio.create_task(_announce(server, nodes, chance, accepted[1])))
    while sum(map(len, accepted)) < before + enough and not all(task.done() for task in tasks):
        await asyncio.sleep(0)
    server.kill()
    await asyncio.gather(*tasks)


async def _post(server: Server, posted: dict[str, str]) -> None:
    async with httpx.AsyncClient(base_url=f"http://{server.http}", timeout=30) as client:
        for number in range(10_000):
            try:
                response = await client.post("/v1/channels/lobby/messages", json=number)
            except httpx.TransportError:
                return
            assert response.status_code == 201, response.text
            posted[response.json()["id"]] = str(number)


async def _announce(server: Server, nodes: list[ArborNode], chance: random.Random, announced: set[str]) -> None:
    """Announce a few nodes at a time, without waiting for the answers."""
    host, _, port = server.sprout.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    sent: dict[int, list[str]] = {}
    todo = list(nodes)
    while todo:
        some, todo = todo[: (size := chance.randint(1, 5))], todo[size:]
        sent[len(sent)] = [node.id for node in some]
        writer.write(b"announce %d %d\n" % (len(sent) - 1, len(some)) + b"".join(map(_line, some)))
    try:
        while line := await reader.readline():
            if line.endswith(b"\n") and line.startswith(b"status "):
                _, number, status = map(bytes.decode, line.split())
                assert status == "0"
                announced.update(sent[int(number)])
    except ConnectionError:
        pass
    writer.close()


async def _check(server: Server, accepted: Accepted) -> None:
    """All of it is in the history, and every node is given to whoever asks for it."""
    posted, announced = accepted
    async with httpx.AsyncClient(base_url=f"http://{server.http}", timeout=30) as client:
        found, path = [], f"/v1/channels/lobby/messages?limit={PAGE}"
        while path:
            page = (await client.get(path)).json()
            found += page["messages"]
            path = page["next"]
    sequences = [message["sequence"] for message in found]
    assert sequences == sorted(set(sequences))
    held = {message["id"]: json.dumps(message["content"]) for message in found}
    assert {id: text for id, text in posted.items() if held.get(id) != text} == {}
    assert await _missing(server, sorted(announced)) == set()


async def _missing(server: Server, ids: list[str]) -> set[str]:
    """Those of *ids* that a query does not bring."""
    host, _, port = server.sprout.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    missing = set(ids)
    for begin in range(0, len(ids), 100):
        some = ids[begin : begin + 100]
        writer.write(b"query %d %d\n%b\n" % (begin, len(some), "\n".join(some).encode()))
        while not (line := await reader.readline()).startswith(b"response %d " % begin):
            assert line
        for _ in range(int(line.split()[2])):
            missing.discard((await reader.readline()).split()[0].decode())
    writer.close()
    return missing


async def _community(server: Server) -> str:
    async with httpx.AsyncClient(base_url=f"http://{server.http}", timeout=30) as client:
        (await client.put("/v1/channels/lobby")).raise_for_status()
        while (community := (await client.get("/v1/channels/lobby")).json().get("community")) is None:
            await asyncio.sleep(0.02)
        return str(community)


def _lines(data: Path) -> Iterator[bytes]:
    for path in sorted((data / "log").iterdir(), key=lambda path: path.name.removeprefix(".open-")):
        yield from path.read_bytes().splitlines(keepends=True)


def _line(node: ArborNode) -> bytes:
    return node.id.encode() + b" " + urlsafe_b64encode(node.raw).rstrip(b"=") + b"\n"
