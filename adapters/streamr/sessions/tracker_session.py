"""One node that asks this gateway as its tracker: it reports what it has, and is told whom to connect with.

A node is called what it says (`?address=` or the header `streamr-peer-id`, as nodes of the libraries have it), else by
its number. Names are claims: who takes the name of another gets what is relayed to it, unless the other has a key.

What a status costs is bounded by what is in it: a node is told of the stream partitions that its status names, at most
`BURST` of them at once and `RATE` a second from then on. Others whose neighbours change are told within a second, and
only how it is then.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from adapters.streamr.wire import checks
from adapters.streamr.wire.errors import INVALID_REQUEST, PERMISSION_DENIED, REQUEST_FAILED, StreamrError
from adapters.streamr.wire.ids import NAME, channel_of
from adapters.streamr.wire.tracker import TrackerMessage, TrackerType, decode_tracker, encode_tracker, reply_number
from gateway.core.errors import RequestError
from gateway.core.frames import text_frame
from gateway.core.jsontext import dumps
from gateway.core.message import Message
from gateway.core.session import Session

from .tracker_topology import StreamPart, Topology

if TYPE_CHECKING:
    from adapters.streamr.context import Context
    from gateway.adapter import Request

PATH = "/tracker"
MAX_PARTS = 1_000  # stream partitions that a node may report
MAX_NAME = 255  # characters of a node's name
MAX_NAMES = 64 << 10  # bytes of the names of streams that a node may report
MAX_ALL_NAMES = 16 << 20  # the same of all nodes together
MAX_NETWORK_NAMES = 4 << 20  # and of those from one network
BURST = 1_000  # instructions that a node is given at once
RATE = 100  # instructions a second after that
MAX_RELAYED = 64 << 10  # bytes of a message to another node; genuine ones offer and answer connections in some 5,000
MAX_SHOWN = 256  # nodes in a report to the operator
MAX_DIGITS = 10  # of a partition
UNKNOWN_PEER = "RTC_UNKNOWN_PEER"  # the libraries' code for who is not there


class Tracker:
    """The nodes that report to this gateway, and what they are told of each other."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._counter = 0
        self._names: Counter[str] = Counter()  # bytes of what nodes reported, by network
        self.topology: Topology[TrackerSession] = Topology()
        self.nodes: OrderedDict[str, TrackerSession] = OrderedDict()

    def count(self) -> int:
        """A number for an instruction: higher than any before, also than those of the former runs."""
        self._counter = max(self._counter + 1, self._clock())
        return self._counter

    @property
    def held(self) -> int:
        """The bytes of the names of streams that all nodes have reported."""
        return self._names.total()

    def hold(self, network: str, more: int) -> None:
        """Take *more* bytes of names (fewer where that is negative) from *network*; `StreamrError` without room."""
        if more > 0 and (self.held + more > MAX_ALL_NAMES or self._names[network] + more > MAX_NETWORK_NAMES):
            raise StreamrError("This tracker has no room for more stream partitions", code=REQUEST_FAILED)
        self._names[network] += more
        if not self._names[network]:
            del self._names[network]

    def report(self) -> list[dict[str, Any]]:
        """Who reported what, for the operator."""
        nodes = islice(self.nodes.items(), MAX_SHOWN)
        return [{"node": name, "streams": len(self.topology.parts(node))} for name, node in nodes]

    def name(self, session: TrackerSession, name: str) -> str:
        """What *session*, which calls itself *name*, is called: its number, where *name* is that of another key."""
        holder = self.nodes.get(name)
        if not name or (holder is not None and holder.principal.name != session.principal.name):
            name = str(session.peer.number)
        self.nodes[name] = session
        return name


class TrackerSession(Session):
    """A connected node."""

    protocol = NAME
    text = True

    def __init__(self, context: Context, tracker: Tracker, request: Request, url: str, max_outbox: int) -> None:
        super().__init__(context.bus, request.principal)
        self.max_outbox = max_outbox
        self._context = context
        self._tracker = tracker
        self._url = url
        self._spoken = TrackerMessage(type=TrackerType.STATUS)  # the last message: its version and numbers are used
        self._untold: dict[
            StreamPart, str | None
        ] = {}  # whose neighbours are new, and the status that asked, if one did
        self._credit = BURST  # instructions that it may be given now
        self._names = 0  # bytes of the names that it reported
        self.name = tracker.name(self, name_of(request.query, request.headers))

    def handle(self, data: bytes) -> None:
        """Act on one message; whatever it is, the connection lives."""
        request_id = ""
        try:
            message = self._decode(data)
            self._spoken, request_id = message, message.request_id
            self.pace(PATH)
            ACTIONS.get(message.type, TrackerSession.unknown)(self, message)
        except StreamrError as error:
            self._fail(error.request_id or request_id, error.code, error.message)
        except RequestError as error:
            self._fail(request_id, REQUEST_FAILED, str(error))

    def _decode(self, data: bytes) -> TrackerMessage:
        try:
            return decode_tracker(data)
        except StreamrError:
            self.record_malformed()
            raise

    @property
    def held_size(self) -> int:
        """What is kept for the node, with the names of what it reported."""
        return super().held_size + self._names

    def deliver(self, message: Message) -> None:
        """Nothing: a node listens to no channel here."""

    def receive_eof(self) -> None:
        """The node is gone, and its neighbours are told."""
        if self._tracker.nodes.get(self.name) is self:
            del self._tracker.nodes[self.name]
        self._place({})
        super().receive_eof()

    def tick(self, now: int) -> None:
        """A second has passed: tell what is new."""
        super().tick(now)
        self._credit = min(BURST, self._credit + RATE)
        self._tell(self.put)

    # What the types of messages do

    def status(self, message: TrackerMessage) -> None:
        """Take what the node has, and tell it and the others of it whom to connect with."""
        named = dict.fromkeys(reported(message.status))
        parts = named if message.status.get("singleStream") is not True else self._parts | named
        if len(parts) > MAX_PARTS:
            raise StreamrError(f"Expected status.streams to have at most {MAX_PARTS} elements.")
        for part in named:
            channel = channel_of(*part)
            if not self.bus.allowed(self.principal, "subscribe", channel):
                raise StreamrError(f"You are not allowed to subscribe to stream {part[0]}", code=PERMISSION_DENIED)
        self._place(parts)
        for part in named:
            self._untold.pop(part, None)
            self._untold[part] = message.request_id
        self._tell(self.send)

    def storage_nodes(self, message: TrackerMessage) -> None:
        """Tell who keeps a stream: this gateway, for every partition that there is."""
        there = message.stream_partition < self._context.streams.partitions(message.stream_id)
        self.send(
            self._frame(
                TrackerType.STORAGE_NODES_RESPONSE,
                request_id=message.request_id,
                stream_id=message.stream_id,
                stream_partition=message.stream_partition,
                nodes=(self._url,) if there else (),
            )
        )

    def relay(self, message: TrackerMessage) -> None:
        """Pass a message on to the node that it is for."""
        target = self._tracker.nodes.get(message.target)
        if target is None:
            raise StreamrError(f"No such node: {message.target}", code=UNKNOWN_PEER, request_id=message.request_id)
        frame = text_frame(encode_tracker(message))
        if len(frame) > MAX_RELAYED:
            raise StreamrError(f"A message to another node has at most {MAX_RELAYED} bytes")
        target.put(frame)

    def unknown(self, message: TrackerMessage) -> None:
        """Refuse what only trackers send."""
        raise StreamrError(f"Unknown request type: {message.number}", request_id=message.request_id)

    @property
    def _parts(self) -> dict[StreamPart, None]:
        return self._tracker.topology.parts(self)

    def _place(self, parts: dict[StreamPart, None]) -> None:
        """Take *parts* for all that the node has; the others whose neighbours change are told at their next tick."""
        size = sum(len(part.stream_id.encode(errors="replace")) for part in parts)
        if size > MAX_NAMES:
            raise StreamrError(f"Expected status.streams to have names of at most {MAX_NAMES} bytes together.")
        self._tracker.hold(self.principal.address, size - self._names)
        self._names = size
        for node, part in self._tracker.topology.report(self, parts):
            node._untold.setdefault(part, None)
        for part in [part for part in self._untold if part not in parts]:
            del self._untold[part]

    def _tell(self, put: Callable[[bytes], None]) -> None:
        """Tell what is new, as far as the node may be told so much now; *put* is `send` for what it asked for."""
        for part in list(islice(self._untold, self._credit)):
            self._credit -= 1
            put(self._instruction(part, self._untold.pop(part)))

    def _instruction(self, part: StreamPart, request_id: str | None) -> bytes:
        """Whom to connect with for a stream partition; *request_id* is of the status that asked, if one did."""
        counter = self._tracker.count()
        return self._frame(
            TrackerType.INSTRUCTION,
            request_id=request_id or str(counter),
            stream_id=part.stream_id,
            stream_partition=part.partition,
            nodes=tuple(node.name for node in self._tracker.topology.neighbours(self, part)),
            counter=counter,
        )

    def _frame(self, kind: TrackerType, **fields: Any) -> bytes:
        number = reply_number(kind, self._spoken)
        return text_frame(
            encode_tracker(TrackerMessage(type=kind, version=self._spoken.version, number=number, **fields))
        )

    def _fail(self, request_id: str, code: str, text: str) -> None:
        """The libraries' ErrorMessage, with the reason behind its fields: they pass over what they do not know."""
        frame = [self._spoken.version, int(TrackerType.ERROR), request_id, code or INVALID_REQUEST, self.name, text]
        self.send(text_frame(dumps(frame)))


def name_of(query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """What a node calls itself, empty where it does not."""
    name = query.get("address") or query.get("id") or headers.get("streamr-peer-id") or ""
    return name if len(name) <= MAX_NAME and name.isprintable() else ""


def reported(status: Mapping[str, Any]) -> Iterator[StreamPart]:
    """The stream partitions in a status: the keys of an object, as nodes write it, or the elements of S0's array."""
    streams = status.get("streams", [])
    if type(streams) not in (dict, list):
        raise StreamrError(f"Expected status.streams to be an object or an array but was {checks.js_text(streams)}.")
    if len(streams) > MAX_PARTS:
        raise StreamrError(f"Expected status.streams to have at most {MAX_PARTS} elements.")
    for name in streams:
        yield _part(name)


def _part(value: Any) -> StreamPart:
    """The stream partition that is written as `id::partition`, or as an object with both."""
    if type(value) is dict:
        stream = value.get("streamId", value.get("id", checks.UNDEFINED))
        partition = value.get("streamPartition", value.get("partition", 0))
        return StreamPart(checks.nonempty("streamId", stream), checks.integer("streamPartition", partition))
    text = checks.nonempty("status.streams", value)
    if len(text) > checks.MAX_NAME:
        raise StreamrError(f"Expected status.streams to have names of at most {checks.MAX_NAME} characters.")
    stream, separator, digits = text.rpartition("::")
    if separator and stream and digits.isascii() and digits.isdigit() and len(digits) < MAX_DIGITS:
        return StreamPart(stream, int(digits))
    return StreamPart(text, 0)


# fmt: off
ACTIONS: dict[TrackerType, Callable[[TrackerSession, TrackerMessage], None]] = {
    TrackerType.STATUS:                TrackerSession.status,
    TrackerType.STORAGE_NODES_REQUEST: TrackerSession.storage_nodes,
    TrackerType.RELAY:                 TrackerSession.relay,
}
# fmt: on
