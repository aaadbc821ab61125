"""What is wrong with a Streamr entry of a log: its shape, which every start checks, and the signatures of messages."""

from __future__ import annotations

from typing import Any

from adapters.streamr.crypto.signing import verify
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.message import parse_message
from gateway.core.channels import MAX_NAME
from gateway.core.message import Message
from gateway.storage.record import Fact
from gateway.storage.record_schema import MAX_NUMBER

MAX_LINK = 5  # values of a link in a chain (`author.ChainLink`)


def flaw(entry: Message | Fact) -> str | None:
    """What is wrong with Streamr's part of *entry*, None if nothing is; signatures are not verified."""
    if not isinstance(entry, Message):
        return _fact_flaw(entry)
    if (link := entry.refs.get(NAME)) is not None and not _is_link(link):
        return "its link in the chain of messages is not valid"
    if entry.protocol != NAME or entry.native is None:
        return None
    if entry.wire is None:
        return "its text is missing"
    try:
        stream, partition, timestamp, sequence, publisher, chain = parse_message(entry.wire).id
    except (StreamrError, ValueError) as error:
        return f"its text is not a message: {error}"
    native = [stream, partition, timestamp, sequence, publisher.lower(), chain]
    return None if entry.native.get(NAME) == native else "its id is not the id of its text"


def _fact_flaw(fact: Fact) -> str | None:
    native = fact.fields.get("native")
    if fact.kind == "channel":
        return None if fact.fields["addresses"].get(NAME) in (None, fact.fields["channel"]) else "no such stream"
    if (
        fact.kind == "entity"
        and fact.protocol == NAME
        and not (type(native) is dict and type(native.get(NAME)) is str and 0 < len(native[NAME]) <= MAX_NAME)
    ):
        return "it describes no stream"
    return None


def _is_link(link: Any) -> bool:
    """Whether *link* has the shape of a place in a chain: two integers, then integers or None."""
    if type(link) is not list or not 2 <= len(link) <= MAX_LINK or link[0] is None or link[1] is None:
        return False
    for each in link:  # every start does this for every message, and `all` takes four times as long
        if each is not None and (type(each) is not int or not -MAX_NUMBER <= each <= MAX_NUMBER):
            return False
    return True


def signature_flaw(entry: Message | Fact) -> str | None:
    """What is wrong with the signature in *entry*, None if nothing is or if it holds no stream message."""
    if not isinstance(entry, Message) or entry.protocol != NAME or entry.wire is None:
        return None
    try:
        message = parse_message(entry.wire)
    except StreamrError as error:
        return str(error)
    return "a forged signature" if message.signature and not verify(message) else None
