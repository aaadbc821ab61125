"""The bus agrees with a naive model on deliveries, their order, and the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.core.bus import Bus
from gateway.core.channels import Channels
from gateway.core.errors import AlreadySubscribed, NotSubscribed, Unavailable
from gateway.core.message import Message, MessageIds, Peer
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.core.stamper import LogClock, Stamper
from gateway.monitoring.metrics import Metrics
from tests import still

CHANNELS = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["alice", "bob"])
IDS = st.sampled_from(["", "x", "y", "z"])


class MemoryLog(still.Memory):
    """A log that only remembers."""

    def when_synced(self, seq: int, callback: Any, *_: Any, **__: Any) -> None:  # noqa: ARG002
        raise AssertionError("the bus accepts nothing")


class RecordingSession(Session):
    protocol = "toy"

    def __init__(self, bus: Bus) -> None:
        self.heard: list[Any] = []
        super().__init__(bus, Principal("anonymous"))

    def handle(self, data: bytes) -> None: ...

    def deliver(self, message: Message) -> None:
        self.heard.append((message.channel, message.content, message.target and message.target.number))

    def peer_joined(self, channel: str, peer: Peer) -> None:
        self.heard.append(("+", channel, peer.number))

    def peer_left(self, channel: str, peer: Peer) -> None:
        self.heard.append(("-", channel, peer.number))


class EchoingSession(RecordingSession):
    protocol = "echo"
    echo = True


@dataclass
class SessionModel:
    """What one session is, in the plainest words."""

    number: int
    echo: bool
    identity: int | None = None
    link: bool = False
    channels: list[str] = field(default_factory=list)
    heard: list[Any] = field(default_factory=list)

    @property
    def who(self) -> int:
        return self.number if self.identity is None else self.identity


class BusMachine(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLog()
        self.now = 1000
        self.durable: dict[str, Peer] = {}
        peers = PeerRegistry(
            0, lambda _first, _count: None, lambda _peer: None, lambda *_key: None, lambda _number: None
        )
        channels = Channels([], lambda *_fact: None)
        stamper = Stamper(MessageIds(7), LogClock(lambda: self.now, 0).now)
        self.bus = Bus(self.ledger, channels, peers, stamper, lambda: self.now, Metrics())
        self.models: dict[Session, SessionModel] = {}
        self.order: dict[str, list[Session]] = {"a": [], "b": [], "c": []}
        self.said: list[tuple[str, bytes]] = []
        self.direct_ids: set[str] = set()
        self.count = 0

    @rule(target=sessions, echo=st.booleans())
    def join(self, echo: bool) -> Session:
        session = (EchoingSession if echo else RecordingSession)(self.bus)
        self.models[session] = SessionModel(session.peer.number, echo)
        return session

    @rule(session=consumes(sessions))
    def leave(self, session: Session) -> None:
        session.receive_eof()
        for channel in list(self.models[session].channels):
            self._left(session, channel)
        del self.models[session]

    @rule(session=sessions, channel=CHANNELS)
    def subscribe(self, session: Session, channel: str) -> None:
        model = self.models[session]
        others = [self.models[other] for other in self.order[channel]]
        try:
            answer = self.bus.subscribe(session, channel)
        except AlreadySubscribed:
            assert channel in model.channels
            return
        present = [peer.number for peer in answer]
        if all(other.identity is None and not other.link for other in others):  # nobody ever became somebody else
            assert present == [other.who for other in others]
        assert sorted(present) == sorted({other.who for other in others})  # as in `who_is_where`
        self._arrived(session, channel, others)
        model.channels.append(channel)
        self.order[channel].append(session)

    @rule(session=sessions, channel=CHANNELS)
    def unsubscribe(self, session: Session, channel: str) -> None:
        try:
            self.bus.unsubscribe(session, channel)
        except NotSubscribed:
            assert channel not in self.models[session].channels
        else:
            self._left(session, channel)

    @rule(session=sessions, name=NAMES)
    def bind(self, session: Session, name: str) -> None:
        identity = self.bus.peers.identity("toy", name)
        model = self.models[session]
        before = model.who
        self.bus.bind(session, identity)
        if model.identity is None and not model.link:
            model.identity = identity.number
        elif model.identity != identity.number:
            model.identity, model.link = None, True
        if model.who != before:
            for channel in model.channels:
                others = [self.models[other] for other in self.order[channel] if other is not session]
                here = [other.who for other in others]
                for other in others:
                    other.heard += [("-", channel, before)] * (before not in here)
                    other.heard += [("+", channel, model.who)] * (model.who not in here)

    @rule(session=sessions, channel=CHANNELS, late=st.booleans())
    def publish(self, session: Session, channel: str, late: bool) -> None:
        content = self._content()
        message = Message(channel, session.who, session.protocol, content, late=late)
        if self.ledger.congested:
            try:
                self.bus.publish(message, session)
            except Unavailable:
                return
            raise AssertionError("it was taken while nothing can be")
        self.bus.publish(message, session)
        self.said.append((channel, content))
        for other in self.order[channel]:
            if (other is session and not session.echo) or (late and other.protocol != session.protocol):
                continue
            self.models[other].heard.append((channel, content, None))

    @rule(session=sessions, channel=CHANNELS, number=st.integers(0, 12), id=IDS)
    def direct(self, session: Session, channel: str, number: int, id: str) -> None:
        content = self._content()
        message = Message(channel, session.who, session.protocol, content, ids=(id,) if id else ())
        delivered = self.bus.direct(message, number)
        if id in self.direct_ids:
            return
        receivers = [m for m in self.models.values() if number in (m.number, m.identity) and channel in m.channels]
        assert delivered == len(receivers)
        for model in receivers:
            model.heard.append((channel, content, number))
        if id and receivers:
            self.direct_ids.add(id)

    @rule(full=st.booleans())
    def disk(self, full: bool) -> None:
        self.ledger.congested = full

    @rule(passed=st.integers(-1000, 1000))
    def time(self, passed: int) -> None:
        self.now += passed

    @invariant()
    def all_heard_what_they_should_in_this_order(self) -> None:
        for session, model in self.models.items():
            assert isinstance(session, RecordingSession)
            assert session.heard == model.heard
            assert list(session.channels) == model.channels
            assert (session.who.number, session.link) == (model.who, model.link)

    @invariant()
    def the_ledger_has_what_was_published_and_nothing_else(self) -> None:
        assert [(m.channel, m.content) for m in self.ledger.messages] == self.said
        assert [m.seq for m in self.ledger.messages] == list(range(1, len(self.said) + 1))
        times = [m.time for m in self.ledger.messages]
        assert times == sorted(times)
        assert len({m.id for m in self.ledger.messages}) == len(times)

    @invariant()
    def who_is_where(self) -> None:
        for channel, order in self.order.items():
            assert self.bus.listener_count(channel) == len(order)
            numbers = dict.fromkeys(self.models[session].who for session in order)
            present = [peer.number for peer in self.bus.peers_in(channel)]
            assert sorted(present) == sorted(numbers)  # who becomes somebody else comes last
        assert self.bus.session_count == len(self.models)
        assert set(self.bus.active_channels()) == {channel for channel, order in self.order.items() if order}
        for model in self.models.values():
            assert self.bus.connection_count(model.number) == 1

    def _content(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def _arrived(self, session: Session, channel: str, others: list[SessionModel]) -> None:
        who = self.models[session].who
        if who not in [other.who for other in others]:
            for other in others:
                other.heard.append(("+", channel, who))

    def _left(self, session: Session, channel: str) -> None:
        self.models[session].channels.remove(channel)
        self.order[channel].remove(session)
        others = [self.models[other] for other in self.order[channel]]
        who = self.models[session].who
        if who not in [other.who for other in others]:
            for other in others:
                other.heard.append(("-", channel, who))


BusMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBus = BusMachine.TestCase
