"""The bus: who listens to which channel, and what happens when something is said.

Everything here is a function call that ends in other sessions' outboxes: no await, no lock, and so one total
order for each channel. The clock, the ids, the log and the index are injected. What is published is appended
to the log before it is delivered; what is direct never touches the log. See docs/design.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from .bounded import BoundedMap
from .channels import GATEWAY_PREFIX, Channels
from .contracts import Allowed, Counters, Ledger, Receipt, Throttle, Translator
from .errors import AlreadySubscribed, NotSubscribed, RequestError, Throttled, TooManySubscriptions, Unavailable
from .flows import Flow, Flows
from .member import Member
from .message import Message, MessageIds, Peer
from .outbox import FanoutBatch
from .peers import PeerRegistry
from .presence import Presence
from .principal import Principal
from .read_pacer import ReadPacer
from .stamper import Stamper

DIRECT_ID_LIFETIME = 5 * 60_000  # ms for which the id of a direct message is remembered
MAX_DIRECT_IDS = 100_000
MAX_SUBSCRIPTIONS = (
    10_000  # channels that one session may listen to, so that `channels.limit` is not one peer's to use up
)
MAX_ID = 1024  # characters; a Streamr id has a stream, a publisher and a chain of 255 each at most
FIRST_DIRECT_NUMBER = (
    1 << 43
)  # what the ids of direct messages carry for a sequence: numbers that the log never reaches

logger = logging.getLogger(__name__)


class Group(NamedTuple):
    """Those in a channel who have one class and dialect, and what flows to their protocol, by where it comes from."""

    kind: type[Member]
    sessions: list[Member]
    flows: Mapping[str, Flow]


class Bus:
    """Joins the sessions of all protocols through named channels.

    *clock* gives ms since 1970. Every session asks *allowed* and `pace` at every verb; *throttle* answers the seconds
    to wait, None switches it off. *read_pacer* paces what the shells read, None lets them read as fast as they can.
    """

    def __init__(
        self,
        ledger: Ledger,
        channels: Channels,
        peers: PeerRegistry,
        ids: MessageIds,
        clock: Callable[[], int],
        metrics: Counters,
        *,
        translators: Iterable[Translator] = (),
        allowed: Allowed = lambda _principal, _verb, _channel: True,
        throttle: Throttle | None = None,
        read_pacer: ReadPacer | None = None,
        last_time: int = 0,
        subscriptions: int = MAX_SUBSCRIPTIONS,
    ) -> None:
        self.ledger = ledger
        self.channels = channels
        self.peers = peers
        self.clock = clock
        self.metrics = metrics
        self.translators = list(translators)
        self.allowed = allowed
        self.throttle = throttle
        self.read_pacer = read_pacer
        self.subscriptions = subscriptions
        self.batch = FanoutBatch()
        self.flows = Flows()
        self._stamper = Stamper(ids, clock, last_time)
        self._members: dict[str, dict[Member, None]] = {}
        self.presence = Presence(self._members)
        self._fanout: dict[str, list[Group]] = {}  # made anew when members change
        self._sessions: dict[Member, None] = {}
        self._numbers: dict[int, dict[Member, None]] = {}
        self._addresses: Counter[str] = Counter()
        self._waiting: dict[Member, None] = {}
        self._direct_ids = BoundedMap[str, tuple[int, int]](MAX_DIRECT_IDS)  # when each expires, and its answer
        self._directs = count(FIRST_DIRECT_NUMBER)

    # Who is here

    def join(self, session: Member) -> Peer:
        """Give *session* its number."""
        peer = self.peers.connection(session.protocol)
        self._sessions[session] = None
        self._numbers[peer.number] = {session: None}
        self._addresses[session.principal.address] += 1
        return peer

    def leave(self, session: Member) -> None:
        """Forget *session*; the others are told where their protocol has a word for it."""
        if session not in self._sessions:
            return
        for channel in list(session.channels):
            self.unsubscribe(session, channel)
        self._unbind(session)
        del self._numbers[session.peer.number], self._sessions[session]
        address = session.principal.address
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self._waiting.pop(session, None)

    def bind(self, session: Member, identity: Peer) -> None:
        """Take *session* as a connection of *identity*; with a second identity it is a link, and nobody's."""
        if session.link:
            return
        identity = identity.connected_by(session.protocol)
        before = session.who
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

    def sessions(self) -> list[Member]:
        """Every session there is."""
        return list(self._sessions)

    @property
    def session_count(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def session_count_from(self, address: str) -> int:
        """How many sessions come from *address*."""
        return self._addresses[address]

    def connection_count(self, number: int) -> int:
        """How many connections the peer with *number* has."""
        return len(self._numbers.get(number, ()))

    def sessions_of(self, number: int) -> list[Member]:
        """The connections of the peer with *number*."""
        return list(self._numbers.get(number, ()))

    def peers_in(self, channel: str) -> list[Peer]:
        """The peers in *channel*, each once, in the order in which they came."""
        return list(self.presence.peers(channel).values())

    def listener_count(self, channel: str) -> int:
        """How many connections listen to *channel*."""
        return len(self._members.get(channel, ()))

    def listeners(self, channel: str, protocol: str) -> list[Member]:
        """The sessions of *protocol* that listen to *channel*."""
        return [session for session in self._members.get(channel, ()) if session.protocol == protocol]

    def describe(self, channel: str) -> dict[str, Any]:
        """How each protocol calls *channel*: the addresses, and their parts as people know them."""
        addresses = self.channels.addresses(channel)
        shown: dict[str, Any] = {"addresses": dict(addresses)}
        for translator in self.translators:
            if (address := addresses.get(translator.name)) is not None:
                shown |= translator.describe(address)
        return shown

    def active_channels(self) -> list[str]:
        """The channels that somebody listens to."""
        return list(self._members)

    # Listening

    def subscribe(self, session: Member, channel: str) -> list[Peer]:
        """Let *session* hear *channel*, greet the others, and return who they are."""
        if channel in session.channels:
            raise AlreadySubscribed(channel)
        if len(session.channels) >= self.subscriptions:
            raise TooManySubscriptions(f"not more than {self.subscriptions:,} (limits.subscriptions)")
        members = self._members.get(channel)
        if members is None:
            self.channels.hold(channel)
            members = self._members[channel] = {}
        others = self.presence.add_listener(channel, session.who)
        members[session] = session.channels[channel] = None
        self._fanout.pop(channel, None)
        return others

    def unsubscribe(self, session: Member, channel: str) -> None:
        """Let *session* hear *channel* no more, and tell the others."""
        if channel not in session.channels:
            raise NotSubscribed(channel)
        del session.channels[channel]
        members = self._members[channel]
        del members[session]
        self._fanout.pop(channel, None)
        if not members:
            del self._members[channel]
            self.channels.release(channel)
        self.presence.stop_telling(channel, session)
        self.presence.remove_listener(channel, session.who)

    def dialect_changed(self, channel: str) -> None:
        """A session that may be in *channel* has another dialect there from now on."""
        self._fanout.pop(channel, None)

    # Saying

    @property
    def congested(self) -> bool:
        """Whether nothing is taken now: the disk is slow (publishers may wait), or `failing` (they are refused)."""
        return self.ledger.congested

    @property
    def failing(self) -> str | None:
        """Why the log cannot be written, None where it can, perhaps slowly."""
        return self.ledger.failing

    def check_log(self) -> None:
        """Raise `Unavailable`, naming the cause, where nothing can be logged now."""
        if self.ledger.failing is not None:
            raise Unavailable(f"the log cannot be written: {self.ledger.failing}; try again once it can")
        if self.ledger.congested:
            raise Unavailable("the disk does not keep up; try again in a moment")

    def find(self, id: str) -> Receipt | None:
        """The earlier message with this id; ask before publishing what carries an id of its author's choice."""
        return self.ledger.find(id)

    def canonical_id(self, id: str) -> str | None:
        """The canonical id of the message that *id* names, in any protocol; one that nobody knows says nothing."""
        if len(id) > MAX_ID:
            return None
        found = self.ledger.find(id)
        if found is not None:
            return found.id
        return next(filter(None, (translator.resolve_id(id) for translator in self.translators)), None)

    def publish(self, message: Message, origin: Member | None = None) -> Message:
        """Take *message*, log it, and hand it to everybody in its channel but the publishing session.

        The message gets its seq, time and id here; a `parent` may be any id and becomes the canonical one. It is
        accepted once `ledger.when_synced(seq)` calls back, not before. Raises `Unavailable` while the log cannot
        write and `UnknownChannel` where channels are only configured.
        """
        self.publish_run((message,), origin)
        return message

    def publish_run(self, run: Sequence[Message], origin: Member | None = None) -> None:
        """`publish` what one sender says at once in one channel, all of it history or none; all of it or nothing.

        A run costs each of its messages little: what is looked up, asked and counted is so once.
        """
        ledger = self.ledger
        if ledger.congested:
            self.check_log()
        self.channels.register(run[0].channel)
        parent = found = None  # many of a run may answer the same
        for message in run:
            if message.parent is not None:
                if message.parent != parent:
                    parent, found = message.parent, self.canonical_id(message.parent)
                message.parent = found
        self._stamper.stamp(run, ledger.next_seq)
        self._refer(run)
        ledger.extend(run)
        if self.read_pacer is not None:
            self.read_pacer.record_published(run)
        self.metrics.published(run, self._hand_over(run, origin))

    def direct(self, message: Message, number: int) -> int:
        """Hand *message* to the peer with *number*, if it is in the channel; return to how many connections.

        Nothing about it is kept but its ids, for `DIRECT_ID_LIFETIME`, so that a repeated one goes nowhere; it is
        answered as the first was. A connection whose protocol has no room for it does not get it.
        """
        for id in message.ids:
            if (known := self._direct_ids.get(id)) is not None:
                return known[1]
        receivers = [s for s in self._numbers.get(number, ()) if message.channel in s.channels]
        if receivers:  # a form may show who it is for
            message.target = receivers[0].who if receivers[0].who.number == number else receivers[0].peer
        if unfit := [s for s in receivers if not s.fits(message)]:
            receivers = [s for s in receivers if s not in unfit]
            message.undelivered = tuple({s.protocol: None for s in unfit})
            self.metrics.undeliverable(message)
        if not receivers:
            return 0
        self._stamper.stamp_direct(message, next(self._directs))
        for id in message.ids:
            self._direct_ids[id] = message.time + DIRECT_ID_LIFETIME, len(receivers)
        self.presence.tell_arrival(message.channel, message.sender.number)
        for session in receivers:
            session.deliver(message)
        self.metrics.direct(message, len(receivers))
        return len(receivers)

    # Time and room

    def pace(self, principal: Principal, peer: Peer | None, channel: str) -> None:
        """Raise `Throttled` where *principal*, as *peer*, asks too often about *channel*, or has published too much.

        A stranger that is nobody in particular is no *peer*.
        """
        if self.throttle is None:
            return
        wait = self.throttle(principal, peer, channel)
        if not wait and peer is not None and self.read_pacer is not None:
            wait = self.read_pacer.publish_delay(peer)
        if wait:
            raise Throttled(wait)

    def tick(self) -> None:
        """A second has passed."""
        now = self.clock()
        self._direct_ids.drop_while(lambda known: known[0] < now)
        self.presence.tick(now)
        for session in list(self._sessions):
            try:
                session.tick(now)
            except Exception:  # a bug in one session must not stop the others
                logger.exception("a connection failed; the others go on")
                session.close(1011, "something is wrong with the gateway; its log says more")

    def wait_for_log(self, session: Member) -> None:
        """Wake *session* when the log takes messages again."""
        if self.ledger.congested:
            self._waiting[session] = None

    def resume_waiting(self) -> None:
        """The log takes messages again, or begins to refuse them: those who had to wait go on."""
        waiting, self._waiting = self._waiting, {}
        for session in waiting:
            session.resume()
            session.wake()

    def _groups(self, channel: str) -> list[Group]:
        """The members of *channel* by class and dialect: a class can deliver to many at less cost than each alone."""
        classes: dict[tuple[type[Member], str], list[Member]] = {}
        for session in self._members.get(channel, ()):
            classes.setdefault((type(session), session.dialect(channel)), []).append(session)
        flows = (
            Flows() if channel.startswith(GATEWAY_PREFIX) else self.flows
        )  # what the gateway says of itself is not counted
        groups = [Group(kind, sessions, flows.to(kind.protocol)) for (kind, _), sessions in classes.items()]
        if groups:
            self._fanout[channel] = groups
        return groups

    def _refer(self, run: Sequence[Message]) -> None:
        protocol = run[0].protocol
        for translator in self.translators:
            if translator.name != protocol:
                translator.add_refs(run)
        for message in run:
            if message.undelivered:
                self.metrics.undeliverable(message)
                for name in message.undelivered:
                    self.flows.to(name)[protocol].undelivered += 1

    def _hand_over(self, run: Sequence[Message], origin: Member | None) -> int:
        """Give *run* to everybody in its channel but *origin*; how many times one of it was given to somebody."""
        first, deliveries = run[0], 0
        self.presence.tell_arrival(first.channel, first.sender.number)
        for kind, sessions, flows in self._fanout.get(first.channel) or self._groups(first.channel):
            if not first.late or kind.protocol == first.protocol:
                skip = None if kind.echo else origin
                try:
                    told = kind.deliver_all(run, sessions, skip)
                except RequestError as error:  # what the form depends on cannot be read
                    told = 0
                    for session in sessions:
                        if session is not skip:
                            session.close(1011, str(error))  # it catches up when it comes again
                flow = flows[first.protocol]
                flow.delivered += told
                if flow.samples and told:
                    sessions[-1 if sessions[0] is origin else 0].sample(flow)
                deliveries += told
        return deliveries

    def _unbind(self, session: Member) -> None:
        if session.identity is not None:
            connections = self._numbers[session.identity.number]
            del connections[session]
            if not connections:
                del self._numbers[session.identity.number]
            session.identity = None
