"""What is fuzzed: a function of any bytes for each decoder, which raises only where there is a bug.

Bad input ends in the decoder's own error, which is passed over. What is read must also be the same however it was cut,
and the same once more after it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from zlib import crc32

from adapters.sprout.forest import forest, openpgp, packets, twig
from adapters.sprout.wire import codec as sprout
from adapters.sprout.wire.parser import Parser
from adapters.streamr.wire import codec as streamr
from adapters.streamr.wire import message, message_layouts, network, tracker
from adapters.streamr.wire.errors import StreamrError
from adapters.topic_relay import codec as relay
from gateway.client.sse import EventReader
from gateway.core import jsontext
from gateway.core.errors import ProtocolError
from gateway.shells.websocket_parser import CLOSE, Reader
from gateway.storage import record

MAX_MESSAGE = 4096  # bytes; small, so that the limit is reached


def cut(data: bytes) -> tuple[bytes, list[bytes]]:
    """All of *data* but its first byte, and the same in pieces of as many bytes as that says."""
    size, data = data[0] % 16 + 1 if data else 1, data[1:]
    return data, [data[place : place + size] for place in range(0, len(data), size)]


def websocket(data: bytes) -> None:
    """Frames of a client: the same, and the same failure, however they are cut."""

    def read(pieces: list[bytes]) -> tuple[list[Any], Any]:
        reader, frames = Reader(MAX_MESSAGE), list[Any]()
        for piece in pieces:
            frames += reader.feed(piece)
            assert reader.held_size <= 2 * MAX_MESSAGE + 14
            if reader.failure is not None or (frames and frames[-1][0] == CLOSE):
                break
        return frames, reader.failure

    whole, pieces = cut(data)
    assert read([whole]) == read(pieces)


def sse(data: bytes) -> None:
    """Events: the same however they are cut."""
    whole, pieces = cut(data)
    reader = EventReader()
    assert EventReader().receive_data(whole) == [event for piece in pieces for event in reader.receive_data(piece)]


def topic_relay(data: bytes) -> None:
    """A packet; what is made of it for others, or of its refusal, is JSON that says so."""
    try:
        packet = relay.decode(data)
    except relay.PacketError as error:
        said = jsontext.loads(error.reply())
        if said["error"] != error.code:
            raise AssertionError("a refusal that says something else") from None
        return
    if packet.kind in (relay.MESSAGE, relay.BROADCAST):
        said = jsontext.loads(relay.forward(packet, 7))
        assert said["src"] == 7
        assert said["topic"] == packet.topic
        jsontext.loads(packet.content)


def sprout_frames(data: bytes) -> None:
    """Frames and refusals: the same however they are cut; what was read is read again after it was written."""

    def read(pieces: list[bytes]) -> list[Any]:
        parser, found = Parser(), list[Any]()
        for piece in pieces:
            parser.feed(piece)
            while True:
                try:
                    if (frame := parser.next_frame()) is None:
                        break
                    found.append(frame)
                except sprout.SproutError as error:
                    found.append((error.message_id, str(error)))
                except ProtocolError as error:
                    return [*found, str(error)]
        return found

    whole, pieces = cut(data)
    found = read([whole])
    assert read(pieces) == found
    for frame in found:
        if isinstance(frame, sprout.Frame) and not getattr(frame, "unreadable", ()):
            assert read([sprout.encode(frame)]) == [frame]


def sprout_node(data: bytes) -> None:
    """A node; it is written as it was read."""
    with suppress(forest.NodeError):
        assert forest.encode(forest.decode(data)) == data


def sprout_twig(data: bytes) -> None:
    """Pairs; the same once more after they were written."""
    with suppress(twig.TwigError):
        pairs = twig.decode(data)
        assert twig.decode(twig.encode(pairs)) == pairs


def sprout_packets(data: bytes) -> None:
    """Packets; either spelling of one is read as the same. A signature has one spelling that is kept."""
    with suppress(packets.OpenPGPError):
        for packet in packets.read_packets(data):
            new, old = packets.minimal_encodings(packet)
            assert packets.read_packets(new) == [packet]
            assert packet.tag > 15 or packets.read_packets(old) == [packet]  # which has no room for more
    with suppress(packets.OpenPGPError):
        packets.read_signature(data)
        kept = packets.canonical(packets.write_packet(packets.SIGNATURE, data))
        assert packets.canonical(kept) == kept


def sprout_openpgp(data: bytes) -> None:
    """A key, public or secret."""
    for kind in openpgp.PublicKey, openpgp.SecretKey:
        with suppress(packets.OpenPGPError):
            kind(data)


def streamr_control(data: bytes) -> None:
    """A control frame; it can be read again in the version that it came in."""
    with suppress(StreamrError):
        frame = streamr.decode_control(data)
        again = streamr.decode_control(streamr.encode(frame, frame.version))
        assert again.type == frame.type


def streamr_message(data: bytes) -> None:
    """A message; it can be read again in every version that can carry all of it."""
    with suppress(StreamrError):
        found = message.parse_message(data)
        for version in message_layouts.LAYOUTS:
            if found.is_lossless_in(version):
                again = message.parse_message(found.encode(version))
                assert again.id == found.id


def streamr_network(data: bytes) -> None:
    """A message between nodes; the same once more after it was written."""
    with suppress(StreamrError):
        found = network.decode_network(data)
        assert network.decode_network(network.encode_network(found)) == found


def streamr_tracker(data: bytes) -> None:
    """A tracker message; the same once more after it was written."""
    with suppress(StreamrError):
        found = tracker.decode_tracker(data)
        assert tracker.decode_tracker(tracker.encode_tracker(found)) == found


def records(data: bytes) -> None:
    """A line of the log, with its checksum or given one; the same once more after it was written."""
    for line in data, data + record.CRC + b'%08x"}\n' % crc32(data):
        with suppress(record.BadRecord):
            kept = record.encode(record.decode(line))
            assert record.encode(record.decode(kept)) == kept


def json(data: bytes) -> None:
    """JSON: both readers agree whether it is any, and what was read is read again after it was written."""
    try:
        value = jsontext.loads(data)
    except ValueError:
        with suppress(ValueError):
            jsontext.check(data)
            raise AssertionError("one takes what the other refuses") from None
        return
    jsontext.check(data)
    assert jsontext.loads(jsontext.dumps(value)) == value


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        *(websocket, sse, topic_relay, json, records),
        *(sprout_frames, sprout_node, sprout_twig, sprout_packets, sprout_openpgp),
        *(streamr_control, streamr_message, streamr_network, streamr_tracker),
    )
}
