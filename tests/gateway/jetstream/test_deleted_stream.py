"""Members report a deleted stream, and do not recreate it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import nats
import pytest
from nats.js.errors import NotFoundError

from gateway.jetstream import reader, stream
from gateway.jetstream.connecting import JetStreamSettings
from tests.nats import NatsServer
from tests.waiting import until

from .test_stream import StreamReader

GONE = "the NATS servers have no stream test, of which 2 entries were read: it was deleted, or the servers have lost it"

Join = Callable[..., StreamReader]


@pytest.fixture
def join(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    monkeypatch.setattr(reader, "HOLE_SECONDS", 1.0)
    members: list[StreamReader] = []

    def join(after: int = 0, *more: str) -> StreamReader:
        members.append(StreamReader(JetStreamSettings("test", (server.url, *more)), after))
        return members[-1]

    yield join
    for member in members:
        member.stream.stop()


async def delete(url: str, name: str = "test") -> None:
    """Delete the stream, as an operator does by `nats stream rm`."""
    client = await nats.connect(url)
    assert await client.jsm().delete_stream(name)
    await client.close()


async def exists(url: str, name: str = "test") -> bool:
    client = await nats.connect(url)
    try:
        await client.jsm().stream_info(name)
    except NotFoundError:
        return False
    finally:
        await client.close()
    return True


def write_two(member: StreamReader) -> None:
    for number in (b"1", b"2"):
        member.stream.submit(number)
    until(lambda: len(member.entries) == 2)


def test_members_report_a_deleted_stream_and_do_not_recreate_it(join: Join, server: NatsServer) -> None:
    writer, idle = join(), join()
    write_two(writer)
    until(lambda: len(idle.entries) == 2)
    asyncio.run(delete(server.url))
    writer.stream.submit(b"3")
    until(lambda: writer.faults and idle.faults)
    for member in (writer, idle):
        assert member.faults[0].startswith(GONE)
        assert member.stream.status().error == member.faults[0]
    late = join(after=2)
    until(lambda: late.faults)
    assert late.faults[0].startswith(GONE)
    assert not asyncio.run(exists(server.url))


def test_a_server_that_reports_a_deleted_stream_is_not_left(
    join: Join, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every new connection the reader would begin to wait anew, and never come to an end."""
    for name, seconds in {"SILENT_SECONDS": 0.4, "LOOK_SECONDS": 0.1, "WATCH_SECONDS": 0.1}.items():
        monkeypatch.setattr(stream, name, seconds)
    member = join(0, server.url.replace("127.0.0.1", "localhost"))
    write_two(member)
    asyncio.run(delete(server.url))
    until(lambda: member.faults)
    assert member.faults[0].startswith(GONE)
    assert member.stream.status().reconnects <= 1, "a busy machine may be silent for so long once"
