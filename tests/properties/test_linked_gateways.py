"""Gateways joined by links of all kinds, in any connected shape, deliver everything once and come to rest.

The gateways are whole, with logs on a disk; only the wires between them are in memory. What is said is REST's: what an
author signed for Arbor or Streamr may be shown more than once where links of other kinds carry it too (decision 72).
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from adapters import ADAPTERS
from adapters.sprout import SproutAdapter
from adapters.topic_relay import TopicRelayAdapter
from gateway.adapter import ConnectionRequest
from gateway.core.frames import payload
from gateway.core.message import REST, Message
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.runtime import Gateway
from gateway.settings.settings import settings_model
from tests.ports import reserved_port
from tests.server import Server
from tests.still import Posted
from tests.waiting import until

SEEDS = range(300) if "TRELLIS_SOAK" in os.environ else range(3)
MOST = 5  # gateways
ROUNDS = 400  # after which what is said must have come to rest
CHANNEL = "talk"
KINDS = {"topic_relay": "ws://g{}:1/relay", "sprout": "tcp://g{}:1", "streamr": "ws://g{}:1"}


class Link(NamedTuple):
    """A link of a kind that gateway *dials* dials to gateway *to*."""

    dials: int
    to: int
    kind: str
    direction: str

    @property
    def ways(self) -> Iterator[tuple[int, int]]:
        """From where to where messages go."""
        if self.direction != "in":
            yield self.dials, self.to
        if self.direction != "out":
            yield self.to, self.dials


class LinkedGateway:
    """A gateway, and what its other threads post."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.posted = Posted()
        values = {"data": data, "limits": {"rates": "off"}, **settings}
        self.gateway = Gateway(settings_model(ADAPTERS)(**values), ADAPTERS)
        self.gateway.start(self.posted.put)
        self.bus = self.gateway.bus

    def settle(self) -> None:
        """Run what is posted until everything is on disk, and no thread has anything left to do."""
        log, worker = self.gateway.log, self.gateway._worker
        for _ in range(2):
            self.posted.until_called(lambda done: worker.submit(lambda: None, lambda _: done()))
            self.posted.until_called(lambda done: log.when_synced(log.next_seq - 1, done))
        self.posted.until(lambda: not self.gateway.answer_scheduler.progress.waiting)
        self.posted.drain()

    def contents(self) -> list[Any]:
        """What its history has, sorted."""
        return sorted(json.loads(message.content)["n"] for message in self.gateway.index.history(CHANNEL))


class MemoryConnection(NamedTuple):
    """The two ends of a connection."""

    near: Session
    far: Session

    def carry(self) -> bool:
        """Carry what waits at both ends; return whether there was anything."""
        moved = False
        for source, target in (self, self[::-1]):
            for data in source.data_to_send():
                target.receive_data(payload(data) if source.text else data)
                moved = True
        return moved


def relay_of(node: LinkedGateway) -> TopicRelayAdapter:
    """The topic relay of *node*."""
    (found,) = (each for each in node.gateway.adapters if isinstance(each, TopicRelayAdapter))
    return found


def connect(nodes: list[LinkedGateway]) -> list[MemoryConnection]:
    """Connect every link that is configured."""
    wires = []
    for node in nodes:
        for adapter in node.gateway.adapters:
            for outbound in adapter.links():
                path = urlsplit(outbound.path or "")
                query = {name: values[0] for name, values in parse_qs(path.query).items()}
                other = nodes[int(outbound.host[1:])].gateway.adapters[node.gateway.adapters.index(adapter)]
                far = other.accept(ConnectionRequest(Principal(f"{adapter.name}:anonymous"), path.path, query))
                assert isinstance(far, Session)
                wires.append(MemoryConnection(outbound.open(), far))
    return wires


def settle_all(nodes: list[LinkedGateway], wires: list[MemoryConnection]) -> None:
    """Let everything happen until nothing does any more."""
    for _ in range(ROUNDS):
        moved = False
        for _ in range(3):  # a tick of every end, in which it may look for channels
            for wire in wires:
                for end in wire:
                    end.tick(end.bus.clock())
        while sum(wire.carry() for wire in wires):
            moved = True
            for node in nodes:
                node.settle()
            if max(len(node.contents()) for node in nodes) > 10 * MOST:
                return  # it goes round
        for node in nodes:
            before = node.gateway.log.next_seq
            node.settle()
            moved |= node.gateway.log.next_seq != before
        if not moved:
            return
    raise AssertionError("it does not come to rest")


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str]]:
    """Data directories in which a gateway has run, and its identity."""
    folder, found = tmp_path_factory.mktemp("templates"), []
    for number in range(MOST):
        node = LinkedGateway(folder / str(number))
        (adapter,) = (each for each in node.gateway.adapters if isinstance(each, SproutAdapter))
        found.append((folder / str(number), adapter.mint.id))
        node.gateway.stop()
    return found


@contextmanager
def linked(
    folder: Path, templates: list[tuple[Path, str]], count: int, links: list[Link]
) -> Iterator[list[LinkedGateway]]:
    """So many gateways, which believe each other, with these links."""
    nodes: list[LinkedGateway] = []
    trusted = [id for _, id in templates]
    try:
        for number in range(count):
            shutil.copytree(templates[number][0], folder / str(number))
            sections: dict[str, dict[str, Any]] = {kind: {"peers": []} for kind in KINDS}
            sections["sprout"]["gateways"] = trusted
            for _, to, kind, direction in (link for link in links if link.dials == number):
                peer = {"url": KINDS[kind].format(to), "channels": ["ta*"], "direction": direction}
                sections[kind]["peers"].append(peer)
            nodes.append(LinkedGateway(folder / str(number), **sections))
        yield nodes
    finally:
        for node in nodes:
            node.gateway.stop()


def graph(seed: int) -> tuple[int, list[Link]]:
    """A connected graph of links that go both ways, and some more links of any direction."""
    dice = random.Random(seed)
    count = dice.randint(2, MOST)

    def between(one: int, other: int, direction: str) -> Link:
        dials, to = dice.sample((one, other), 2)
        return Link(dials, to, dice.choice(list(KINDS)), direction)

    links = {between(number, dice.randrange(number), "both") for number in range(1, count)}
    for _ in range(dice.randint(0, count)):
        one, other = dice.sample(range(count), 2)
        links.add(between(one, other, dice.choice(("in", "out", "both"))))
    named = {(link.dials, link.to, link.kind): link for link in sorted(links)}  # one table for each url
    return count, list(named.values())


def reached(start: int, links: list[Link]) -> set[int]:
    """The gateways that hear what is said at *start*."""
    found, ways = {start}, [way for link in links for way in link.ways]
    while more := {to for source, to in ways if source in found} - found:
        found |= more
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_arrives_once(templates: list[tuple[Path, str]], tmp_path: Path, seed: int) -> None:
    count, links = graph(seed)
    with linked(tmp_path, templates, count, links) as nodes:
        for node in nodes:
            node.bus.channels.register(CHANNEL)
            node.settle()
        wires = connect(nodes)
        settle_all(nodes, wires)
        expected: list[list[int]] = [[] for _ in nodes]
        for number, node in enumerate(nodes * 2):
            sender = node.bus.peers.connection(REST)
            node.bus.publish(Message(CHANNEL, sender, REST, json.dumps({"n": number}).encode()))
            for each in reached(number % count, links):
                expected[each].append(number)
            if number % 2:
                settle_all(nodes, wires)  # sometimes several are under way
        settle_all(nodes, wires)
        assert [node.contents() for node in nodes] == expected, links


@pytest.mark.parametrize("seed", SEEDS)
def test_an_id_claimed_first_by_another_peer_suppresses_no_message(
    templates: list[tuple[Path, str]], tmp_path: Path, seed: int
) -> None:
    count, links = graph(seed)
    with linked(tmp_path, templates, count, links) as nodes:
        for node in nodes:
            node.bus.channels.register(CHANNEL)
            node.settle()
        wires = connect(nodes)
        settle_all(nodes, wires)
        expected: list[list[int]] = [[] for _ in nodes]
        for number, node in enumerate(nodes):
            said = node.bus.publish(Message(CHANNEL, node.bus.peers.connection(REST), REST, b'{"n":%d}' % number))
            claims = (each for each in range(count) if each != number)
            for lie, at in enumerate(claims, start=100 * (number + 1)):  # before the links have carried it
                mallory = relay_of(nodes[at]).accept(ConnectionRequest(Principal("x"), "/"))
                assert isinstance(mallory, Session)
                packet = {"type": 6, "topic": CHANNEL, "n": lie, "trellisId": said.id}
                mallory.receive_data(json.dumps(packet).encode())
                mallory.receive_eof()
                for each in reached(at, links):
                    expected[each].append(lie)
            for each in reached(number, links):
                expected[each].append(number)
        settle_all(nodes, wires)
        assert [node.contents() for node in nodes] == [sorted(each) for each in expected], links


# With real processes: sockets, threads and loops of their own.

PROCESSES = range(20) if "TRELLIS_SOAK" in os.environ else (15,)  # three gateways, links of all kinds


def history(server: Server) -> list[int]:
    """What its history has, sorted."""
    url = f"http://{server.http}/v1/channels/{CHANNEL}/messages"
    found = httpx.get(url, params={"limit": 256}).json().get("messages", [])
    return sorted(message["content"]["n"] for message in found)


def is_ready(server: Server) -> bool:
    """Whether all links of *server* are connected, and exchange the channel."""
    found = httpx.get(f"http://{server.http}/v1/stats").json()["links"]
    return all(link["state"] == "connected" and link.get("topics", link.get("streams", 1)) == 1 for link in found)


@pytest.mark.parametrize("seed", PROCESSES)
def test_everything_arrives_once_at_real_gateways(templates: list[tuple[Path, str]], tmp_path: Path, seed: int) -> None:
    count, links = graph(seed)
    links = [link._replace(direction="both") for link in links]
    ports = [(reserved_port(), reserved_port()) for _ in range(count)]
    urls = {"topic_relay": "ws://127.0.0.1:{}/relay", "sprout": "tcp://127.0.0.1:{}", "streamr": "ws://127.0.0.1:{}"}
    with ExitStack() as stack:
        servers = []
        for number, (http, sprout) in enumerate(ports):
            shutil.copytree(templates[number][0], tmp_path / str(number))
            env = {
                "TRELLIS_CHANNELS__NAMES": json.dumps([CHANNEL]),
                "TRELLIS_SPROUT__GATEWAYS": json.dumps([id for _, id in templates]),
            }
            for kind, url in urls.items():
                peers = [
                    {"url": url.format(ports[link.to][kind == "sprout"]), "channels": ["ta*"]}
                    for link in links
                    if (link.dials, link.kind) == (number, kind)
                ]
                env[f"TRELLIS_{kind.upper()}__PEERS"] = json.dumps(peers)
            flags = ("--port", str(http), "--sprout-port", str(sprout))
            servers.append(stack.enter_context(Server(tmp_path / str(number), *flags, env=env)))
        until(lambda: all(map(is_ready, servers)))
        said = []
        for number in range(3 * count):
            said.append(number)
            url = f"http://{servers[number % count].http}/v1/channels/{CHANNEL}/messages"
            assert httpx.post(url, json={"n": number}).status_code == 201
        until(lambda: all(set(history(server)) == set(said) for server in servers))
        said.append(1_000)  # behind what may have come twice
        assert httpx.post(url, json={"n": 1_000}).status_code == 201
        until(lambda: all(1_000 in history(server) for server in servers))
        assert [history(server) for server in servers] == [said] * count
