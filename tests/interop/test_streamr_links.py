"""Links of real gateways to a broker on the genuine library (`streamr-client-protocol`, npm), and to each other."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.sync.client import connect

from tests.adapters.streamr.conftest import Publisher
from tests.npm import NODE, require_clients
from tests.ports import reserved_port
from tests.server import Server
from tests.waiting import until

Start = Callable[..., Server]


class GenuineBroker:
    """A broker that keeps its port. `published` are the messages that it took: their ids and contents."""

    def __init__(self, *permitted: str) -> None:
        self.port = reserved_port()
        self.http = f"127.0.0.1:{self.port}"
        self.url = f"ws://{self.http}/api/v1/ws"
        self.permitted = permitted
        self.start()

    def start(self) -> None:
        command = ["node", "streamr-broker.cjs", str(self.port), *self.permitted]
        self.process = subprocess.Popen(command, cwd=NODE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["event"] == "listening"
        self.published: list[tuple[list[Any], Any]] = []
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: Any) -> None:
        for line in lines:
            event = json.loads(line)
            self.published.append((event["id"], json.loads(event["content"])))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def contents(self) -> list[Any]:
        return [content for _, content in self.published]


@pytest.fixture
def broker() -> Iterator[GenuineBroker]:
    require_clients()
    broker = GenuineBroker()
    yield broker
    broker.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a gateway, in a folder of its own or in *data*, that dials *peers*; waits until its links are up."""
    with ExitStack() as stack:

        def start(
            *peers: dict[str, Any], data: str = "", flags: tuple[str, ...] = (), wait: bool = True, **env: str
        ) -> Server:
            env = {"TRELLIS_STREAMR__PEERS": json.dumps(peers), **env}
            folder = tmp_path / (data or str(len(list(tmp_path.iterdir()))))
            server = stack.enter_context(Server(folder, *flags, env=env))
            stack.callback(lambda: "Traceback" in server.log and pytest.fail(server.log))
            until(lambda: not wait or all(link.get("caughtUp") for link in links(server)))
            return server

        yield start


def links(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"http://{server.http}/v1/stats").json()["links"]
    return found


def publish(server: Server, channel: str, content: Any) -> str:
    url = f"http://{server.http}/v1/channels/{quote(channel, safe='')}/messages"
    return str(httpx.post(url, json=content).raise_for_status().json()["id"])


def history(server: Server, channel: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"http://{server.http}/v1/channels/{quote(channel, safe='')}/messages")
    return [] if answer.status_code == 404 else answer.raise_for_status().json()["messages"]


def contents(server: Server, channel: str) -> list[Any]:
    return [message["content"] for message in history(server, channel)]


def send(http: str, *messages: list[Any]) -> None:
    """Publish stream messages at a gateway or a broker."""
    with connect(f"ws://{http}/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32") as client:
        for message in messages:
            client.send(json.dumps([2, 8, "p", message, None]))


def now() -> int:
    return int(time.time() * 1000)


def test_messages_cross_the_link_in_both_directions(broker: GenuineBroker, start: Start) -> None:
    server = start({"url": broker.url, "channels": ["talk"]})
    alice, at = Publisher(1), now()
    send(broker.http, alice.message("talk", {"from": "there"}, at))
    until(lambda: contents(server, "talk") == [{"from": "there"}])
    send(server.http, alice.message("talk", {"from": "here"}, at + 1))
    publish(server, "talk", {"from": "REST"})
    until(lambda: len(broker.published) == 3)
    assert broker.contents == [{"from": "there"}, {"from": "here"}, {"from": "REST"}]
    carried, signed = (id for id, _ in broker.published[1:])
    assert carried[4] == alice.address, "it is carried as its author signed it"
    url = f"http://{server.http}/api/v1/streams/talk/data/partitions/0/last?format=protocol"
    own = json.loads(httpx.get(url).json()[0])
    assert own[1] == signed, "what came by REST has the id that this gateway's own readers see"
    senders = {message["sender"]["protocol"] for message in history(server, "talk")}
    assert senders == {"streamr", "rest"}
    assert [(link["received"], link["sent"]) for link in links(server)] == [(1, 2)]


def test_missed_messages_arrive_after_an_interruption(broker: GenuineBroker, start: Start) -> None:
    peer, alice, at = {"url": broker.url, "channels": ["news/*"]}, Publisher(1), now()
    server = start(peer, data="kept")
    publish(server, "news/a", {"n": 0})
    until(lambda: links(server)[0].get("streams") == 1)
    send(broker.http, alice.message("news/a", {"n": 1}, at))
    until(lambda: contents(server, "news/a") == [{"n": 0}, {"n": 1}])
    assert server.stop() == 0
    send(broker.http, *(alice.message("news/a", {"n": n}, at + n) for n in (2, 3)))
    until(lambda: len(broker.published) == 4)
    server = start(peer, data="kept")
    until(lambda: contents(server, "news/a") == [{"n": n} for n in range(4)])
    assert links(server)[0]["received"] == 2, "the others are copies"
    broker.kill()
    until(lambda: links(server)[0]["state"] == "waiting")
    for n in (4, 5):
        publish(server, "news/a", {"n": n})
    send(server.http, alice.message("news/a", {"n": 6}, at + 6))
    until(lambda: len(history(server, "news/a")) == 7)
    broker.start()
    until(lambda: broker.contents[-3:] == [{"n": n} for n in (4, 5, 6)])
    until(lambda: links(server)[0]["state"] == "connected" and links(server)[0]["caughtUp"])
    assert len(history(server, "news/a")) == 7


def test_a_broker_permits_addresses(start: Start) -> None:
    require_clients()
    alice, bob = Publisher(1), Publisher(2)
    broker = GenuineBroker(alice.address)
    try:
        server = start({"url": broker.url, "channels": ["talk"], "direction": "out"})
        at = now()
        publish(server, "talk", {"by": "REST"})
        send(server.http, bob.message("talk", {"by": "bob"}, at))
        until(lambda: len(history(server, "talk")) == 2)
        send(server.http, alice.message("talk", {"by": "alice"}, at + 1))
        until(lambda: {"by": "alice"} in broker.contents)
        assert {"by": "bob"} not in broker.contents
        assert {"by": "REST"} not in broker.contents
        refused = 'trellis_refused_total{protocol="streamr",reason="by the other side"} 2'
        until(lambda: refused in httpx.get(f"http://{server.http}/metrics").text)
        assert links(server)[0]["state"] == "connected"
    finally:
        broker.kill()


def test_directions_and_patterns(broker: GenuineBroker, start: Start) -> None:
    only_in = start({"url": broker.url, "channels": ["news/a"], "direction": "in"})
    only_out = start({"url": broker.url, "channels": ["news/*"], "direction": "out"})
    for server, name in ((only_in, "in"), (only_out, "out")):
        publish(server, "news/a", name)
        publish(server, "other", name)
    until(lambda: contents(only_in, "news/a") == ["in", "out"])
    assert broker.contents == ["out"]
    assert (contents(only_out, "news/a"), contents(only_in, "other")) == (["out"], ["in"])


def test_gateways_that_dial_each_other_receive_everything_once(start: Start) -> None:
    ports = [reserved_port(), reserved_port()]
    peers = [{"url": f"ws://127.0.0.1:{port}", "channels": ["talk"]} for port in ports]
    one, two = (
        start(peers[1 - n], flags=("--port", str(ports[n])), wait=False, TRELLIS_STREAMR__STREAMS='{"talk": 2}')
        for n in range(2)
    )
    until(lambda: [links(server)[0].get("streams") for server in (one, two)] == [1, 1])
    alice, at, text = Publisher(1), now(), [0, None, 1, 2]
    for n, server in enumerate((one, two)):
        publish(server, "talk", {"rest": n})
        send(server.http, *(alice.message("talk", {"alice": [n, text]}, at + 10 * n + m) for m in range(3)))
        until(lambda: all(len(history(server, "talk")) == 4 * (n + 1) for server in (one, two)))  # noqa: B023
    publish(one, "talk", "the end")
    until(lambda: all("the end" in contents(server, "talk") for server in (one, two)))
    publish(two, "talk", "the very end")
    until(lambda: all("the very end" in contents(server, "talk") for server in (one, two)))
    assert [len(history(server, "talk")) for server in (one, two)] == [10, 10]


def test_a_ring_of_several_protocols_repeats_nothing(start: Start) -> None:
    """What came by one protocol and goes on by another has another native id, so the gateways' own id goes with it."""
    first = start()
    relay = json.dumps([{"url": f"ws://{first.http}/relay", "channels": ["talk"]}])
    second = start(wait=False, TRELLIS_TOPIC_RELAY__PEERS=relay)
    peers = [{"url": f"ws://{each.http}", "channels": ["talk"]} for each in (second, first)]
    third = start(*peers, TRELLIS_TOPIC_RELAY__PEERS=relay, wait=False)
    servers = (first, second, third)
    until(lambda: all(link["state"] == "connected" for server in servers for link in links(server)))
    until(lambda: [link.get("topics", link.get("streams")) for link in links(second) + links(third)] == [1] * 4)
    for n, server in enumerate(servers):
        publish(server, "talk", n)
        until(lambda: all(len(history(each, "talk")) > n for each in servers))  # noqa: B023
    for n, server in enumerate(servers, 3):  # what still goes round would have come before the last of these
        publish(server, "talk", n)
        until(lambda: all(n in contents(each, "talk") for each in servers))  # noqa: B023
    assert [sorted(contents(server, "talk")) for server in servers] == [list(range(6))] * 3
