"""Input of connections with a task of their own, such as links, takes turns with all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute
from websockets.protocol import CONNECTING, OPEN

from gateway.adapter import OutboundLink
from gateway.core.read_pacer import Penalty, ReadPacer
from gateway.shells import dialled_websocket
from gateway.shells.dialled_websocket import open_websocket
from gateway.shells.input_turns import BUSY_PORTION, PORTION, InputTurns, SharedInputTurns, Step, input_turns
from gateway.shells.links import Dialler
from gateway.shells.turns import ALLOWANCE_SECONDS, turns_of

STEPS = 10


class SecondsClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SecondsClock:
    """What the time is; the CPU time is the same."""
    clock = SecondsClock()
    for module in ("turns", "input_turns"):
        monkeypatch.setattr(f"gateway.shells.{module}.perf_counter", clock)
    for name in ("process_time", "thread_time"):
        monkeypatch.setattr(f"gateway.shells.cpu_time.{name}", clock)
    return clock


def play(scenario: Callable[[], Awaitable[None]], loop: str = "asyncio") -> None:
    async def limited() -> None:
        with anyio.fail_after(20):
            await scenario()

    anyio.run(limited, backend=loop)


class SlowInput:
    """Input that takes *seconds* for each of ten steps."""

    def __init__(self, clock: SecondsClock, seconds: float) -> None:
        self.done: list[int] = []  # in which iteration of the loop each step was
        self.iteration = 0
        self._clock = clock
        self._seconds = seconds

    def step(self) -> bool:
        self._clock.now += self._seconds
        self.done.append(self.iteration)
        return len(self.done) < STEPS

    async def count(self) -> None:
        while True:
            self.iteration += 1
            await asyncio.sleep(0)


async def _played(work: SlowInput, turns: InputTurns) -> float:
    counting = asyncio.ensure_future(work.count())
    await asyncio.sleep(0)
    await turns.run(work.step)
    counting.cancel()
    return turns.take_seconds()


def test_light_input_is_handled_at_once(clock: SecondsClock) -> None:
    async def scenario() -> None:
        work = SlowInput(clock, 0.0)
        await _played(work, input_turns())
        assert work.done == [1] * STEPS
        assert turns_of(asyncio.get_running_loop()).progress.done == 0

    play(scenario)


def test_heavy_input_takes_turns_with_others(clock: SecondsClock) -> None:
    async def scenario() -> None:
        work, turns = SlowInput(clock, ALLOWANCE_SECONDS), input_turns()
        assert turns.portion == PORTION
        assert await _played(work, turns) == pytest.approx(STEPS * ALLOWANCE_SECONDS)
        assert len(set(work.done)) == STEPS
        assert turns.portion == BUSY_PORTION
        assert turns_of(asyncio.get_running_loop()).progress.done >= STEPS - 2, "the first steps showed that it is busy"

    play(scenario)


def test_without_asyncio_others_have_their_turns_too(clock: SecondsClock) -> None:
    async def scenario() -> None:
        work, others = SlowInput(clock, ALLOWANCE_SECONDS), list[int]()

        async def count() -> None:
            while True:
                others.append(len(work.done))
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            await input_turns().run(work.step)
            tasks.cancel_scope.cancel()
        assert len(set(others)) > 2, "trio shuffles the tasks of a turn, so each step may be seen or not"

    play(scenario, "trio")


def test_a_connection_that_ends_while_it_waits_for_a_turn_handles_nothing_more(clock: SecondsClock) -> None:
    async def scenario() -> None:
        work, turns = SlowInput(clock, 2 * ALLOWANCE_SECONDS), input_turns()
        running = asyncio.ensure_future(turns.run(work.step))
        shared = turns_of(asyncio.get_running_loop())
        while not shared.progress.waiting:
            await asyncio.sleep(0)
        handled = len(work.done)
        running.cancel()
        while shared.progress.waiting:
            await asyncio.sleep(0)
        assert len(work.done) == handled < STEPS

    play(scenario)


def test_a_bug_in_a_turn_ends_its_connection_and_no_other(clock: SecondsClock) -> None:
    async def scenario() -> None:
        work, turns = SlowInput(clock, 2 * ALLOWANCE_SECONDS), input_turns()

        def wrong() -> bool:
            if work.step() and len(work.done) > 2:
                raise ValueError("a bug")
            return True

        with pytest.raises(ValueError, match="a bug"):
            await turns.run(wrong)
        await turns.run(lambda: False)

    play(scenario)


@pytest.mark.parametrize("penalised", [False, True])
def test_input_of_a_link_is_handled_in_turns(clock: SecondsClock, core: Any, toy_session: Any, penalised: bool) -> None:
    sent, heard, recorded = bytes(range(256)) * 40, list[bytes](), list[float]()

    class SlowListener(toy_session):  # type: ignore[misc]  # a fixture
        def handle(self, data: bytes) -> None:
            clock.now += ALLOWANCE_SECONDS
            heard.append(data)
            self.penalty = Penalty() if penalised else None

    class Pacer(ReadPacer):
        def record_read(self, session: Any, size: int, seconds: float = 0.0) -> float:
            recorded.append(seconds)
            return super().record_read(session, size, seconds)

    async def speak(stream: Any) -> None:
        async with stream:
            await stream.send(sent)
            await anyio.sleep_forever()

    async def scenario() -> None:
        core.bus.read_pacer = Pacer(None, clock)
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(SocketAttribute.local_port)
        link = OutboundLink("x", "127.0.0.1", port, lambda: SlowListener(core.bus), lambda _: {}, tls=False)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, speak)
            tasks.start_soon(Dialler("toy", link, core.clock).run)
            while sum(map(len, heard)) < len(sent):
                await anyio.sleep(0)
            tasks.cancel_scope.cancel()
        assert turns_of(asyncio.get_running_loop()).progress.done >= len(heard) - 3

    play(scenario)
    assert b"".join(heard) == sent
    assert max(len(data) for data in heard[3:]) == BUSY_PORTION
    assert sum(recorded) > 0, "what it costs others counts"
    assert len(recorded) >= len(heard) - 1 or not penalised, "who is penalised may have to pause after each piece"


class RecordedTurns(SharedInputTurns):
    """Counts the steps of parsers."""

    steps = 0

    async def run(self, step: Step) -> None:
        def counted() -> bool:
            self.steps += 1
            return step()

        await super().run(counted)


class FramelessProtocol:
    """A WebSocket that is open, whose bytes are no frames."""

    state, handshake_exc, taken = CONNECTING, None, 0

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def connect(self) -> None: ...
    def send_request(self, _: Any) -> None: ...
    def receive_eof(self) -> None: ...

    def data_to_send(self) -> list[bytes]:
        return []

    def events_received(self) -> list[Any]:
        return []

    def receive_data(self, data: bytes) -> None:
        self.state = OPEN
        turns_of(asyncio.get_running_loop()).other_arrivals += 1
        assert len(data) <= PORTION
        FramelessProtocol.taken += len(data)


def test_frames_are_parsed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 frames without content take the parser 0.4 s."""

    monkeypatch.setattr(dialled_websocket, "ClientProtocol", FramelessProtocol)

    async def speak(stream: Any) -> None:
        async with stream:
            await stream.send(b"x" * 20 * PORTION)
            await anyio.sleep_forever()

    async def scenario() -> None:
        turns = RecordedTurns(asyncio.get_running_loop())
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, speak)
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                wire = await open_websocket(stream, f"ws://127.0.0.1:{port}/", turns)
                before = FramelessProtocol.taken
                tasks.start_soon(wire.receive)
                while FramelessProtocol.taken < 20 * PORTION:
                    await anyio.sleep(0)
                tasks.cancel_scope.cancel()
        assert turns.steps >= (20 * PORTION - before) / PORTION
        assert turns.take_seconds() > 0, "they count for the link"

    play(scenario)
