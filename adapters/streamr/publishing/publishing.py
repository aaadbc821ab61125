"""What a published stream message has to be, and what becomes of it on the bus.

The checks are those of the reference's broker and of the validator in its library, in their words, with the
departures that docs/protocols.md names.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from adapters.streamr.crypto.signing import digests, verify
from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.codec import FORM_KEYS, encode_broadcast
from adapters.streamr.wire.errors import FUTURE_TIMESTAMP, StreamrError
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.invalid import Invalid, forged, invalid
from adapters.streamr.wire.message import StreamMessage, parse_message
from gateway.core import jsontext
from gateway.core.bus import DIRECT_ID_LIFETIME
from gateway.core.channels import MAX_NAME
from gateway.core.frames import text_frame
from gateway.core.message import Form, Message, Peer
from gateway.storage.record import Fact
from gateway.storage.record_schema import MAX_NUMBER

MAX_AHEAD = 300_000  # ms that a timestamp may lie in the future
DIRECT_SKEW = DIRECT_ID_LIFETIME // 2  # ms, before and after: together what the bus remembers of direct messages
MAX_LINK = 5  # values of a place in a chain (`author.Link`)
MAX_CHAIN = 255  # characters of a msgChainId; genuine clients use 20
SIGNED_BYTES = 16  # of the digest of what was signed: nobody finds two texts with the same ones
MAX_BEGINNING = 320  # characters of what was signed, in which its time is looked for
TIME_DIGITS = 13  # of a timestamp, at least
OF_STREAMS = frozenset(
    {kinds.MESSAGE, kinds.GROUP_KEY_ROTATE}
)  # types that belong to a stream, not to the key exchange

Ids = tuple[list[str | int], tuple[str, ...]]  # what `Message.native` and `Message.ids` say of one


def check(message: StreamMessage, now: int, partitions: int) -> None:
    """Raise unless *message* can be said on a stream with so many *partitions*; *now* is in ms."""
    check_time(message, now)
    if message.message_type not in OF_STREAMS:
        raise invalid(
            f"{message.message_type} can only occur on stream ids of form SYSTEM/keyexchange/{{address}}", message
        )
    if message.id.stream_partition >= partitions:
        raise invalid(out_of_range(message.id.stream_partition, partitions), message)
    if len(message.id.msg_chain_id) > MAX_CHAIN or not _is_text(message.id.publisher_id + message.id.msg_chain_id):
        raise invalid(f"A msgChainId has at most {MAX_CHAIN} characters, and none of them is half of one", message)
    if message.encryption_type == kinds.NONE and not jsontext.is_json(message.content):
        try:
            message.check_content()  # which says what is wrong
        except StreamrError as error:
            raise Invalid(error.message) from None


def check_direct(message: StreamMessage, now: int, started: int) -> None:
    """Raise unless *message* is so new that its id cannot have been forgotten since it was said first.

    Nothing is remembered of what was signed before the gateway *started*; unsigned texts are nobody's to play again.
    """
    if abs(message.id.timestamp - now) > DIRECT_SKEW:
        raise invalid(f"The timestamp of a direct message must be within {DIRECT_SKEW} ms of the gateway's", message)
    if is_signed(message) and message.id.timestamp < started:
        raise invalid("The direct message was signed before the gateway started, and may be a copy", message)


def check_key_exchange(message: StreamMessage, now: int) -> None:
    """Raise unless *message* may pass through a key-exchange stream: there everything is signed."""
    check_time(message, now)
    if message.message_type == kinds.MESSAGE or message.id.stream_partition != 0:
        raise invalid("Key exchange streams have partition 0 and group-key messages only", message)
    if not message.signature:
        raise invalid(f"Received unsigned {message.message_type} (it must be signed to avoid MitM attacks)", message)
    check_signature(message)


def check_time(message: StreamMessage, now: int) -> None:
    """Raise unless the timestamp is past, give or take."""
    if message.id.timestamp > now + MAX_AHEAD:
        reason = f"future timestamps are not allowed, max allowed +{MAX_AHEAD} ms"
        text = f"Failed publish to stream {message.id.stream_id}, reason: {reason}"
        raise StreamrError(text, code=FUTURE_TIMESTAMP)


def check_signature(message: StreamMessage) -> None:
    """Raise `Forged` unless the publisher signed *message*."""
    if not verify(message):
        raise forged(message)


def out_of_range(partition: int, partitions: int) -> str:
    """What is wrong with *partition*."""
    return f"Partition {partition} is out of range (0..{partitions - 1})"


def is_signed(message: StreamMessage) -> bool:
    """Whether *message* claims to be signed."""
    return message.signature_type != kinds.UNSIGNED or bool(message.signature)


def is_clear_cut(message: StreamMessage) -> bool:
    """Whether the signature leaves no doubt which of the digits in it are the timestamp and the sequence number.

    Behind them stands `0x`, before them the partition, and before that the stream; of the dates that other cuts would
    give, none is near. Legacy signatures do not cover the sequence number.
    """
    stream, partition = message.id[:2]
    return message.signature_type == kinds.ETH and partition < 10 and not stream[-1:].isdigit()


def ids_of(message: StreamMessage) -> Ids:
    """The message id, with the publisher as the signature has it; and the texts by which a copy is recognised.

    The first of those is the id as JSON. Whoever likes can use the id of an unsigned message, so the SHA-256 of its
    content is part of that. A signature covers the fields without anything between them, or only some of them: so what
    was signed has a name of its own, lest the same text comes again cut into other fields.
    """
    stream, partition, timestamp, sequence, publisher, chain = message.id
    native: list[str | int] = [stream, partition, timestamp, sequence, publisher.lower(), chain]
    if not is_signed(message):
        content = message.content.encode(errors="backslashreplace")
        return native, (jsontext.dumps([*native, sha256(content).hexdigest()]).decode(),)
    names = [jsontext.dumps(native).decode()]
    if message.signature:
        for text, digest in digests(message).items():
            names.append(f"eth:{_beginning(text)}{digest[:SIGNED_BYTES].hex()}")
    return native, tuple(names)


def _beginning(text: str) -> str:
    """How a signed *text* begins, mostly down to its time: so what comes together stands together in the index."""
    at = text.find("0x", TIME_DIGITS, MAX_BEGINNING)  # a pattern takes twice as long
    while at > 0:
        if (time := text[at - TIME_DIGITS : at]).isdigit() and time.isascii():
            return text[: at + 2]
        at = text.find("0x", at + 1, MAX_BEGINNING)
    return ""


def as_sent(message: StreamMessage, ids: Ids, channel: str, sender: Peer, control: int) -> Message:
    """The bus's message for *message*, which *sender* says on *channel*; *ids* are its own, as by `ids_of`.

    It has the form for those who speak *control* and its own version.
    """
    native, names = ids
    forms: dict[str, Form] = {}
    if message.verbatim and message.wire is not None:
        forms[FORM_KEYS[control, message.version]] = text_frame(encode_broadcast(control, message.wire))
    content, parent, timestamp = message.json_content(), answered(message), message.id.timestamp
    # By position: by name it would take twice as long, and one is made for each publish.
    return Message(
        channel, sender, NAME, content, message.wire, parent, forms, "", 0, 0, timestamp, None, names, {NAME: native}
    )


def flaw(entry: Message | Fact) -> str | None:
    """What of Streamr's makes no sense in *entry*, None if nothing does; signatures are not looked at."""
    if not isinstance(entry, Message):
        return _flaw_of_fact(entry)
    if (link := entry.refs.get(NAME)) is not None and not _is_link(link):
        return "its place in a chain is none"
    if entry.protocol != NAME or entry.native is None:
        return None
    if entry.wire is None:
        return "the message is missing"
    try:
        stream, partition, timestamp, sequence, publisher, chain = parse_message(entry.wire).id
    except (StreamrError, ValueError) as error:
        return f"it holds no message: {error}"
    native = [stream, partition, timestamp, sequence, publisher.lower(), chain]
    return None if entry.native.get(NAME) == native else "its id is another"


def _flaw_of_fact(fact: Fact) -> str | None:
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
    return (
        type(link) is list
        and 2 <= len(link) <= MAX_LINK
        and all(type(each) is int for each in link[:2])
        and all(each is None or (type(each) is int and abs(each) <= MAX_NUMBER) for each in link)
    )


def unproven(entry: Message | Fact) -> str | None:
    """What is wrong with the stream message in *entry*, None if nothing is or if it holds none."""
    if not isinstance(entry, Message) or entry.protocol != NAME or entry.wire is None:
        return None
    try:
        message = parse_message(entry.wire)
    except StreamrError as error:
        return str(error)
    return "a forged signature" if message.signature and not verify(message) else None


def answered(message: StreamMessage) -> str | None:
    """The id in the content's `inReplyTo`, if it has one."""
    if message.encryption_type != kinds.NONE or "inReplyTo" not in message.content:
        return None
    if len(message.content) > jsontext.SHORT_SIZE:  # no value is made of it
        return jsontext.check(message.content.encode(errors=jsontext.SURROGATE_ERRORS))
    content = message.parsed_content()
    parent = content.get("inReplyTo") if isinstance(content, dict) else None
    return parent if isinstance(parent, str) else None


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
