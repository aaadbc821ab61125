"""Links of real gateways to a genuine topic relay (`@yume-chan/koshare-router`, from npm), and to each other."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.demo_clients import RelayClient
from tests.npm import NODE, node_client, require_clients
from tests.ports import reserved_port
from tests.server import Server
from tests.waiting import until

Start = Callable[..., Server]


class KoshareServer:
    """A genuine server, which keeps its port."""

    def __init__(self) -> None:
        self.port = reserved_port()
        self.url = f"ws://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = ["node", "koshare-server.cjs", str(self.port)]
        self.process = subprocess.Popen(command, cwd=NODE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["event"] == "listening"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def relay() -> Iterator[KoshareServer]:
    require_clients()
    relay = KoshareServer()
    yield relay
    relay.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a gateway that dials; waits until its links are up."""
    with ExitStack() as stack:

        def start(*peers: dict[str, Any], flags: tuple[str, ...] = (), **env: str) -> Server:
            env = {"TRELLIS_TOPIC_RELAY__PEERS": json.dumps(peers), **env}
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            server = stack.enter_context(Server(folder, *flags, env=env))
            stack.callback(lambda: "Traceback" in server.log and pytest.fail(server.log))
            wanted = [named(peer) for peer in peers]  # a link is up once the relay has confirmed its topics
            until(lambda: [link.get("topics") for link in links(server)] == wanted)
            return server

        yield start


def named(peer: dict[str, Any]) -> int:
    """How many topics a link of *peer* subscribes to at once."""
    return 0 if peer.get("direction") == "out" else sum("*" not in channel for channel in peer["channels"])


def links(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"http://{server.http}/v1/stats").json()["links"]
    return found


def publish(server: Server, channel: str, content: Any) -> str:
    answer = httpx.post(
        f"http://{server.http}/v1/channels/{quote(channel, safe='')}/messages", json=content
    ).raise_for_status()
    return str(answer.json()["id"])


def history(server: Server, channel: str) -> list[dict[str, Any]]:
    url = f"http://{server.http}/v1/channels/{quote(channel, safe='')}/messages"
    answer = httpx.get(url)
    return [] if answer.status_code == 404 else answer.raise_for_status().json()["messages"]


def contents(server: Server, channel: str) -> list[Any]:
    return [message["content"] for message in history(server, channel)]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 100))


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_messages_cross_the_link_in_both_directions(relay: KoshareServer, start: Start, loop: str) -> None:
    server = start({"url": relay.url, "channels": ["talk"]}, flags=("--loop", loop))

    async def scenario() -> None:
        async with node_client("koshare.cjs", relay.url) as there, RelayClient(server.http) as here:
            await there.subscribe(topic="talk")
            await here.subscribe("talk")
            there.do("broadcast", topic="talk", body={"content": "from there"})
            heard = await here.next()
            assert heard.content == {"content": "from there"}
            await here.publish("talk", {"content": "from here"})
            packet = (await there.next_event("packet"))["packet"]
            assert packet["content"] == "from here"
            id = await asyncio.to_thread(publish, server, "talk", "by REST")
            packet = (await there.next_event("packet"))["packet"]
            assert (packet["json"], packet["trellisId"]) == ("by REST", id)

    run(scenario)
    senders = [message["sender"] for message in history(server, "talk")]
    assert [sender["protocol"] for sender in senders] == ["topic_relay", "topic_relay", "rest"]
    assert len({sender["peer"] for sender in senders}) == 3
    assert (links(server)[0]["received"], links(server)[0]["sent"]) == (1, 2)


def test_patterns_follow_channels_that_begin_later_and_directions_are_kept(relay: KoshareServer, start: Start) -> None:
    both = start({"url": relay.url, "channels": ["news/*"]})
    only_in = start({"url": relay.url, "channels": ["news/today"], "direction": "in"})
    only_out = start({"url": relay.url, "channels": ["news/today"], "direction": "out"})
    publish(both, "news/today", "begins")
    publish(both, "other", "is not exchanged")
    until(lambda: links(both)[0]["topics"] == 1)
    until(lambda: contents(only_in, "news/today") == ["begins"])
    publish(only_in, "news/today", "stays")
    publish(only_out, "news/today", "goes out")
    until(lambda: contents(both, "news/today") == ["begins", "goes out"])
    until(lambda: contents(only_in, "news/today") == ["begins", "stays", "goes out"])
    assert contents(only_out, "news/today") == ["goes out"]
    assert contents(only_in, "other") == []


def test_messages_keep_their_id_and_come_once(relay: KoshareServer, start: Start) -> None:
    other = KoshareServer()
    try:
        peers = [{"url": each.url, "channels": ["talk"]} for each in (relay, other)]
        one, two = start(*peers), start(*peers)  # two ways between them
        sent = [publish(one, "talk", number) for number in range(20)]
        until(lambda: len(history(two, "talk")) >= 20)
        back = [publish(two, "talk", {"inReplyTo": id}) for id in sent[:3]]
        until(lambda: len(history(one, "talk")) >= 23)
        publish(two, "talk", "the end")
        until(lambda: contents(one, "talk")[-1] == "the end")
        ids = [[message["id"] for message in history(server, "talk")] for server in (one, two)]
        assert ids[0] == ids[1]
        assert ids[0][:23] == sent + back
        assert [message["inReplyTo"] for message in history(one, "talk")[20:23]] == sent[:3]
    finally:
        other.kill()


def test_impossible_ids_are_ignored(relay: KoshareServer, start: Start) -> None:
    server = start({"url": relay.url, "channels": ["talk"]})
    known = publish(server, "talk", "known")
    to_come = known[:24] + f"{int(known[24:], 16) + 1000:012x}"
    foreign = "0190b3c2-1111-7abc-8def-000000000001"

    async def scenario() -> None:
        async with node_client("koshare.cjs", relay.url) as there:
            for id in (known, to_come, foreign, foreign, 7, "SHA512_B32__x", ["x"]):
                there.do("broadcast", topic="talk", body={"content": str(id), "trellisId": id})
            there.do("broadcast", topic="talk", body={"json": "known", "trellisId": known})
            until(lambda: len(history(server, "talk")) >= 6)

    run(scenario)
    told = history(server, "talk")
    assert [message["content"] for message in told[1:]] == [
        {"content": text} for text in (known, foreign, "7", "SHA512_B32__x", "['x']")
    ]
    assert [message["id"] for message in told].count(foreign) == 1
    assert len({message["id"] for message in told}) == 6


def test_a_relay_that_restarts_is_dialled_again(relay: KoshareServer, start: Start) -> None:
    server = start({"url": relay.url, "channels": ["talk"], "direction": "in"})
    relay.kill()
    until(lambda: links(server)[0]["state"] == "waiting")
    relay.start()
    until(lambda: links(server)[0].get("topics") == 1)
    assert links(server)[0]["connects"] == 2

    async def scenario() -> None:
        async with node_client("koshare.cjs", relay.url) as there:
            there.do("broadcast", topic="talk", body={"content": "again"})
            until(lambda: contents(server, "talk") == [{"content": "again"}])

    run(scenario)


def test_links_need_a_grant_if_grants_are_configured(relay: KoshareServer, start: Start) -> None:
    grants = json.dumps({"rest:anonymous": ["*:*"], "topic_relay:peer": ["publish:talk"]})
    peer = {"url": relay.url, "channels": ["talk", "secret"]}
    server = start(peer, TRELLIS_AUTH__GRANTS=grants)

    async def scenario() -> None:
        async with node_client("koshare.cjs", relay.url) as there:
            await there.subscribe(topic="talk")
            for topic in ("secret", "talk"):
                there.do("broadcast", topic=topic, body={"content": topic})
            until(lambda: contents(server, "talk") == [{"content": "talk"}])

    run(scenario)
    assert contents(server, "secret") == []
    publish(server, "talk", "not told, for want of the right to subscribe")
    assert links(server)[0]["sent"] == 0


def test_a_url_without_a_relay_is_reported(start: Start, tmp_path: Path) -> None:
    url = f"ws://{start().http}/nowhere"
    env = {"TRELLIS_TOPIC_RELAY__PEERS": json.dumps([{"url": url, "channels": ["a"]}])}
    with Server(tmp_path / "y", env=env) as server:
        until(lambda: links(server)[0]["error"])
        assert links(server)[0]["error"].startswith("it is not a WebSocket: ")
        assert links(server)[0]["state"] == "waiting"


def test_a_link_to_another_gateway_carries_messages(start: Start) -> None:
    one = start()
    two = start({"url": f"ws://{one.http}/relay", "channels": ["talk"]})
    publish(one, "talk", "from one")
    until(lambda: contents(two, "talk") == ["from one"])
    publish(two, "talk", "from two")
    until(lambda: len(contents(one, "talk")) == 2)
    assert contents(one, "talk")[0] == "from one"


def test_gateways_that_dial_each_other_in_a_ring_neither_loop_nor_repeat(tmp_path: Path) -> None:
    ports = [reserved_port() for _ in range(3)]
    with ExitStack() as stack:
        ring = []
        for at, port in enumerate(ports):
            peers = [{"url": f"ws://127.0.0.1:{ports[(at + 1) % 3]}/relay", "channels": ["talk"]}]
            env = {"TRELLIS_TOPIC_RELAY__PEERS": json.dumps(peers)}
            ring.append(stack.enter_context(Server(tmp_path / str(at), "--port", str(port), env=env)))
        until(lambda: all(link.get("topics") == 1 for server in ring for link in links(server)))
        for number in range(12):
            publish(ring[number % 3], "talk", number)
        until(lambda: all(len(history(server, "talk")) >= 12 for server in ring))
        publish(ring[0], "talk", "the end")
        until(lambda: all("the end" in contents(server, "talk") for server in ring))
        found = [{message["id"]: message["content"] for message in history(server, "talk")} for server in ring]
        assert found[0] == found[1] == found[2]
        assert [len(history(server, "talk")) for server in ring] == [13, 13, 13]
