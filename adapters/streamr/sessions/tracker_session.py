"""A node that uses this gateway as its tracker: it reports its stream partitions, and is told whom to connect to.

A node names itself (`?address=` or the header `streamr-peer-id`, as the libraries do), else its peer number is its
name. Names are not verified: a node that takes another's name gets what is relayed to it, unless that one has a key.

The work for a status is bounded by its content: a node gets instructions for the stream partitions that its status
names, at most `BURST` at once and `INSTRUCTIONS_PER_SECOND` after that. Other nodes whose neighbours change get theirs
within a second, with the neighbours of that moment. A thousand partitions take 40 ms, so a status is applied
`SLICE` of them at a time, in the turns of long answers; what the node sends meanwhile waits.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
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
    from gateway.adapter import ConnectionRequest

PATH = "/tracker"
MAX_PARTS = 1_000  # stream partitions that a node may report
MAX_NAME = 255  # characters of a node's name
MAX_NAME_BYTES = 64 << 10  # bytes of the stream names that a node may report
MAX_TOTAL_NAME_BYTES = 16 << 20  # the same for all nodes together
MAX_NETWORK_NAME_BYTES = 4 << 20  # the same for the nodes of one network
SLICE = 50  # stream partitions that are handled in one step
BURST = 1_000  # instructions that a node may get at once
INSTRUCTIONS_PER_SECOND = 100  # instructions a second after that
MAX_RELAYED = 64 << 10  # bytes of a message to another node; genuine ones offer and answer connections in some 5,000
MAX_SHOWN = 256  # nodes in a report to the operator
MAX_DIGITS = 9  # of a partition
UNKNOWN_PEER = "RTC_UNKNOWN_PEER"  # the libraries' code for an unknown node


class Tracker:
    """The nodes that report to this gateway: their names, their partitions and who neighbours whom."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._counter = 0
        self._name_bytes: Counter[str] = Counter()  # of the stream names that nodes reported, by network
        self.topology: Topology[TrackerSession] = Topology()
        self.nodes: OrderedDict[str, TrackerSession] = OrderedDict()

    def next_counter(self) -> int:
        """A counter for an instruction, higher than any before, including those of earlier runs of the gateway."""
        self._counter = max(self._counter + 1, self._clock())
        return self._counter

    @property
    def reserved(self) -> int:
        """The bytes of the stream names that all nodes have reported."""
        return self._name_bytes.total()

    def reserve(self, network: str, more: int) -> None:
        """Count *more* bytes of names (fewer if negative) for *network*; raises `StreamrError` beyond the limits."""
        if more > 0 and (
            self.reserved + more > MAX_TOTAL_NAME_BYTES or self._name_bytes[network] + more > MAX_NETWORK_NAME_BYTES
        ):
            raise StreamrError("This tracker has no room for more stream partitions", code=REQUEST_FAILED)
        self._name_bytes[network] += more
        if not self._name_bytes[network]:
            del self._name_bytes[network]

    def report(self) -> list[dict[str, Any]]:
        """The nodes and how many partitions they reported, for the operator; at most `MAX_SHOWN`."""
        nodes = islice(self.nodes.items(), MAX_SHOWN)
        return [{"node": name, "streams": len(self.topology.parts(node))} for name, node in nodes]

    def name(self, session: TrackerSession, name: str) -> str:
        """Register *session* as *name*, or as its peer number if *name* belongs to another key; return the name."""
        holder = self.nodes.get(name)
        if not name or (holder is not None and holder.principal.name != session.principal.name):
            name = str(session.peer.number)
        self.nodes[name] = session
        return name


class TrackerSession(Session):
    """A connected node."""

    protocol = NAME
    text = True

    def __init__(
        self, context: Context, tracker: Tracker, request: ConnectionRequest, url: str, max_outbox: int
    ) -> None:
        super().__init__(context.bus, request.principal)
        self.max_outbox = max_outbox
        self._context = context
        self._tracker = tracker
        self._url = url
        self._last_message = TrackerMessage(type=TrackerType.STATUS)  # answers use its version and type numbers
        self._pending: dict[
            StreamPart, str | None
        ] = {}  # whose neighbours are new, and the status that asked, if one did
        self._credit = BURST  # instructions that it may get now
        self._sending = False  # `_send_slice` will be called
        self._work: Iterator[None] | None = None  # what is left to do for a status, or after the end
        self._name_bytes = 0  # of the stream names that it reported
        self.name = tracker.name(self, name_of(request.query, request.headers))

    def handle(self, data: bytes) -> None:
        """Act on one message; an invalid one is answered with an error, and the connection lives."""
        request_id = ""
        try:
            message = self._decode(data)
            self._last_message, request_id = message, message.request_id
            self.pace(PATH)
            ACTIONS.get(message.type, TrackerSession.unknown)(self, message)
        except StreamrError as error:
            self._send_error(error.request_id or request_id, error.code, error.message)
        except RequestError as error:
            self._send_error(request_id, REQUEST_FAILED, str(error))

    @property
    def overloaded(self) -> bool:
        """Whether the next message has to wait, also for a status that is being applied."""
        return self._work is not None or super().overloaded

    def _decode(self, data: bytes) -> TrackerMessage:
        try:
            return decode_tracker(data)
        except StreamrError:
            self.record_malformed()
            raise

    @property
    def held_size(self) -> int:
        """The bytes kept for the node, including the stream names that it reported."""
        return super().held_size + self._name_bytes

    def deliver(self, message: Message) -> None:
        """Do nothing: a node listens to no channel."""

    def receive_eof(self) -> None:
        """The connection is closed: its neighbours get new instructions."""
        if self._tracker.nodes.get(self.name) is self:
            del self._tracker.nodes[self.name]
        super().receive_eof()
        self._start(self._set_parts({}))

    def tick(self, now: int) -> None:
        """Called once a second: send pending instructions. *now* is in ms."""
        super().tick(now)
        self._credit = min(BURST, self._credit + INSTRUCTIONS_PER_SECOND)
        if self._pending and not self._sending:
            self._sending = True
            self._context.services.answer_scheduler.schedule(self._send_slice, self.network)

    # Message types

    def status(self, message: TrackerMessage) -> None:
        """Set the node's stream partitions, and instruct it and its new neighbours."""
        self._start(self._apply(message))

    def _start(self, work: Iterator[None]) -> None:
        """Do the first slice of *work* now, and the others when their turns have come."""
        self._work = work
        self._continue(work)

    def _continue(self, work: Iterator[None]) -> None:
        if self._work is not work:
            return  # the connection has ended meanwhile
        try:
            next(work)
        except StopIteration:
            self._work = None
            self.resume()
            self.wake()
        else:
            self._context.services.answer_scheduler.schedule(partial(self._continue, work), self.network)

    def _apply(self, message: TrackerMessage) -> Iterator[None]:
        """Apply a status, a slice at each step: all of it, or nothing if it is refused."""
        try:
            yield from self._checked_and_set(message)
        except StreamrError as error:
            self._send_error(error.request_id or message.request_id, error.code, error.message)

    def _checked_and_set(self, message: TrackerMessage) -> Iterator[None]:
        named = dict.fromkeys(reported(message.status))
        if len(named) > 1:  # each counts as a request, as if it had come alone
            self.bus.charge(self.network, len(named) - 1)
        parts = named if message.status.get("singleStream") is not True else self._parts | named
        if len(parts) > MAX_PARTS:
            raise StreamrError(f"Expected status.streams to have at most {MAX_PARTS} elements.")
        yield from self._check_rights(named)
        yield from self._set_parts(parts)
        for part in named:
            self._pending.pop(part, None)
            self._pending[part] = message.request_id
        for _ in range(SLICE, len(named), SLICE):
            self._send_instructions(self.send, SLICE)
            yield
        self._send_instructions(self.send)

    def _check_rights(self, named: Iterable[StreamPart]) -> Iterator[None]:
        rest = iter(named)
        while parts := list(islice(rest, SLICE)):
            for part in parts:
                if not self.bus.allowed(self.principal, "subscribe", channel_of(*part)):
                    raise StreamrError(f"You are not allowed to subscribe to stream {part[0]}", code=PERMISSION_DENIED)
            if len(parts) == SLICE:
                yield

    def storage_nodes(self, message: TrackerMessage) -> None:
        """Answer with the storage node of a stream partition: this gateway, if the partition exists."""
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
        """Relay a message to its target node."""
        target = self._tracker.nodes.get(message.target)
        if target is None:
            raise StreamrError(f"No such node: {message.target}", code=UNKNOWN_PEER, request_id=message.request_id)
        frame = text_frame(encode_tracker(message))
        if len(frame) > MAX_RELAYED:
            raise StreamrError(f"A message to another node has at most {MAX_RELAYED} bytes")
        target.put(frame)

    def unknown(self, message: TrackerMessage) -> None:
        """Refuse a type that only trackers send."""
        raise StreamrError(f"Unknown request type: {message.number}", request_id=message.request_id)

    @property
    def _parts(self) -> dict[StreamPart, None]:
        return self._tracker.topology.parts(self)

    def _set_parts(self, parts: dict[StreamPart, None]) -> Iterator[None]:
        """Set the node's partitions; other nodes whose neighbours change get instructions at their next tick."""
        size = sum(len(part.stream_id.encode(errors="replace")) for part in parts)
        if size > MAX_NAME_BYTES:
            raise StreamrError(f"Expected status.streams to have names of at most {MAX_NAME_BYTES} bytes together.")
        self._tracker.reserve(self.principal.network, size - self._name_bytes)
        self._name_bytes = size
        changes = self._tracker.topology.report(self, parts)
        while changed := list(islice(changes, SLICE)):
            for part, nodes in changed:
                for node in nodes:
                    node._pending.setdefault(part, None)
            if len(changed) == SLICE:
                yield
        for part in [part for part in self._pending if part not in parts]:
            del self._pending[part]

    def _send_instructions(self, put: Callable[[bytes], None], most: int = BURST) -> None:
        """Send *most* pending instructions, while there is credit; *put* is `send` for what the node asked for."""
        for part in list(islice(self._pending, min(most, self._credit))):
            self._credit -= 1
            put(self._instruction(part, self._pending.pop(part)))

    def _send_slice(self) -> None:
        """Send some of the pending instructions that other nodes' changes caused, and later the others."""
        self._send_instructions(self.put, SLICE)
        self._sending = self._credit > 0 and bool(self._pending)
        if self._sending:
            self._context.services.answer_scheduler.schedule(self._send_slice, self.network)

    def _instruction(self, part: StreamPart, request_id: str | None) -> bytes:
        """The frame of an instruction for *part*; *request_id* is that of the status that asked for it, if one did."""
        counter = self._tracker.next_counter()
        return self._frame(
            TrackerType.INSTRUCTION,
            request_id=request_id or str(counter),
            stream_id=part.stream_id,
            stream_partition=part.partition,
            nodes=tuple(node.name for node in self._tracker.topology.neighbours(self, part)),
            counter=counter,
        )

    def _frame(self, kind: TrackerType, **fields: Any) -> bytes:
        number = reply_number(kind, self._last_message)
        return text_frame(
            encode_tracker(TrackerMessage(type=kind, version=self._last_message.version, number=number, **fields))
        )

    def _send_error(self, request_id: str, code: str, text: str) -> None:
        """Send the libraries' ErrorMessage, with the reason as an extra last field, which they ignore."""
        frame = [
            self._last_message.version,
            int(TrackerType.ERROR),
            request_id,
            code or INVALID_REQUEST,
            self.name,
            text,
        ]
        self.send(text_frame(dumps(frame)))


def name_of(query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """The name that a node gives itself; empty if it gives none, or not a usable one."""
    name = query.get("address") or query.get("id") or headers.get("streamr-peer-id") or ""
    return name if len(name) <= MAX_NAME and name.isprintable() else ""


def reported(status: Mapping[str, Any]) -> Iterator[StreamPart]:
    """The stream partitions in a status: the keys of an object, as nodes write it, or the elements of S0's array.

    Raises `StreamrError`.
    """
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
    if separator and stream and digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS:
        return StreamPart(stream, int(digits))
    return StreamPart(text, 0)


# fmt: off
ACTIONS: dict[TrackerType, Callable[[TrackerSession, TrackerMessage], None]] = {
    TrackerType.STATUS:                TrackerSession.status,
    TrackerType.STORAGE_NODES_REQUEST: TrackerSession.storage_nodes,
    TrackerType.RELAY:                 TrackerSession.relay,
}
# fmt: on
