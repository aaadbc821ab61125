"""A node of the peer-to-peer network that speaks S2's network layer: wrapped control messages, and a few of its own.

A wrapped control message does what it does on `/api/v1/ws`. Every control frame that is sent is wrapped, in the form of
the node's last message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from adapters.streamr.wire.errors import REQUEST_FAILED, StreamrError
from adapters.streamr.wire.network import (
    S2_VERSION,
    NetworkMessage,
    NetworkType,
    decode_value,
    encode_network,
    has_wrapper,
    parse_network,
    version_and_form,
)
from gateway.core.errors import RequestError
from gateway.core.frames import payload, text_frame
from gateway.core.jsontext import dumps, loads
from gateway.core.principal import Principal

from .session import StreamrSession

if TYPE_CHECKING:
    from adapters.streamr.shared_parts import StreamrParts

PATH = "/network"
MAX_STATUS = 4_096  # bytes of a status, as JSON, that is kept to be shown
MAX_SHOWN = 64  # nodes in a report to the operator
MAX_WRAPPED = 256  # frames that are wrapped in one turn of the loop, which takes 2 ms; a full outbox has thousands
CONTROL = (b"[1,", b"[2,")  # how control frames begin, and network messages do not


class NodeReports:
    """What the connected nodes reported about themselves.

    A status is kept as its text: as values it would take up to thirty times as much.
    """

    def __init__(self) -> None:
        self.reports: dict[NetworkSession, dict[str, Any]] = {}

    def report(self) -> list[dict[str, Any]]:
        """The reports, for the operator; at most `MAX_SHOWN`."""
        shown = islice(self.reports.values(), MAX_SHOWN)
        return [report | ({"status": loads(report["status"])} if "status" in report else {}) for report in shown]


class NetworkSession(StreamrSession):
    """A connected node."""

    max_portion = MAX_WRAPPED

    def __init__(
        self,
        parts: StreamrParts,
        principal: Principal,
        versions: tuple[int | None, int | None],
        max_outbox: int,
        *,
        nodes: NodeReports,
        url: str,
    ) -> None:
        super().__init__(parts, principal, versions, max_outbox)
        self._gateway_id = parts.context.home.gateway_id
        self._nodes = nodes
        self._url = url
        self._version, self._as_object = S2_VERSION, False  # of the node's last message

    def handle(self, data: bytes) -> None:
        """Act on one message; an invalid one is answered with an error, and the connection lives."""
        try:
            message = self._decode(data)
            if message.type is NetworkType.WRAPPER:
                super().handle(message.control)
            else:
                self.pace(PATH)
                ACTIONS[message.type](self, message)
        except StreamrError as error:
            self.send(self.error_frame(error.message, error.code, error.request_id))
        except RequestError as error:
            self.send(self.error_frame(str(error), REQUEST_FAILED, ""))

    def _decode(self, data: bytes) -> NetworkMessage:
        try:
            value = parse_network(data)
            self._version, self._as_object = version_and_form(value)
            return decode_value(value, data)
        except StreamrError:
            self.record_malformed()
            raise

    def receive_all(self, messages: Sequence[bytes]) -> None:
        """Act on messages that arrived together, one by one: wrapped ones are not published as runs."""
        for message in messages:
            self.receive_data(message)

    def data_to_send(self) -> list[bytes]:
        """Return what can be written now, with control frames wrapped."""
        return [self._wrapped(frame) for frame in super().data_to_send()]

    @property
    def held_size(self) -> int:
        """The bytes that are kept for the node, with its status."""
        return super().held_size + len(self._nodes.reports.get(self, {}).get("status", b""))

    def all_to_send(self) -> None:
        """None: each frame may need a wrapper."""

    def receive_eof(self) -> None:
        """The connection is closed."""
        self._nodes.reports.pop(self, None)
        super().receive_eof()

    # Message types

    def status(self, message: NetworkMessage) -> None:
        """Keep the node's status for the operator."""
        status = bytes(memoryview(dumps(message.status)))  # a copy: what orjson makes has 250 kB of room behind it
        self._note(message, status=status if len(status) <= MAX_STATUS else dumps(f"{len(status)} bytes"))

    def record(self, message: NetworkMessage) -> None:
        """Keep the nodes that a message names, for the operator; the gateway connects to none of them."""
        self._note(message, told=[message.stream_id, len(message.nodes)])

    def find_storage_nodes(self, message: NetworkMessage) -> None:
        """Answer with the storage node of a stream partition: this gateway, if the partition exists."""
        there = message.stream_partition < self._parts.context.streams.partitions(message.stream_id)
        answer = NetworkMessage(
            type=NetworkType.STORAGE_NODES,
            source=self._gateway_id,
            stream_id=message.stream_id,
            stream_partition=message.stream_partition,
            nodes=(self._url,) if there else (),
            version=self._version,
            as_object=self._as_object,
        )
        self.send(text_frame(encode_network(answer)))

    def _note(self, message: NetworkMessage, **fields: Any) -> None:
        report = self._nodes.reports.setdefault(self, {"peer": self.peer.number})
        report |= {"source": message.source, "version": message.version} | fields

    def _wrapped(self, frame: bytes) -> bytes:
        """A control *frame* in a wrapper, any other unchanged; nodes whose version has no wrapper get one of S2."""
        control = payload(frame)
        if not control.startswith(CONTROL):
            return frame
        wraps = has_wrapper(self._version, as_object=self._as_object)
        wrapper = NetworkMessage(
            type=NetworkType.WRAPPER,
            source=self._gateway_id,
            control=control,
            version=self._version if wraps else S2_VERSION,
            as_object=self._as_object and wraps,
        )
        return text_frame(encode_network(wrapper))


# fmt: off
ACTIONS: dict[NetworkType, Callable[[NetworkSession, NetworkMessage], None]] = {
    NetworkType.STATUS:             NetworkSession.status,
    NetworkType.INSTRUCTION:        NetworkSession.record,
    NetworkType.FIND_STORAGE_NODES: NetworkSession.find_storage_nodes,
    NetworkType.STORAGE_NODES:      NetworkSession.record,
}
# fmt: on
