"""Direct messages: to the connections of one peer in a channel, never logged, each delivered once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

from .bounded_maps import BoundedMap
from .contracts import Counters
from .errors import OutcomeUnknown
from .message import Message
from .notices import Notices
from .publish_gathering import Gathering
from .stamper import Stamper
from .subscriber import Subscriber

DIRECT_ID_LIFETIME = 5 * 60_000  # ms for which the id of a direct message is remembered
MAX_DIRECT_IDS = 100_000
FIRST_DIRECT_NUMBER = 1 << 43  # in ids of direct messages, in place of a sequence number; the log never reaches it

Answer = Callable[[int | None], None]  # called with the number of connections that got a message; None if unknown


def ignore(_receivers: int | None) -> None:
    """The answer of a protocol that does not report delivery to the sender."""


def first_direct_number(block: int) -> int:
    """The first number in ids of direct messages of the cluster member whose peer numbers begin at *block*.

    A block has at least 65,536 numbers, so two members have different ids; each has room for 8 million messages.
    """
    return FIRST_DIRECT_NUMBER + ((block >> 16) % (1 << 20) << 23)


def direct_outcome_unknown() -> OutcomeUnknown:
    """The error for a direct message that was sent to another gateway, which did not answer."""
    return OutcomeUnknown("another gateway of the cluster did not say whether it delivered the message")


class DirectDelivery:
    """Delivers direct messages to sessions, which are in *numbers* by the numbers of their peers.

    In a cluster `elsewhere` sends a message to other gateways; it is told how many connections here got it.
    """

    def __init__(
        self,
        numbers: Mapping[int, Mapping[Subscriber, None]],
        gathering: Gathering,
        notices: Notices,
        stamper: Stamper,
        counters: Counters,
    ) -> None:
        self.elsewhere: Callable[[Message, int, int, Answer], None] | None = None
        self.next_id = count(FIRST_DIRECT_NUMBER)
        self._numbers = numbers
        self._gathering = gathering
        self._notices = notices
        self._stamper = stamper
        self._counters = counters
        self._ids = BoundedMap[str, tuple[int, int]](MAX_DIRECT_IDS)  # (expiry, receivers)

    def deliver(self, message: Message, number: int) -> int:
        """Deliver *message* to the connections in the channel of the peer with *number*; return how many they are.

        Only its ids are kept, for `DIRECT_ID_LIFETIME`, so that a repeated message is not delivered again and returns
        what the first did. A connection whose protocol cannot carry it does not get it.
        """
        self._gathering.settle(message.channel, message.sender.number)
        for id in message.ids:
            if (known := self._ids.get(id)) is not None:
                return known[1]
        receivers = self._receivers(message, number)
        if not receivers:
            return 0
        self._stamp(message)
        if message.ids:
            self._remember(message, len(receivers))
        if self._notices:
            self._notices.tell_arrival(message.channel, message.sender.number, receivers)
        for session in receivers:
            session.deliver(message)
        self._counters.direct(message, len(receivers))
        return len(receivers)

    def send(self, message: Message, number: int, answer: Answer = ignore) -> None:
        """`deliver` *message* here and, in a cluster, at other gateways; then call *answer*, in most cases at once."""
        receivers = self.deliver(message, number)
        if self.elsewhere is None:
            answer(receivers)
            return
        if not message.time:
            self._stamp(message)

        def remember(total: int | None) -> None:
            if total:
                self._remember(message, total)
            answer(total)

        self.elsewhere(message, number, receivers, remember)

    def tick(self, now: int) -> None:
        """Forget the ids that expired before *now* (ms)."""
        self._ids.drop_while(lambda known: known[0] < now)

    def _receivers(self, message: Message, number: int) -> list[Subscriber]:
        """The connections in the channel of the peer with *number* that can carry *message*; note which cannot."""
        receivers: list[Subscriber] = []
        unfit: dict[str, None] = {}  # protocols
        for session in self._numbers.get(number, ()):
            if message.channel not in session.channels:
                continue
            if message.target is None:  # a form may contain its receiver
                message.target = session.who if session.who.number == number else session.peer
            if session.fits(message):
                receivers.append(session)
            else:
                unfit[session.protocol] = None
        if unfit:
            message.undelivered = tuple(unfit)
            self._counters.undeliverable(message)
        return receivers

    def _stamp(self, message: Message) -> None:
        self._stamper.stamp_direct(message, next(self.next_id))

    def _remember(self, message: Message, receivers: int) -> None:
        for id in message.ids:
            self._ids[id] = message.time + DIRECT_ID_LIFETIME, receivers
