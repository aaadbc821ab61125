"""The ids by which linked gateways know a message, whichever way it comes.

Each gateway gives what it accepts an id of its own, so by links of several protocols in a ring a message would come
back as a new one for ever. A link therefore tells the id that the first gateway gave, and the others keep it.

Every listener knows the id of a message, and nothing proves who may use it: senders have other numbers and keys at
each gateway. So a message that comes with such an id is a copy only of one that has the same content on the same
channel. If the id belongs to another message, both are kept: the second under an id of its own, and found again by
`second_id`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from .jsontext import MAX_VALUES, normal_form
from .message import Message
from .nesting import has_more_values

if TYPE_CHECKING:
    from .bus import Bus

MAX_COMPARED: Final = 1 << 16  # bytes of a content that is compared as a value; a longer one is compared as text

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
_CANONICAL: Final = re.compile(_UUID, re.ASCII)
_SHARED: Final = re.compile(rf"({_UUID})(?: [0-9a-f]{{64}})?", re.ASCII)

logger = logging.getLogger(__name__)


class SharedIdMatch(NamedTuple):
    """The result of comparing a message that came with an id of another gateway with known messages.

    It may be a copy: of `original`, or of a message that has left the log. Otherwise it is to be found by `id`: the id
    that it came with or, if that belongs to another message (`is_taken`), a text that contains it.
    """

    is_copy: bool
    id: str = ""
    is_taken: bool = False
    original: Message | None = None

    def name_message(self, message: Message) -> None:
        """Give *message* the id that it came with, unless that is taken."""
        if self.is_taken:
            message.ids += (self.id,)
        else:
            message.id = self.id


NO_SHARED_ID: Final = SharedIdMatch(is_copy=False)  # of a message that came without such an id


def is_canonical(id: str) -> bool:
    """Whether *id* looks like one that a gateway gave; ids of protocols have to be proved by signatures instead."""
    return _CANONICAL.fullmatch(id) is not None


def shared_id(message: Message) -> str:
    """The id by which gateways know *message*: the one that it came with, else the one that it got here."""
    return next((found[1] for each in message.ids if (found := _SHARED.fullmatch(each))), message.id)


def common_id(id: str, ids: Sequence[str]) -> str:
    """The text by which two gateways compare what they have, for a message with the canonical *id* and other *ids*.

    It is the canonical id that it came with; else the first id that its author gave it; else the one that it got here.
    """
    return next(filter(is_canonical, ids), ids[0] if ids else id)


def canonical_in(common: str) -> str:
    """The canonical id in a *common* id; empty if a protocol gave it."""
    found = _SHARED.fullmatch(common)
    return "" if found is None else found[1]


def time_of(canonical: str) -> int:
    """The time (ms) at which the first gateway accepted the message with this *canonical* id."""
    return int(canonical[:8] + canonical[9:13], 16)


def match_shared_id(
    bus: Bus, id: str, protocol: str, channel: str, content: bytes, *, any_channel: bool = False
) -> SharedIdMatch:
    """Compare a message that came by *protocol*, with the canonical *id* of another gateway, with those on *bus*.

    With *any_channel* the original may be on another channel, because that gateway has other names for channels.
    """
    known = bus.find_message(id)
    if known is None:
        return SharedIdMatch(bus.stamper.made(id), id)
    if (any_channel or known.channel == channel) and is_same(known.content, content):
        return SharedIdMatch(is_copy=True, original=known)
    second = second_id(id, channel, content)
    if (known := bus.find_message(second)) is not None:
        return SharedIdMatch(is_copy=True, original=known)
    bus.metrics.id_taken(protocol)
    logger.warning("an id of another gateway belongs to something else: %s by %s in %s", id, protocol, channel)
    return SharedIdMatch(is_copy=False, id=second, is_taken=True)


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two contents are the same JSON value, apart from the id of the message that they answer."""
    return one == other or _normal(one) == _normal(other)


def second_id(id: str, channel: str, content: bytes) -> str:
    """The text by which a message is found whose *id* belongs to another: the id, and a digest of the message."""
    return f"{id} {sha256(channel.encode() + bytes(1) + _normal(content)).hexdigest()}"


def _normal(content: bytes) -> bytes:
    """*content* in its normal form without `inReplyTo`, which differs between gateways; a long one only stripped."""
    if len(content) > MAX_COMPARED or has_more_values(content, MAX_VALUES):
        return content.strip()
    return normal_form(content, "inReplyTo")
