"""What clients ask beside the WebSocket: who they are, which streams there are, whom to believe on them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.errors import UnknownChannel
from gateway.session import Principal

from .ids import channel_of, inbox_of, stream_of
from .login import ADDRESS, LoginError
from .session import NAME, Unauthenticated
from .signing import checksum

if TYPE_CHECKING:
    from .adapter import StreamrAdapter

MAX_LISTED = 256  # streams or addresses in one answer

# The operations of the reference, and the verbs of the gateway that they take.
OPERATIONS = {
    "stream_get": ("subscribe", "publish"),
    "stream_subscribe": ("subscribe",),
    "stream_publish": ("publish",),
}


class Visitor(NamedTuple):
    """Who makes a request: the token of its header, and where it comes from."""

    token: str | None
    address: str = ""


class Refused(Exception):
    """A request that gets an HTTP *status* and a reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Desk:
    """Answers with JSON values, or raises `Refused`. Addresses are taken in any case."""

    def __init__(self, adapter: StreamrAdapter) -> None:
        self._adapter = adapter

    def admit(self, origin: str | None, host: str | None) -> None:
        """Raise unless a page of *origin* may ask here, as on the WebSocket."""
        if not self._adapter.services.access.welcome(origin, host):
            raise Refused(403, f"pages of {origin} are not allowed here; the setting is auth.origins")

    # Users

    def challenge(self, address: str) -> dict[str, Any]:
        """Something for *address* to sign."""
        if not ADDRESS.fullmatch(address):
            raise Refused(400, f"not an Ethereum address: {address}")
        challenge = self._adapter.logins.challenge(address, self._adapter.bus.clock())
        return {"id": challenge.id, "challenge": challenge.text, "expires": _moment(challenge.expires)}

    def login(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A session token for the signature of a challenge."""
        challenge = fields.get("challenge")
        given = challenge if isinstance(challenge, dict) else {}
        parts = given.get("id"), given.get("challenge"), fields.get("signature"), fields.get("address")
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) != len(parts):
            raise Refused(400, "expected a challenge with its id, a signature and an address")
        id, text, signature, address = texts
        try:
            token = self._adapter.logins.answer(id, text, signature, address, self._adapter.bus.clock())
        except LoginError as error:
            raise Refused(401, str(error)) from None
        return {"token": token.token, "expires": _moment(token.expires)}

    def logout(self, visitor: Visitor) -> None:
        """End the session of the visitor's token."""
        self._adapter.logins.end(visitor.token or "")

    def user(self, visitor: Visitor) -> dict[str, Any]:
        """Who asks."""
        principal, address = self._asker(visitor)
        kind, _, name = principal.name.partition(":")
        if address is None and kind != "key":
            raise Refused(401, "log in first")
        username = name if address is None else checksum(address)
        return {"name": username, "username": username}

    # Streams

    def stream(self, visitor: Visitor, stream: str) -> dict[str, Any]:
        """A stream as clients expect it."""
        self._look(visitor, stream)
        return self._described(stream)

    def validation(self, visitor: Visitor, stream: str) -> dict[str, Any]:
        """What has to be known of a stream to check its messages."""
        self._look(visitor, stream)
        return self._rules(stream)

    def publishers(self, visitor: Visitor, stream: str) -> dict[str, Any]:
        """The addresses that have said something on a stream."""
        self._look(visitor, stream)
        return {"addresses": self._adapter.publishers(stream, MAX_LISTED)}

    def publisher(self, visitor: Visitor, stream: str, address: str) -> dict[str, Any]:
        """Nothing, if messages of *address* on a stream are to be believed."""
        self._look(visitor, stream)
        if not self._adapter.publishes(stream, address.lower()):
            raise Refused(404, f"{address} is not a publisher on stream {stream}")
        return {}

    def subscriber(self, visitor: Visitor, stream: str, address: str) -> dict[str, Any]:
        """Nothing, if *address* may read a stream: asked before a group key is sent there."""
        self._look(visitor, stream)
        if not self._may(Principal(f"{NAME}:{address.lower()}"), "stream_subscribe", stream):
            raise Refused(404, f"{address} is not a subscriber on stream {stream}")
        return {}

    def permissions(self, visitor: Visitor, stream: str) -> list[dict[str, Any]]:
        """What the visitor may do on a stream, in the reference's words."""
        self._look(visitor, stream)
        principal, address = self._asker(visitor)
        user = address or principal.name
        return [{"user": user, "operation": name} for name in OPERATIONS if self._may(principal, name, stream)]

    def streams(self, visitor: Visitor, name: str | None) -> list[dict[str, Any]]:
        """The streams that exist and the visitor may know of; with a *name*, that one."""
        principal, _ = self._asker(visitor)
        ids = dict.fromkeys(stream_of(channel)[0] for channel in self._adapter.bus.channels.settled())
        found = (stream for stream in ids if name in (None, stream) and self._may(principal, "stream_get", stream))
        return [self._described(stream) for stream in islice(found, MAX_LISTED)]

    def create(self, visitor: Visitor, fields: dict[str, Any]) -> dict[str, Any]:
        """Make a stream exist, if the visitor may publish there; one that does stays as it is."""
        stream = fields.get("id") or fields.get("name")
        if not isinstance(stream, str) or not stream or inbox_of(stream) is not None:
            raise Refused(400, "a stream needs an id or a name, and it cannot be that of an inbox")
        if not self._may(self._asker(visitor)[0], "stream_publish", stream):
            raise Refused(403, f"Not allowed to create stream: {stream}")
        if not self._exists(channel_of(stream, 0)):
            raise Refused(404, f"There can be no stream: {stream}")
        self._adapter.bus.channels.settle(channel_of(stream, 0))
        return self._described(stream)

    def _look(self, visitor: Visitor, stream: str) -> None:
        """Raise unless *stream* exists and the visitor may know of it."""
        if not self._may(self._asker(visitor)[0], "stream_get", stream):
            raise Refused(403, f"Not allowed to see stream: {stream}")
        if not any(map(self._exists, self._adapter.channels_of(stream))):
            raise Refused(404, f"Stream not found: {stream}")

    def _described(self, stream: str) -> dict[str, Any]:
        return self._rules(stream) | {
            "name": stream,
            "description": "",
            "config": {"fields": []},
            "storageDays": 0,
            "inactivityThresholdHours": 0,
        }

    def _rules(self, stream: str) -> dict[str, Any]:
        return {
            "id": stream,
            "partitions": self._adapter.partitions(stream),
            "requireSignedData": False,
            "requireEncryptedData": False,
        }

    def _asker(self, visitor: Visitor) -> tuple[Principal, str | None]:
        """The principal behind a request, and its Ethereum address if it has one."""
        try:
            return self._adapter.asker((visitor.token,), Principal(f"{NAME}:anonymous", visitor.address))
        except Unauthenticated as error:
            raise Refused(401, str(error)) from None

    def _may(self, principal: Principal, operation: str, stream: str) -> bool:
        """Whether *principal* may do this on a partition of *stream*."""
        allowed, channels = self._adapter.bus.allowed, self._adapter.channels_of(stream)
        return any(allowed(principal, verb, channel) for verb in OPERATIONS[operation] for channel in channels)

    def _exists(self, channel: str) -> bool:
        """Whether *channel* is there, or comes into being when somebody uses it."""
        channels = self._adapter.bus.channels
        try:
            channels.channel(NAME, channel)
            if not channels.exists(channel) and not self._adapter.bus.members(channel):
                channels.enter(channel)
                channels.leave(channel)
        except UnknownChannel:
            return False
        return True


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
