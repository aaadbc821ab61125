"""The parts of the running adapter, put together from the bottom up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from adapters.streamr.model.stored import Stored
from adapters.streamr.publishing.exchange import KeyExchange
from adapters.streamr.publishing.participant import Participant
from adapters.streamr.publishing.saying import Saying

from .forms import Forms
from .trust import Trust

if TYPE_CHECKING:
    from adapters.streamr.crypto.group_keys import GroupKey
    from adapters.streamr.crypto.keyring import KeyOwner

    from .context import Context


@dataclass(frozen=True, slots=True)
class Parts:
    """What connections and requests are given. The adapter *started* at that time of the bus's clock (ms)."""

    context: Context
    trust: Trust
    forms: Forms
    stored: Stored
    exchange: KeyExchange
    participant: Participant
    saying: Saying
    started: int

    @classmethod
    def of(cls, context: Context, known: Iterable[tuple[KeyOwner, GroupKey]]) -> Self:
        """All of them; *known* are the group keys that publishers gave the gateway before."""
        bus = context.bus
        trust = Trust(context)
        forms = Forms(context.author, context.streams, bus.clock)
        stored = Stored(context.services.index, forms.place, lambda: bus.ledger.next_seq)
        exchange = KeyExchange(forms.frame)
        participant = Participant(context, trust, exchange, known)
        saying = Saying(context, trust, forms, stored, participant)
        started = bus.clock()
        saying.tick(started)
        return cls(context, trust, forms, stored, exchange, participant, saying, started)
