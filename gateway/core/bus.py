"""The bus: which sessions listen to which channel, and what happens when a message is published.

Publishing is a function call that ends in other sessions' outboxes: no await, no lock, and so one total order for each
channel. The clock, the ids, the log and the index are injected. A published message is appended to the log before it is
delivered; a direct message never touches the log. See docs/design.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .awaited_receipts import Acceptance
from .channels import CREATION_COST, Channels
from .contracts import PERMISSIVE, Counters, Ledger, Policies, Receipt, Translator
from .directs import DirectDelivery
from .errors import AlreadySubscribed, NotSubscribed, Throttled, TooManySubscriptions, Unavailable
from .fan_out import FanOut
from .flows import Flows
from .listener_groups import Trace
from .message import Message, Peer
from .peers import PeerRegistry
from .presence import JOIN_NOTICES_PER_REQUEST, Presence
from .principal import Principal
from .publish_gathering import Gathering, Refuse, Take
from .stamper import Stamper
from .subscriber import Subscriber
from .ticking import tick_sessions
from .watchers import Watchers

SUBSCRIPTIONS_EXHAUSTED = (
    "this connection listens to {:,} channels already, the most that limits.subscriptions allows; unsubscribe from "
    "one, or use another connection"
)
MAX_ID = 1024  # characters; a Streamr id has a stream, a publisher and a chain of 255 each at most


class Bus:
    """Joins the sessions of all protocols through named channels.

    *clock* gives ms since 1970; *stamper* has the time of what is logged, which never goes back. What is published is
    checked and then passed to `submit`, which takes it, by default at once.
    """

    def __init__(
        self,
        ledger: Ledger,
        channels: Channels,
        peers: PeerRegistry,
        stamper: Stamper,
        clock: Callable[[], int],
        metrics: Counters,
        *,
        translators: Iterable[Translator] = (),
        policies: Policies = PERMISSIVE,
    ) -> None:
        self.ledger = ledger
        self.channels, self.peers = channels, peers
        self.clock, self.metrics = clock, metrics
        self.translators = list(translators)
        self.allowed, self.throttle = policies.allowed, policies.throttle
        self.read_pacer, self.subscriptions = policies.read_pacer, policies.subscriptions
        self.flows = Flows()
        self.on_join: Callable[[Subscriber, Peer], None] = lambda _session, _peer: None
        self.on_leave: Callable[[Subscriber], None] = lambda _session: None
        self.charge: Callable[[str, float], None] = lambda _network, _requests: None  # for expensive operations
        self.stamper = stamper
        self.submit: Take = self.take
        self.acceptance = Acceptance(ledger)
        self._members: dict[str, dict[Subscriber, None]] = {}
        self._hearing: dict[str, dict[Subscriber, None]] = {}  # of the members, those that get presence notices
        self.presence = Presence(self._hearing)
        self.watchers = Watchers()
        self.tracers: dict[str, Trace] = {}  # of channels: see `trace`
        self._fan_out = FanOut(self._members, self.watchers, self._may_listen, self.tracers, self.flows)
        self.gathering = Gathering(lambda run, origins: self.submit(run, origins))  # noqa: PLW0108  (it may be replaced)
        self._sessions: dict[Subscriber, None] = {}
        self._numbers: dict[int, dict[Subscriber, None]] = {}
        self._networks: Counter[str] = Counter()
        self._waiting: dict[Subscriber, None] = {}
        self.directs = DirectDelivery(self._numbers, self.gathering, self.presence.notices, stamper, metrics)
        self.direct, self.send_direct = self.directs.deliver, self.directs.send

    # Sessions

    def join(self, session: Subscriber) -> Peer:
        """Add *session* to the bus, and return its peer, which has a number of its own."""
        peer = self.peers.connection(session.protocol)
        self._sessions[session] = None
        self._numbers[peer.number] = {session: None}
        self._networks[session.principal.network] += 1
        self.on_join(session, peer)
        return peer

    def leave(self, session: Subscriber) -> None:
        """Remove *session* from the bus and its channels, whose other members are told."""
        if session not in self._sessions:
            return
        self.on_leave(session)
        for channel in list(session.channels):
            self.unsubscribe(session, channel)
        self.watchers.discard(session)
        self._unbind(session)
        del self._numbers[session.peer.number], self._sessions[session]
        network = session.principal.network
        self._networks[network] -= 1
        if not self._networks[network]:
            del self._networks[network]
        self._waiting.pop(session, None)

    def bind(self, session: Subscriber, identity: Peer) -> None:
        """Bind *session* to *identity*. A session that shows a second identity becomes a link and has none."""
        if session.link:
            return
        identity = identity.connected_by(session.protocol)
        before = session.who
        self.gathering.settle(number=before.number)
        if session.identity is None:
            session.identity = identity
            self._numbers.setdefault(identity.number, {})[session] = None
        elif session.identity.number == identity.number:
            session.identity = identity  # perhaps with another name
        else:
            self._unbind(session)
            session.link = True
        if session.who is not before:
            self.presence.rename(session, before)

    def sessions(self) -> list[Subscriber]:
        """All sessions."""
        return list(self._sessions)

    @property
    def session_count(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    def session_count_from(self, address: str) -> int:
        """The number of sessions from *address*."""
        return self._networks[address]

    def connection_count(self, number: int) -> int:
        """The number of connections of the peer with *number*."""
        return len(self._numbers.get(number, ()))

    def sessions_of(self, number: int) -> list[Subscriber]:
        """The connections of the peer with *number*."""
        return list(self._numbers.get(number, ()))

    def peers_in(self, channel: str, asking: Subscriber | None = None) -> list[Peer]:
        """The peers in *channel*, each once, in the order in which they came.

        The session that is *asking* is told first of those whose notices wait, and later only of what changes.
        """
        if asking is not None:
            self.presence.notices.tell_everything(channel, asking)
        return list(self.presence.peers(channel).values())

    def listener_count(self, channel: str) -> int:
        """The number of connections that listen to *channel*."""
        return len(self._members.get(channel, ()))

    def listeners(self, channel: str, protocol: str) -> list[Subscriber]:
        """The sessions of *protocol* that listen to *channel*."""
        return [session for session in self._members.get(channel, ()) if session.protocol == protocol]

    def describe(self, channel: str) -> dict[str, Any]:
        """The address of *channel* in each protocol, and the parts of those by the names that users know."""
        addresses = self.channels.addresses(channel)
        shown: dict[str, Any] = {"addresses": dict(addresses)}
        for translator in self.translators:
            if (address := addresses.get(translator.name)) is not None:
                shown |= translator.describe(address)
        return shown

    def active_channels(self) -> list[str]:
        """The channels with listeners."""
        return list(self._members)

    # Listening

    def subscribe(self, session: Subscriber, channel: str, *, lists: bool = False) -> list[Peer]:
        """Deliver what is published on *channel* to *session*; tell its peers, and return them.

        It counts as several requests if many peers are told, or if many are returned and the session *lists* them to
        its peer. In return, leaving by closing the connection costs nothing.
        """
        self.gathering.settle(channel)
        if channel in session.channels:
            raise AlreadySubscribed(channel)
        if len(session.channels) >= self.subscriptions:
            raise TooManySubscriptions(SUBSCRIPTIONS_EXHAUSTED.format(self.subscriptions))
        members = self._members.get(channel)
        if members is None:
            self.channels.hold(channel)
            members = self._members[channel] = {}
        others = self.presence.add_listener(channel, session.who)
        notices = max(len(self._hearing.get(channel, ())), len(others) if lists else 0)
        if notices >= JOIN_NOTICES_PER_REQUEST:
            self.charge(session.principal.network, notices / JOIN_NOTICES_PER_REQUEST)
        members[session] = session.channels[channel] = None
        if session.hears_presence:
            self._hearing.setdefault(channel, {})[session] = None
        self._fan_out.members_changed(channel)
        return others

    def unsubscribe(self, session: Subscriber, channel: str) -> None:
        """Stop delivering what is published on *channel* to *session*, and tell the peers there."""
        if channel not in session.channels:
            raise NotSubscribed(channel)
        self.gathering.settle(channel)
        del session.channels[channel]
        members = self._members[channel]
        del members[session]
        self._fan_out.members_changed(channel)
        if not members:
            del self._members[channel]
            self.channels.release(channel)
        if session.hears_presence:
            del self._hearing[channel][session]
            if not self._hearing[channel]:
                del self._hearing[channel]
        self.presence.notices.stop_telling(channel, session)
        self.presence.remove_listener(channel, session.who)

    def dialect_changed(self, channel: str) -> None:
        """Note that a session, which may be in *channel*, has another dialect there now."""
        self._fan_out.members_changed(channel)

    # Publishing

    @property
    def congested(self) -> bool:
        """Whether no message is accepted now: the disk is slow (publishers wait), or `failing` (they are refused)."""
        return self.ledger.congested

    @property
    def failing(self) -> str | None:
        """Why the log cannot be written; None if it can, perhaps slowly."""
        return self.ledger.failing

    def check_log(self) -> None:
        """Raise `Unavailable`, naming the cause, if nothing can be logged now."""
        if self.ledger.failing is not None:
            raise Unavailable(f"the log cannot be written: {self.ledger.failing}; try again once it can")
        if self.ledger.congested:
            raise Unavailable(f"{self.acceptance.obstacle}; try again in a moment")

    def find(self, id: str) -> Receipt | None:
        """The receipt of the earlier message with this id; ask before publishing under an id that the author chose."""
        self.gathering.publish()
        return self.ledger.find(id)

    def find_message(self, id: str) -> Message | None:
        """The same message itself, which may not be on disk yet."""
        self.gathering.publish()
        return self.ledger.find_message(id)

    def canonical_id(self, id: str) -> str | None:
        """The canonical id of the message that *id* names in any protocol; None if it names none."""
        if len(id) > MAX_ID:
            return None
        found = self.find(id)
        if found is not None:
            return found.id
        return next(filter(None, (translator.resolve_id(id) for translator in self.translators)), None)

    def publish(self, message: Message, origin: Subscriber | None = None) -> Message:
        """Log *message*, and deliver it to every session in its channel but the publishing one.

        Its seq, time and id are set when it is taken; its `parent` may be any id. It is accepted once `when_accepted`
        calls back. Raises `Unavailable`, or `UnknownChannel` if the channel is new and users cannot create any.
        """
        self.publish_run((message,), origin)
        return message

    def publish_run(self, run: Sequence[Message], origin: Subscriber | None = None) -> None:
        """`publish` a *run*: messages of one sender in one channel, all live or all `late`. It is atomic.

        A run costs each of its messages little, since lookups, checks and counting are done once for all of them.
        """
        first = run[0]
        self.gathering.settle(first.channel, first.sender.number, origin)
        self._admit(first.channel, origin)
        parent = found = None  # many of a run may have the same parent
        for message in run:
            if message.parent is not None:
                if message.parent != parent:
                    parent, found = message.parent, self.canonical_id(message.parent)
                message.parent = found
        self.submit(run, (origin,) * len(run))

    def publish_alone(self, message: Message, origin: Subscriber | None, refuse: Refuse) -> None:
        """`publish` a *message* that came alone, perhaps together with those of others in this turn of the loop.

        It may have no seq yet when this returns. *refuse* is called with an error that is found only then. Without an
        *origin* it always waits for the end of the turn: its publisher waits for the disk anyway.
        """
        if message.late or message.parent is not None or not self.gathering.begin(always=origin is None):
            self.publish_run((message,), origin)
            return
        self._admit(message.channel, origin)
        self.gathering.add(message, origin, refuse)

    def take(self, run: Sequence[Message], origins: Sequence[Subscriber | None]) -> None:
        """Stamp, log and deliver a *run* of one protocol in one channel; the session in *origins* does not hear it."""
        self.stamper.stamp(run, self.ledger.next_seq)
        self._add_refs(run)
        self.ledger.extend(run)
        self.hand_over(run, origins)

    def hand_over(self, run: Sequence[Message], origins: Sequence[Subscriber | None]) -> None:
        """Deliver a *run* that was logged; see `take`."""
        if self.read_pacer is not None:
            self.read_pacer.record_published(run)
        if self.presence.notices:
            for message in run:
                self.presence.notices.tell_arrival(message.channel, message.sender.number)
        self.metrics.published(run, self._fan_out.deliver(run, origins))
        if self.acceptance.untaken:
            self.acceptance.taken(run)

    # Time and backpressure

    def pace(self, principal: Principal, peer: Peer | None, channel: str) -> None:
        """Raise `Throttled` if *principal*, as *peer*, asks too often about *channel*, or has published too much.

        *peer* is None for an anonymous caller without a connection.
        """
        if self.throttle is None:
            return
        wait = self.throttle(principal, peer, channel)
        if not wait and peer is not None and self.read_pacer is not None:
            wait = self.read_pacer.publish_delay(peer)
        if wait:
            raise Throttled(wait)

    def tick(self) -> None:
        """Do all of `tick_in_slices` now."""
        for _ in self.tick_in_slices():
            pass

    def tick_in_slices(self) -> Iterator[None]:
        """Expire what is due and tick the sessions, once a second, even if nothing may be logged; yield often."""
        now = self.clock()
        self.directs.tick(now)
        self.presence.tick(now)
        yield from tick_sessions(self._sessions, now)

    def wait_for_log(self, session: Subscriber) -> None:
        """Wake *session* when the log accepts messages again; nothing happens if it does now."""
        if self.ledger.congested:
            self._waiting[session] = None
            self.acceptance.on_waiting()

    def resume_waiting(self) -> None:
        """Resume the sessions that waited for the log, which accepts messages again or begins to refuse them."""
        waiting, self._waiting = self._waiting, {}
        for session in waiting:
            session.resume()
            session.wake()

    def _may_listen(self, session: Subscriber, channel: str) -> bool:
        return self.allowed(session.principal, "subscribe", channel)

    def _admit(self, channel: str, origin: Subscriber | None) -> None:
        """Register *channel* for *origin*; raise `Unavailable` if nothing can be logged now."""
        if self.ledger.congested:
            self.check_log()
        if self.channels.register(channel) and origin is not None:
            self.charge(origin.principal.network, CREATION_COST)

    def _add_refs(self, run: Sequence[Message]) -> None:
        protocol = run[0].protocol
        for translator in self.translators:
            if translator.name != protocol:
                translator.add_refs(run)
        for message in run:
            if message.undelivered:
                self.metrics.undeliverable(message)
                for name in message.undelivered:
                    self.flows.to_protocol(name)[protocol].undelivered += 1

    def _unbind(self, session: Subscriber) -> None:
        if session.identity is not None:
            connections = self._numbers[session.identity.number]
            del connections[session]
            if not connections:
                del self._numbers[session.identity.number]
            session.identity = None
