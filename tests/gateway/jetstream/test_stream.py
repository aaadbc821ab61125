"""The stream on genuine servers has one order for all readers and loses nothing, whatever fails."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import nats
import pytest
from nats.js.manager import JetStreamManager
from zlib_ng.zlib_ng import crc32

from gateway.jetstream import reader, stream, unconfirmed
from gateway.jetstream.connecting import JetStreamSettings
from gateway.jetstream.reader import StreamEntry
from gateway.jetstream.stream import JetStream
from tests.nats import PROGRAM, NatsServer
from tests.pages import ROOT, blocks
from tests.waiting import until


class StreamReader:
    """A gateway as far as its stream is concerned: it takes everything at once."""

    def __init__(
        self, settings: JetStreamSettings, after: int = 0, address: str = "", digest: int | None = None
    ) -> None:
        self.entries: list[StreamEntry] = []
        self.faults: list[str] = []
        self.heard: list[bytes] = []
        self.stream = JetStream(settings, self._take, self.faults.append, self.heard.append, address)
        self.stream.start(after, digest)

    def _take(self, entries: list[StreamEntry]) -> None:
        self.entries += entries
        self.stream.acknowledge_read(entries[-1].position)

    @property
    def data(self) -> list[bytes]:
        return [entry.data for entry in self.entries]

    def counted(self) -> list[bytes]:
        """What counts of data that begin with a number: each next one, as the fences have it."""
        counted: list[bytes] = []
        for data in self.data:
            if int(data.split()[0]) == len(counted) + 1:
                counted.append(data)
        return counted


Join = Callable[..., StreamReader]


@pytest.fixture
def join(server: NatsServer) -> Iterator[Join]:
    members: list[StreamReader] = []

    def join(
        after: int = 0, name: str = "test", address: str = "", digest: int | None = None, **options: object
    ) -> StreamReader:
        settings = JetStreamSettings(name, (server.url,), **options)  # type: ignore[arg-type]
        members.append(StreamReader(settings, after, address, digest))
        return members[-1]

    yield join
    for member in members:
        member.stream.stop()


def numbered(count: int, first: int = 1) -> list[bytes]:
    return [b"%d %s" % (number, b"x" * (number % 300)) for number in range(first, first + count)]


def test_the_server_accepts_the_configuration_of_the_how_to_page(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(ROOT / "docs/how-to/cluster.md") if "jetstream {" in block.code)
    file = tmp_path / "nats.conf"
    file.write_text(block.code)
    done = subprocess.run([PROGRAM, "-t", "-c", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_read_one_order(server: NatsServer, join: Join) -> None:
    members = [join(), join()]
    for number in range(500):
        members[number % 2].stream.submit(b"%d" % number)
    until(lambda: all(len(member.entries) == 500 for member in members))
    one, other = members
    assert one.entries == other.entries
    assert [entry.position for entry in one.entries] == [*range(1, 501)]
    assert [data for data in one.data if int(data) % 2] == [b"%d" % number for number in range(1, 500, 2)]
    times = [entry.time for entry in one.entries]
    assert times == sorted(times)
    until(lambda: one.stream.status().unsent == 0)
    until(lambda: (stored := one.stream.status().stored) is not None and stored.last == 500)
    found = one.stream.status()
    assert found[:4] == (True, 500, 0, "")
    assert (f"nats://{found.server}", found.reconnects) == (server.url, 0)
    assert found.stored is not None
    assert found.stored.first == 1
    assert asyncio.run(consumers(server)) == 2, "each has one, however many portions it reads"


async def consumers(server: NatsServer) -> int:
    """How many the stream has; the server keeps one for a minute after it was used last."""
    async with await nats.connect(server.url) as client:
        return len(await JetStreamManager(client).consumers_info("test"))


def test_a_signal_reaches_all_members_or_one(join: Join) -> None:
    one, other = join(address="one@1"), join(address="two.b@2")

    def tell(teller: StreamReader, data: bytes, to: str, hearer: StreamReader) -> bool:
        teller.stream.tell(data, to)
        return data in hearer.heard

    until(lambda: tell(one, b"to all", "", other))
    until(lambda: tell(other, b"to one", "one@1", one))
    until(lambda: tell(one, b"to the other", "two.b@2", other))
    assert b"to one" not in other.heard
    assert b"to all" not in one.heard, "nobody hears itself"
    assert b"to the other" not in one.heard


def test_a_signal_that_comes_while_the_stream_ends_is_left_out() -> None:
    ended = JetStream(JetStreamSettings("test", ("nats://127.0.0.1:4222",)), print, print)
    ended._client = SimpleNamespace(is_connected=True)  # type: ignore[assignment]

    async def end() -> None:
        async with asyncio.TaskGroup() as ended._tasks:
            pass
        ended._send_now("late", b"late")

    asyncio.run(end())
    ended._loop.close()


def test_reading_begins_after_the_given_position(join: Join) -> None:
    first = join()
    for data in numbered(10):
        first.stream.submit(data)
    until(lambda: len(first.entries) == 10)
    assert first.data == numbered(10)
    late = join(after=7)
    until(lambda: len(late.entries) == 3)
    assert late.entries == first.entries[7:]


def test_long_batches_are_read_in_portions(join: Join) -> None:
    long = [bytes([number]) * (7 << 20) for number in range(6)]  # more than one portion has
    first = join()
    for data in long:
        first.stream.submit(data)
    late = join()
    for member in (first, late):
        until(lambda: len(member.entries) == len(long))  # noqa: B023  # it is called here
        assert member.data == long


def test_a_reader_that_acknowledges_nothing_gets_a_bounded_number(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    first = join()
    for data in numbered(2000):
        first.stream.submit(data)
    until(lambda: len(first.entries) == 2000)
    monkeypatch.setattr(StreamReader, "_take", lambda self, entries: self.entries.extend(entries))
    idle = join()
    until(lambda: len(idle.entries) >= 700)
    before = len(idle.entries)
    assert before < 1100
    idle.stream.acknowledge_read(idle.entries[-1].position)
    until(lambda: len(idle.entries) > before)
    assert idle.entries == first.entries[: len(idle.entries)]


def test_a_server_that_is_killed_loses_nothing(join: Join, server: NatsServer) -> None:
    sender, reader = join(), join()
    sent = numbered(900)
    for at, data in enumerate(sent):
        sender.stream.submit(data)
        if at in (300, 600):
            until(lambda: len(reader.entries) > 100)
            server.kill()
            server.start()
    until(lambda: len(sender.counted()) == len(sent) == len(reader.counted()))
    assert sender.counted() == sent, "some may stand there twice, but none too early"
    assert reader.entries == sender.entries


def test_a_batch_that_is_lost_on_the_way_is_sent_again(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server drops what comes while nobody leads the stream, and says so only if it is asked for an answer."""
    sender = join()
    sender.stream.submit(b"1 first")
    until(lambda: sender.entries)
    dropped = list[bytes]()

    async def drop(_subject: str, data: bytes) -> None:
        dropped.append(data)

    with monkeypatch.context() as patch:
        patch.setattr(sender.stream, "_publish", drop)
        sender.stream.submit(b"2 lost")
        until(lambda: dropped)
    sender.stream.submit(b"3 too early")
    until(lambda: sender.counted() == [b"1 first", b"2 lost", b"3 too early"])
    until(lambda: sender.stream.status().unsent == 0)


def test_nothing_waits_for_the_lost_answer_to_a_batch_that_came_back(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = join()
    sender.stream.submit(b"1")
    until(lambda: sender.entries)

    async def lose(*_: object) -> None:
        pass

    async def send_without_answer(subject: str, data: bytes, *_: object) -> None:
        await sender.stream._client.publish(subject, data)
        await asyncio.sleep(3_600)

    monkeypatch.setattr(sender.stream._context, "publish", send_without_answer)
    with monkeypatch.context() as patch:
        patch.setattr(sender.stream, "_publish", lose)
        sender.stream.submit(b"2")
        until(lambda: len(sender.counted()) == 2)
    sender.stream.submit(b"3")
    until(lambda: len(sender.counted()) == 3)
    until(lambda: sender.stream.status()[2:4] == (0, ""))


def test_what_comes_back_is_not_sent_again(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(unconfirmed, "REPEAT_SECONDS", 3_600.0)
    sender = join()
    for number in range(1, 6):
        sender.stream.submit(b"%d" % number)
        until(lambda: len(sender.counted()) == number)  # noqa: B023  # it is called here
    until(lambda: sender.stream.status().unsent == 0)
    count = len(sender.entries)
    monkeypatch.setattr(unconfirmed, "REPEAT_SECONDS", 0.0)
    time.sleep(0.2)
    assert len(sender.entries) == count


def test_entries_that_the_stream_no_longer_has_are_a_fault(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "HOLE_SECONDS", 0.3)
    first = join()
    first.stream.submit(b"1")
    until(lambda: first.entries)
    ahead = join(after=2)
    until(lambda: ahead.faults)
    assert ahead.faults == ["the stream ends at 1, but 2 was taken already"]
    assert ahead.stream.status().error == ahead.faults[0]
    assert ahead.entries == []


def test_a_server_that_is_briefly_behind_causes_no_fault(join: Join) -> None:
    first = join()
    first.stream.submit(b"1")
    until(lambda: first.entries)
    ahead = join(after=2)  # as another server had it
    until(lambda: ahead.stream.status().stored is not None)
    for data in (b"2", b"3"):
        first.stream.submit(data)
    until(lambda: ahead.entries)
    assert (ahead.data, ahead.faults) == ([b"3"], [])


def test_untaken_entries_are_bounded_in_bytes(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """One portion may come beyond the bound."""
    monkeypatch.setattr(reader, "MAX_UNTAKEN_BYTES", 5_000)
    monkeypatch.setattr(reader, "PORTION_BYTES", 2_000)
    monkeypatch.setattr(reader, "HEARTBEAT_SECONDS", 0.5)
    first = join()
    for number in range(40):
        first.stream.submit(bytes([number]) * 1_000)
    until(lambda: len(first.entries) == 40)
    late = join()
    acknowledge, late.stream.acknowledge_read = late.stream.acknowledge_read, lambda _position: None  # type: ignore[method-assign, assignment]
    until(lambda: len(late.entries) >= 5)
    time.sleep(0.5)
    assert len(late.entries) < 10
    late.stream.acknowledge_read = acknowledge  # type: ignore[method-assign]
    acknowledge(late.entries[-1].position)
    until(lambda: len(late.entries) == 40)


def store(folder: Path) -> Path:
    """Where the server keeps the stream `test`."""
    return folder / "jetstream" / "$G" / "streams" / "test"


def test_a_stream_that_was_restored_from_an_older_state_is_found(
    join: Join, server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "HOLE_SECONDS", 0.3)
    first = join()
    for data in numbered(3):
        first.stream.submit(data)
    until(lambda: len(first.entries) == 3)
    server.stop()
    shutil.copytree(store(tmp_path), tmp_path / "backup")
    server.start()
    first.stream.submit(b"4 as it was")
    until(lambda: len(first.entries) == 4)
    server.kill()
    shutil.rmtree(store(tmp_path))
    shutil.copytree(tmp_path / "backup", store(tmp_path))
    server.start()
    until(lambda: first.faults)
    assert first.faults == ["the stream ends at 3, but 4 was taken already"]
    writer = join(after=3, digest=crc32(first.data[2]))
    for data in (b"4 another", b"5 another"):
        writer.stream.submit(data)
    until(lambda: len(writer.entries) == 2)
    assert not writer.faults, "it has what it was"
    late = join(after=4, digest=crc32(first.data[3]))
    until(lambda: late.faults)
    assert "the stream has something else at 4 than it had" in late.faults[0]
    assert not late.entries


@pytest.mark.parametrize("index", [True, False])
def test_a_bit_that_flipped_in_the_store_is_found(
    join: Join, server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    """A server that has its index leaves the damaged message out; else it forgets all from there on."""
    monkeypatch.setattr(reader, "HOLE_SECONDS", 0.3)
    first = join()
    for data in numbered(9):
        first.stream.submit(data)
    until(lambda: len(first.entries) == 9)
    first.stream.stop()
    server.stop()
    (block,) = (store(tmp_path) / "msgs").glob("*.blk")
    stored = bytearray(block.read_bytes())
    stored[stored.index(first.data[4])] ^= 1
    block.write_bytes(stored)
    if not index:
        (store(tmp_path) / "msgs" / "index.db").unlink()
    server.start()
    late = join()
    until(lambda: len(late.entries) == 4)
    assert late.data == first.data[:4]
    again = late if index else join(after=9)
    until(lambda: again.faults)
    found = "the stream lacks 5, and goes on with 6" if index else "the stream ends at 4, but 9 was taken already"
    assert again.faults[0].startswith(found)
    if index:
        behind = join(after=5, digest=crc32(first.data[4]))  # which it had read before, and cannot compare
        until(lambda: behind.faults)
        assert behind.faults[0].startswith("the stream lacks 5, and goes on with 6")


def test_a_missing_server_is_reported_until_it_starts(join: Join, server: NatsServer) -> None:
    server.kill()
    member = join()
    member.stream.submit(b"1 early")
    until(lambda: member.stream.status().error)
    assert not member.stream.status().connected
    server.start()
    until(lambda: member.data == [b"1 early"])
    until(lambda: not member.stream.status().error)


def test_more_replicas_than_servers_are_refused(join: Join) -> None:
    member = join(name="three", replicas=3)
    until(lambda: "replicas" in member.stream.status().error)
