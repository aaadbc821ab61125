"""Constructs the parts of the running adapter, in the order of their dependencies."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from adapters.streamr.model.stored import StoredMessages
from adapters.streamr.publishing.key_exchange import KeyExchange
from adapters.streamr.publishing.participant import Participant
from adapters.streamr.publishing.publish_handler import PublishHandler
from adapters.streamr.wire.ids import NAME

from .message_forms import Forms
from .shared_parts import StreamrParts
from .trust import Trust

if TYPE_CHECKING:
    from adapters.streamr.crypto.group_keys import GroupKey
    from adapters.streamr.crypto.keyring import KeyOwner
    from adapters.streamr.wire.message import StreamMessage

    from .context import Context


def assemble(context: Context, known: Iterable[tuple[KeyOwner, GroupKey]]) -> StreamrParts:
    """Construct all parts; *known* are the stored group keys of publishers."""
    bus = context.bus
    trust = Trust(context)
    forms = Forms(context.bridge_signer, context.streams, bus.clock)
    stored = StoredMessages(context.services.index, forms.position, lambda: bus.ledger.next_seq)
    key_exchange = KeyExchange(forms.frame, partial(_tell_members, context))
    participant = Participant(context, trust, key_exchange, known)
    publish_handler = PublishHandler(context, trust, forms, stored, participant)
    started = bus.clock()
    publish_handler.tick(started)
    return StreamrParts(context, trust, forms, stored, key_exchange, participant, publish_handler, started)


def _tell_members(context: Context, message: StreamMessage) -> None:
    """Send a group-key *message* to the other gateways of the cluster."""
    context.services.tell_members(NAME, message.wire or message.encode(message.version))
