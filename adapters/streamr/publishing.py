"""What a published stream message has to be, and what becomes of it on the bus.

The checks are those of the reference's broker and of the validator in its library, in their words, with the
departures that docs/protocols.md names.
"""

from __future__ import annotations

from hashlib import sha256

from gateway import jsontext
from gateway.bus import DIRECT_MEMORY
from gateway.errors import RequestError
from gateway.frames import text_frame
from gateway.message import Form, Message, Peer
from gateway.record import Fact

from . import message as kinds
from .codec import FORMS, encode_broadcast
from .errors import FUTURE_TIMESTAMP, StreamrError
from .ids import NAME
from .message import StreamMessage, parse_message
from .signing import digests, verify

MAX_AHEAD = 300_000  # ms that a timestamp may lie in the future
DIRECT_SKEW = DIRECT_MEMORY // 2  # ms, before and after: together what the bus remembers of direct messages
MAX_CHAIN = 255  # characters of a msgChainId; genuine clients use 20
MAX_SHOWN = 1_000  # characters of a refused message that the error repeats
SIGNED_BYTES = 16  # of the digest of what was signed: nobody finds two texts with the same ones
MAX_BEGINNING = 320  # characters of what was signed, in which its time is looked for
TIME_DIGITS = 13  # of a timestamp, at least
OF_STREAMS = frozenset(
    {kinds.MESSAGE, kinds.GROUP_KEY_ROTATE}
)  # types that belong to a stream, not to the key exchange

Ids = tuple[list[str | int], tuple[str, ...]]  # what `Message.native` and `Message.ids` say of one


class Invalid(RequestError):
    """A message that may not be published; the text is the validator's."""


def invalid(reason: str, message: StreamMessage) -> Invalid:
    """The error of the library's validator, which shows the message."""
    return Invalid(f"{reason}. Message: {message.row(kinds.LATEST).decode()[:MAX_SHOWN]}")


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
    if message.encryption_type == kinds.NONE:
        try:
            message.parsed_content()
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
    """Raise unless the publisher signed *message*."""
    if not verify(message):
        text = message.row(kinds.LATEST).decode()[:MAX_SHOWN]
        raise Invalid(f"Signature validation failed for message: {text}")


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
        forms[FORMS[control, message.version]] = text_frame(encode_broadcast(control, message.wire))
    content, parent, timestamp = message.json_content(), answered(message), message.id.timestamp
    # By position: by name it would take twice as long, and one is made for each publish.
    return Message(
        channel, sender, NAME, content, message.wire, parent, forms, "", 0, 0, timestamp, None, names, {NAME: native}
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
    content = message.parsed_content()
    parent = content.get("inReplyTo") if isinstance(content, dict) else None
    return parent if isinstance(parent, str) else None


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
