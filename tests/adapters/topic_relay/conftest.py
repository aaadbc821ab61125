"""A bus with the topic relay alone on it, and a ledger that only remembers: everything is a function call."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from adapters.topic_relay import TopicRelayAdapter
from adapters.topic_relay.session import TopicRelaySession
from gateway.adapter import ConnectionRequest, Installation, Services
from gateway.core.bus import Bus
from gateway.core.channels import Channels
from gateway.core.contracts import Allowed, Policies, Throttle
from gateway.core.frames import payload
from gateway.core.message import Message, MessageIds
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.core.stamper import Stamper
from gateway.monitoring.metrics import Metrics
from tests.still import Memory


class Stranger(Session):
    """A peer of some other protocol, which keeps what it is given."""

    protocol = "elsewhere"

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, Principal("elsewhere:anonymous"))
        self.heard: list[Message] = []

    def handle(self, data: bytes) -> None:
        """Says nothing by itself."""

    def deliver(self, message: Message) -> None:
        self.heard.append(message)

    def says(self, channel: str, content: bytes) -> Message:
        return self.bus.publish(Message(channel, self.who, self.protocol, content), self)

    def tells(self, number: int, channel: str, content: bytes) -> int:
        return self.bus.direct(Message(channel, self.who, self.protocol, content), number)


class Relay:
    """The gateway's inside, with the topic relay as its only protocol."""

    def __init__(
        self,
        allowed: Allowed = lambda _principal, _verb, _channel: True,
        throttle: Throttle | None = None,
        create: bool = True,
        **settings: Any,
    ) -> None:
        home = Installation(Path(), "test", "1.2.3", bytes(32))
        self.adapter = TopicRelayAdapter(TopicRelayAdapter.settings_model(**settings), home)
        self.ledger = Memory()
        self.metrics = Metrics()
        self.channels = Channels([self.adapter], lambda _channel, _addresses, _open: None, create=create)
        peers = PeerRegistry(
            0,
            lambda _first, _count: None,
            lambda _peer: None,
            lambda _protocol, _identity: None,
            lambda _number: None,
        )
        self.bus = Bus(
            self.ledger,
            self.channels,
            peers,
            Stamper(MessageIds(0), lambda: 1_700_000_000_000),
            lambda: 1_700_000_000_000,
            self.metrics,
            translators=[self.adapter],
            policies=Policies(allowed, throttle),
        )
        services: dict[str, Any] = {field.name: None for field in fields(Services)}  # it asks for nothing but the bus
        self.adapter.start(Services(**services | {"bus": self.bus}))

    def open(self) -> TopicRelaySession:
        """A new connection."""
        session = self.adapter.accept(ConnectionRequest(Principal("topic_relay:anonymous"), "/"))
        assert isinstance(session, TopicRelaySession)
        return session

    def members(self, count: int, topic: str = "t") -> list[TopicRelaySession]:
        """New connections that listen to *topic*, and have read what they were told about that."""
        sessions = [self.open() for _ in range(count)]
        for session in sessions:
            session.receive_data(json.dumps({"type": 2, "topic": topic}).encode())
        for session in sessions:
            session.data_to_send()
        return sessions

    def stranger(self, channel: str = "t") -> Stranger:
        """A new listener of another protocol."""
        stranger = Stranger(self.bus)
        self.bus.subscribe(stranger, channel)
        return stranger

    def texts(self, session: Session) -> list[bytes]:
        """What *session* has to send, as text."""
        return [payload(frame) for frame in session.data_to_send()]

    def packets(self, session: Session) -> list[Any]:
        """What *session* has to send, as JSON values."""
        return [json.loads(text) for text in self.texts(session)]

    def ask(self, session: Session, packet: str | bytes) -> list[Any]:
        """What *session* answers to *packet*."""
        session.receive_data(packet.encode() if isinstance(packet, str) else packet)
        return self.packets(session)


@pytest.fixture(scope="session")
def new_relay() -> type[Relay]:
    """Makes gateways; for properties, which need a fresh one for each example."""
    return Relay


@pytest.fixture
def relay() -> Relay:
    """A gateway with default settings."""
    return Relay()


@pytest.fixture(scope="session")
def relay_adapter() -> TopicRelayAdapter:
    """An adapter, for what needs no gateway."""
    return Relay().adapter
