"""The ids by which linked gateways know a message, whichever way it comes.

Each gateway gives what it accepts an id of its own, so by links of several protocols in a ring a message would come
back as a new one for ever. A link therefore tells the id that the first gateway gave, and the others keep it.

Every listener knows the id of a message, and nothing proves who may use it: senders have other numbers and keys at
each gateway. So an id that was told makes a message a copy only of one that says the same on the same channel. If the
id belongs to something else, both are kept: the second under an id of its own, and found again by `_second_id`.
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


class Told(NamedTuple):
    """What a message is that came with an id of another gateway.

    `copy` says whether it is a copy: of `known`, or of a message that has left the log. Otherwise `name` is what it is
    to be found by: the id, or a text that contains it if the id belongs to something else; then it is `taken`.
    """

    copy: bool
    name: str = ""
    taken: bool = False
    known: Message | None = None

    def name_message(self, message: Message) -> None:
        """Give *message* the id that was told as its own, unless that is taken."""
        if self.taken:
            message.ids += (self.name,)
        else:
            message.id = self.name


NOTHING: Final = Told(copy=False)  # of a message without such an id


def is_canonical(id: str) -> bool:
    """Whether *id* looks like one that a gateway gave; ids of protocols have to be proved by signatures instead."""
    return _CANONICAL.fullmatch(id) is not None


def shared_id(message: Message) -> str:
    """The id by which gateways know *message*: the one that a link told, else the one that it got here."""
    return next((found[1] for each in message.ids if (found := _SHARED.fullmatch(each))), message.id)


def common_id(id: str, ids: Sequence[str]) -> str:
    """The text by which two gateways compare what they have, for a message with the canonical *id* and other *ids*.

    It is the id that a link told; else the first that its author gave it; else the one that it got here.
    """
    return next(filter(is_canonical, ids), ids[0] if ids else id)


def canonical_in(common: str) -> str:
    """The canonical id in a *common* id; empty if a protocol gave it."""
    found = _SHARED.fullmatch(common)
    return "" if found is None else found[1]


def time_of(canonical: str) -> int:
    """When the message with a *canonical* id was accepted where it was accepted first, ms."""
    return int(canonical[:8] + canonical[9:13], 16)


def judge(bus: Bus, id: str, protocol: str, channel: str, content: bytes, *, any_channel: bool = False) -> Told:
    """What a message is that came by *protocol* and is called *id*, a canonical id, by another gateway.

    With *any_channel* a message on another channel may be the same: that gateway has other names for channels.
    """
    known = bus.find_message(id)
    if known is None:
        return Told(bus.stamper.made(id), id)
    if (any_channel or known.channel == channel) and is_same(known.content, content):
        return Told(copy=True, known=known)
    second = _second_id(id, channel, content)
    if (known := bus.find_message(second)) is not None:
        return Told(copy=True, known=known)
    bus.metrics.id_taken(protocol)
    logger.warning("an id of another gateway belongs to something else: %s by %s in %s", id, protocol, channel)
    return Told(copy=False, name=second, taken=True)


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two contents are the same JSON value, apart from the id of the message that they answer."""
    return one == other or _normal(one) == _normal(other)


def _second_id(id: str, channel: str, content: bytes) -> str:
    """What a message is found by whose *id* belongs to something else: the id, and what nothing else can have."""
    return f"{id} {sha256(channel.encode() + bytes(1) + _normal(content)).hexdigest()}"


def _normal(content: bytes) -> bytes:
    """*content* in its normal form without `inReplyTo`, which has another id at each gateway; text if that is much."""
    if len(content) > MAX_COMPARED or has_more_values(content, MAX_VALUES):
        return content.strip()
    return normal_form(content, "inReplyTo")
