"""A client for programs: publishes, listens and asks a gateway over REST, on asyncio and trio.

docs/how-to/publish-from-a-program.md shows how to use it. It needs anyio and httpx, and nothing else of the gateway.
"""

from .client import TrellisClient
from .errors import (
    BadAddress,
    Conflict,
    Forbidden,
    NotAGateway,
    NotFound,
    Refused,
    Throttled,
    TrellisError,
    Unauthorized,
    Unavailable,
    Unreachable,
    Untrusted,
)
from .events import Event, Gap, Interrupted, Joined, Left, Welcome
from .jsontext import Json, JsonText
from .records import Channel, DirectReceipt, Message, Peer, Receipt
from .subscription import Subscription

__all__ = [
    "BadAddress",
    "Channel",
    "Conflict",
    "DirectReceipt",
    "Event",
    "Forbidden",
    "Gap",
    "Interrupted",
    "Joined",
    "Json",
    "JsonText",
    "Left",
    "Message",
    "NotAGateway",
    "NotFound",
    "Peer",
    "Receipt",
    "Refused",
    "Subscription",
    "Throttled",
    "TrellisClient",
    "TrellisError",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "Untrusted",
    "Welcome",
]
