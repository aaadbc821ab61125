"""A whole gateway on a real disk with Sprout and a protocol of toys, and no event loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from adapters.sprout import SproutAdapter
from adapters.sprout.forest import forest, twig
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.sessions.session import SproutSession
from adapters.sprout.wire import base64url
from gateway import runtime
from gateway.adapter import Adapter, ConnectionRequest, Refusal
from gateway.core.message import Form, Message
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.runtime import Gateway
from gateway.settings.settings import settings_model
from tests.still import Clock, Posted

VECTORS = Path(__file__).parents[2] / "vectors/sprout"
NOW = 1_795_240_000_000  # ms, an hour after the vectors were made


class ToySettings(BaseModel):
    """No settings."""

    enabled: bool = True


class ToyPeer(Session):
    """A peer of some other protocol: it keeps what it hears."""

    protocol = "toy"

    def __init__(self, bus: Any, principal: Principal) -> None:
        super().__init__(bus, principal)
        self.heard: list[Message] = []

    def handle(self, data: bytes) -> None:
        """Says nothing by itself."""

    def deliver(self, message: Message) -> None:
        self.heard.append(message)

    def say(self, content: Any, channel: str = "lobby", parent: str | None = None) -> Message:
        """Say something to everybody."""
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.bus.publish(Message(channel, self.who, "toy", text, parent=parent), self)


class ToyAdapter(Adapter):
    """A protocol whose channels have their own names."""

    name = "toy"
    title = "Toys"
    settings_model = ToySettings

    def accept(self, request: ConnectionRequest) -> Session | Refusal:
        return ToyPeer(self.bus, request.principal)

    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:
        return None if taken(channel) else channel

    def channel(self, address: str) -> str | None:
        return address

    def add_refs(self, run: Sequence[Message]) -> None:
        """Nothing."""

    def form(self, message: Message, key: str) -> Form:
        del key
        return message.content


class Line:
    """One Sprout connection, as its client sees it."""

    def __init__(self, place: Place, session: SproutSession) -> None:
        self.place = place
        self.session = session

    def send(self, text: str | bytes) -> str:
        """Send lines; what comes back at once."""
        self.session.receive_data(text.encode() if isinstance(text, str) else text)
        return self.read()

    def ask(self, text: str | bytes) -> str:
        """Send lines; what comes back when everything is on disk and made."""
        heard = self.send(text)
        self.place.settle()
        while more := self.read():  # long answers come in parts
            heard += more
            self.place.settle()
        return heard

    def read(self) -> str:
        """What is there to read."""
        return b"".join(iter(lambda: b"".join(self.session.data_to_send()), b"")).decode()

    def close(self) -> None:
        self.session.receive_eof()


class Place:
    """A gateway in a directory."""

    def __init__(self, data: Path, clock: Clock, **values: Any) -> None:
        self.posted = Posted()
        self.clock = clock
        rows = (SproutAdapter, ToyAdapter)
        values = {"limits": {"rates": "off"}, "data": data, **values}
        self.gateway = Gateway(settings_model(rows)(**values), rows)
        self.gateway.start(self.posted.put)
        self.bus = self.gateway.bus
        adapter = self.gateway.adapters[0]
        assert isinstance(adapter, SproutAdapter)
        self.adapter = adapter
        self.store = adapter.parts.nodes.store
        self.open = True

    def connect(self, name: str = "sprout:anonymous") -> Line:
        """A new Sprout connection."""
        return Line(self, self.adapter.accept(ConnectionRequest(Principal(name, ""))))

    def toy(self) -> ToyPeer:
        """A new peer of the other protocol."""
        return ToyPeer(self.bus, Principal("toy:anonymous"))

    def settle(self) -> None:
        """Run what is posted until everything appended is on disk, and the worker has nothing left to do."""
        for _ in range(2):  # what the worker made is appended as well
            self.posted.until_called(lambda done: self.adapter.services.work(lambda: None, lambda _: done()))
            self.posted.until_called(lambda done: self.gateway.log.when_synced(self.gateway.log.next_seq - 1, done))
        self.posted.until(lambda: not self.gateway.answer_scheduler.progress.waiting)  # long answers take many turns
        self.posted.drain()

    def index(self) -> None:
        """Wait until everything appended is in the tables."""
        self.settle()
        self.posted.until_called(lambda done: self.gateway.index.submit(lambda: self.posted.put(done)))

    def until(self, true: Callable[[], bool]) -> None:
        """Run what is posted until something is *true*."""
        self.posted.until(true)

    def stop(self) -> None:
        """Stop cleanly."""
        if self.open:
            self.open = False
            self.gateway.stop()
            self.posted.drain()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(NOW)
    monkeypatch.setattr(runtime, "clock", clock)
    return clock


@pytest.fixture
def make_place(tmp_path: Path, clock: Clock, rsa_keys: None) -> Iterator[Callable[..., Place]]:
    """Makes a gateway; a second one in the same place begins where the first, which is stopped, ended."""
    del rsa_keys  # of which one is the gateway's
    places: list[Place] = []

    def make(folder: str = "data", **values: Any) -> Place:
        for place in places:
            place.stop()
        places.append(Place(tmp_path / folder, clock, **values))
        return places[-1]

    yield make
    for place in places:
        place.stop()


@pytest.fixture
def place(make_place: Callable[..., Place]) -> Place:
    return make_place()


class Forge:
    """Makes signed nodes for one author, whose key is among the vectors."""

    def __init__(self, name: str = "alice") -> None:
        self.key = SecretKey((VECTORS / "keys" / f"{name}.privkey").read_bytes())
        self.now = NOW
        self.identity = self.line(forest.sign_identity(name, self.key, NOW))

    @property
    def id(self) -> str:
        """The author's."""
        return self.identity.split(" ")[0]

    def community(self, name: str) -> str:
        """A community's line."""
        return self.line(forest.sign_community(name, self.id, self.key, self._moment()))

    def reply(self, parent: str, text: str, metadata: bytes = b"", created: int | None = None) -> str:
        """The line of a reply to the node on the line *parent*."""
        id, _, wire = parent.partition(" ")
        node = forest.decode(base64url.decode(wire.encode()))
        assert isinstance(node, forest.Community | forest.Reply)
        moment = self._moment() if created is None else created
        content = forest.Content(text.encode())
        return self.line(
            forest.sign_reply(forest.position_below(id, node), content, self.id, self.key, moment, metadata)
        )

    @staticmethod
    def line(raw: bytes) -> str:
        """The line of a node."""
        return f"{forest.node_id(raw)} {base64url.encode(raw).decode()}"

    def _moment(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def alice() -> Forge:
    return Forge("alice")


@pytest.fixture
def bob() -> Forge:
    return Forge("bob")


@pytest.fixture
def valid() -> dict[str, str]:
    """The lines of the valid vectors, by name."""
    vectors = json.loads((VECTORS / "valid.json").read_text())
    return {vector["name"]: f"{vector['node']['id']} {vector['node']['raw_b64u']}" for vector in vectors}


@pytest.fixture
def announce() -> Callable[..., str]:
    """Announces nodes on a connection, in one message; what the answer is once everything is on disk."""

    def announce(line: Line, *nodes: str) -> str:
        return line.ask("\n".join((f"announce 77 {len(nodes)}", *nodes, "")))

    return announce


@pytest.fixture
def vectors() -> Path:
    """The folder of the vectors."""
    return VECTORS


@pytest.fixture
def community(place: Any) -> str:
    """The id of the community that is minted for lobby."""
    place.bus.channels.register("lobby")
    place.settle()
    id: str = place.bus.channels.address("sprout", "lobby")
    return id


@pytest.fixture
def ear(place: Any, community: str) -> Any:
    """A connection that listens to lobby."""
    line = place.connect()
    line.send(f"subscribe 0 {community}\n")
    return line


def nodes(text: str) -> Iterator[tuple[str, Any, bytes]]:
    """The nodes in what a client was told, with their ids and bytes."""
    for line in text.splitlines():
        if line.startswith("SHA512"):
            id, wire = line.split(" ")
            raw = base64url.decode(wire.encode())
            assert forest.node_id(raw) == id
            yield id, forest.decode(raw), raw


def pairs(node: Any) -> dict[str, bytes]:
    """What the metadata of *node* says."""
    return twig.decode(node.metadata.blob)


@pytest.fixture
def lobby(place: Any, alice: Any, announce: Callable[..., str]) -> str:
    """A community of Alice's called lobby, which the gateway holds."""
    community: str = alice.community("lobby")
    assert announce(place.connect(), alice.identity, community) == "status 77 0\n"
    return community
