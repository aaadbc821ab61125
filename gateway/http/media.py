"""Reads the content of a message from a body, as its Content-Type says: JSON, or text that becomes a JSON string.

`application/x-www-form-urlencoded` is what `curl -d` and urllib send unless told otherwise, with JSON or plain text in
it: it is taken for JSON if it is JSON or begins with a bracket, else for text in UTF-8, and refused with a problem that
says what to send instead if it looks like a form or like percent-encoding. A body without a Content-Type is JSON.
docs/protocols.md has these rules for users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final, NamedTuple

from gateway.core.jsontext import check, dumps, find_reply_id, one_line

from .problems import Problem, shortened

MAX_CONTENT = 1 << 20  # bytes of one message; a record of the log has room for that and its metadata
TOO_LONG = f"a message has at most {MAX_CONTENT} bytes; send less, or in parts"
WHITESPACE = b" \t\r\n"
JSON: Final = "application/json"
TEXT: Final = "text/plain"
FORM: Final = "application/x-www-form-urlencoded"
NDJSON: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl")
MAX_CACHED = 64  # characters of a Content-Type; clients choose it, and could fill the memory

# Python's decoders of the charsets that occur in practice, by their names in lower case (IANA). Others of Python's are
# no charsets (`rot13`), or take quadratic time (`idna`, `punycode`).
CHARSETS: Final = {
    "utf-8": "utf-8-sig",
    "utf8": "utf-8-sig",
    "us-ascii": "ascii",
    "ascii": "ascii",
    "iso-8859-1": "latin-1",
    "latin1": "latin-1",
    "iso-8859-15": "iso8859-15",
    "windows-1252": "cp1252",
    "utf-16": "utf-16",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
}
JSON_CHARSETS: Final = {name: CHARSETS[name] for name in ("utf-8", "utf8", "us-ascii", "ascii")}

ACCEPTED = {"Accept-Post": ", ".join((JSON, TEXT, NDJSON[0]))}
SAY_IT_IS_TEXT = f"add -H 'Content-Type: {TEXT}' if it is text"

_ESCAPE: Final = re.compile(rb"%[0-9A-Fa-f]{2}")
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*(?:\"([^\"]*)\"|([^;\s\"]*))\s*", re.IGNORECASE)


class ParsedContent(NamedTuple):
    """The content of a message: JSON text on one line, and the id of the message that it replies to, if any."""

    text: bytes
    parent: str | None


Reader = Callable[[bytes], ParsedContent]  # raises `Problem` 400, 413 or 415


def parse_content(body: bytes) -> ParsedContent:
    """Return the JSON value in *body*; raise `Problem` 400 unless it is exactly one."""
    text = body.strip(WHITESPACE)
    if not text:
        raise Problem("malformed-content", "the body is empty; send one JSON value, or text as text/plain")
    try:
        return ParsedContent(one_line(text), find_reply_id(text))
    except ValueError as error:
        raise Problem(
            "malformed-content", f"the content is not one JSON value: {error}; send text as text/plain"
        ) from None


def content_reader(content_type: str | None) -> Reader:
    """Return the function that reads a body of this *content_type*; raise `Problem` 415 if there is none."""
    if not content_type or content_type == JSON:
        return parse_content
    return _cached_reader(content_type) if len(content_type) <= MAX_CACHED else _reader(content_type)


def is_ndjson(content_type: str | None) -> bool:
    """Whether a body of this *content_type* has one JSON value on each line."""
    return content_type is not None and media_type(content_type) in NDJSON


def media_type(content_type: str) -> str:
    """Return the media type without its parameters, in lower case (RFC 9110, section 8.3.1)."""
    return content_type.partition(";")[0].strip().lower()


def _reader(content_type: str) -> Reader:
    kind = media_type(content_type)
    if kind == JSON or (kind.startswith("application/") and kind.endswith("+json")):
        _codec(content_type, JSON_CHARSETS)
        return parse_content
    if kind in (TEXT, FORM):
        return partial(_parse_text if kind == TEXT else _parse_form, _codec(content_type, CHARSETS))
    detail = f"a message cannot be read from {shortened(kind)}; send {JSON}, {TEXT}, or lines as {NDJSON[0]}"
    raise Problem("unsupported-media-type", detail, ACCEPTED)


_cached_reader = lru_cache(maxsize=64)(_reader)


def _codec(content_type: str, known: Mapping[str, str]) -> str:
    """Return the decoder of the charset in *content_type*, or of UTF-8; raise `Problem` 415 for an unknown charset."""
    named = [quoted or plain for quoted, plain in _CHARSET.findall(content_type)]
    if len(named) > 1:
        raise Problem("unsupported-charset", "the Content-Type has more than one charset; send UTF-8", ACCEPTED)
    charset = named[0].lower() if named else "utf-8"
    if charset not in known:
        detail = f"the charset {shortened(charset)} is not one of {', '.join(known)}; send UTF-8"
        raise Problem("unsupported-charset", detail, ACCEPTED)
    return known[charset]


def _parse_text(codec: str, body: bytes) -> ParsedContent:
    """Return *body*, decoded by *codec*, as a JSON string; every character counts, also spaces and line ends."""
    try:
        text = dumps(body.decode(codec))
    except UnicodeError as error:
        raise Problem("malformed-content", f"the text is not in the charset that it claims: {error}") from None
    if len(text) > MAX_CONTENT:  # escapes may take six times the space
        raise Problem("content-too-long", f"as a JSON string it has {len(text)} bytes; {TOO_LONG}")
    return ParsedContent(text, None)


def _parse_form(codec: str, body: bytes) -> ParsedContent:
    """Return *body* as JSON or else as `_parse_text` does; raise `Problem` 415 if it may have been meant otherwise."""
    if body.lstrip(WHITESPACE)[:1] in (b"{", b"[") or _is_json(body):
        return parse_content(body)
    if b"=" in body:
        meant = "a form"
    elif _ESCAPE.search(body):
        meant = "percent-encoded text"
    else:
        return _parse_text(codec, body)
    detail = f"a body of {FORM} that could be plain text or {meant}; {SAY_IT_IS_TEXT}"
    raise Problem("ambiguous-content", detail, ACCEPTED)


def _is_json(body: bytes) -> bool:
    try:
        check(body.strip(WHITESPACE))
    except ValueError:
        return False
    return True
