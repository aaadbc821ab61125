"""Time passes for the peers of a gateway without the turn, also while no gateway can accept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway import runtime
from gateway.core.message import Peer
from tests.waiting import until

from .conftest import Pair
from .test_reads_elsewhere import PROTOCOLS, WaitingClient


@pytest.fixture
def held(pair: Pair) -> Iterator[Pair]:
    """The first of two gateways keeps the turn."""
    first, _ = pair.nodes
    first.catch_up()
    pair.settle()
    pair.enter(0, "rest").publish("lobby", "known")
    pair.settle()
    first.instance.settle(synced=True)
    first.turn.pinned = True
    yield pair
    let_go(pair)


@pytest.fixture(params=["another accepts", "nobody accepts"])
def waiting(held: Pair, request: pytest.FixtureRequest) -> Pair:
    """The second gateway waits for the turn; in the second case for so long that its publishers are refused."""
    here = held.nodes[1]
    here.turn.want()
    if request.param == "nobody accepts":
        here.transport.answers = lambda: False  # type: ignore[method-assign]
        here.transport.seconds += 4
        here.turn.tick()
        assert here.instance.gateway.log.failing == "the cluster does not answer"
    return held


def let_go(pair: Pair) -> None:
    """Let the first gateway pass the turn on."""
    first, here = pair.nodes
    first.turn.pinned = False
    here.transport.answers = lambda: True  # type: ignore[method-assign]


def tick(pair: Pair, seconds: int) -> None:
    """Let time pass at the gateway that waits."""
    clock: Any = runtime.clock
    for _ in range(seconds):
        clock.now += 1000
        pair.nodes[1].instance.gateway.tick()


def test_a_silent_peer_is_disconnected(waiting: Pair) -> None:
    client = WaitingClient(waiting, 1, "sprout")
    seconds = int(waiting.nodes[1].instance.gateway.settings.limits.handshake_seconds)
    tick(waiting, seconds)
    assert client.session.closing is None
    tick(waiting, 1)
    assert client.session.closing == (1002, "no message")


def test_a_throttled_client_is_read_again(waiting: Pair) -> None:
    client = WaitingClient(waiting, 1, "sprout")
    client.ask("version 0 0.0\n")
    bus = waiting.nodes[1].instance.gateway.bus
    bus.throttle = lambda *_about: 1.0
    assert client.ask("list 1 1 9\n") == b""
    bus.throttle = None
    refuses = bus.failing is not None
    tick(waiting, 1)
    if not refuses:  # then what waits is handled in the next turn
        let_go(waiting)
        waiting.nodes[1].turn.tick()
        waiting.nodes[1].catch_up()
    assert b"response 1 " in client.heard()


def test_an_expired_guest_leaves(waiting: Pair) -> None:
    bus = waiting.nodes[1].instance.gateway.bus
    guest = Peer(4711, "sprout", None, None)
    bus.presence.announce_present("lobby", guest, runtime.clock() + 2500)
    tick(waiting, 2)
    assert bus.presence.contains("lobby", guest.number)
    tick(waiting, 1)
    assert not bus.presence.contains("lobby", guest.number)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_peer_whose_publish_waits_is_not_disconnected(held: Pair, name: str) -> None:
    client = WaitingClient(held, 1, name)
    log = held.nodes[1].instance.gateway.log
    client.ask(PROTOCOLS[name].publish)
    before = log.next_seq
    tick(held, 5)
    assert client.session.closing is None
    assert log.next_seq == before
    client.session.receive_eof()


def test_a_logout_is_answered(waiting: Pair) -> None:
    """It is written to a file of secrets, and not logged."""
    here = waiting.nodes[1].instance
    logins = here.adapters["streamr"].logins
    now = runtime.clock()
    token = logins._issue_token("0x" + "1" * 40, now + 60_000, bytes(6)).token
    answers: list[bool] = []
    logins.log_out(token, "", now, answers.append)
    until(lambda: (here.posted.drain(), answers)[1])  # type: ignore[func-returns-value]
    assert answers == [True]
    assert logins.address(token, now) is None
