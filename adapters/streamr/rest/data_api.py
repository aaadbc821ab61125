"""The broker's data API without its HTTP: publishes the message of a request, and reads stored messages.

Parameters, formats and error texts are those of the reference's broker (docs/protocols.md names the departures).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from random import randrange
from typing import TYPE_CHECKING, Any, NamedTuple

from adapters.streamr.model.bridge_signer import next_position
from adapters.streamr.model.stored import MessageRange
from adapters.streamr.model.users import User
from adapters.streamr.publishing.publish_handler import pace_author
from adapters.streamr.publishing.validation import out_of_range
from adapters.streamr.wire.checks import MAX_INTEGER
from adapters.streamr.wire.control import PublishRequest
from adapters.streamr.wire.ids import NAME, channel_of, inbox_of, key_exchange_address
from adapters.streamr.wire.message import LATEST, NONE, StreamMessage, decode_message
from adapters.streamr.wire.message_layouts import LAYOUTS
from adapters.streamr.wire.partition import partition_of
from adapters.streamr.wire.validation_errors import InvalidMessage
from gateway.access.authorization import key_identity
from gateway.core import jsontext
from gateway.core.errors import Forbidden, RequestError, UnknownChannel
from gateway.core.message import REST, Message, Peer
from gateway.core.principal import Principal

from .core_api import CoreApi, RestCaller

if TYPE_CHECKING:
    from adapters.streamr.context import Context
    from adapters.streamr.shared_parts import StreamrParts
    from adapters.streamr.trust import Trust

NO_BODY = "No request body or invalid request body."
NO_OFFSETS = (
    'Query parameters "fromOffset" and "toOffset" are no longer supported. '
    'Please use "fromTimestamp" and "toTimestamp".'
)
NO_END = (
    'Query parameter "toTimestamp" required as well. To request all messages since a timestamp, '
    "use the endpoint /streams/:id/data/partitions/:partition/from"
)


class BadQuery(RequestError):
    """A parameter that is missing or invalid."""


class Metadata(NamedTuple):
    """What is stored of a stream partition: bytes, messages, timestamps (ms) of the first and the last one."""

    total_bytes: int = 0
    total_messages: int = 0
    first_message: int = 0
    last_message: int = 0

    def with_(self, message: StreamMessage) -> Metadata:
        """The same with *message* added at the end."""
        first = self.first_message if self.total_messages else message.id.timestamp
        size = self.total_bytes + len(message.encode(LATEST))
        return Metadata(size, self.total_messages + 1, first, message.id.timestamp)

    def shown(self) -> dict[str, int]:
        """The JSON object of the reference."""
        return dict(zip(("totalBytes", "totalMessages", "firstMessage", "lastMessage"), self, strict=True))


class RestRequester:
    """The `Requester` of a REST request; it becomes a durable peer only when it publishes."""

    def __init__(self, context: Context, trust: Trust, caller: RestCaller) -> None:
        self._context = context
        self._trust = trust
        self.principal = Principal(f"{NAME}:anonymous", caller.network)
        self._token = caller.token

    @property
    def user(self) -> User | None:
        """The user of the session token or API key that came with the request."""
        return self._trust.user_of_token(self._token) if self._token else None

    @property
    def who(self) -> Peer:
        """The peer of the token's user or of the API key, or the one peer of all callers without either."""
        peers, user = self._context.bus.peers, self.user
        return (user and user.peer(peers)) or peers.identity(REST, key_identity(None))

    @property
    def address(self) -> str | None:
        """The address of the session token's user."""
        return None if self.user is None else self.user.address

    def authenticate(self, _request: PublishRequest) -> User:
        """The user of the token; raises `Unauthenticated` if it is not valid."""
        return self._trust.authenticate((self._token,), self.principal)

    def pace_author(self, author: Peer) -> None:
        """Raise `Throttled` if *author*, who signed the message of this request, exceeds the rate limit."""
        pace_author(self._context.bus, self.who, author)


class DataApi:
    """Publishes what requests carry, and finds what they ask for."""

    def __init__(self, parts: StreamrParts, core_api: CoreApi) -> None:
        self._context = parts.context
        self._trust = parts.trust
        self._forms = parts.forms
        self._stored = parts.stored
        self._publish_handler = parts.publish_handler
        self._core_api = core_api
        self._last = (0, 0)  # position of the last message that came without one

    def admit(self, caller: RestCaller, stream: str, query: Mapping[str, str]) -> None:
        """Raise unless the caller, or the signer that *query* names, may publish on a partition of *stream*.

        This is checked before the body is read; `produce` checks again, with the signature.
        """
        self._context.bus.check_log()
        with _naming_stream(stream):
            self._channel(stream, 0)
        allowed, channels = self._context.bus.allowed, self._context.streams.channels_of(stream)
        author = Principal(f"{NAME}:{query.get('address', '').lower()}", caller.network)
        if query.get("signature") and any(allowed(author, "publish", channel) for channel in channels):
            return
        principal, _ = self._core_api.authenticate(caller)
        if not any(allowed(principal, "publish", channel) for channel in channels):
            if query.get("signature"):
                raise InvalidMessage(f"{query.get('address', '')} is not a publisher on stream {stream}")
            raise Forbidden("publish", stream)

    def produce(self, caller: RestCaller, stream: str, query: Mapping[str, str], body: bytes) -> None:
        """Publish *body*, a JSON text, on *stream*; it is accepted once it is on disk."""
        with _naming_stream(stream):
            self._produce(caller, stream, query, body)

    def _produce(self, caller: RestCaller, stream: str, query: Mapping[str, str], body: bytes) -> None:
        message = self._message(stream, query, body)
        channel = self._channel(stream, message.id.stream_partition)
        self._core_api.pace(caller, channel)
        self._core_api.charge_creation(caller, channel)
        failed: list[RequestError] = []
        requester, request = RestRequester(self._context, self._trust, caller), PublishRequest(message=message)
        self._publish_handler.publish(requester, request, channel, failed.append)
        if failed:
            raise failed[0]

    def find(
        self, caller: RestCaller, stream: str, partition: str, kind: str, query: Mapping[str, str]
    ) -> Iterator[Message | None]:
        """The stored messages that a request of *kind* (`QUERIES`) asks for; None at the end of each slice."""
        ask, shows = QUERIES[kind](query), partial(self._forms.can_show, _version(query))
        channel = self._readable(caller, stream, partition)
        stored = self._stored
        return stored.last(channel, ask, shows) if isinstance(ask, int) else stored.between(channel, ask)

    def all(self, caller: RestCaller, stream: str, partition: str) -> Iterator[Message | None]:
        """All stored messages of a stream partition; None at the end of each slice."""
        channel = self._readable(caller, stream, partition)
        return self._stored.between(channel, MessageRange())

    def shower(self, query: Mapping[str, str]) -> tuple[Format, Callable[[Message], bytes | None]]:
        """The format that *query* asks for, and the function that shows a message in it; None if it cannot."""
        name = query.get("format") or "object"
        if name not in FORMATS:
            raise BadQuery(f'Query parameter "format" is invalid: {name}')
        version, chosen = _version(query), FORMATS[name]

        def show(message: Message) -> bytes | None:
            found = self._forms.stream_message(message, version)
            return chosen.show(found, version) if found is not None and found.is_lossless_in(version) else None

        return chosen, show

    def _message(self, stream: str, query: Mapping[str, str], body: bytes) -> StreamMessage:
        partitions, key = self._context.streams.partitions(stream), query.get("pkey")
        partition = randrange(partitions) if key is None else partition_of(key, partitions)
        timestamp, sequence = self._position(query)
        kind = _positive(query.get("signatureType", "0"))
        previous = [_positive(query["prev_ts"]), _positive(query.get("prev_seq", "0"))] if "prev_ts" in query else None
        message_id = [stream, partition, timestamp, sequence, query.get("address", ""), query.get("msgChainId", "")]
        try:
            content = body.decode()
        except UnicodeDecodeError:
            raise BadQuery(NO_BODY) from None
        if not content.strip():
            raise BadQuery(NO_BODY)
        row = [LATEST, message_id, previous, 27, 0, NONE, None, content, None, kind, query.get("signature")]
        return decode_message(row, jsontext.dumps(row))

    def _position(self, query: Mapping[str, str]) -> tuple[int, int]:
        """The timestamp and the sequence number of *query*; if both are missing, a position after the last one."""
        timestamp, sequence = query.get("ts"), query.get("seq")
        if timestamp or sequence:
            now = self._context.bus.clock()
            return _timestamp(timestamp) if timestamp else now, _positive(sequence) if sequence is not None else 0
        self._last = next_position(self._last, self._context.bus.clock())
        return self._last

    def _channel(self, stream: str, partition: int) -> str:
        if inbox_of(stream) is not None or key_exchange_address(stream) is not None:
            raise UnknownChannel(stream)
        return self._context.bus.channels.channel(NAME, channel_of(stream, partition))

    def authorize_history(self, caller: RestCaller, stream: str, partition: str) -> str:
        """The channel of a stream partition; raises `Forbidden` or `Unauthenticated` if the caller may not read it."""
        with _naming_stream(stream):
            channel = self._channel(stream, _number('Path parameter "partition"', partition))
        principal, _ = self._core_api.authenticate(caller)
        if not self._context.bus.allowed(principal, "history", channel):
            raise Forbidden("history", channel)
        return channel

    def _readable(self, caller: RestCaller, stream: str, partition: str) -> str:
        """The channel of an existing stream partition whose history the caller may read; counts the request."""
        channel = self.authorize_history(caller, stream, partition)
        if not self._core_api.exists(stream):
            raise UnknownChannel(stream)
        if int(partition) >= (partitions := self._context.streams.partitions(stream)):
            raise InvalidMessage(out_of_range(int(partition), partitions))
        self._core_api.pace(caller, channel)
        return channel


@contextmanager
def _naming_stream(stream: str) -> Iterator[None]:
    """Raise `UnknownChannel` with the name of the *stream* instead of the channel's."""
    try:
        yield
    except UnknownChannel:
        raise UnknownChannel(stream) from None


# Queries


def _version(query: Mapping[str, str]) -> int:
    version = _number('Query parameter "version"', query.get("version", str(LATEST)))
    if version not in LAYOUTS:
        raise BadQuery(f'Query parameter "version" is invalid: {version}')
    return version


def _last(query: Mapping[str, str]) -> int:
    return _number('Query parameter "count"', query.get("count", "1"))


def _from(query: Mapping[str, str]) -> MessageRange:
    _refuse_offsets(query)
    return MessageRange(_position(query, "from"), publisher=_publisher(query))


def _range(query: Mapping[str, str]) -> MessageRange:
    _refuse_offsets(query)
    start = _position(query, "from")
    if "toTimestamp" not in query:
        raise BadQuery(NO_END)
    chain = query.get("msgChainId")
    if (_publisher(query) is None) != (chain is None):
        raise BadQuery('Invalid combination of "publisherId" and "msgChainId"')
    return MessageRange(start, _position(query, "to", MAX_INTEGER), _publisher(query), chain)


QUERIES: dict[str, Callable[[Mapping[str, str]], MessageRange | int]] = {"last": _last, "from": _from, "range": _range}


def _position(query: Mapping[str, str], side: str, default: int = 0) -> tuple[int, int]:
    timestamp, sequence = f"{side}Timestamp", f"{side}SequenceNumber"
    if timestamp not in query:
        raise BadQuery(f'Query parameter "{timestamp}" required.')
    at = _number(f'Query parameter "{timestamp}"', query[timestamp])
    return at, _number(f'Query parameter "{sequence}"', query[sequence]) if sequence in query else default


def _publisher(query: Mapping[str, str]) -> str | None:
    publisher = query.get("publisherId")
    return None if publisher is None else publisher.lower()


def _refuse_offsets(query: Mapping[str, str]) -> None:
    if "fromOffset" in query or "toOffset" in query:
        raise BadQuery(NO_OFFSETS)


def _number(what: str, text: str) -> int:
    found = _digits(text)
    if found is None:
        raise BadQuery(f"{what} not a number: {text}")
    return found


def _positive(text: str) -> int:
    found = _digits(text)
    if found is None:
        raise BadQuery(f"{text} is not a valid positive integer")
    return found


def _digits(text: str) -> int | None:
    """The integer in *text*; None if it is not one, or too large for JSON readers to keep exactly."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_INTEGER)) or int(text) > MAX_INTEGER:
        return None
    return int(text)


def _timestamp(text: str) -> int:
    """The timestamp (ms since 1970) in *text*, which is an integer or ISO 8601 (UTC unless it has an offset)."""
    found = _digits(text)
    if found is not None:
        return found
    try:
        moment = datetime.fromisoformat(text)
        ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        ms = -1
    if ms < 0:
        raise BadQuery(f"Invalid timestamp: {text}")
    return ms


# Formats


def _object(message: StreamMessage, _version: int) -> bytes:
    """The message as an object; content that is not encrypted is a JSON value, in the text that was received."""
    stream, partition, timestamp, sequence, publisher, chain = message.id
    head: dict[str, Any] = {
        "streamId": stream,
        "streamPartition": partition,
        "timestamp": timestamp,
        "sequenceNumber": sequence,
        "publisherId": publisher,
        "msgChainId": chain,
        "messageType": message.message_type,
        "contentType": 0,
        "encryptionType": message.encryption_type,
        "groupKeyId": message.group_key_id,
    }
    plain = message.encryption_type == NONE
    content = message.content.encode(errors="backslashreplace") if plain else jsontext.dumps(message.content)
    tail = jsontext.dumps({"signatureType": message.signature_type, "signature": message.signature})
    return jsontext.dumps(head)[:-1] + b',"content":' + content + b"," + tail[1:]


def _text(message: StreamMessage, version: int) -> bytes:
    return jsontext.dumps(message.encode(version).decode())


class Format(NamedTuple):
    """The format of an answer: media type, text before, between and after the messages, and a message's text."""

    media_type: str
    before: bytes
    between: bytes
    behind: bytes
    show: Callable[[StreamMessage, int], bytes]


FORMATS = {
    "object": Format("application/json", b"[", b",", b"]", _object),
    "protocol": Format("application/json", b"[", b",", b"]", _text),
    "raw": Format("text/plain", b"", b"\n", b"", lambda message, version: jsontext.one_line(message.encode(version))),
}
