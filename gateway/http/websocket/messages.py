"""The messages that clients send on `/v1/ws`, as types: the grammar, and the source of their JSON Schemas.

A field that is not in a type is refused, because a misspelled one would be ignored. `content` stays the text that was
received. `request` is the client's own name for a request; every answer repeats it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from gateway.core.errors import RequestError
from gateway.http.replay import PAGE
from gateway.http.routing import MAX_INTEGER

PATH = "/v1/ws"
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
RequestId = int | Annotated[str, msgspec.Meta(max_length=128)] | None


def _tag(name: str) -> str:
    """The `type` of messages of the class *name*: `subscribe` for `SubscribeCommand`."""
    return name.removesuffix("Command").lower()


class Request(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, tag=_tag, kw_only=True):
    """A message of a client. Every one may have a `request`."""

    request: RequestId = None


class SubscribeCommand(Request):
    """Listen to a channel or to a pattern, from now on or after a sequence."""

    channel: str | None = None
    pattern: str | None = None
    after: Number | None = None


class UnsubscribeCommand(Request):
    """Stop listening."""

    channel: str | None = None
    pattern: str | None = None


class PublishCommand(Request):
    """Publish; answered once it is on disk. With an `idempotencyKey`, a repeated message is published once."""

    channel: str
    content: msgspec.Raw
    idempotencyKey: str | None = None  # noqa: N815  # as it stands in messages


class DirectCommand(Request):
    """Send to one peer in a channel."""

    channel: str
    peer: Number
    content: msgspec.Raw


class HistoryCommand(Request):
    """Ask for a page of history: at most 32 messages; `next` of the answer says where the next page begins."""

    channel: str
    after: Number = 0
    before: Number | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE)] = PAGE
    newestFirst: bool = False  # noqa: N815


class PresenceCommand(Request):
    """Ask for the peers in a channel."""

    channel: str


class PingCommand(Request):
    """Ask whether the connection works."""


KINDS: tuple[type[Request], ...] = (
    SubscribeCommand,
    UnsubscribeCommand,
    PublishCommand,
    DirectCommand,
    HistoryCommand,
    PresenceCommand,
    PingCommand,
)


class _Named(msgspec.Struct):
    request: RequestId = None


_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    SubscribeCommand
    | UnsubscribeCommand
    | PublishCommand
    | DirectCommand
    | HistoryCommand
    | PresenceCommand
    | PingCommand
)
_NAMED = msgspec.json.Decoder(_Named)
_OTHER_ESCAPES = tuple(rb"\u" + digit.encode() for digit in "0123456789abcefABCEF")  # beginnings; none of a surrogate


class MalformedMessage(RequestError):
    """A message of a client is not valid; *request* is its name, if that can be read."""

    def __init__(self, request: RequestId, reason: str) -> None:
        super().__init__(reason)
        self.request = request


def type_of(kind: type[Request]) -> str:
    """The `type` of messages of the class *kind*, as it stands in them."""
    return _tag(kind.__name__)


def decode(data: bytes) -> Any:
    """Return the request in *data*; raise `MalformedMessage`."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "nested too deeply"
    if (found := _decode_lone_surrogates(data)) is not None:
        return found
    try:
        request = _NAMED.decode(data).request
    except (msgspec.DecodeError, RecursionError):
        request = None
    raise MalformedMessage(request, reason)


def _decode_lone_surrogates(data: bytes) -> Any:
    """Return the request in *data* whose content has a lone surrogate, which JSON allows and msgspec does not.

    JavaScript writes half of a character as an escape (ECMA-262, `JSON.stringify`), and `POST` takes it. Escapes of
    surrogates are read as others that *data* does not have, and put back into the content. None if that does not help,
    or if such an escape is in another field, where it would be read as another character.
    """
    if rb"\ud" not in data and rb"\uD" not in data:
        return None
    free = [prefix for prefix in _OTHER_ESCAPES if prefix not in data][:2]
    if len(free) < 2:
        return None
    swaps = tuple(zip((rb"\ud", rb"\uD"), free, strict=True))
    text = data
    for surrogate, other in swaps:
        text = text.replace(surrogate, other)
    try:
        found = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(found, PublishCommand | DirectCommand):
        return None
    content = bytes(found.content)
    for surrogate, other in swaps:
        if content.count(other) != text.count(other):
            return None
        content = content.replace(other, surrogate)
    found.content = msgspec.Raw(content)
    return found
