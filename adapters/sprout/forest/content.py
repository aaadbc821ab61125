"""Converts the content of replies to JSON values on the bus, and back.

The conversion is one-to-one: exactly `{"content": text}` is a reply of that text, with `inReplyTo` only where it is
the canonical id of the node's parent; every other value is its JSON, marked `json/1`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.core.jsontext import check, dumps, one_line

from .forest import UTF8, Content

_SPACE = b" \t\r\n"
_ABSENT: Any = None  # for a missing member; null would not be a string


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    """A value that is only a text, possibly in reply to a message."""

    content: str
    inReplyTo: str = _ABSENT  # noqa: N815  # as it stands in messages


_TEXT = msgspec.json.Decoder(_Text)


def decode_content(content: Content, is_json: bool, parent: str | None) -> bytes:
    """The value in a reply to the message *parent*, as JSON on one line.

    Content that is marked as JSON but is not valid JSON is text; bytes that are not UTF-8 become U+FFFD.
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
    """The text of a reply to the message *parent* for the JSON value *content*, and whether the text is JSON.

    Only a text is decoded; any other value is copied as it is.
    """
    if content.lstrip()[:1] == b"{":
        try:
            text = _TEXT.decode(content)
        except msgspec.DecodeError:  # other members, or a lone surrogate, which only JSON can write
            return content, True
        if text.inReplyTo == parent:
            return text.content.encode(), False
    return content, True


def _plain(text: str, parent: str | None) -> dict[str, Any]:
    return {"content": text} if parent is None else {"content": text, "inReplyTo": parent}
