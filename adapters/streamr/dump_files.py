"""Files of stream messages as the broker's data API gives them: `object`, `protocol` or `raw`.

The format `object` omits two things that a signature covers: prevMsgRef, and the exact text of the content. The reader
tries the preceding message of the chain and the compact text. If the signature does not match, it is dropped, so that
no message appears to be signed whose signature nobody can verify.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from adapters.streamr.crypto.signing import verify
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import (
    ETH_LEGACY,
    LATEST,
    NONE,
    UNSIGNED,
    MessageRef,
    StreamMessage,
    decode_message,
    parse_message,
)
from gateway.core import jsontext

MAX_DEPTH: Final = 210  # a content, and the array and the object around it
_BOM: Final = b"\xef\xbb\xbf"


class DumpEntry(NamedTuple):
    """One message of a file, or its fault. *number* counts from 1; in `raw` it is the line number."""

    number: int
    message: StreamMessage | None
    fault: str = ""


def read_dump(data: bytes) -> Iterator[DumpEntry]:
    """The messages in the file *data*, in any of the three formats; `ValueError` if it is in none of them."""
    text = data.removeprefix(_BOM).strip()
    inner = text[1:].lstrip()[:1]
    if text and (text[:1] != b"[" or not inner):
        raise ValueError("the file is in none of the formats object, protocol and raw")
    if inner == b'"':
        yield from _texts(enumerate(jsontext.loads(text, MAX_DEPTH), 1))
    elif inner == b"{":
        yield from _objects(jsontext.loads(text, MAX_DEPTH))
    elif inner != b"]":
        yield from _texts((number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip())


def _texts(texts: Iterable[tuple[int, Any]]) -> Iterator[DumpEntry]:
    for number, text in texts:
        try:
            if not isinstance(text, str | bytes):
                raise StreamrError("a message is written as text")
            yield DumpEntry(number, parse_message(text))
        except (StreamrError, ValueError) as error:
            yield DumpEntry(number, None, str(error))


def _objects(objects: list[Any]) -> Iterator[DumpEntry]:
    found = [_object(number, given) for number, given in enumerate(objects, 1)]
    before: dict[tuple[Any, ...], MessageRef] = {}
    for number, message, fault in sorted(found, key=_sort_key):
        if message is None:
            yield DumpEntry(number, None, fault)
            continue
        chain = (*message.id[:2], *message.id[4:])
        yield DumpEntry(number, _restore_signature(message, before.get(chain)))
        before[chain] = MessageRef(message.id.timestamp, message.id.sequence_number)


def _sort_key(found: DumpEntry) -> tuple[int, int, int]:
    return (*found.message.id.position, found.number) if found.message else (0, 0, found.number)


def _object(number: int, given: Any) -> DumpEntry:
    fields = given if isinstance(given, dict) else {}
    names = ("streamId", "streamPartition", "timestamp", "sequenceNumber", "publisherId", "msgChainId")
    content, encryption = fields.get("content"), fields.get("encryptionType", NONE)
    if encryption == NONE or not isinstance(content, str):
        content = jsontext.dumps(content).decode(errors="backslashreplace")
    kinds = [
        fields.get("messageType", 27),
        fields.get("contentType", 0),
        encryption,
        fields.get("groupKeyId"),
    ]
    tail = [content, None, fields.get("signatureType", UNSIGNED), fields.get("signature")]
    try:
        return DumpEntry(
            number,
            _with_wire(decode_message([LATEST, [fields.get(name) for name in names], None, *kinds, *tail])),
        )
    except StreamrError as error:
        return DumpEntry(number, None, str(error))


def _restore_signature(message: StreamMessage, before: MessageRef | None) -> StreamMessage:
    """*message* with the fields that its signature covers; without a signature if none match."""
    if message.signature:
        for prev in (before, None) if message.signature_type != ETH_LEGACY else (None,):
            candidate = _with_wire(replace(message, prev_ref=prev))
            if verify(candidate):
                return candidate
    return _with_wire(replace(message, signature=None, signature_type=UNSIGNED))


def _with_wire(message: StreamMessage) -> StreamMessage:
    """*message* with its `wire` text in the latest version."""
    bare = replace(message, wire=None, version=LATEST, verbatim=False)
    return replace(bare, wire=bare.encode(LATEST), verbatim=True)
