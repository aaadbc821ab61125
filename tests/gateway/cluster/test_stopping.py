"""A gateway that stops leaves its cluster without delay, and its own data consistent."""

from __future__ import annotations

import pytest

from gateway.membership.transport import CannotJoin

from .conftest import Pair


def leave(pair: Pair, at: int) -> None:
    """Let the gateway *at* that place stop, as far as the others notice."""
    pair.nodes[at].membership.leave()
    pair.nodes[at].transport.post = lambda _call: None


def test_a_member_that_stops_does_not_get_the_turn_that_it_wanted(pair: Pair) -> None:
    """Nobody would use it until the lease ends. Under load every gateway wants the turn most of the time."""
    first, other = pair.nodes
    first.catch_up()
    pair.settle()
    first.turn.pinned = True  # it is busy
    other.turn.want()
    leave(pair, 1)
    first.turn.pinned = False
    first.turn.tick()
    pair.settle()
    assert first.turn.acting


def test_a_turn_passed_to_a_stopping_member_is_claimed_at_once(pair: Pair) -> None:
    first, other = pair.nodes
    first.catch_up()
    pair.settle()
    other.transport.post = lambda _call: None  # it does not read the batch that gives it the turn
    first.turn.wanted(other.turn.me)
    first.transport.pump()
    assert first.turn.position.holder == other.turn.me
    first.turn.want()
    assert not first.turn.acting
    leave(pair, 1)
    first.turn.tick()
    first.transport.pump()
    assert first.turn.acting


def test_faults_while_a_gateway_stops_do_not_prevent_a_clean_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log and its index would not be closed."""
    _, other = pair.nodes
    other.catch_up()
    pair.settle()
    monkeypatch.setattr(other.turn, "leave", lambda: other.turn.over)
    receive = other.transport.receive

    def refuse() -> None:
        monkeypatch.setattr(other.transport, "receive", receive)
        raise CannotJoin("a reason")

    monkeypatch.setattr(other.transport, "receive", lambda _seconds: refuse)
    pair.nodes.remove(other)
    other.stream.nodes.remove(other)
    other.instance.gateway.stop()
    assert other.membership.failure == "a reason"
    assert other.instance.gateway.log.is_complete
    assert other.instance.gateway.log._stopping
