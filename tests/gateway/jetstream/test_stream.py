"""The stream on genuine servers: one order for all, nothing lost, nothing left out, whatever becomes of the servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.jetstream.reader import StreamEntry
from gateway.jetstream.stream import JetStream, JetStreamSettings
from tests.nats import NatsServer
from tests.waiting import until


class Member:
    """A gateway as far as its stream is concerned: it takes everything at once."""

    def __init__(self, settings: JetStreamSettings, after: int = 0) -> None:
        self.entries: list[StreamEntry] = []
        self.faults: list[str] = []
        self.stream = JetStream(settings, self._take, self.faults.append)
        self.stream.start(after)

    def _take(self, entries: list[StreamEntry]) -> None:
        self.entries += entries
        self.stream.took(entries[-1].position)

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


Join = Callable[..., Member]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def join(server: NatsServer) -> Iterator[Join]:
    members: list[Member] = []

    def join(after: int = 0, name: str = "test", **options: object) -> Member:
        members.append(Member(JetStreamSettings(name, (server.url,), **options), after))  # type: ignore[arg-type]
        return members[-1]

    yield join
    for member in members:
        member.stream.stop()


def numbered(count: int, first: int = 1) -> list[bytes]:
    return [b"%d %s" % (number, b"x" * (number % 300)) for number in range(first, first + count)]


def test_all_read_one_order(join: Join) -> None:
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
    assert one.stream.status() == (True, 500, 0, "")


def test_reading_begins_where_it_is_asked_to(join: Join) -> None:
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


def test_who_takes_nothing_is_given_no_more(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    first = join()
    for data in numbered(2000):
        first.stream.submit(data)
    until(lambda: len(first.entries) == 2000)
    monkeypatch.setattr(Member, "_take", lambda self, entries: self.entries.extend(entries))
    idle = join()
    until(lambda: len(idle.entries) >= 700)
    before = len(idle.entries)
    assert before < 1100
    idle.stream.took(idle.entries[-1].position)
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


def test_what_the_stream_has_no_more_is_no_gap_in_silence(join: Join) -> None:
    first = join()
    first.stream.submit(b"1")
    until(lambda: first.entries)
    ahead = join(after=2)
    until(lambda: ahead.faults)
    assert ahead.faults == ["the stream ends at 1, but 2 was taken already"]
    assert ahead.stream.status().error == ahead.faults[0]
    assert ahead.entries == []


def test_without_a_server_it_says_so_and_begins_when_there_is_one(join: Join, server: NatsServer) -> None:
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
