"""What the adapter speaks and carries, and its limits, in words: for `GET /v1/protocols` and docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.core.outbox import MAX_OUTBOX

from .message_forms import MAX_CONTENT

WIRE_VERSIONS: Final = (
    *("control 1", "control 2", "message 30", "message 31", "message 32"),
    *("network 4.4.3", "tracker 1", "tracker 2"),
)

# How the protocol expresses each of `gateway.adapter.OPERATIONS`; None if it cannot.
CARRIES: Final[Mapping[str, str | None]] = MappingProxyType(
    {
        "subscribe": "SubscribeRequest: SubscribeResponse",
        "unsubscribe": "UnsubscribeRequest: UnsubscribeResponse",
        "publish": "PublishRequest: silence",
        "delivered": "BroadcastMessage",
        "direct": "PublishRequest to `STREAM/@PEER`: silence",
        "directDelivered": "BroadcastMessage on `STREAM/@PEER`",
        "presence": None,
        "history": "a resend: last, from or range",
        "refused": "ErrorResponse",
        "alive": "the WebSocket's ping",
    }
)

# Of `gateway.adapter.LIMIT_NAMES`.
LIMITS: Final = MappingProxyType(
    {
        "content": f"{MAX_CONTENT:,} bytes as a JSON string",
        "name": "that of a channel",
        "outbox": f"{MAX_OUTBOX:,} bytes",
    }
)
