"""Stream messages as messages of the bus: their content, their parent, and the ids by which copies are recognised."""

from __future__ import annotations

from hashlib import sha256

from adapters.streamr.crypto.signing import digests
from adapters.streamr.model.positions import Author
from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.codec import FORM_KEYS, encode_broadcast
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.message import StreamMessage
from gateway.core import jsontext
from gateway.core.frames import text_frame
from gateway.core.message import Form, Message, Peer

from .validation import is_signed

DIGEST_BYTES = 16  # of the digest of a signed text: enough that nobody finds two texts that share them
MAX_PREFIX = 320  # characters of a signed text in which its timestamp is looked for
TIME_DIGITS = 13  # of a timestamp, at least

Ids = tuple[list[str | int], tuple[str, ...]]  # what `Message.native` and `Message.ids` hold for a stream message


def ids_of(message: StreamMessage) -> Ids:
    """The message id, its publisher in lower case, and the texts by which a copy is recognised.

    The first text is the id as JSON. Anybody can use the id of an unsigned message, so that text then includes the
    SHA-256 of the content. A signature covers the fields joined without separators, or only some of them, so a signed
    text has an id of its own: the same text split into other fields is still recognised.
    """
    stream, partition, timestamp, sequence, publisher, chain = message.id
    native: list[str | int] = [stream, partition, timestamp, sequence, publisher.lower(), chain]
    if not is_signed(message):
        content = message.content.encode(errors="backslashreplace")
        return native, (jsontext.dumps([*native, sha256(content).hexdigest()]).decode(),)
    names = [jsontext.dumps(native).decode()]
    if message.signature:
        for text, digest in digests(message).items():
            names.append(f"eth:{_signed_prefix(text)}{digest[:DIGEST_BYTES].hex()}")
    return native, tuple(names)


def author_of(message: StreamMessage) -> Author:
    """Whose positions count for *message*: a copy of it has the same author.

    A signed text can be split into a chain and a content in several ways, so its chain does not count.
    """
    publisher = message.id.publisher_id.lower()
    return publisher if is_signed(message) else (publisher, message.id.msg_chain_id)


def logged_author(message: Message) -> Author:
    """What `author_of` said of the stream message that was logged as *message*; only a signed one has several ids."""
    assert message.native is not None  # a stream message has its id there
    publisher, chain = message.native[NAME][4:6]
    return publisher if len(message.ids) > 1 else (publisher, chain)


def _signed_prefix(text: str) -> str:
    """The beginning of a signed *text*, usually up to its timestamp: ids that arrive together sort together."""
    at = text.find("0x", TIME_DIGITS, MAX_PREFIX)  # a pattern takes twice as long
    while at > 0:
        if (time := text[at - TIME_DIGITS : at]).isdigit() and time.isascii():
            return text[: at + 2]
        at = text.find("0x", at + 1, MAX_PREFIX)
    return ""


def to_bus_message(message: StreamMessage, ids: Ids, channel: str, sender: Peer, control: int) -> Message:
    """The bus's message for *message*, which *sender* publishes on *channel*; *ids* are those of `ids_of`.

    It carries the form for sessions that speak the *control* version and the version of *message*.
    """
    native, names = ids
    forms: dict[str, Form] = {}
    if message.verbatim and message.wire is not None:
        forms[FORM_KEYS[control, message.version]] = text_frame(encode_broadcast(control, message.wire))
    content, parent, timestamp = message.json_content(), parent_of(message), message.id.timestamp
    # By position: keywords would take twice as long, and each publish makes one.
    return Message(
        channel, sender, NAME, content, message.wire, parent, forms, "", 0, 0, timestamp, None, names, {NAME: native}
    )


def parent_of(message: StreamMessage) -> str | None:
    """The id in the content's `inReplyTo`; None if it has none, or if the content is encrypted."""
    if message.encryption_type != kinds.NONE or "inReplyTo" not in message.content:
        return None
    if len(message.content) > jsontext.SHORT_SIZE:  # scanned without making a value of it
        return jsontext.find_reply_id(message.content.encode(errors=jsontext.SURROGATE_ERRORS))
    content = message.parsed_content()
    parent = content.get("inReplyTo") if isinstance(content, dict) else None
    return parent if isinstance(parent, str) else None
