"""The fast shell writes once for each peer in a turn of the loop, and reads long input in portions."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core.buckets import TokenBuckets
from gateway.core.frames import text_frame
from gateway.core.memory_budget import MemoryBudget
from gateway.core.message import Message
from gateway.core.read_pacer import PenalizableSession, ReadPacer
from gateway.shells import fast_shell
from gateway.shells.flusher import MAX_TURNS, MAX_WAIT_SECONDS, flusher_of
from gateway.shells.turns import CHEAP_SECONDS, FIRST_PORTION, LONG_TURN_SECONDS, turns_of
from tests.gateway.shells.fast_peers import Echo, RecordingTransport, new_bus

pytestmark = pytest.mark.usefixtures("allowed")


def masked(payload: bytes) -> bytes:
    return bytes((0x81, 0x80 | len(payload), 0, 0, 0, 0)) + payload


Peer = tuple[fast_shell.WebSocketProtocol, RecordingTransport, Echo]


class GatheringEcho(Echo):
    """What is said is gathered in the bus's batch, as protocols with many listeners do it."""

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Any], origins: Sequence[Any]) -> int:
        return cls.fan_out([text_frame(message.content) for message in run], sessions, origins)


async def connections(count: int, sock: socket.socket, kind: type[Echo] = Echo) -> list[Peer]:
    loop, bus, found = asyncio.get_running_loop(), new_bus(), list[Peer]()
    for _ in range(count):
        connection, transport, session = (
            fast_shell.WebSocketProtocol(loop, set(), 1 << 20),
            RecordingTransport(sock),
            kind(bus),
        )
        connection.start(transport, session)
        found.append((connection, transport, session))
    await asyncio.sleep(0)
    return found


def test_messages_of_one_turn_are_one_write_for_each_peer(sock: socket.socket) -> None:
    async def check() -> None:
        peers = await connections(5, sock)
        for i in range(20):
            peers[0][2].say(b"%d" % i)
        assert [transport.written for _, transport, _ in peers] == [[]] * 5
        await asyncio.sleep(0)
        expected = b"".join(text_frame(b"%d" % i) for i in range(20))
        assert [transport.written for _, transport, _ in peers] == [[], *[[expected]] * 4]

    asyncio.run(check())


def test_a_fault_in_a_session_ends_only_its_connection(
    sock: socket.socket, caplog: pytest.LogCaptureFixture, allowed: set[str]
) -> None:
    async def check() -> None:
        peers = await connections(4, sock)
        peers[2][2].all_to_send = lambda: 1 // 0  # type: ignore[method-assign, assignment, return-value]
        peers[0][2].say(b"x")
        await asyncio.sleep(0)
        assert [transport.aborted for _, transport, _ in peers] == [False, False, True, False]
        assert [transport.written for _, transport, _ in peers] == [[], [text_frame(b"x")], [], [text_frame(b"x")]]

    asyncio.run(check())
    allowed.add("a connection failed; the others go on")
    assert set(caplog.messages) == allowed


class WorkClock:
    """A clock that goes on only while something is worked at, however busy the machine is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in ("connection", "turns"):
            monkeypatch.setattr(f"gateway.shells.{module}.perf_counter", lambda: self.now)

    def take(self, seconds: float) -> None:
        """Work so long."""
        self.now += seconds


def test_a_connection_with_much_input_leaves_turns_of_the_loop_to_others(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = WorkClock(monkeypatch)

    class Slow(Echo):
        def handle(self, data: bytes) -> None:
            work.take(0.0005 * (data == b"x"))
            super().handle(data)

    async def check() -> None:
        (one, _, _), (_, heard, _), (other, transport, _) = await connections(3, sock, Slow)
        one.data_received(masked(b"x") * 3000)
        count = 0
        while one._unhandled is not None:
            before = len(transport.written)
            other.data_received(masked(b"y"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(transport.written) > before, "answered at once"
            count += 1
        assert count > 20
        assert heard.written == []

    asyncio.run(check())


def test_long_reads_that_come_together_do_not_share_one_turn(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connections there are, and though none of them was busy before."""
    handled, work = list[bytes](), WorkClock(monkeypatch)

    class Slow(Echo):
        def handle(self, data: bytes) -> None:
            work.take(2 * LONG_TURN_SECONDS)
            handled.append(data)

    async def check() -> None:
        long = b"\x81\xfe" + (2 * FIRST_PORTION).to_bytes(2) + bytes(4) + b"y" * 2 * FIRST_PORTION
        many = await connections(20, sock, Slow)
        small, _, _ = many.pop()
        for connection, _, _ in many:
            connection.data_received(masked(b"x") + long)
        assert len(handled) == 1, "the others wait: this turn is over"
        small.data_received(masked(b"z"))
        assert handled[-1] == b"z", "who says little does not"
        while any(connection._unhandled is not None for connection, _, _ in many):
            before = len(handled)
            await asyncio.sleep(0)
            assert len(handled) <= before + 1
        assert len(handled) == 1 + 2 * len(many)

    asyncio.run(check())


def test_a_flush_gathers_messages_for_a_bounded_time(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("gateway.shells.flusher.perf_counter", lambda: now)

    async def turns(seconds: float) -> int:
        """How many turns of the loop, so long each, a flush waits while somebody says something in each."""
        nonlocal now
        ((one, heard, session),) = await connections(1, sock)
        flusher = flusher_of(asyncio.get_running_loop())
        session.put(text_frame(b"1"))
        session.put(text_frame(b"2"))
        one.wake()
        await asyncio.sleep(0)  # two wait for one peer: from now on flushes gather
        heard.written.clear()
        session.put(text_frame(b"3"))
        one.wake()
        waited = 0
        while not heard.written:
            flusher.arrivals += 1
            now += seconds
            waited += 1
            await asyncio.sleep(0)
        return waited

    assert 10 < asyncio.run(turns(0.0)) <= MAX_TURNS + 2
    assert asyncio.run(turns(MAX_WAIT_SECONDS)) <= 2


@pytest.mark.parametrize("tail", [b"", bytes((0x88, 0x80, 0, 0, 0, 0))], ids=["open", "closed"])
def test_all_of_much_input_is_handled_in_order(sock: socket.socket, tail: bytes) -> None:
    handled, follows = list[bytes](), list[bool]()

    class Taking(Echo):
        def handle(self, data: bytes) -> None:
            handled.append(data)
            follows.append(self.more_follows)

    async def check() -> None:
        ((connection, transport, session),) = await connections(1, sock, Taking)
        said = [b"%d" % i * 20 for i in range(5000)]
        connection.data_received(b"".join(map(masked, said)) + tail)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert handled == said
        assert follows == sorted(follows, reverse=True), "and the session knows when more follows"
        assert follows[0]
        assert not session.more_follows
        assert not transport.paused
        assert session.ended == bool(tail)

    asyncio.run(check())


def test_a_paced_connection_is_not_read_and_loses_nothing(sock: socket.socket) -> None:
    class Patient(ReadPacer):
        def record_read(self, session: PenalizableSession, size: int, seconds: float = 0.0) -> float:  # noqa: ARG002
            return 0.01

    async def check() -> None:
        ((connection, transport, session),) = await connections(1, sock)
        session.bus.read_pacer = Patient(None, time.monotonic)
        connection.data_received(masked(b"x") * 10_000)
        assert transport.paused
        while connection._unhandled is not None or transport.paused:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert b"".join(transport.written) == text_frame(b"x") * 10_000

    asyncio.run(check())


def test_input_handed_over_during_a_pause_counts_in_the_budget(sock: socket.socket) -> None:
    async def check() -> None:
        ((connection, _, session),) = await connections(1, sock)
        session.bus.read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 1.0), lambda: 1.0, MemoryBudget(1 << 20))
        session.bus.read_pacer.budget.enter(connection)
        connection._unhandled = deque()
        for _ in range(40):
            connection.data_received(bytes(1 << 16))
            await asyncio.sleep(0)
        assert connection.held_size < 1 << 20
        assert session.closing is not None

    asyncio.run(check())


def test_a_penalized_session_waits_for_its_turn_and_pays_while_others_have_input(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[float] = []
    work, cost = WorkClock(monkeypatch), CHEAP_SECONDS / 2

    class Costly(Echo):
        def handle(self, data: bytes) -> None:
            work.take(cost)
            super().handle(data)

    class Charging(ReadPacer):
        def record_read(self, session: PenalizableSession, size: int, seconds: float = 0.0) -> float:
            charged.append(seconds)
            return super().record_read(session, size, seconds)

    async def check() -> None:
        (bad, _, session), (good, heard, _) = await connections(2, sock, Costly)
        session.bus.read_pacer = Charging(TokenBuckets(1e9, 1e9, lambda: 1.0), lambda: 1.0)
        session.record_malformed()
        bad.data_received(masked(b"alone"))
        assert charged == [0.0]
        good.data_received(masked(b"x"))
        bad.data_received(masked(b"not alone"))
        assert charged[1:] == [0.0, pytest.approx(cost)]
        turns_of(asyncio.get_running_loop()).spend(LONG_TURN_SECONDS)
        bad.data_received(masked(b"x"))
        assert bad._unhandled is not None
        good.data_received(masked(b"y"))
        await asyncio.sleep(0)
        assert b"".join(heard.written) == text_frame(b"x") + text_frame(b"y")

    asyncio.run(check())


def test_a_reader_that_overflows_during_a_flush_delays_no_other(sock: socket.socket) -> None:
    """The batch is spilled by the first look at an outbox: then the slow reader is closed, and so woken."""

    async def check() -> None:
        (_, _, speaker), (_, first, _), (slow, _, slow_session), (_, last, _) = await connections(
            4, sock, GatheringEcho
        )
        slow.pause_writing()
        for turn in range(1, 40):
            speaker.say(bytes(60_000))
            await asyncio.sleep(0)
            assert [len(first.written), len(last.written)] == [turn, turn]
        assert slow_session.closing is not None
        assert slow_session.closing.code == 1013

    asyncio.run(check())


def test_a_reset_just_before_the_end_of_a_session_is_no_fault() -> None:
    async def check() -> None:
        loop, house, session = asyncio.get_running_loop(), set[Any](), Echo(new_bus())
        server = await loop.create_server(
            lambda: fast_shell.TcpProtocol(lambda _: session, loop, house), "127.0.0.1", 0
        )
        async with server:
            peer = socket.create_connection(server.sockets[0].getsockname())
            while not house:
                await asyncio.sleep(0)
            (connection,) = house
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()  # a reset, which nobody has read yet
            session.close(1000, "over")
            connection.flush()
            assert connection.transport.is_closing()
            while house:
                await asyncio.sleep(0)
        assert session.ended == 1

    asyncio.run(check())


def test_a_session_whose_outbox_size_fails_ends_alone(
    sock: socket.socket, caplog: pytest.LogCaptureFixture, allowed: set[str]
) -> None:
    class Uncountable(Echo):
        @property
        def waiting(self) -> int:
            raise ZeroDivisionError

    async def check() -> None:
        peers = await connections(3, sock)
        peers[1][2].__class__ = Uncountable
        for turn in range(1, 3):
            peers[0][2].say(b"x")
            await asyncio.sleep(0)
            assert [transport.aborted for _, transport, _ in peers] == [False, True, False]
            assert len(peers[2][1].written) == turn

    asyncio.run(check())
    allowed.add("a connection failed; the others go on")
    assert set(caplog.messages) == allowed


def test_nothing_is_taken_from_a_session_while_its_peer_does_not_read(sock: socket.socket) -> None:
    async def check() -> None:
        (_, _, speaker), (connection, transport, session) = await connections(2, sock)
        connection.pause_writing()
        speaker.say(b"x")
        await asyncio.sleep(0)
        assert transport.written == []
        assert session.has_more
        connection.resume_writing()
        await asyncio.sleep(0)
        assert transport.written == [text_frame(b"x")]

    asyncio.run(check())


def test_a_long_answer_leaves_room_for_others_between_its_pieces(sock: socket.socket) -> None:
    async def check() -> None:
        (_, first, reader), (_, second, other) = await connections(2, sock)
        reader.stream(iter([bytes(1 << 16)] * 3))
        for i in range(1, 4):
            other.send(b"%d" % i)
            await asyncio.sleep(0)
            assert [len(first.written), len(second.written)] == [i, i]

    asyncio.run(check())
