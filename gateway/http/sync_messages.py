"""Messages that one gateway hands over to another, a line of JSON each, written and taken.

A message with a canonical id is published as the caller's, under that id, because nothing proves who wrote it. Any
other got its id from its author, in a protocol: the line has its exact text, and that protocol's adapter checks and
publishes it, signed as it is. `gateway.core.shared_ids` says which id a message has for other gateways.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from itertools import islice
from typing import Annotated, Final

import msgspec

from gateway.adapter import Adapter
from gateway.core.channels import valid_name
from gateway.core.errors import Incomplete, UnknownChannel
from gateway.core.jsontext import check, dumps, one_line
from gateway.core.message import LATE_AFTER, REST, Message, TakingOver
from gateway.core.shared_ids import canonical_in, common_id, is_canonical, match_shared_id
from gateway.reconciliation.reading import digest_of
from gateway.runtime import Gateway, clock

from .callers import Caller
from .media import MAX_CONTENT, TOO_LONG
from .problems import Problem

AHEAD: Final = 300_000  # ms that an author's time may be ahead of the clock here
MAX_NEEDS: Final = 64  # texts that a line carries for its message
ACCEPTED, KNOWN = b"accepted", b"known"


class Handed(msgspec.Struct, rename="camel"):
    """A line. `timestamp` is in ms; `wire` is the exact text of a message that has its id from a protocol.

    `needs` are texts of that protocol that have to be taken before it, and are no messages.
    """

    id: str
    channel: str
    protocol: str
    timestamp: int
    content: msgspec.Raw
    in_reply_to: str | None = None
    wire: str | None = None
    needs: Annotated[list[str], msgspec.Meta(max_length=MAX_NEEDS)] = []


_DECODER: Final = msgspec.json.Decoder(Handed)


def line_of(gateway: Gateway, message: Message, given: set[bytes]) -> bytes:
    """Return *message* as a line for another gateway, with the digest by which sets are compared.

    The line has the texts that the message needs, except those in *given*, to which they are added.
    """
    common = common_id(message.id, message.ids)
    parent = None if message.parent is None else gateway.index.message(message.parent)
    wire, needs = None, list[str]()
    if not canonical_in(common) and message.wire is not None:
        wire = message.wire.decode()
        for each in islice(_needed_by(gateway, message, given), MAX_NEEDS):
            given.add(each)
            needs.append(each.decode())
    return (
        b'{"digest":"%b","id":%b,"channel":%b,"protocol":%b,"timestamp":%d,"inReplyTo":%b,"wire":%b,"needs":%b,"content":%b}\n'
        % (
            digest_of(common).hex().encode(),
            dumps(_name(message)),
            dumps(message.channel),
            dumps(message.protocol),
            message.timestamp,
            dumps(message.parent if parent is None else _name(parent)),
            dumps(wire),
            dumps(needs),
            one_line(message.content),
        )
    )


def _needed_by(gateway: Gateway, message: Message, given: Collection[bytes]) -> Iterator[bytes]:
    adapter = _adapter(gateway, message.protocol)
    return iter(()) if adapter is None else (each for each in adapter.needed_by(message) if each not in given)


def _adapter(gateway: Gateway, protocol: str) -> Adapter | None:
    return next((each for each in gateway.adapters if each.name == protocol), None)


def _name(message: Message) -> str:
    common = common_id(message.id, message.ids)
    return canonical_in(common) or common


def parse_line(line: bytes) -> Handed:
    """Parse *line*; raise `Problem` if it is not a message."""
    try:
        handed = _DECODER.decode(line)
        check(bytes(handed.content))
    except (ValueError, RecursionError) as error:
        raise Problem("malformed-content", f"the line is not a message of another gateway: {error}") from None
    if len(handed.content) > MAX_CONTENT:
        raise Problem("content-too-long", TOO_LONG)
    return handed


def take(caller: Caller, handed: Handed) -> Generator[None, None, Message | bool]:
    """Publish, in steps, the message that another gateway *handed* over; return it, or False if it is known here.

    If an adapter takes it, return whether it was new. Raises `RequestError` if it is refused.
    """
    gateway, channel = caller.gateway, handed.channel
    if not valid_name(channel):
        raise UnknownChannel(channel)
    caller.authorize("publish", channel)
    if not is_canonical(handed.id):
        return (yield from _take_native(caller, handed))
    content, now = one_line(bytes(handed.content)), clock()
    found = match_shared_id(gateway.bus, handed.id, REST, channel, content)
    if found.is_copy:
        return False
    if not 0 <= handed.timestamp <= now + AHEAD:
        raise Problem("invalid-parameter", "timestamp: it is not a time until now")
    caller.charge_creation(channel)
    message = Message(channel, caller.who, REST, content, parent=handed.in_reply_to)
    message.timestamp, message.late = handed.timestamp, handed.timestamp < now - LATE_AFTER
    found.name_message(message)
    return gateway.bus.publish(message)


def _take_native(caller: Caller, handed: Handed) -> TakingOver:
    adapter = _adapter(caller.gateway, handed.protocol)
    if adapter is None or handed.wire is None:
        raise Problem(
            "request-refused", f"{handed.protocol!r} is not a protocol here whose messages can be transferred"
        )
    needs = [each.encode() for each in handed.needs]
    return (yield from adapter.take_over(handed.wire.encode(), needs, handed.channel, caller.principal, caller.who))


def result(handed: Handed, new: bool) -> bytes:
    """Return the result line of a message that was not refused."""
    return b'{"id":%b,"status":"%b"}\n' % (dumps(handed.id), ACCEPTED if new else KNOWN)


def incomplete(handed: Handed, error: Incomplete) -> bytes:
    """Return the result line of a message that needs others first."""
    return b'{"id":%b,"status":"incomplete","missing":%b,"detail":%b}\n' % (
        dumps(handed.id),
        dumps([*error.missing]),
        dumps(str(error)),
    )
