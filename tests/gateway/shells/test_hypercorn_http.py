"""HTTP connections on trio end for stated reasons, and a failing one ends alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer
from structlog.testing import capture_logs

from gateway.shells import hypercorn_http


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_reads_nothing_is_disconnected_on_trio_too(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    """By asyncio's shells it is in tests/gateway/shells/test_shells.py. A reader's time is one that the test moves."""
    stalled = 10 if reads else 0.3
    monkeypatch.setattr(hypercorn_http, "STALLED_SECONDS", stalled)
    clock = trio.testing.MockClock()
    size, ends = 24 << 20, list[Event]()  # more than the kernel takes

    class Ends:
        async def handle(self, event: Event) -> None:
            ends.append(event)

    async def scenario() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        client = await trio.testing.open_stream_to_socket_listener(listener)
        unused: Any = None
        async with listener, client, await listener.accept() as stream, trio.open_nursery() as nursery:
            connection = hypercorn_http.HypercornConnection(unused, unused, unused, unused, cast("Any", stream))
            connection.protocol = cast("Any", Ends())
            nursery.start_soon(connection.protocol_send, RawData(b"x" * size))
            if reads:
                left = size
                while left:
                    clock.jump(1)
                    left -= len(await client.receive_some(1 << 20))
                    await trio.testing.wait_all_tasks_blocked(0.001)
                assert clock.current_time() > 2 * stalled

    trio.run(scenario, clock=clock if reads else None)
    assert ends == ([] if reads else [Closed()])


def test_a_closing_connection_is_not_idle_and_its_answers_are_dropped_on_trio() -> None:
    ends, busy = list[Event](), list[object]()
    gateway = SimpleNamespace(admission=SimpleNamespace(mark_busy=busy.append))

    class Ends:
        async def handle(self, event: Event) -> None:
            ends.append(event)

    async def scenario() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        client = await trio.testing.open_stream_to_socket_listener(listener)
        stream, unused = await listener.accept(), cast("Any", None)
        async with client, stream, listener:
            connection = hypercorn_http.HypercornConnection(unused, unused, unused, unused, cast("Any", stream))
            connection.protocol, connection.gateway = cast("Any", Ends()), cast("Any", gateway)
            closing = connection._close()
            closing.send(None)  # it has begun to tell the client, and waits for its turn
            assert busy == [connection], "its task group has ended, so it cannot be closed to make room for another"
            with pytest.raises(trio.BusyResourceError):
                await stream.send_all(b"x")
            await connection.protocol_send(RawData(b"x"))
            closing.close()

    trio.run(scenario)
    assert ends == [Closed()]


def test_a_connection_that_is_being_closed_is_read_no_further_on_trio() -> None:
    ends: list[Event] = []

    class Ends:
        async def handle(self, event: Event) -> None:
            ends.append(event)

    async def stop() -> None:
        """As hypercorn's idle task has it."""

    async def scenario() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        client = await trio.testing.open_stream_to_socket_listener(listener)
        stream, unused = await listener.accept(), cast("Any", None)
        async with client, stream, listener, trio.open_nursery() as nursery:
            connection = hypercorn_http.HypercornConnection(unused, unused, unused, unused, cast("Any", stream))
            connection.protocol, connection.idle_task = cast("Any", Ends()), cast("Any", SimpleNamespace(stop=stop))
            nursery.start_soon(stream.receive_some)  # as who closes it waits for the client to do so
            await trio.testing.wait_all_tasks_blocked()
            await connection._read_data()
            nursery.cancel_scope.cancel()

    trio.run(scenario)
    assert ends == [Closed()]


def test_a_connection_that_fails_ends_alone_on_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise ZeroDivisionError

    admission = SimpleNamespace(enter=lambda _: None, leave=lambda _: None, mark_busy=lambda _: None)
    proxies = SimpleNamespace(connection=lambda address, _: address)
    monkeypatch.setattr(TCPServer, "run", fail)

    async def scenario() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        client = await trio.testing.open_stream_to_socket_listener(listener)
        stream, unused = await listener.accept(), cast("Any", None)
        async with client, stream, listener:
            connection = hypercorn_http.HypercornConnection(unused, unused, unused, unused, cast("Any", stream))
            connection.gateway = cast("Any", SimpleNamespace(admission=admission, proxies=proxies))
            await connection.run()

    with capture_logs() as logged:
        trio.run(scenario)
    assert [each["event"] for each in logged] == ["a connection failed; the others go on"]
