"""Direct messages to peers at other gateways of a cluster: sent to the gateways that have the peer, which answer.

Delivery is at most once, as on one gateway: nothing is sent again. If a gateway does not answer in time, nobody knows
whether it delivered the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from gateway.core.bus import Bus
from gateway.core.directs import Answer
from gateway.core.message import Message
from gateway.storage.record import BadRecord, decode_untrusted, encode

from .presence import Tell
from .signals import DirectOutcome, DirectSignal

WAIT_SECONDS: Final = 2.0  # for an answer; looked at once a second
MAX_WAITING: Final = 10_000  # messages that are to be answered

Flaw = Callable[[Message], str | None]  # why a message is not valid in its protocol; None if it is


class _Waiting:
    """A message that was sent to the members *open*, and got to *total* connections so far."""

    def __init__(self, message: Message, members: set[str], total: int, answer: Answer, until: float) -> None:
        self.message = message
        self.open = members
        self.total = total
        self.answer = answer
        self.until = until
        self.unsure = False


class SharedDirects:
    """Sends direct messages of the member *me* by *tell*, and delivers on *bus* those that come and have no *flaw*.

    *holders* returns the members that have a peer in a channel, *members* all other members.
    """

    def __init__(
        self,
        me: str,
        bus: Bus,
        tell: Tell,
        clock: Callable[[], float],
        holders: Callable[[str, int], list[str]],
        members: Callable[[], list[str]],
        flaw: Flaw,
    ) -> None:
        self.ignored = 0  # messages that were not valid
        self._me = me
        self._bus = bus
        self._tell = tell
        self._clock = clock
        self._holders = holders
        self._members = members
        self._flaw = flaw
        self._waiting: dict[int, _Waiting] = {}
        self._last = 0
        bus.directs.elsewhere = self._send

    def _send(self, message: Message, number: int, receivers: int, answer: Answer) -> None:
        """Send *message*, which *receivers* here got, to the members that have its peer, or to all if none is known."""
        members = self._holders(message.channel, number) or ([] if receivers else self._members())
        if not members:
            answer(receivers)
            return
        if len(self._waiting) >= MAX_WAITING:
            answer(receivers or None)
            return
        self._last += 1
        self._waiting[self._last] = _Waiting(message, set(members), receivers, answer, self._clock() + WAIT_SECONDS)
        line = encode(replace(message, seq=1, undelivered=()))
        for member in members:
            self._tell(DirectSignal(self._me, self._last, number, line, message.sender.name), member)

    def take(self, direct: DirectSignal) -> None:
        """Deliver a message that another member sent, and tell it to how many connections."""
        try:
            message = decode_untrusted(direct.line)
        except BadRecord:
            self.ignored += 1
            return
        if not isinstance(message, Message) or self._flaw(message) is not None:
            self.ignored += 1
            return
        message.seq, message.sender = 0, replace(message.sender, name=direct.name)
        count = self._bus.direct(message, direct.number)
        self._tell(DirectOutcome(self._me, direct.id, count, [*message.undelivered]), direct.member)

    def answered(self, outcome: DirectOutcome) -> None:
        """Note what another member answered."""
        waiting = self._waiting.get(outcome.id)
        if waiting is None or outcome.member not in waiting.open:
            return
        waiting.total += outcome.count
        message = waiting.message
        message.undelivered = tuple(dict.fromkeys([*message.undelivered, *outcome.unfit]))
        self._settle(outcome.id, waiting, outcome.member)

    def gone(self, member: str) -> None:
        """Stop waiting for answers of *member*, which may have delivered the messages it was sent."""
        for id, waiting in list(self._waiting.items()):
            if member in waiting.open:
                waiting.unsure = True
                self._settle(id, waiting, member)

    def tick(self) -> None:
        """Give up waiting for answers that take too long; call this once a second."""
        now = self._clock()
        for id in [id for id, waiting in self._waiting.items() if waiting.until <= now]:
            waiting = self._waiting.pop(id)
            waiting.answer(waiting.total or None)

    def _settle(self, id: int, waiting: _Waiting, member: str) -> None:
        waiting.open.discard(member)
        if not waiting.open:
            del self._waiting[id]
            waiting.answer(waiting.total or (None if waiting.unsure else 0))
