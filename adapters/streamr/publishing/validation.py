"""What a published stream message must be: the checks that need nothing but the message, the time and the settings.

The checks, and the wording of their errors, are those of the reference's broker and of the validator in its library;
docs/protocols.md names the departures.
"""

from __future__ import annotations

from adapters.streamr.crypto.signing import verify
from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.errors import FUTURE_TIMESTAMP, StreamrError
from adapters.streamr.wire.message import StreamMessage
from adapters.streamr.wire.validation_errors import InvalidMessage, invalid_message, invalid_signature
from gateway.core import jsontext
from gateway.core.directs import DIRECT_ID_LIFETIME
from gateway.core.message import LATE_AFTER

MAX_AHEAD = 300_000  # ms that a timestamp may lie in the future
DIRECT_SKEW = DIRECT_ID_LIFETIME // 2  # ms, before and after: together, how long the bus remembers direct messages
DIGITS = "0123456789"
TIME_DIGITS = 13  # of a timestamp: a date from 2001 to 2286
MAX_CHAIN = 255  # characters of a msgChainId; genuine clients use 20

# The message types that belong to a stream; the others belong to the key exchange.
STREAM_TYPES = frozenset({kinds.MESSAGE, kinds.GROUP_KEY_ROTATE})


def check_message(message: StreamMessage, now: int, partitions: int) -> None:
    """Raise unless *message* may be published on a stream with so many *partitions*; *now* is in ms."""
    check_time(message, now)
    if message.message_type not in STREAM_TYPES:
        raise invalid_message(
            f"{message.message_type} can only occur on stream ids of form SYSTEM/keyexchange/{{address}}", message
        )
    if message.id.stream_partition >= partitions:
        raise invalid_message(out_of_range(message.id.stream_partition, partitions), message)
    if len(message.id.msg_chain_id) > MAX_CHAIN or not _is_text(message.id.publisher_id + message.id.msg_chain_id):
        raise invalid_message(f"A msgChainId has at most {MAX_CHAIN} characters, and no unpaired surrogates", message)
    if message.encryption_type == kinds.NONE and not jsontext.is_json(message.content):
        try:
            message.check_content()  # its error names the fault
        except StreamrError as error:
            raise InvalidMessage(error.message) from None


def check_direct(message: StreamMessage, now: int, started: int) -> None:
    """Raise unless the gateway would still remember the id of *message* if it had delivered it before.

    It remembers nothing from before it *started*. Times are in ms. An unsigned message cannot be replayed in another's
    name, so only a signed one has to be younger than the gateway.
    """
    if abs(message.id.timestamp - now) > DIRECT_SKEW:
        raise invalid_message(
            f"The timestamp of a direct message must be within {DIRECT_SKEW} ms of the gateway's", message
        )
    if is_signed(message) and message.id.timestamp < started:
        raise invalid_message("The direct message was signed before the gateway started, and may be a copy", message)


def check_key_exchange(message: StreamMessage, now: int) -> None:
    """Raise unless *message* may pass through a key-exchange stream, where every message must be signed."""
    check_time(message, now)
    if message.message_type == kinds.MESSAGE or message.id.stream_partition != 0:
        raise invalid_message("Key exchange streams have partition 0 and group-key messages only", message)
    if not message.signature:
        raise invalid_message(
            f"Received unsigned {message.message_type} (it must be signed to avoid MitM attacks)", message
        )
    check_signature(message)


def check_time(message: StreamMessage, now: int) -> None:
    """Raise if the timestamp is more than `MAX_AHEAD` in the future."""
    if is_ahead(message.id.timestamp, now):
        reason = f"future timestamps are not allowed, max allowed +{MAX_AHEAD} ms"
        text = f"Failed publish to stream {message.id.stream_id}, reason: {reason}"
        raise StreamrError(text, code=FUTURE_TIMESTAMP)


def is_ahead(timestamp: int, now: int) -> bool:
    """Whether *timestamp* is too far in the future to be published; both are in ms."""
    return timestamp > now + MAX_AHEAD


def is_late(timestamp: int, now: int) -> bool:
    """Whether a message of *timestamp* is history: it is shown live to Streamr clients only. Both are in ms."""
    return timestamp < now - LATE_AFTER


def check_signature(message: StreamMessage) -> None:
    """Raise `InvalidSignature` unless the publisher signed *message*."""
    if not verify(message):
        raise invalid_signature(message)


def out_of_range(partition: int, partitions: int) -> str:
    """The error text for a *partition* that a stream with so many *partitions* does not have."""
    return f"Partition {partition} is out of range (0..{partitions - 1})"


def is_signed(message: StreamMessage) -> bool:
    """Whether *message* claims to be signed."""
    return message.signature_type != kinds.UNSIGNED or bool(message.signature)


def ambiguous_partitions(message: StreamMessage, now: int) -> list[tuple[str, int]] | None:
    """The other stream partitions for which the signed text of *message* would be valid too; None if unknown.

    The signed text joins the fields without separators: digits at the end of the stream id, the partition, the
    timestamp and the sequence number, and then the `0x` of the publisher. The timestamp is certain if no other 13 of
    these digits, with one for the partition before and one for the sequence number behind, are a time from 2001 until
    *now* (ms). Then only the first digit of a partition may be the last of a stream id instead. Legacy signatures do
    not cover the sequence number.
    """
    stream, partition, timestamp, sequence = message.id[:4]
    time = str(timestamp)
    if message.signature_type != kinds.ETH or len(time) != TIME_DIGITS:
        return None
    before = f"{stream[len(stream.rstrip(DIGITS)) :]}{partition}"
    digits, last = f"{before}{time}{sequence}", str(now + MAX_AHEAD)
    at = digits.find("1", 1)
    while 0 <= at < len(digits) - TIME_DIGITS:
        if at != len(before) and digits[at : at + TIME_DIGITS] <= last:
            return None
        at = digits.find("1", at + 1)
    if partition > 9:
        return [(f"{stream}{partition // 10}", partition % 10)]
    if len(stream) > 1 and len(before) > 1 and before[-2] != "0":
        return [(stream[:-1], int(before[-2:]))]
    return []


def _is_text(text: str) -> bool:
    """Whether *text* has no unpaired surrogate."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
