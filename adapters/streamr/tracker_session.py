"""One node that asks this gateway as its tracker: it reports what it has, and is told whom to connect with.

A node is called what it says (`?address=` or the header `streamr-peer-id`, as nodes of the libraries have it), else by
its number. Names are claims: who takes the name of another gets what is relayed to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from gateway.errors import RequestError
from gateway.frames import text_frame
from gateway.jsontext import dumps
from gateway.message import Message
from gateway.session import Session

from . import checks
from .errors import INVALID_REQUEST, PERMISSION_DENIED, REQUEST_FAILED, StreamrError
from .ids import NAME, channel_of
from .tracker import TrackerMessage, TrackerType, decode_tracker, encode_tracker, numbered_like
from .tracker_topology import StreamPart, Topology

if TYPE_CHECKING:
    from gateway.adapter import Request

    from .adapter import StreamrAdapter

PATH = "/tracker"
MAX_PARTS = 1_000  # stream partitions that a node may report
MAX_NAME = 255  # characters of a node's name
MAX_SHOWN = 256  # nodes in a report to the operator
MAX_DIGITS = 10  # of a partition
UNKNOWN_PEER = "RTC_UNKNOWN_PEER"  # the libraries' code for who is not there


class Tracker:
    """The nodes that report to this gateway, and what they are told of each other."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._counter = 0
        self.topology: Topology[TrackerSession] = Topology()
        self.nodes: OrderedDict[str, TrackerSession] = OrderedDict()

    def count(self) -> int:
        """A number for an instruction: higher than any before, also than those of the former runs."""
        self._counter = max(self._counter + 1, self._clock())
        return self._counter

    def report(self) -> list[dict[str, Any]]:
        """Who reported what, for the operator."""
        nodes = islice(self.nodes.items(), MAX_SHOWN)
        return [{"node": name, "streams": len(self.topology.parts(node))} for name, node in nodes]


class TrackerSession(Session):
    """A connected node."""

    protocol = NAME
    text = True

    def __init__(self, adapter: StreamrAdapter, tracker: Tracker, request: Request, url: str, max_outbox: int) -> None:
        super().__init__(adapter.bus, request.principal)
        self.max_outbox = max_outbox
        self._adapter = adapter
        self._tracker = tracker
        self._url = url
        self._spoken = TrackerMessage(type=TrackerType.STATUS)  # the last message: its version and numbers are used
        self.name = name_of(request.query, request.headers) or str(self.peer.number)
        tracker.nodes[self.name] = self

    def handle(self, data: bytes) -> None:
        """Act on one message; whatever it is, the connection lives."""
        request_id = ""
        try:
            message = decode_tracker(data)
            self._spoken, request_id = message, message.request_id
            self.pace(PATH)
            ACTIONS.get(message.type, TrackerSession.unknown)(self, message)
        except StreamrError as error:
            self._fail(error.request_id or request_id, error.code, error.message)
        except RequestError as error:
            self._fail(request_id, REQUEST_FAILED, str(error))

    def deliver(self, message: Message) -> None:
        """Nothing: a node listens to no channel here."""

    def receive_eof(self) -> None:
        """The node is gone, and its neighbours are told."""
        if self._tracker.nodes.get(self.name) is self:
            del self._tracker.nodes[self.name]
        self._place([], "")
        super().receive_eof()

    # What the types of messages do

    def status(self, message: TrackerMessage) -> None:
        """Take what the node has, and tell it and the others of it whom to connect with."""
        parts = dict.fromkeys(reported(message.status))
        if message.status.get("singleStream") is True:
            parts = dict.fromkeys((*self._tracker.topology.parts(self), *parts))
        if len(parts) > MAX_PARTS:
            raise StreamrError(f"Expected status.streams to have at most {MAX_PARTS} elements.")
        for part in parts:
            channel = channel_of(*part)
            if not self.bus.allowed(self.principal, "subscribe", channel):
                raise StreamrError(f"You are not allowed to subscribe to stream {part[0]}", code=PERMISSION_DENIED)
        self._place(list(parts), message.request_id)

    def storage_nodes(self, message: TrackerMessage) -> None:
        """Tell who keeps a stream: this gateway, for every partition that there is."""
        there = message.stream_partition < self._adapter.partitions(message.stream_id)
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
        target.put(text_frame(encode_tracker(message)))

    def unknown(self, message: TrackerMessage) -> None:
        """Refuse what only trackers send."""
        raise StreamrError(f"Unknown request type: {message.number}", request_id=message.request_id)

    def instruct(self, part: StreamPart, nodes: list[TrackerSession], request_id: str | None) -> None:
        """Tell the node whom to connect with for a stream partition; *request_id* is of its status, if it asked."""
        counter = self._tracker.count()
        frame = self._frame(
            TrackerType.INSTRUCTION,
            request_id=request_id or str(counter),
            stream_id=part.stream_id,
            stream_partition=part.partition,
            nodes=tuple(node.name for node in nodes),
            counter=counter,
        )
        (self.put if request_id is None else self.send)(frame)

    def _place(self, parts: list[StreamPart], request_id: str) -> None:
        for (node, part), others in self._tracker.topology.report(self, parts).items():
            node.instruct(part, others, request_id if node is self else None)

    def _frame(self, kind: TrackerType, **fields: Any) -> bytes:
        number = numbered_like(kind, self._spoken)
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
