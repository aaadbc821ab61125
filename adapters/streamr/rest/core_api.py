"""The REST calls that change no stream: logins, users, streams, publishers, subscribers and storage nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from adapters.streamr.model.login import ADDRESS, TOKEN_LIFE, LoginError
from adapters.streamr.model.streams import OPERATIONS
from adapters.streamr.model.users import User
from adapters.streamr.wire.ids import NAME, stream_of
from adapters.streamr.wire.refusals import Unauthenticated
from gateway.core.channels import CREATION_COST
from gateway.core.errors import RequestError, UnknownChannel
from gateway.core.jsontext import dumps
from gateway.core.message import Peer
from gateway.core.principal import Principal

if TYPE_CHECKING:
    from adapters.streamr.shared_parts import StreamrParts

MAX_LISTED = 256  # streams in one answer; `offset` asks for more
CHANNELS_PER_SLICE = 64  # channels that one slice of the list examines
MAX_DIGITS = 9  # of a number in a request
MAX_ADDRESSES = 10_000  # in one answer

# The gateway's verbs of which each operation of the reference requires one.
REQUIRED_VERBS = {
    "stream_get": ("subscribe", "publish", "admin"),
    "stream_subscribe": ("subscribe",),
    "stream_publish": ("publish",),
    "stream_edit": ("admin",),
    "stream_delete": ("admin",),
    "stream_share": ("admin",),
}


class RestCaller(NamedTuple):
    """The caller of a request: the token in its header, if any, and the network that it comes from."""

    token: str | None
    network: str = ""


class ApiError(RequestError):
    """A request refused with an HTTP *status*, a message, and a *code* if the status's own does not fit."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class CoreApi:
    """Returns JSON values, or raises `ApiError`. Addresses may be in upper, lower or mixed case."""

    def __init__(self, parts: StreamrParts) -> None:
        self._context = parts.context
        self._streams = parts.context.streams
        self._trust = parts.trust
        self._forms = parts.forms
        self._own = parts.context.own.address

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Raise unless a request to *host*, perhaps by a page of *origin*, is allowed, as on the WebSocket."""
        if (reason := self._context.access.origin_refusal(origin, host)) is not None:
            raise ApiError(403, reason)

    def pace(self, caller: RestCaller, channel: str = "") -> None:
        """Raise `Throttled` if the caller's network exceeds the rate limit, in *channel* or altogether."""
        place = Peer(-1 - crc32(caller.network.encode()), NAME)
        self._context.bus.pace(Principal("", caller.network), place, channel)

    def charge_creation(self, caller: RestCaller, channel: str) -> None:
        """Charge the caller's network for *channel*, which it is about to use, if there is none yet."""
        if not self._context.bus.channels.exists(channel):
            self._context.bus.charge(caller.network, CREATION_COST)

    # Users

    def challenge(self, address: str) -> dict[str, Any]:
        """A challenge for *address* to sign."""
        if not ADDRESS.fullmatch(address):
            raise ApiError(400, f"not an Ethereum address: {address}")
        challenge = self._context.logins.challenge(address, self._context.bus.clock())
        return {"id": challenge.id, "challenge": challenge.text, "expires": _iso_time(challenge.expires)}

    def login(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A session token for the signature of a challenge."""
        challenge = fields.get("challenge")
        given = challenge if isinstance(challenge, dict) else {}
        parts = given.get("id"), given.get("challenge"), fields.get("signature"), fields.get("address")
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) != len(parts):
            raise ApiError(400, "expected a challenge with its id, a signature and an address")
        id, text, signature, address = texts
        try:
            token = self._context.logins.log_in(id, text, signature, address, self._context.bus.clock())
        except LoginError as error:
            raise ApiError(401, str(error)) from None
        return {"token": token.token, "expires": _iso_time(token.expires)}

    def login_by_key(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The session token for an API key of the gateway: the key itself, so that both end together."""
        key = fields.get("apiKey")
        if not isinstance(key, str):
            raise ApiError(400, "expected an apiKey")
        if self._context.access.key_name(key) is None:
            raise ApiError(401, "no such API key")
        return {"token": key, "expires": _iso_time(self._context.bus.clock() + TOKEN_LIFE)}

    def login_by_password(self) -> None:
        """Refuse a login by password, with the answer of the last version of the reference."""
        raise ApiError(404, "there are no passwords here: log in with a private key or an API key")

    def logout(self, caller: RestCaller, done: Callable[[bool], None]) -> None:
        """Make the caller's session token invalid, at once; *done* is told whether that is on disk."""
        self._context.logins.log_out(caller.token or "", caller.network, self._context.bus.clock(), done)

    def user(self, caller: RestCaller) -> dict[str, Any]:
        """The user of the caller's token."""
        username = self._user_of(caller).username
        if username is None:
            raise ApiError(401, "log in first")
        return {"name": username, "username": username}

    # Streams

    def stream(self, caller: RestCaller, stream: str) -> dict[str, Any]:
        """The description of a stream."""
        self._check_visible(caller, stream)
        return self._streams.shown(stream)

    def validation(self, caller: RestCaller, stream: str) -> dict[str, Any]:
        """The rules that a stream's messages are checked by."""
        self._check_visible(caller, stream)
        return self._streams.validation_fields(stream)

    def streams(self, caller: RestCaller, query: Mapping[str, str]) -> Iterator[bytes]:
        """The streams that exist and that the caller may see: a JSON array, in slices of limited work.

        *query* may select one `name`, or those with a text in their ids (`search`); `max` limits their number, and
        `offset` skips the first ones.
        """
        principal, address = self._user_of(caller)
        name, search = query.get("name"), query.get("search", "").lower()
        first, count = _number(query, "offset", 0), min(_number(query, "max", MAX_LISTED), MAX_LISTED)

        def wanted(stream: str) -> bool:
            return search in stream.lower() and self._is_allowed(principal, "stream_get", stream, address)

        return self._listed(self._slices(name), wanted, first, first + count)

    def _slices(self, stream: str | None) -> Iterator[list[str]]:
        """The names of all channels, or those of one *stream*, `CHANNELS_PER_SLICE` in each slice."""
        if stream is not None:
            yield self._streams.channels_of(stream)
            return
        after = ""
        while names := self._context.bus.channels.listed(after, CHANNELS_PER_SLICE):
            yield names
            after = names[-1]

    def _listed(
        self, slices: Iterator[list[str]], wanted: Callable[[str], bool], first: int, end: int
    ) -> Iterator[bytes]:
        """The *wanted* streams of the channels in *slices*, without the *first* ones, up to the one numbered *end*."""
        found: dict[str, None] = {}
        opening = b"["
        for names in slices:
            shown = []
            for channel in names:
                stream, _ = stream_of(channel)
                if stream not in found and self._context.bus.channels.exists(channel) and wanted(stream):
                    found[stream] = None
                    if first < len(found) <= end:
                        shown.append(dumps(self._streams.shown(stream)))
            yield opening * bool(shown) + b",".join(shown)
            opening = b"," if shown else opening
            if len(found) >= end:
                break
        yield b"[]" if opening == b"[" else b"]"

    # Publishers, subscribers and permissions

    def publishers(self, caller: RestCaller, stream: str) -> dict[str, Any]:
        """The addresses that have published on a stream, or have a right of their own to."""
        self._check_visible(caller, stream)
        waiting = (self._context.services.index.unapplied(channel) for channel in self._streams.channels_of(stream))
        places = (self._forms.position(message) for messages in waiting for message in messages)
        publishers = {
            *self._context.publishers.addresses(stream, MAX_ADDRESSES),
            *(place.publisher for place in places if place),
        }
        return {"addresses": sorted(publishers - {""} | self._holders("stream_publish", stream))[:MAX_ADDRESSES]}

    def subscribers(self, caller: RestCaller, stream: str) -> dict[str, Any]:
        """The addresses that are subscribed to a stream, or have a right of their own to."""
        self._check_visible(caller, stream)
        present = (
            peer for channel in self._streams.channels_of(stream) for peer in self._context.bus.peers_in(channel)
        )
        listening = {peer.identity for peer in present if peer.protocol == NAME and peer.identity is not None}
        return {"addresses": sorted({*listening, *self._holders("stream_subscribe", stream)})[:MAX_ADDRESSES]}

    def publisher(self, caller: RestCaller, stream: str, address: str) -> dict[str, Any]:
        """An empty object if *address* is a publisher on a stream."""
        self._check_visible(caller, stream)
        if not self._trust.is_publisher(stream, address.lower()):
            raise ApiError(404, f"{address} is not a publisher on stream {stream}")
        return {}

    def subscriber(self, caller: RestCaller, stream: str, address: str) -> dict[str, Any]:
        """An empty object if *address* may read a stream: clients ask before they send it a group key."""
        self._check_visible(caller, stream)
        if not self._trust.may_read(stream, address.lower()):
            raise ApiError(404, f"{address} is not a subscriber on stream {stream}")
        return {}

    def my_permissions(self, caller: RestCaller, stream: str) -> list[dict[str, Any]]:
        """The operations of the reference that the caller may do on a stream."""
        self._check_visible(caller, stream)
        principal, address = self._user_of(caller)
        user = {"user": address or principal.name}
        mine = (name for name in OPERATIONS if self._is_allowed(principal, name, stream, address))
        return [{"id": None, **user, "operation": name} for name in mine]

    # Storage

    def storage_nodes(self, caller: RestCaller, stream: str) -> list[dict[str, Any]]:
        """The storage nodes of a stream: this gateway, which stores every stream."""
        self._check_visible(caller, stream)
        return [{"storageNodeAddress": self._own}]

    def stored_streams(self, caller: RestCaller, address: str) -> Iterator[bytes]:
        """The streams stored by the node *address*, which has to be this gateway."""
        if address.lower() != self._own:
            raise ApiError(404, f"Storage node not found: {address}")
        return self.streams(caller, {})

    # Helpers

    def _holders(self, operation: str, stream: str) -> set[str]:
        """The addresses with a right of their own to an *operation* on a partition of *stream*."""
        names = self._context.access.principals_with(REQUIRED_VERBS[operation][0], self._streams.channels_of(stream))
        found = (name.partition(":")[2] for name in names if name.startswith(f"{NAME}:"))
        return {address.lower() for address in found if ADDRESS.fullmatch(address)}

    def _check_visible(self, caller: RestCaller, stream: str) -> None:
        """Raise unless *stream* exists and the caller may see it."""
        principal, address = self._user_of(caller)
        if not self._is_allowed(principal, "stream_get", stream, address):
            raise ApiError(403, f"Not allowed to see stream: {stream}")
        if not self.exists(stream):
            raise ApiError(404, f"Stream not found: {stream}")

    def authenticate(self, caller: RestCaller) -> User:
        """The user of the caller's token; raises `Unauthenticated` if it is not valid."""
        return self._trust.authenticate((caller.token,), Principal(f"{NAME}:anonymous", caller.network))

    def _user_of(self, caller: RestCaller) -> User:
        """As `authenticate`, but raises `ApiError` 401."""
        try:
            return self.authenticate(caller)
        except Unauthenticated as error:
            raise ApiError(401, str(error)) from None

    def _is_allowed(self, principal: Principal, operation: str, stream: str, address: str | None = None) -> bool:
        """Whether *principal*, the user of *address*, may do *operation* on a partition of *stream*."""
        allowed, channels = self._context.bus.allowed, self._streams.channels_of(stream)
        verbs = REQUIRED_VERBS[operation]
        return any(allowed(principal, verb, channel) for verb in verbs for channel in channels) or any(
            given.operation == operation and given.user in (None, address)
            for given in self._streams.permissions(stream)
        )

    def exists(self, stream: str) -> bool:
        """Whether *stream* exists, or would be created by its first use."""
        return any(map(self._exists, self._streams.channels_of(stream)))

    def _exists(self, channel: str) -> bool:
        """Whether *channel* exists, or would be created by its first use."""
        channels = self._context.bus.channels
        try:
            channels.channel(NAME, channel)
            if not channels.exists(channel) and not self._context.bus.listener_count(channel):
                channels.hold(channel)
                channels.release(channel)
        except UnknownChannel:
            return False
        return True


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    """The number *name* in the *query*; raises `ApiError` 400."""
    text = query.get(name, str(default))
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise ApiError(400, f"{name}: expected a whole number of at most {MAX_DIGITS} digits, not {text}")
    return int(text)


def _iso_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
