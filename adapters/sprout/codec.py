"""The lines of Sprout 0.0: verbs, ids, counts, and nodes in base64url.

The law of this file: **a line whose first word is a verb is a header, any other line belongs to a body.**
No node id looks like a verb, so the next message is found again behind anything that ends in a newline:
- A bad header (unknown verb, a field too many or too few, a blank line, a malformed number, a quantity or
  count out of bounds) is a `SproutError` with status 1, and the connection lives. Where a body would
  follow, whatever stands there is skipped without a word, up to the next line that starts with a verb.
- A body that is shorter than its count is refused as a whole when the next header comes.
- A body line that is no node is told beside the nodes that are; a query with a bad id is refused.
- A long announce comes in parts: a genuine relay that dials another tells it all of a community's leaves at once.
- A header that ends like the first line of a request of HTTP ends the connection: else any web page that a user
  visits could speak through their browser, by what it posts.
Framing is lost only by a line over `MAX_LINE`; `Parser.message_id` then tells which request is to be answered.

Lexing is that of the reference (Go's fmt.Fscanf): fields are separated by any amount of white space, which
may lead and trail; lines end in LF or CRLF; numbers may have a sign and leading zeros. It closes the
connection, or crashes, on everything that is a `SproutError` here.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from gateway.errors import ProtocolError, RequestError

from . import base64url

# A reply with 65,535 bytes of content and as much metadata makes 175,506 characters behind an id of 55; the
# usual largest one, 65,535 bytes of content alone, 87,974. Room is left for keys and signatures of other sizes.
MAX_LINE: Final = 1 << 18
# Genuine clients ask for 1,024 nodes at a time when they start; nobody was seen to send more.
MAX_NODES: Final = 1024
# The text of a body that is kept in memory, and of a response that we write; a usual node is below 1 KiB.
MAX_BODY: Final = 1 << 22
# The nodes of one announce: more than anybody has. It is read in parts of at most so many nodes, and so many bytes
# and one line, so it needs no more memory than a short one.
MAX_ANNOUNCED: Final = 1 << 24
MAX_PART: Final = 256
MAX_PART_BYTES: Final = 1 << 20
# Levels of ancestry and numbers of leaves: nobody needs more than a depth can say, which is an unsigned 32.
MAX_QUANTITY: Final = (1 << 32) - 1
# The id in the answer to a line that had none; genuine clients count from 0.
NO_ID: Final = -1


class StatusCode(IntEnum):
    """The codes of a status (specification, Status Codes)."""

    OK = 0
    MALFORMED = 1
    PROTOCOL_TOO_OLD = 2
    PROTOCOL_TOO_NEW = 3
    UNKNOWN_NODE = 4


class SproutError(RequestError):
    """A message that is answered by a status other than 0; the connection lives.

    `message_id` is that of the refused request, `NO_ID` where none could be read or where the line was an
    answer: its id then counts what we asked, not what the peer did. `status` is the code to answer with.
    """

    def __init__(self, reason: str, status: int = StatusCode.MALFORMED, message_id: int = NO_ID) -> None:
        super().__init__(reason)
        self.status = status
        self.message_id = message_id


class NodeLine(NamedTuple):
    """A node on the wire: the id it is said to have (unchecked), its bytes, and its line without the newline.

    `answered` is a node of a response: it says nothing about who is at the other end, also where it has to wait.
    """

    id: str
    raw: bytes
    line: bytes
    answered: bool = False


class Version(NamedTuple):
    """The sender's version, major and minor; every major number but 0 is refused when it is read."""

    id: int
    version: tuple[int, int] = (0, 0)


class List(NamedTuple):
    """Asks for the newest nodes of a type."""

    id: int
    node_type: int
    quantity: int


class Query(NamedTuple):
    """Asks for the nodes with these ids."""

    id: int
    node_ids: tuple[str, ...]


class Ancestry(NamedTuple):
    """Asks for so many ancestors of a node."""

    id: int
    node_id: str
    levels: int


class LeavesOf(NamedTuple):
    """Asks for the newest nodes below a node, itself included."""

    id: int
    node_id: str
    quantity: int


class Subscribe(NamedTuple):
    """Asks for the news of a community."""

    id: int
    node_id: str


class Unsubscribe(NamedTuple):
    """Asks for no more news of a community."""

    id: int
    node_id: str


class Announce(NamedTuple):
    """Tells of new nodes; `unreadable` says of each line that held none why. `more` lines of it are still to come."""

    id: int
    nodes: tuple[NodeLine, ...]
    unreadable: tuple[str, ...] = ()
    more: int = 0


class Response(NamedTuple):
    """Answers the request *id* of the receiver with nodes; `unreadable` as in an announce.

    `cut` are the ids on the lines beyond `MAX_BODY`, which are not kept: they can be asked for again.
    """

    id: int
    nodes: tuple[NodeLine, ...]
    unreadable: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


class Status(NamedTuple):
    """Answers the request *id* of the receiver with a code."""

    id: int
    code: int = StatusCode.OK


Frame = Version | List | Query | Ancestry | LeavesOf | Subscribe | Unsubscribe | Announce | Response | Status


def encode(frame: Frame) -> bytes:
    """Write any frame, newline included."""
    name, verb = _NAMES[type(frame)]
    values: tuple[Any, ...] = frame
    if verb.body is None:
        return b" ".join((name, *(kind.write(value) for kind, value in zip(verb.fields, values, strict=True)))) + b"\n"
    return _with_body(name, frame.id, [verb.body.write(item) for item in values[1]])


def encode_announce(message_id: int, *lines: bytes) -> bytes:
    """Write an announce of node lines that exist already."""
    return _with_body(b"announce", message_id, lines)


def encode_status(message_id: int, code: int) -> bytes:
    """Write a status."""
    return b"status %d %d\n" % (message_id, code)


def encode_response(message_id: int, lines: Iterable[bytes]) -> bytes:
    """Write a response of node lines that exist already."""
    return _with_body(b"response", message_id, lines)


def node_line(id: str, raw: bytes) -> NodeLine:
    """The line of the node *raw*, whose id is *id*."""
    return NodeLine(id, raw, b"%b %b" % (id.encode(), base64url.encode(raw)))


class Parser:
    """Reads frames from bytes that may be cut anywhere.

    Call `feed` with what arrived, then `next_frame` until it returns None. A `SproutError` is to be answered,
    after which reading goes on; a `ProtocolError` is raised again by every later call.
    """

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._open: _Open | None = None
        self._skipping = False

    @property
    def amid(self) -> bool:
        """Whether a message has begun of which the rest has not arrived."""
        return self._open is not None or bool(self._rest)

    @property
    def message_id(self) -> int:
        """The id of the request that is being read; `NO_ID` where there is none, or none can be read."""
        if self._open is not None:
            return self._open.answer_to
        line = self._lines[0] if self._lines else self._rest
        return _legible_id(bytes(line[:_LEGIBLE]).split())

    def feed(self, data: bytes) -> None:
        """Take what the peer sent."""
        first, *lines = data.split(b"\n")
        self._rest += first
        if lines:
            self._lines.append(bytes(self._rest))
            self._rest = bytearray(lines.pop())
            self._lines.extend(lines)

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until more is fed."""
        while (words := self._next_words()) is not None:
            if words and words[0] in VERBS:
                frame = self._begin(words)
            elif self._open is not None:
                frame = self._continue(words)
            elif self._skipping:
                continue
            else:
                raise SproutError("no such verb" if words else "a blank line", message_id=_legible_id(words))
            if frame is not None:
                return frame
        return None

    def _next_words(self) -> list[bytes] | None:
        size = len(self._lines[0]) if self._lines else len(self._rest)
        if size > MAX_LINE:
            raise ProtocolError(f"a line of more than {MAX_LINE} bytes")
        if not self._lines:
            return None
        words = self._lines[0].split()
        if self._open is None and len(words) == 3 and _HTTP.fullmatch(words[2]):
            raise ProtocolError("a request of HTTP")
        self._lines.popleft()
        if self._open is not None and words and words[0] in VERBS:
            self._lines.appendleft(b" ".join(words))
            short, self._open = self._open, None
            raise SproutError("fewer lines than the count says", message_id=short.answer_to)
        return words

    def _begin(self, words: list[bytes]) -> Frame | None:
        verb = VERBS[words[0]]
        self._skipping = verb.body is not None
        try:
            if len(words) != 1 + len(verb.fields):
                raise SproutError(f"{len(verb.fields)} fields expected, not {len(words) - 1}")
            values = [kind.read(word) for kind, word in zip(verb.fields, words[1:], strict=True)]
        except SproutError as error:
            error.message_id = _legible_id(words) if verb.request else NO_ID
            raise
        self._skipping = False
        if verb.body is None:
            frame: Frame = verb.frame(*values)
            return frame
        self._open = _Open(verb, verb.body, *values)
        return self._finish()

    def _continue(self, words: list[bytes]) -> Frame | None:
        open = self._open
        assert open is not None
        open.add(words)
        return None if open.left and not open.body.parted else self._finish()

    def _finish(self) -> Frame | None:
        assert self._open is not None
        if self._open.left:
            return self._open.part()
        whole, self._open = self._open, None
        return whole.frame()


class _Kind(NamedTuple):
    """One field, or one line of a body: how it is read (or refused by a `SproutError`) and written."""

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


class _Body(NamedTuple):
    """The lines behind a header. Where *whole*, one bad line refuses the message; where *parted*, it may be long."""

    words: int
    read: Callable[[list[bytes]], Any]
    write: Callable[[Any], bytes]
    whole: bool = False
    parted: bool = False


class _Verb(NamedTuple):
    """The fields behind a verb, the last of them a count where lines follow; a response is no *request*."""

    frame: Callable[..., Any]
    fields: tuple[_Kind, ...]
    body: _Body | None = None
    request: bool = True


@dataclass(slots=True)
class _Open:
    """A message whose body is being read."""

    verb: _Verb
    body: _Body
    id: int
    left: int
    size: int = 0
    items: list[Any] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)

    @property
    def answer_to(self) -> int:
        return self.id if self.verb.request else NO_ID

    def add(self, words: list[bytes]) -> None:
        self.left -= 1
        for word in words:
            self.size += len(word)
        try:
            if len(words) != self.body.words:
                raise SproutError(f"{self.body.words} words expected on a line, not {len(words)}")
            if self.size <= MAX_BODY or self.body.parted:
                self.items.append(self.body.read(words))
            elif self.body.whole:
                raise SproutError(f"a body of more than {MAX_BODY} bytes")
            else:
                self.cut.append(_read_node_id(words[0]))
        except SproutError as error:
            self.unreadable.append(str(error))

    def part(self) -> Frame | None:
        """What has come of a long message, once that is enough."""
        enough = len(self.items) + len(self.unreadable) >= MAX_PART or self.size >= MAX_PART_BYTES
        if not self.body.parted or not enough:
            return None
        part = Announce(self.id, tuple(self.items), tuple(self.unreadable), self.left)
        self.items, self.unreadable, self.size = [], [], 0
        return part

    def frame(self) -> Frame:
        frame: Frame
        if self.body.whole:
            if self.unreadable:
                raise SproutError(self.unreadable[0], message_id=self.answer_to)
            frame = self.verb.frame(self.id, tuple(self.items))
        else:
            frame = self.verb.frame(self.id, tuple(self.items), tuple(self.unreadable))
            if isinstance(frame, Response) and self.cut:
                frame = frame._replace(cut=tuple(self.cut))
        return frame


def _with_body(name: bytes, message_id: int, lines: Iterable[bytes]) -> bytes:
    lines = tuple(lines)
    return b"\n".join((b"%b %d %d" % (name, message_id, len(lines)), *lines, b""))


def _number(low: int, high: int) -> _Kind:
    def read(word: bytes) -> int:
        if _NUMBER.fullmatch(word) is None or not low <= (value := int(word)) <= high:
            raise SproutError(f"not a number from {low} to {high}")
        return value

    return _Kind(read, b"%d".__mod__)


def _read_version(word: bytes) -> tuple[int, int]:
    match = _VERSION.fullmatch(word)
    if match is None:
        raise SproutError("not a version: major.minor")
    major, minor = int(match[1]), int(match[2])
    if major:
        raise SproutError(
            "only version 0 is spoken",
            StatusCode.PROTOCOL_TOO_NEW if major > 0 else StatusCode.PROTOCOL_TOO_OLD,
        )
    return major, minor


def _read_node_id(word: bytes) -> str:
    if _NODE_ID.fullmatch(word) is None:
        raise SproutError("not a node id")
    return word.decode()


def _read_node_line(words: list[bytes]) -> NodeLine:
    try:
        raw = base64url.decode(words[1])
    except ValueError:
        raise SproutError("not base64url without padding") from None
    return NodeLine(_read_node_id(words[0]), raw, b" ".join(words))


def _read_answer(words: list[bytes]) -> NodeLine:
    return _read_node_line(words)._replace(answered=True)


def _legible_id(words: list[bytes]) -> int:
    try:
        id: int = ID.read(words[1])
    except (SproutError, IndexError):
        return NO_ID
    return id


_LEGIBLE: Final = 128  # bytes at the beginning of a line that is too long in which its id is looked for
_HTTP: Final = re.compile(rb"HTTP/[0-9.]+")  # the third and last word of a request's first line (RFC 9112, section 3)
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,20}")
_VERSION: Final = re.compile(rb"([+-]?[0-9]{1,18})\.([0-9]{1,18})")
# Any qualified hash; that we hold no node with a hash of another length is not the codec's business.
_NODE_ID: Final = re.compile(rb"[A-Za-z0-9]{1,16}_B[0-9]{1,5}__[A-Za-z0-9_-]{0,86}")

# fmt: off
ID        = _number(-(1 << 63), (1 << 63) - 1)  # as the reference: any int, echoed as it is
NODE_TYPE = _number(0, 255)
QUANTITY  = _number(0, MAX_QUANTITY)
COUNT     = _number(0, MAX_NODES)
ANNOUNCED = _number(0, MAX_ANNOUNCED)
CODE      = _number(0, (1 << 63) - 1)
NODE_ID   = _Kind(_read_node_id, str.encode)
VERSION   = _Kind(_read_version, lambda version: b"%d.%d" % version)

ID_LINES   = _Body(1, lambda words: _read_node_id(words[0]), str.encode, whole=True)
NODE_LINES = _Body(2, _read_answer, lambda node: node.line)
LONG_LINES = _Body(2, _read_node_line, lambda node: node.line, parted=True)

VERBS: Final[dict[bytes, _Verb]] = {
    b"version":     _Verb(Version,     (ID, VERSION)),
    b"list":        _Verb(List,        (ID, NODE_TYPE, QUANTITY)),
    b"query":       _Verb(Query,       (ID, COUNT), ID_LINES),
    b"ancestry":    _Verb(Ancestry,    (ID, NODE_ID, QUANTITY)),
    b"leaves_of":   _Verb(LeavesOf,    (ID, NODE_ID, QUANTITY)),
    b"subscribe":   _Verb(Subscribe,   (ID, NODE_ID)),
    b"unsubscribe": _Verb(Unsubscribe, (ID, NODE_ID)),
    b"announce":    _Verb(Announce,    (ID, ANNOUNCED), LONG_LINES),
    b"response":    _Verb(Response,    (ID, COUNT), NODE_LINES, request=False),
    b"status":      _Verb(Status,      (ID, CODE), request=False),
}
# fmt: on
_NAMES: Final = {verb.frame: (name, verb) for name, verb in VERBS.items()}
