"""How the protocol expresses each operation, and its limits: for `GET /v1/protocols` and docs/protocols.md."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from adapters.sprout.forest.forest import MAX_BLOB
from adapters.sprout.forest.node_rules import MAX_NAME
from adapters.sprout.sessions.session import MAX_OUTBOX

# How the protocol expresses each of `gateway.adapter.OPERATIONS`.
CARRIES: Final = MappingProxyType(
    {
        "subscribe": "`subscribe`: status 0",
        "unsubscribe": "`unsubscribe`: status 0",
        "publish": "`announce` of a Reply: status 0",
        "delivered": "`announce`",
        "direct": "`announce` of a Reply with TWIG `to/1`: status 0 or 4",
        "directDelivered": "`announce`, to that peer alone",
        "presence": "invisible Replies with TWIG `activity/1`",
        "history": "`list`, `query`, `ancestry`, `leaves_of`",
        "refused": "status 1 or 4",
        "alive": "`version`: status 0",
    }
)

# Of `gateway.adapter.LIMIT_NAMES`.
LIMITS: Final = MappingProxyType(
    {
        "content": f"{MAX_BLOB:,} bytes of text",
        "name": f"{MAX_NAME} bytes; a longer one is cut",
        "outbox": f"{MAX_OUTBOX:,} bytes",
    }
)
