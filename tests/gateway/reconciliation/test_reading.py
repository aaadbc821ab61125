"""The items of messages are read from the log, from valid records only."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from gateway.core.errors import Unavailable
from gateway.core.message import Message, MessageIds, Peer
from gateway.reconciliation.items import make_item
from gateway.reconciliation.reading import CHUNK, item_of, read_items
from gateway.storage.bulk_reading import WINDOW
from gateway.storage.index import Index
from gateway.storage.record import encode
from gateway.storage.segments import Segments

TIME = 1_700_000_000_000
IDS = MessageIds(7)
TOLD = "018bcfe5-6800-7abc-8def-000000000001"  # by a gateway, at `TIME`


def said(seq: int, channel: str = "lobby", content: bytes = b"1", **more: object) -> Message:
    message = Message(channel, Peer(1, "rest", "ada"), "rest", content)
    message.seq, message.time, message.timestamp = seq, TIME + seq, TIME + seq
    message.id = IDS.make(message.time, seq)
    for name, value in more.items():
        setattr(message, name, value)
    return message


def log_of(folder: Path, *segments: list[Message]) -> tuple[Segments, Path]:
    (folder / "log").mkdir()
    for messages in segments:
        (folder / "log" / f"{messages[0].seq:020d}.jsonl").write_bytes(b"".join(map(encode, messages)))
    found, path = Segments(folder / "log"), folder / "index.sqlite"
    index = Index(path, found, IDS)
    index.catch_up()
    index.close()
    return found, path


def read(segments: Segments, path: Path, *channels: str, after: int = 0, until: int = 1 << 40) -> list[bytes]:
    return [item for chunk in read_items(path, segments, channels, after, until) for item in chunk]


def item(message: Message, id: str = "", time: int = 0) -> bytes:
    digest = sha256((id or message.id).encode()).digest()
    return make_item(time or message.timestamp, digest, message.seq)


def test_an_item_follows_from_the_ids_of_its_message() -> None:
    node = "SHA512_B32__abc"
    for message, expected in {
        said(1): (IDS.make(TIME + 1, 1), TIME + 1),
        said(2, timestamp=5): (IDS.make(TIME + 2, 2), TIME + 2),
        said(3, id=TOLD): (TOLD, TIME),
        said(4, native={"arbor": node}, ids=(node,), timestamp=99): (node, 99),
        said(5, native={"arbor": node}, ids=(node, TOLD), timestamp=99): (TOLD, TIME),
        said(6, native={"other": [1, 2]}, ids=("[1,2]", "eth:x"), timestamp=-4): ("[1,2]", 0),
        said(7, ids=(f"{TOLD} {'ab' * 32}",)): (f"{TOLD} {'ab' * 32}", TIME),
        said(8, content=rb'"\ud83c"'): (IDS.make(TIME + 8, 8), TIME + 8),
    }.items():
        id, time = expected
        assert item_of(message.seq, encode(message)) == make_item(time, sha256(id.encode()).digest(), message.seq)


def test_the_messages_of_channels_are_read_from_all_segments(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    long = b'"%b"' % (b"x" * 3 * WINDOW)
    messages = [said(n, names[n % 3], long if n == 50 else b"%d" % n) for n in range(1, 201)]
    segments, path = log_of(tmp_path, messages[:49], messages[49:51], messages[51:])
    for channels in (("a",), ("a", "c"), names, ("unknown",)):
        assert read(segments, path, *channels) == [item(each) for each in messages if each.channel in channels]
    assert read(segments, path, *names, after=48, until=53) == [item(each) for each in messages[48:53]]
    segments.close()


def test_many_come_in_chunks(tmp_path: Path) -> None:
    messages = [said(n) for n in range(1, CHUNK + 3)]
    segments, path = log_of(tmp_path, messages)
    assert [len(chunk) for chunk in read_items(path, segments, ("lobby",), 0, CHUNK + 2)] == [CHUNK, 2]
    segments.close()


def test_a_damaged_record_is_reported_and_left_out(tmp_path: Path) -> None:
    messages = [said(n, content=b'"some text"') for n in range(1, 6)]
    segments, path = log_of(tmp_path, messages)
    file = tmp_path / "log" / f"{1:020d}.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"some", b"same")
    file.write_bytes(b"".join(lines))
    assert read(segments, path, "lobby") == [item(each) for each in messages if each.seq != 3]
    assert [fault.reason for fault in segments.faults] == ["the checksum does not agree"]
    segments.close()


def test_messages_retired_meanwhile_are_skipped_without_a_fault(tmp_path: Path) -> None:
    messages = [said(n) for n in range(1, 7)]
    segments, path = log_of(tmp_path, messages[:3], messages[3:])
    (tmp_path / "log" / f"{1:020d}.jsonl").rename(tmp_path / "log" / f"{1:020d}.facts.jsonl")
    (tmp_path / "log" / f"{1:020d}.facts.jsonl").write_bytes(b"")
    assert read(segments, path, "lobby") == [item(each) for each in messages[3:]]
    assert segments.faults == []
    segments.close()


def test_an_index_that_cannot_be_read_is_unavailable(tmp_path: Path) -> None:
    segments, path = log_of(tmp_path, [said(1)])
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(Unavailable):
        read(segments, path, "lobby")
    segments.close()
