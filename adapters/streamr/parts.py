"""The parts of the running adapter, put together from the bottom up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from adapters.streamr.model.stored import StoredMessages
from adapters.streamr.publishing.key_exchange import KeyExchange
from adapters.streamr.publishing.participant import Participant
from adapters.streamr.publishing.publish_handler import PublishHandler

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
    stored: StoredMessages
    key_exchange: KeyExchange
    participant: Participant
    publish_handler: PublishHandler
    started: int

    @classmethod
    def of(cls, context: Context, known: Iterable[tuple[KeyOwner, GroupKey]]) -> Self:
        """All of them; *known* are the group keys that publishers gave the gateway before."""
        bus = context.bus
        trust = Trust(context)
        forms = Forms(context.bridge_signer, context.streams, bus.clock)
        stored = StoredMessages(context.services.index, forms.position, lambda: bus.ledger.next_seq)
        key_exchange = KeyExchange(forms.frame)
        participant = Participant(context, trust, key_exchange, known)
        publish_handler = PublishHandler(context, trust, forms, stored, participant)
        started = bus.clock()
        publish_handler.tick(started)
        return cls(context, trust, forms, stored, key_exchange, participant, publish_handler, started)
