"""What a reply says on the bus, and how a value from the bus is said in a reply.

Both ways are one-to-one: exactly `{"content": text}` is a reply of that text, with `inReplyTo` only where it is
the canonical id of the node's parent; every other value is its JSON, marked `json/1`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.core.jsontext import check, dumps, one_line

from .forest import UTF8, Content

_SPACE = b" \t\r\n"
_ABSENT: Any = None  # a member that is not there; null is no text


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    """What says a text, maybe in answer to a message, and nothing more."""

    content: str
    inReplyTo: str = _ABSENT  # noqa: N815  # as it stands in messages


_TEXT = msgspec.json.Decoder(_Text)


def decode_content(content: Content, is_json: bool, parent: str | None) -> bytes:
    """The value that a reply to the message *parent* says, as JSON on one line.

    What is marked as JSON and is none is text; bytes that are no text are shown with replacement characters.
    """
    if is_json and content.type == UTF8:
        text = content.blob.strip(_SPACE)
        try:
            check(text)
        except ValueError:
            pass
        else:
            return one_line(text)
    return dumps(_plain(content.blob.decode(errors="replace"), parent))


def encode_content(content: bytes, parent: str | None) -> tuple[bytes, bool]:
    """The text of a reply to the message *parent* that says the JSON value *content*, and whether it is JSON.

    No value is made of it but the text, and none of what is longer than the text that it would be.
    """
    if content.lstrip()[:1] == b"{":
        try:
            text = _TEXT.decode(content)
        except msgspec.DecodeError:  # there is more in it, or half a character, which only JSON can write
            return content, True
        if text.inReplyTo == parent:
            return text.content.encode(), False
    return content, True


def _plain(text: str, parent: str | None) -> dict[str, Any]:
    return {"content": text} if parent is None else {"content": text, "inReplyTo": parent}
