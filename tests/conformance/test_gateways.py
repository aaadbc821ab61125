"""Gateways joined by Sprout in a line, a triangle or a ring deliver everything to every listener once."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import pytest

from adapters.sprout import SproutAdapter
from gateway.demo_clients import Client, RelayClient, RestClient, SproutClient, StreamrClient
from gateway.runtime import Gateway
from gateway.settings.settings import settings_model
from tests.conformance.forge import SequoiaForge
from tests.server import Server
from tests.waiting import until as wait_until

WAIT = 60.0  # seconds
QUIET = 1.0  # seconds in which nothing more may come
DEAF = ("topic_relay", "sprout")  # whose peers do not hear themselves
CHANNEL = "hall"

pytestmark = pytest.mark.slow  # keys are made for all gateways before the first one starts

# Which gateways each one dials, in the order in which they are started.
SHAPES: dict[str, list[list[int]]] = {
    "two": [[], [0]],
    "line": [[], [0], [1]],
    "triangle": [[], [0], [0, 1]],
    "ring": [[], [0], [1], [2, 0]],
}


def gateway_of(data: Path) -> str:
    """The identity of a gateway that has never run in *data*; from now on it has."""
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    gateway = Gateway(settings_model((SproutAdapter,))(data=data), (SproutAdapter,))
    gateway.start(posted.put)
    (adapter,) = gateway.adapters
    assert isinstance(adapter, SproutAdapter)
    gateway.stop()
    return adapter.mint.id


@contextmanager
def told(servers: list[Server]) -> Iterator[None]:
    """Print what each gateway says of itself if a test fails: most failures were rare, and this is all that is left."""
    try:
        yield
    except AssertionError:
        for server in servers:
            print(httpx.get(f"http://{server.http}/v1/stats").text, server.log, sep="\n")  # noqa: T201
        raise


@contextmanager
def dialling(folder: Path, *peers: Any) -> Iterator[list[Server]]:
    """A gateway, and one for each of *peers* that dials it so; they believe each other."""
    places = [folder / str(number) for number in range(1 + len(peers))]
    env = {"TRELLIS_SPROUT__GATEWAYS": json.dumps(list(map(gateway_of, places)))}
    with Server(places[0], env=env) as first, ExitStack() as stack:
        servers = [first]
        for place, peer in zip(places[1:], peers, strict=True):
            dials = {"TRELLIS_SPROUT__PEERS": json.dumps([{"url": f"tcp://{first.sprout}", **peer}])}
            servers.append(stack.enter_context(Server(place, env=env | dials)))
        with told(servers):
            yield servers
        for server in servers:
            assert "Traceback" not in server.log


@contextmanager
def mesh(folder: Path, shape: str, *flags: str, met: bool = True) -> Iterator[list[Server]]:
    """Gateways in that shape, which believe each other; unless they *met*, each had the channel before."""
    places = [folder / str(number) for number in range(len(SHAPES[shape]))]
    ids = list(map(gateway_of, places))
    if not met:
        with ThreadPoolExecutor() as pool:
            list(pool.map(settle, places))
    with ExitStack() as stack:
        servers: list[Server] = []
        for place, peers in zip(places, SHAPES[shape], strict=True):
            env = {
                "TRELLIS_SPROUT__GATEWAYS": json.dumps(ids),
                "TRELLIS_SPROUT__PRESENCE": "tell",
                "TRELLIS_SPROUT__PEERS": json.dumps([f"tcp://{servers[peer].sprout}" for peer in peers]),
            }
            servers.append(stack.enter_context(Server(place, *flags, env=env)))
        with told(servers):
            yield servers
        for server in servers:
            assert server.stop() == 0
            assert "Traceback" not in server.log


def settle(data: Path) -> None:
    """Let a gateway make the channel, and its own community for it."""
    with Server(data) as server:
        path = f"http://{server.http}/v1/channels/{CHANNEL}"
        httpx.put(path).raise_for_status()
        while httpx.get(path).json().get("community") is None:
            time.sleep(0.05)


def said(server: Server, channel: str) -> set[str]:
    """What the history of a channel has; empty if there is none."""
    answer = httpx.get(f"http://{server.http}/v1/channels/{channel}/messages")
    return set() if answer.status_code == 404 else {each["content"]["content"] for each in answer.json()["messages"]}


def test_links_keep_to_their_channels_and_directions(tmp_path: Path) -> None:
    peers = ({"channels": ["news*"], "direction": way} for way in ("in", "out", "both"))
    with dialling(tmp_path, *peers) as servers:

        def say(number: int, channel: str, text: str) -> None:
            url = f"http://{servers[number].http}/v1/channels/{channel}/messages"
            httpx.post(url, json={"content": text}).raise_for_status()

        say(0, "news", "first")
        wait_until(lambda: all("first" in said(servers[number], "news") for number in (1, 3)))
        for number, name in enumerate(("zero", "in", "out", "both")):
            say(number, "news", name)
            say(number, "other", name)
        everything = {"first", "zero", "in", "out", "both"}
        expected = [everything - {"in"}, everything, {"out"}, everything - {"in"}]
        wait_until(lambda: [said(server, "news") for server in servers] == expected)
        say(2, "news", "the end")  # what could be on its way has come before it
        expected = [names | {"the end"} for names in expected]
        wait_until(lambda: [said(server, "news") for server in servers] == expected)
        assert [said(server, "other") for server in servers] == [{"zero"}, {"in"}, {"out"}, {"both"}]


async def until(true: Any) -> None:
    """Wait until *true*, an async function, says so."""
    async with asyncio.timeout(WAIT):
        while not await true():
            await asyncio.sleep(0.05)


async def joined(servers: list[Server], http: httpx.AsyncClient) -> None:
    """Wait until every link is up and has nothing left to do."""

    async def caught_up() -> bool:
        stats = [(await http.get(f"http://{server.http}/v1/stats")).json() for server in servers]
        return all(link.get("caughtUp") for found in stats for link in found["links"])

    await until(caught_up)


async def heard(client: Client, count: int) -> list[Any]:
    """What a client is told: *count* messages, and what else comes."""
    found = [(await client.next(WAIT)).content for _ in range(count)]
    try:
        while True:
            found.append((await client.next(QUIET)).content)
    except TimeoutError:
        return found


def clients_of(server: Server, sprout: bool) -> list[Client]:
    """One client of each protocol."""
    found: list[Client] = [RelayClient(server.http), StreamrClient(server.http), RestClient(server.http)]
    return [*found, SproutClient(server.http, server.sprout, SequoiaForge())] if sprout else found


async def everybody_hears_everything_once(servers: list[Server], *, sprout: bool = True) -> None:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=WAIT))
        await joined(servers, http)
        if sprout:
            await one_community(servers, http)
        clients = [
            await stack.enter_async_context(client) for server in servers for client in clients_of(server, sprout)
        ]
        for client in clients:
            await client.subscribe(CHANNEL)
        await joined(servers, http)
        said = []
        for number, client in enumerate(clients):
            said.append({"n": number, "by": client.protocol})
            await client.publish(CHANNEL, said[-1])
        told = await asyncio.gather(*(heard(each, len(said) - (each.protocol in DEAF)) for each in clients))
        for client, own, contents in zip(clients, said, told, strict=True):
            counts = Counter(json.dumps(content) for content in contents)
            if client.protocol in DEAF:
                counts[json.dumps(own)] += 1
            assert counts == Counter(map(json.dumps, said)), client.protocol


async def one_community(servers: list[Server], http: httpx.AsyncClient) -> None:
    """Make the channel on the first gateway; the others take over its community."""
    path = f"/v1/channels/{CHANNEL}"
    (await http.put(f"http://{servers[0].http}{path}")).raise_for_status()

    async def same() -> bool:
        answers = [await http.get(f"http://{server.http}{path}") for server in servers]
        found = {answer.json().get("community") for answer in answers}
        return len(found) == 1 and None not in found

    await until(same)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_listener_receives_every_message_once(shape: str, tmp_path: Path) -> None:
    with mesh(tmp_path, shape) as servers:
        asyncio.run(everybody_hears_everything_once(servers))


def test_every_listener_receives_every_message_once_on_trio(tmp_path: Path) -> None:
    with mesh(tmp_path, "triangle", "--loop", "trio") as servers:
        asyncio.run(everybody_hears_everything_once(servers))


def test_every_listener_receives_every_message_once_on_an_older_channel(tmp_path: Path) -> None:
    with mesh(tmp_path, "triangle", met=False) as servers:
        asyncio.run(everybody_hears_everything_once(servers, sprout=False))


def test_presence_is_visible_at_all_gateways(tmp_path: Path) -> None:
    """A peer of one gateway is an Arbor identity of the others, once, for as long as it listens."""

    async def scenario(servers: list[Server]) -> None:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=WAIT))
            await joined(servers, http)
            await one_community(servers, http)

            async def seen() -> list[list[str]]:
                """Who is in the channel on each of the others, that is named as peers of the topic relay are."""
                pages = [await http.get(f"http://{each.http}/v1/channels/{CHANNEL}/peers") for each in servers[1:]]
                found = [page.json()["peers"] for page in pages]
                return [[peer["name"] for peer in peers if "(topic relay)" in (peer["name"] or "")] for peers in found]

            async def both_see_it() -> bool:
                return all(await seen())

            async def nobody_sees_it() -> bool:
                return not any(await seen())

            async with RelayClient(servers[0].http) as client:
                await client.subscribe(CHANNEL)
                await until(both_see_it)
                await asyncio.sleep(2 * QUIET)
                first, second = await seen()
                assert len(first) == 1
                assert first == second
            await until(nobody_sees_it)

    with mesh(tmp_path, "triangle") as servers:
        asyncio.run(scenario(servers))
