"""Deliveries from protocol to protocol are counted, and the counts are logged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from websockets.sync.client import connect

from gateway.core import flows
from gateway.core.channels import GATEWAY_PREFIX
from gateway.core.flows import BOUNDS_US, SAMPLES_PER_SECOND, Flow, Flows
from gateway.core.message import Message
from tests.server import Server

if TYPE_CHECKING:
    from tests.conftest import Core, EchoSession, ToySession

Make = Callable[..., "ToySession"]


@pytest.fixture
def join(core: Core, toy_session: type[ToySession]) -> Make:
    """Makes a session that listens to a channel."""

    def make(channel: str = "lobby", kind: type[ToySession] = toy_session) -> ToySession:
        session = kind(core.bus)
        core.bus.subscribe(session, channel)
        session.take()
        return session

    return make


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The nanoseconds that the clock shows, one after another."""
    shown: list[int] = []
    monkeypatch.setattr(flows, "perf_counter_ns", lambda: shown.pop(0))
    return shown


def test_a_flow_returns_new_counts(ticks: list[int]) -> None:
    flow = Flow()
    assert flow.take_counts() is None
    flow.delivered, flow.undelivered = 3, 1
    ticks += [0, 20_000, 0, 20_001, 0, 10**12]
    for _ in range(3):
        flow.sample()()
    assert flow.take_counts() == {"delivered": 3, "undelivered": 1, "latency": [[20, 1], [50, 1]]}
    assert flow.take_counts() is None
    flow.delivered += 1
    assert flow.take_counts() == {"delivered": 1, "undelivered": 0, "latency": []}


def test_the_bounds_of_the_histogram_rise() -> None:
    assert list(BOUNDS_US) == sorted(set(BOUNDS_US))
    assert (BOUNDS_US[0], BOUNDS_US[-1]) == (10, 50_000_000)


def test_samples_are_few_each_second() -> None:
    all_flows = Flows()
    flow = all_flows.to_protocol("b")["a"]
    for _ in range(SAMPLES_PER_SECOND):
        flow.sample()
    assert flow.samples == 0
    all_flows.tick()
    assert flow.samples == SAMPLES_PER_SECOND


def test_the_bus_counts_deliveries(core: Core, join: Make, echo_session: type[EchoSession]) -> None:
    a, b, echo = join(), join(), join(kind=echo_session)
    a.receive_data(b'"hi"')
    assert core.bus.flows.to_protocol("toy")["toy"].delivered == 1
    assert core.bus.flows.to_protocol("echo")["toy"].delivered == 1
    assert b.take()
    assert echo.take()


def test_a_sample_ends_when_the_outbox_is_handed_to_the_wire(core: Core, join: Make, ticks: list[int]) -> None:
    a, b = join(), join()
    ticks += [1_000, 2_001_000]
    a.receive_data(b'"hi"')
    assert len(ticks) == 1
    b.data_to_send()
    assert not ticks
    (told,) = core.bus.flows.take_counts()
    assert told == {"from": "toy", "to": "toy", "delivered": 1, "undelivered": 0, "latency": [[2_000, 1]]}


def test_the_gateways_own_channels_are_not_counted(core: Core, join: Make) -> None:
    listener = join(GATEWAY_PREFIX + "stats")
    core.say(channel=GATEWAY_PREFIX + "stats")
    assert listener.waiting == 1
    assert core.bus.flows.take_counts() == []


def test_an_undeliverable_message_is_counted(core: Core) -> None:
    class Narrow:
        name = "narrow"

        def describe(self, address: str) -> dict[str, object]:
            return {self.name: address}

        def resolve_id(self, id: str) -> str | None:
            del id
            return None

        def add_refs(self, run: Sequence[Message]) -> None:
            for message in run:
                message.undelivered += (self.name,)

    core.bus.translators = [Narrow()]
    core.say()
    (told,) = core.bus.flows.take_counts()
    assert (told["from"], told["to"], told["undelivered"]) == ("toy", "narrow", 1)


def test_the_last_counts_are_logged_at_a_stop(tmp_path: Path) -> None:
    with Server(tmp_path) as server, connect(f"ws://{server.http}/relay") as listener:
        listener.send('{"type":2,"topic":"lobby"}')
        assert json.loads(listener.recv(10))["peers"] == []
        httpx.post(f"http://{server.http}/v1/channels/lobby/messages", json="hi").raise_for_status()
        assert json.loads(listener.recv(10))["json"] == "hi"
    facts = [json.loads(line) for path in (tmp_path / "log").iterdir() for line in path.read_text().splitlines()]
    (fact,) = [fact for fact in facts if fact["kind"] == "counts"]
    assert fact["minute"] % 60_000 == 0
    (flow,) = [flow for flow in fact["flows"] if flow["to"] == "topic_relay"]
    assert (flow["from"], flow["delivered"], flow["undelivered"]) == ("rest", 1, 0)
    assert sum(count for _, count in flow["latency"]) == 1
