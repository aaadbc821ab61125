"""The messages of Sprout 0.0: verbs, ids, counts, and nodes in base64url. `parser` finds them in a stream.

Lexing follows the reference (Go's fmt.Fscanf): fields are separated by any amount of white space, which
may lead and trail; lines end in LF or CRLF; numbers may have a sign and leading zeros. The reference closes
the connection, or crashes, on everything that is a `SproutError` here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar

from gateway.core.errors import ProtocolError, RequestError

from . import base64url

L = TypeVar("L")

# A reply with 65,535 bytes of content and as much metadata takes 175,506 characters after an id of 55; with the
# content alone 87,974. The rest is for keys and signatures of other sizes.
MAX_LINE: Final = 1 << 18
# Genuine clients request 1,024 nodes at a time when they start; none was seen to send more.
MAX_NODES: Final = 1024
# Bytes of a body that is kept in memory, and of a response that the gateway writes; most nodes are below 1 KiB.
MAX_BODY: Final = 1 << 22
# Nodes of one announce, which no peer reaches. It is read in parts of at most `MAX_PART` nodes, and `MAX_PART_BYTES`
# and one line, so that a long one needs no more memory than a short one.
MAX_ANNOUNCED: Final = 1 << 24
MAX_PART: Final = 256
MAX_PART_BYTES: Final = 1 << 20
# Levels of ancestry and numbers of leaves: no more than a depth can express, which has 32 bits, unsigned.
MAX_QUANTITY: Final = (1 << 32) - 1
# The id in the answer to a line without one; genuine clients count from 0.
NO_ID: Final = -1
# For who takes this port for that of HTTP.
_ADVICE: Final = b"This port speaks Sprout, Arbor's protocol. HTTP and WebSocket have another one, by default 8080.\n"
HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_ADVICE), _ADVICE)
)


class StatusCode(IntEnum):
    """The codes of a status (specification, Status Codes)."""

    OK = 0
    MALFORMED = 1
    PROTOCOL_TOO_OLD = 2
    PROTOCOL_TOO_NEW = 3
    UNKNOWN_NODE = 4


class HttpRequest(ProtocolError):
    """A client of HTTP has connected; it is answered with `HTTP_ANSWER`, and the connection ends."""


class SproutError(RequestError):
    """A message that is answered with a status other than 0; the connection stays open.

    `message_id` is that of the refused request, `NO_ID` if none could be read or if the message was an answer,
    whose id is that of a request of the receiver. `status` is the code to answer with.
    """

    def __init__(self, reason: str, status: int = StatusCode.MALFORMED, message_id: int = NO_ID) -> None:
        super().__init__(reason)
        self.status = status
        self.message_id = message_id


class NodeLine(NamedTuple):
    """A node on the wire: its claimed id (not verified), its bytes, and its line without the newline.

    `answered` marks a node of a response: it does not identify the peer, even if it has to wait.
    """

    id: str
    raw: bytes
    line: bytes
    answered: bool = False


class Version(NamedTuple):
    """The sender's version, major and minor; decoding refuses every major number except 0."""

    id: int
    version: tuple[int, int] = (0, 0)


class List(NamedTuple):
    """Requests the newest nodes of a type."""

    id: int
    node_type: int
    quantity: int


class Query(NamedTuple):
    """Requests the nodes with these ids."""

    id: int
    node_ids: tuple[str, ...]


class Ancestry(NamedTuple):
    """Requests so many ancestors of a node."""

    id: int
    node_id: str
    levels: int


class LeavesOf(NamedTuple):
    """Requests the newest nodes among a node and its descendants."""

    id: int
    node_id: str
    quantity: int


class Subscribe(NamedTuple):
    """Subscribes to a community."""

    id: int
    node_id: str


class Unsubscribe(NamedTuple):
    """Unsubscribes from a community."""

    id: int
    node_id: str


class Announce(NamedTuple):
    """Announces nodes; `unreadable` has a reason for each line that is not a node. `more` lines of it follow."""

    id: int
    nodes: tuple[NodeLine, ...]
    unreadable: tuple[str, ...] = ()
    more: int = 0


class Response(NamedTuple):
    """Answers the request *id* of the receiver with nodes; `unreadable` as in an announce.

    `cut` are the ids of nodes beyond `MAX_BODY`, which are not kept: they can be requested again.
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
    """Encode any frame, including the final newline."""
    name, verb = _NAMES[type(frame)]
    values: tuple[Any, ...] = frame
    if verb.body is None:
        return b" ".join((name, *(kind.write(value) for kind, value in zip(verb.fields, values, strict=True)))) + b"\n"
    return _with_body(name, frame.id, [verb.body.write(item) for item in values[1]])


def encode_announce(message_id: int, *lines: bytes) -> bytes:
    """Encode an announce of encoded node lines."""
    return _with_body(b"announce", message_id, lines)


def encode_status(message_id: int, code: int) -> bytes:
    """Encode a status."""
    return b"status %d %d\n" % (message_id, code)


def are_statuses(data: bytes) -> bool:
    """Whether *data* is whole statuses as peers write them, and nothing else."""
    return data.startswith(b"status ") and _STATUSES.fullmatch(data) is not None


def only_reads(data: bytes) -> bool:
    """Whether *data* is whole lines, none of which begins a message that brings nodes or answers the gateway."""
    return _READS.fullmatch(data) is not None


def encode_response(message_id: int, lines: Iterable[bytes]) -> bytes:
    """Encode a response of encoded node lines."""
    return _with_body(b"response", message_id, lines)


def response_head(message_id: int, lines: int) -> bytes:
    """The first line of a response of so many *lines*, without its newline."""
    return b"response %d %d" % (message_id, lines)


def node_line(id: str, raw: bytes) -> NodeLine:
    """The line of the node *raw*, whose id is *id*."""
    return NodeLine(id, raw, b"%b %b" % (id.encode(), base64url.encode(raw)))


def read_node_line(line: bytes) -> NodeLine:
    """The node in *line*, which ends without a newline; raises `SproutError` if there is none."""
    words = line.split()
    if len(words) != 2:
        raise SproutError("not the id and the bytes of a node")
    return _read_node_line(line, words)


class FieldCodec(NamedTuple):
    """How one field, or one line of a body, is read (raising `SproutError`) and written."""

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


class BodyCodec(NamedTuple):
    """How the lines after a header are read. *atomic*: one bad line refuses the message; *chunked*: read in parts."""

    words: int
    read: Callable[[bytes, list[bytes]], Any]
    write: Callable[[Any], bytes]
    atomic: bool = False
    chunked: bool = False


class Verb(NamedTuple):
    """The fields after a verb, the last of them a count if lines follow; *request* is false for answers."""

    frame: Callable[..., Any]
    fields: tuple[FieldCodec, ...]
    body: BodyCodec | None = None
    request: bool = True


def _with_body(name: bytes, message_id: int, lines: Iterable[bytes]) -> bytes:
    lines = tuple(lines)
    return b"\n".join((b"%b %d %d" % (name, message_id, len(lines)), *lines, b""))


def _number(low: int, high: int) -> FieldCodec:
    def read(word: bytes) -> int:
        usual = len(word) < _USUAL_DIGITS and word.isdigit()
        if (usual or _NUMBER.fullmatch(word)) and low <= (value := int(word)) <= high:
            return value
        raise SproutError(f"not a number from {low} to {high}")

    return FieldCodec(read, b"%d".__mod__)


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


def read_node_id(word: bytes) -> str:
    """The node id in *word*; raise `SproutError` if it is not valid."""
    if _NODE_ID.fullmatch(word) is None:
        raise SproutError("not a node id")
    return word.decode()


def _read_id_line(_line: bytes, words: list[bytes]) -> str:
    return read_node_id(words[0])


def _read_node_line(line: bytes, words: list[bytes]) -> NodeLine:
    id, text = words
    try:
        raw = base64url.decode(text)
    except ValueError:
        raise SproutError("not base64url without padding") from None
    if line[len(id)] != _SPACE or len(line) != len(id) + 1 + len(text):
        line = b"%b %b" % (id, text)  # with other white space
    return NodeLine(read_node_id(id), raw, line)


def read_single_announce(header: bytes, line: bytes) -> Announce | None:
    """The announce of one node in these two lines, if *header* is as clients write it; None for anything else."""
    if (found := _SINGLE_ANNOUNCE.fullmatch(header)) is None or len(words := line.split()) != LONG_LINES.words:
        return None
    try:
        return Announce(int(found[1]), (LONG_LINES.read(line, words),))
    except SproutError:
        return None


def _read_answer(line: bytes, words: list[bytes]) -> NodeLine:
    return _read_node_line(line, words)._replace(answered=True)


def parse_message_id(words: list[bytes]) -> int:
    """The message id among the *words* of a malformed header; `NO_ID` if there is none."""
    try:
        id: int = ID.read(words[1])
    except (SproutError, IndexError):
        return NO_ID
    return id


_SPACE: Final = ord(" ")
_USUAL_DIGITS: Final = 19  # fewer digits always fit into 64 bits
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,20}")
_VERSION: Final = re.compile(rb"([+-]?[0-9]{1,18})\.([0-9]{1,18})")
# Any qualified hash, also those of lengths that no node here has.
_NODE_ID: Final = re.compile(rb"[A-Za-z0-9]{1,16}_B[0-9]{1,5}__[A-Za-z0-9_-]{0,86}")
_STATUSES: Final = re.compile(rb"(?:status [0-9]{1,18} [0-9]{1,18}\n)+")
_READS: Final = re.compile(rb"(?:(?![ \t\r\v\f]*(?:announce|response|status))[^\n]*\n)+")
_SINGLE_ANNOUNCE: Final = re.compile(rb"announce ([0-9]{1,18}) 1")

# fmt: off
ID        = _number(-(1 << 63), (1 << 63) - 1)  # as in the reference: any int, echoed unchanged
NODE_TYPE = _number(0, 255)
QUANTITY  = _number(0, MAX_QUANTITY)
COUNT     = _number(0, MAX_NODES)
ANNOUNCED = _number(0, MAX_ANNOUNCED)
CODE      = _number(0, (1 << 63) - 1)
NODE_ID   = FieldCodec(read_node_id, str.encode)
VERSION   = FieldCodec(_read_version, lambda version: b"%d.%d" % version)

ID_LINES   = BodyCodec(1, _read_id_line, str.encode, atomic=True)
NODE_LINES = BodyCodec(2, _read_answer, lambda node: node.line)
LONG_LINES = BodyCodec(2, _read_node_line, lambda node: node.line, chunked=True)

VERBS: Final[dict[bytes, Verb]] = {
    b"version":     Verb(Version,     (ID, VERSION)),
    b"list":        Verb(List,        (ID, NODE_TYPE, QUANTITY)),
    b"query":       Verb(Query,       (ID, COUNT), ID_LINES),
    b"ancestry":    Verb(Ancestry,    (ID, NODE_ID, QUANTITY)),
    b"leaves_of":   Verb(LeavesOf,    (ID, NODE_ID, QUANTITY)),
    b"subscribe":   Verb(Subscribe,   (ID, NODE_ID)),
    b"unsubscribe": Verb(Unsubscribe, (ID, NODE_ID)),
    b"announce":    Verb(Announce,    (ID, ANNOUNCED), LONG_LINES),
    b"response":    Verb(Response,    (ID, COUNT), NODE_LINES, request=False),
    b"status":      Verb(Status,      (ID, CODE), request=False),
}
# fmt: on
_NAMES: Final = {verb.frame: (name, verb) for name, verb in VERBS.items()}


def fitting(lines: list[L], size_of: Callable[[L], int]) -> list[L]:
    """As many of the first *lines*, whose sizes in bytes *size_of* gives, as fit into one message."""
    if sum(map(size_of, lines)) + len(lines) <= MAX_BODY:
        return lines  # true of nearly all
    sizes = accumulate(size_of(line) + 1 for line in lines)
    return lines[: max(1, sum(size <= MAX_BODY for size in sizes))]
