"""The parts that Streamr's connections and REST requests share."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.streamr.model.stored import StoredMessages
from adapters.streamr.publishing.key_exchange import KeyExchange
from adapters.streamr.publishing.participant import Participant
from adapters.streamr.publishing.publish_handler import PublishHandler

from .context import Context
from .message_forms import Forms
from .trust import Trust


@dataclass(frozen=True, slots=True)
class StreamrParts:
    """What connections and REST requests use; `adapters.streamr.assembly` constructs it.

    *started* is when the adapter started, by the bus's clock (ms).
    """

    context: Context
    trust: Trust
    forms: Forms
    stored: StoredMessages
    key_exchange: KeyExchange
    participant: Participant
    publish_handler: PublishHandler
    started: int
