"""Streamr's forms of messages, and the position of each in its stream partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from adapters.streamr.model.bridge_signer import ChainLink
from adapters.streamr.model.stored import ChainPosition
from adapters.streamr.wire.claims import with_claim
from adapters.streamr.wire.codec import FORM_KEYS, encode_broadcast
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.message import LATEST, StreamMessage, has_expired, parse_message
from gateway.core.frames import text_frame
from gateway.core.jsontext import dumps
from gateway.core.message import Form, Message, PendingForm
from gateway.core.shared_ids import shared_id

if TYPE_CHECKING:
    from adapters.streamr.model.bridge_signer import BridgeSigner
    from adapters.streamr.model.streams import Streams

UTF16_VERSION = 31  # of messages: only clients before 4.0 ask for it
MAX_CONTENT = (1 << 20) - 4096  # bytes of a content as a JSON string, so that a frame is no longer than the broker's

# The versions that a form is for: of the control frame and of the message.
WITH_ID = f"{NAME}/id"  # for a gateway, which knows messages by their ids (`wire.claims`)
VERSIONS = {key: versions for versions, key in FORM_KEYS.items()} | {WITH_ID: (2, LATEST)}
# The keys of the signed array of a foreign message; clients that read version 31 check signatures in their own way.
SIGNED, SIGNED_UTF16 = f"{NAME}/row", f"{NAME}/row/utf16"


class Forms:
    """Makes forms. The *signer* signs what comes from other protocols; *clock* is the bus's, in ms."""

    def __init__(self, signer: BridgeSigner, streams: Streams, clock: Callable[[], int]) -> None:
        self._signer = signer
        self._streams = streams
        self._clock = clock

    def add_refs(self, run: Sequence[Message]) -> None:
        """Store each message's position in its sender's chain, and mark the messages that do not fit.

        See `Adapter.add_refs`.
        """
        rules = self._streams.channel_rules(run[0].channel)
        encrypt = rules is not None and rules.require_encrypted_data
        fit = [m for m in run if 2 * len(m.content) <= MAX_CONTENT or _has_room(m.content, encrypt)] if rules else []
        if fit:
            self._signer.add_refs(fit, encrypt=encrypt)
        if len(fit) < len(run):
            for message in run:
                if message not in fit:
                    message.undelivered += (NAME,)

    # Live

    def form(self, message: Message, key: str) -> Form:
        """The BroadcastMessage, as a frame; *key* is of `VERSIONS`, for a direct message with the inbox behind it."""
        pair, _, inbox = key.partition("/@")
        version = VERSIONS[pair][1]
        found: StreamMessage | None
        if inbox and not _is_native(message):
            found = self._signer.sign_direct(message, inbox, utf16=version == UTF16_VERSION)
        else:
            found = self.stream_message(message, version)
        if found is not None and pair == WITH_ID:
            found = with_claim(found, shared_id(message))
        return (found and self.frame(found, pair)) or PendingForm.skipped()

    def fits(self, message: Message, key: str) -> bool:
        """Whether a client with the versions of *key* can be shown a direct *message*.

        The message has no id yet.
        """
        if _is_native(message):
            return parse_message(message.wire or b"").is_lossless_in(VERSIONS[key][1])
        return _has_room(message.content, encrypt=False)

    def frame(self, message: StreamMessage, key: str) -> bytes | None:
        """*message* for a client with the versions of *key*; None if those cannot carry all of it."""
        control, version = VERSIONS[key]
        return (
            text_frame(encode_broadcast(control, message.encode(version))) if message.is_lossless_in(version) else None
        )

    # Live or out of the log

    def stream_message(self, message: Message, version: int = LATEST) -> StreamMessage | None:
        """The stream message of *message*, live or from the log; None if it has no form in Streamr.

        What comes from elsewhere is signed for readers of *version*; `StreamMessage.encode` writes it.
        """
        if _is_native(message):
            return parse_message(message.wire or b"")
        if NAME not in message.refs:
            return None
        row = message.form(SIGNED_UTF16 if version == UTF16_VERSION else SIGNED, self._sign)
        assert isinstance(row, bytes)
        return parse_message(row)

    def encode_stored(self, message: Message, version: int, *, with_id: bool = False) -> bytes | None:
        """The array of a *message* from the log in *version*; None if *version* cannot carry all of it.

        Gateways get it *with_id*.
        """
        found = self.stream_message(message, version)
        if with_id and found is not None:
            found = with_claim(found, shared_id(message))
        return found.encode(version) if found is not None and found.is_lossless_in(version) else None

    def can_show(self, version: int, message: Message) -> bool:
        """Whether `encode_stored` returns an array for *version*; nothing is signed to find out."""
        if self.position(message) is None:
            return False
        if _is_native(message):
            return parse_message(message.wire or b"").is_lossless_in(version)
        return version != 30 or len(message.refs[NAME]) < len(ChainLink._fields)  # those of all fields are encrypted

    def position(self, message: Message) -> ChainPosition | None:
        """The position of *message* in its partition; None if it has no form in Streamr, or has expired (S1, ttl)."""
        if message.protocol == NAME and message.native is not None:
            _, _, timestamp, sequence, publisher, chain = message.native[NAME]
            if message.wire is not None and has_expired(message.wire, self._clock()):
                return None
            return ChainPosition(timestamp, sequence, publisher, chain)
        return self._signer.position(message) if NAME in message.refs else None

    def _sign(self, message: Message, key: str) -> bytes:
        return self._signer.sign(message, utf16=key == SIGNED_UTF16).encode(LATEST)


def _is_native(message: Message) -> bool:
    return message.protocol == NAME and message.wire is not None


def _has_room(content: bytes, encrypt: bool) -> bool:
    return 2 * len(content) <= MAX_CONTENT or not (encrypt or len(_quoted(content)) > MAX_CONTENT)


def _quoted(content: bytes) -> bytes:
    return dumps(content.decode())
