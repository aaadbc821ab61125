"""Parses Sprout's messages from a stream of bytes.

The law of this file: **a line whose first word is a verb is a header, any other line belongs to a body.**
No node id looks like a verb, so the parser finds the next message after anything that ends in a newline:
- A malformed header (unknown verb, a field too many or too few, a blank line, a malformed number, a quantity
  or count out of bounds) is a `SproutError` with status 1, and the connection stays open. If a body follows,
  it is skipped silently, up to the next line that starts with a verb.
- A body that is shorter than its count is refused as a whole when the next header arrives.
- A body line that is not a node is reported beside the valid nodes; a query with a malformed id is refused.
- A response that was not requested is skipped, line by line.
- A long announce is parsed in parts: a genuine relay that dials announces all leaves of a community at once.
- A header that ends like the first line of an HTTP request ends the connection: otherwise any web page could
  send messages through the browser of a visitor, in the body of a POST.
Only a line over `MAX_LINE` loses the framing; `Parser.message_id` then tells which request is to be answered.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from gateway.core.errors import ProtocolError

from .codec import (
    MAX_BODY,
    MAX_LINE,
    MAX_PART,
    MAX_PART_BYTES,
    NO_ID,
    VERBS,
    Announce,
    BodyCodec,
    Frame,
    HttpRequest,
    Response,
    SproutError,
    Verb,
    parse_message_id,
    read_node_id,
    read_single_announce,
)

_ID_BYTES: Final = 128  # at the beginning of a line that is too long, in which its id is searched
_HTTP: Final = re.compile(rb"HTTP/[0-9.]+")  # the third and last word of a request's first line (RFC 9112, section 3)


class Parser:
    """Parses frames from chunks of bytes.

    Call `feed` with each chunk, then `next_frame` until it returns None. After a `SproutError`, which is to be
    answered, parsing continues; a `ProtocolError` is raised again by every later call. *expects* tells whether a
    response with this id is expected.
    """

    def __init__(self, expects: Callable[[int], bool] = lambda _id: True) -> None:
        self._expects = expects
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._open: _Open | None = None
        self._skipping = False

    @property
    def in_message(self) -> bool:
        """Whether a message has begun and is incomplete."""
        return self._open is not None or bool(self._rest)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was fed has been read, and the next line is not skipped, whatever it is."""
        return not (self._lines or self._skipping or self.in_message)

    @property
    def size(self) -> int:
        """The approximate memory that incomplete messages take, in bytes."""
        return len(self._rest) + sum(map(len, self._lines)) + (0 if self._open is None else 2 * self._open.size)

    @property
    def message_id(self) -> int:
        """The id of the request that is being parsed; `NO_ID` if there is none."""
        if self._open is not None:
            return self._open.answer_to
        line = self._lines[0] if self._lines else self._rest
        return parse_message_id(bytes(line[:_ID_BYTES]).split())

    def feed(self, data: bytes) -> None:
        """Add a chunk of bytes."""
        first, *lines = data.split(b"\n")
        self._rest += first
        if lines:
            self._lines.append(bytes(self._rest))
            self._rest = bytearray(lines.pop())
            self._lines.extend(lines)

    def next_frame(self) -> Frame | None:
        """The next frame; None until more is fed."""
        while self._lines:
            frame = self._body(self._open) if self._open is not None else self.next_announce() or self._header()
            if frame is not None:
                return frame
        if len(self._rest) > MAX_LINE:
            raise _too_long()
        return None

    def next_announce(self) -> Announce | None:
        """The next frame if it is a complete announce of one node, as clients write it; None otherwise.

        A session looks ahead with it: nodes that arrive together are published in one run, without which an announce of
        one node costs 1.5 times as much (141 us of CPU time instead of 83, in process, and a run of 64).
        """
        lines = self._lines
        if self._open is not None or len(lines) < 2 or len(lines[1]) > MAX_LINE:
            return None
        if (announce := read_single_announce(lines[0], lines[1])) is not None:
            lines.popleft()
            lines.popleft()
            self._skipping = False
        return announce

    def _header(self) -> Frame | None:
        """Parse a line outside of a body."""
        line = self._lines[0]
        if len(line) > MAX_LINE:
            raise _too_long()
        words = line.split()
        if len(words) == 3 and words[2][:1] == b"H" and _HTTP.fullmatch(words[2]):
            raise HttpRequest("a request of HTTP")
        self._lines.popleft()
        if words and (verb := VERBS.get(words[0])) is not None:
            return self._begin(verb, words)
        if self._skipping:
            return None
        raise SproutError("no such verb" if words else "a blank line", message_id=parse_message_id(words))

    def _begin(self, verb: Verb, words: list[bytes]) -> Frame | None:
        self._skipping = verb.body is not None
        try:
            if len(words) != 1 + len(verb.fields):
                raise SproutError(f"{len(verb.fields)} fields expected, not {len(words) - 1}")
            values = [kind.read(word) for kind, word in zip(verb.fields, words[1:], strict=True)]
        except SproutError as error:
            error.message_id = parse_message_id(words) if verb.request else NO_ID
            raise
        self._skipping = False
        if verb.body is None:
            frame: Frame = verb.frame(*values)
            return frame
        id, count = values
        if not count:
            return _Open(verb, verb.body, id, 0).frame()
        if not verb.request and not self._expects(id):
            self._skipping = True
            return None
        self._open = _Open(verb, verb.body, id, count)
        return None

    def _body(self, open: _Open) -> Frame | None:
        """Parse the lines of a body that have arrived."""
        lines = self._lines
        while lines:
            line = lines[0]
            if len(line) > MAX_LINE:
                raise _too_long()
            words = line.split()
            if words and words[0] in VERBS:
                self._open = None
                raise SproutError("fewer lines than the count", message_id=open.answer_to)
            open.add(line, words)
            lines.popleft()
            if not open.left:
                self._open = None
                return open.frame()
            if open.body.chunked and open.is_full:
                return open.part()
        return None


class _Open:
    """A message whose body is being parsed, with so many lines *left*."""

    __slots__ = ("body", "cut", "id", "items", "left", "size", "unreadable", "verb")

    def __init__(self, verb: Verb, body: BodyCodec, id: int, left: int) -> None:
        self.verb = verb
        self.body = body
        self.id = id
        self.left = left
        self.size = 0
        self.items: list[Any] = []
        self.unreadable: list[str] = []
        self.cut: list[str] = []

    @property
    def answer_to(self) -> int:
        return self.id if self.verb.request else NO_ID

    @property
    def is_full(self) -> bool:
        """Whether enough of a long message has arrived for a part of it."""
        return self.size >= MAX_PART_BYTES or len(self.items) + len(self.unreadable) >= MAX_PART

    def add(self, line: bytes, words: list[bytes]) -> None:
        """Add a *line*, which consists of these *words*."""
        body = self.body
        self.left -= 1
        self.size += len(line)
        try:
            if len(words) != body.words:
                raise SproutError(f"{body.words} words expected on a line, not {len(words)}")
            if body.chunked or self.size <= MAX_BODY:
                self.items.append(body.read(line, words))
            elif body.atomic:
                raise SproutError(f"a body of more than {MAX_BODY} bytes")
            else:
                self.cut.append(read_node_id(words[0]))
        except SproutError as error:
            self.unreadable.append(str(error))

    def part(self) -> Frame:
        """The next part of a long message."""
        part = Announce(self.id, tuple(self.items), tuple(self.unreadable), self.left)
        self.items, self.unreadable, self.size = [], [], 0
        return part

    def frame(self) -> Frame:
        """The complete message, or its last part."""
        frame: Frame
        if self.body.atomic:
            if self.unreadable:
                raise SproutError(self.unreadable[0], message_id=self.answer_to)
            frame = self.verb.frame(self.id, tuple(self.items))
        else:
            frame = self.verb.frame(self.id, tuple(self.items), tuple(self.unreadable))
            if isinstance(frame, Response) and self.cut:
                frame = frame._replace(cut=tuple(self.cut))
        return frame


def _too_long() -> ProtocolError:
    return ProtocolError(f"a line of more than {MAX_LINE} bytes")
