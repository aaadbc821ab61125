"""Whole forests between the genuine Arbor programs and gateways: bootstraps, peerings in both roles, restarts."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from typer.testing import CliRunner
from websockets.asyncio.client import ClientConnection, connect

from gateway.cli import app
from gateway.demo_clients import Client, RelayClient
from tests.arbor import WAIT, Arbor, arbor, require_arbor, run
from tests.forests import write_forest
from tests.ports import reserved_port
from tests.server import Server

CHANNEL = "a community 0"
QUIET = 1.5  # seconds in which nothing more may come
FAILED = re.compile(r"(?i)^.*(?:couldn't|failed|unable|error|timed out).*$", re.MULTILINE)


@pytest.fixture(scope="module")
def program() -> Path:
    return require_arbor()


def trellis(*arguments: str) -> None:
    """Run a command that has to succeed."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)


def names(folder: Path) -> set[str]:
    """The ids of the nodes in a grove."""
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def grove(tmp_path: Path) -> Path:
    """A thousand nodes."""
    write_forest(tmp_path / "grove", "big", 1000)
    return tmp_path / "grove"


def test_a_client_loads_a_thousand_nodes_before_and_after_a_restart(program: Path, grove: Path, tmp_path: Path) -> None:
    data, expected, said = tmp_path / "data", names(grove), set[str]()
    trellis("import", "--grove", str(grove), "--data", str(data))

    async def scenario(server: Server) -> None:
        async with (
            arbor(program, "-key", str(tmp_path / "key"), server.sprout) as client,
            RelayClient(server.http) as relay,
        ):
            await relay.subscribe("big community 0")
            await client.do("bootstrap")
            await client.settle(QUIET, lambda: expected | said <= set(client.ids("stored")))
            counts = Counter(client.ids("stored"))
            assert set(counts.values()) == {1}
            community = await community_of(server, "big community 0")
            said.add((await client.do(f"say {community} hello, gateway"))["id"])
            assert (await relay.next()).content == {"content": "hello, gateway"}
            await relay.publish("big community 0", {"content": "hello, client"})
            heard = await client.next("stored", content="hello, client")
            said.add(heard["id"])
        assert not FAILED.findall(client.log.replace("failed to read sprout message: EOF", ""))

    for _ in range(2):
        with Server(data) as server:
            run(partial(scenario, server))
            assert server.stop() == 0
            assert "Traceback" not in server.log


async def community_of(server: Server, channel: str) -> str:
    async with httpx.AsyncClient(timeout=WAIT) as http:
        return str((await http.get(f"http://{server.http}/v1/channels/{channel}")).json()["community"])


class SecureClient(RelayClient):
    """A peer of the topic relay over TLS, which trusts that authority."""

    def __init__(self, http: str, authority: Path) -> None:
        super().__init__(http)
        self._trust = ssl.create_default_context(cafile=authority)

    async def dial(self) -> ClientConnection:
        """A connection."""
        return await connect(f"wss{self.url.removeprefix('http')}{self.path}", ssl=self._trust, compression=None)


# A triangle: `b` dials `a` (TCP) and the relay (TLS), the relay dials `a` (TLS).


def secure(folder: Path) -> tuple[str, ...]:
    """The flags of a gateway that serves TLS."""
    trellis("dev-cert", "--folder", str(folder))
    files = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
    return (*files, "--sprout-tls-port", "0")


async def caught_up(server: Server, connected: int) -> None:
    """Wait until so many links of the gateway are up, and have nothing left to do."""
    async with httpx.AsyncClient(timeout=WAIT) as http, asyncio.timeout(WAIT):
        while True:
            links = (await http.get(f"http://{server.http}/v1/stats")).json()["links"]
            if sum(bool(link.get("caughtUp")) for link in links) == connected:
                return
            await asyncio.sleep(0.05)


async def heard(client: Client, count: int) -> list[Any]:
    """What a client is told: *count* messages, and what else comes."""
    found = [(await client.next(WAIT)).content["content"] for _ in range(count)]
    try:
        while True:
            found.append((await client.next(QUIET)).content["content"])
    except TimeoutError:
        return found


async def everybody_hears_once(clients: list[Client], member: Arbor, channel: str, community: str, text: str) -> None:
    """Two clients of gateways and one of the relay say something each."""
    for number, client in enumerate(clients):
        await client.publish(channel, {"content": f"{text} {number}"})
    own = await member.do(f"say {community} {text} from arbor")
    for number, client in enumerate(clients):
        others = {f"{text} {n}" for n in range(len(clients)) if n != number} | {f"{text} from arbor"}
        assert sorted(await heard(client, len(others))) == sorted(others)
    expected = Counter([f"{text} {n}" for n in range(len(clients))] + [own["content"]])

    def told() -> Counter[str]:
        stored = [line.get("content", "") for line in member.events if line["event"] == "stored"]
        return Counter(content for content in stored if text in content)

    await member.settle(QUIET, lambda: told() >= expected)
    assert told() == expected


class Triangle(NamedTuple):
    """The gateways, and what clients of them need; the community is called `CHANNEL`."""

    program: Path
    authority: Path
    a: Server
    b: Server
    community: str

    async def talk(self, clients: list[Client], member: Arbor, text: str) -> None:
        """The clients subscribe, and everybody hears everybody once."""
        for client in clients:
            await client.subscribe(CHANNEL)
        await member.do("bootstrap")
        await everybody_hears_once(clients, member, CHANNEL, self.community, text)


async def meet_and_part(triangle: Triangle, relay: Arbor, is_complete: Callable[[], bool]) -> None:
    """The relay gets everything; then it goes down, and misses something."""
    async with (
        RelayClient(triangle.b.http) as first,
        SecureClient(triangle.a.http, triangle.authority) as second,
        arbor(triangle.program, relay.ready["plain"]) as member,
    ):
        await triangle.talk([first, second], member, "before")
        await relay.settle(QUIET, is_complete)
        await relay.end()
        await caught_up(triangle.b, 1)
        await first.publish(CHANNEL, {"content": "meanwhile"})
        assert await heard(second, 1) == ["meanwhile"]


async def meet_again(triangle: Triangle, flags: tuple[str, ...]) -> None:
    """The relay comes back where it was, and gets what it missed."""
    async with (
        arbor(triangle.program, "relay", *flags) as again,
        SecureClient(triangle.a.http, triangle.authority) as first,
        RelayClient(triangle.b.http) as second,
        arbor(triangle.program, again.ready["plain"]) as member,
    ):
        await caught_up(triangle.b, 2)
        await again.next("stored", content="meanwhile")
        await triangle.talk([first, second], member, "after")


def check_exports(folder: Path, grove: Path, everything: set[str]) -> None:
    """Both gateways have everything, and the same bytes as the relay's *grove*."""
    for name in "ab":
        out = folder / f"out-{name}"
        trellis("export", "--grove", str(out), "--data", str(folder / name))
        assert names(out) >= everything
        for file in out.iterdir():
            twin = grove / file.name
            assert not twin.exists() or twin.read_bytes() == file.read_bytes()


def test_two_gateways_and_a_genuine_relay_in_a_triangle(program: Path, tmp_path: Path) -> None:
    groves = {name: tmp_path / f"grove-{name}" for name in "abr"}
    roots = {name: write_forest(folder, name, 60) for name, folder in groves.items()}
    for name in "ab":
        trellis("import", "--grove", str(groves[name]), "--data", str(tmp_path / name))
    everything = set[str]().union(*map(names, groves.values()))
    flags = secure(tmp_path / "certs")

    async def scenario(a: Server, relay_flags: tuple[str, ...], relay: Arbor) -> None:
        env = {
            "TRELLIS_SPROUT__PEERS": json.dumps([f"tcp://{a.sprout}", relay.ready["tls"]]),
            "TRELLIS_SPROUT__INSECURE": "true",
        }
        with Server(tmp_path / "b", env=env) as b:
            await caught_up(b, 2)
            triangle = Triangle(program, tmp_path / "certs/ca.pem", a, b, roots["a"][CHANNEL])
            await meet_and_part(triangle, relay, lambda: names(groves["r"]) >= everything)
            await meet_again(triangle, relay_flags)
            assert b.stop() == 0
            assert "Traceback" not in b.log

    async def with_relay(a: Server) -> None:
        ports = [f"127.0.0.1:{reserved_port()}" for _ in range(2)]
        own = ("-grove", str(groves["r"]), "-listen", ports[0], "-plain", ports[1])
        relay_flags = ("-peers", a.ready["sprout_tls"], *own)
        async with arbor(program, "relay", *relay_flags) as relay:
            await scenario(a, relay_flags, relay)

    with Server(tmp_path / "a", *flags) as a:
        run(partial(with_relay, a))
        assert a.stop() == 0
        assert "Traceback" not in a.log
    check_exports(tmp_path, groves["r"], everything)
