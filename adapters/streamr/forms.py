"""Streamr's forms of messages: what is shown of each, and where it stands in its stream partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from adapters.streamr.model.author import Link
from adapters.streamr.model.stored import Place
from adapters.streamr.wire.codec import FORM_KEYS, encode_broadcast
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.message import LATEST, StreamMessage, has_expired, parse_message
from gateway.core.frames import text_frame
from gateway.core.jsontext import dumps
from gateway.core.message import Form, Message, PendingForm

if TYPE_CHECKING:
    from adapters.streamr.model.author import Author
    from adapters.streamr.model.streams import Streams

UTF16_VERSION = 31  # of messages: only clients before 4.0 ask for it
MAX_CONTENT = (1 << 20) - 4096  # bytes of a content as JSON string: a frame is at most what the broker's would be

# The versions that a form is for: of the control frame and of the message.
PAIRS = {key: versions for versions, key in FORM_KEYS.items()}
# The keys of the signed array of a foreign message; clients that read version 31 check signatures in their own way.
SEALED, SEALED_UTF16 = f"{NAME}/row", f"{NAME}/row/utf16"


class Forms:
    """Makes forms. The *author* signs what comes from other protocols; *clock* is the bus's, in ms."""

    def __init__(self, author: Author, streams: Streams, clock: Callable[[], int]) -> None:
        self._author = author
        self._streams = streams
        self._clock = clock

    def add_refs(self, run: Sequence[Message]) -> None:
        """Note the places in their sender's chain, and what has none: see `Adapter.add_refs`."""
        rules = self._streams.demands(run[0].channel)
        encrypt = rules is not None and rules.require_encrypted_data
        fit = [m for m in run if 2 * len(m.content) <= MAX_CONTENT or _has_room(m.content, encrypt)] if rules else []
        if fit:
            self._author.add_refs(fit, encrypt=encrypt)
        if len(fit) < len(run):
            for message in run:
                if message not in fit:
                    message.undelivered += (NAME,)

    # Live

    def form(self, message: Message, key: str) -> Form:
        """The BroadcastMessage, as a frame; *key* is of `PAIRS`, for a direct message with the inbox behind it."""
        pair, _, inbox = key.partition("/@")
        version = PAIRS[pair][1]
        found: StreamMessage | None
        if inbox and not _is_native(message):
            found = self._author.seal_direct(message, inbox, utf16=version == UTF16_VERSION)
        else:
            found = self.stream_message(message, version)
        return (found and self.frame(found, pair)) or PendingForm.skipped()

    def fits(self, message: Message, key: str) -> bool:
        """Whether a client with the versions of *key* can be shown a direct *message*; it has no id yet."""
        if _is_native(message):
            return parse_message(message.wire or b"").is_lossless_in(PAIRS[key][1])
        return _has_room(message.content, encrypt=False)

    def frame(self, message: StreamMessage, key: str) -> bytes | None:
        """*message* for a client with the versions of *key*; None where those cannot show all of it."""
        control, version = PAIRS[key]
        return (
            text_frame(encode_broadcast(control, message.encode(version))) if message.is_lossless_in(version) else None
        )

    # Live or out of the log

    def stream_message(self, message: Message, version: int = LATEST) -> StreamMessage | None:
        """What a *message* is in Streamr, live or out of the log; None if it has no form here.

        What comes from elsewhere is signed for readers of *version*; `StreamMessage.encode` writes it.
        """
        if _is_native(message):
            return parse_message(message.wire or b"")
        if NAME not in message.refs:
            return None
        row = message.form(SEALED_UTF16 if version == UTF16_VERSION else SEALED, self._seal)
        assert isinstance(row, bytes)
        return parse_message(row)

    def stored_row(self, message: Message, version: int) -> bytes | None:
        """The array of a *message* out of the log in *version*; None where that cannot show all of it."""
        found = self.stream_message(message, version)
        return found.encode(version) if found is not None and found.is_lossless_in(version) else None

    def shows(self, version: int, message: Message) -> bool:
        """Whether `stored_row` has something for *version*; without signing anything."""
        if self.place(message) is None:
            return False
        if _is_native(message):
            return parse_message(message.wire or b"").is_lossless_in(version)
        return version != 30 or len(message.refs[NAME]) < len(Link._fields)  # those of all fields are encrypted

    def place(self, message: Message) -> Place | None:
        """Where *message* stands in its stream partition; None if it has no form here, or had its time (S1, ttl)."""
        if message.protocol == NAME and message.native is not None:
            _, _, timestamp, sequence, publisher, chain = message.native[NAME]
            if message.wire is not None and has_expired(message.wire, self._clock()):
                return None
            return Place(timestamp, sequence, publisher, chain)
        return self._author.place(message) if NAME in message.refs else None

    def _seal(self, message: Message, key: str) -> bytes:
        return self._author.seal(message, utf16=key == SEALED_UTF16).encode(LATEST)


def _is_native(message: Message) -> bool:
    return message.protocol == NAME and message.wire is not None


def _has_room(content: bytes, encrypt: bool) -> bool:
    return 2 * len(content) <= MAX_CONTENT or not (encrypt or len(_quoted(content)) > MAX_CONTENT)


def _quoted(content: bytes) -> bytes:
    return dumps(content.decode())
