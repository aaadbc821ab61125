"""Connections are read at a pace that depends on their bytes and on their refused requests."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.buckets import TokenBuckets
from gateway.core.errors import Throttled
from gateway.core.message import Message
from gateway.core.read_pacer import (
    CONNECTION_BURST,
    CONNECTION_RATE,
    FREE_REFUSALS,
    MAX_MALFORMED,
    MAX_PAUSE,
    PAUSE_SECONDS,
    PENALTY_BURST,
    PENALTY_SECONDS,
    PENALTY_SHARE,
    READING_SHARE,
    REFUSAL_PAUSE,
    REQUEST_SHARE,
    SEVERAL_SECONDS,
    SHARE_BURST,
    ReadPacer,
)


class Paced:
    """The core with a read pacer whose clock stands still until it is moved."""

    def __init__(self, core: Any, toy_session: Any) -> None:
        self.now = 1024.0
        core.bus.read_pacer = ReadPacer(TokenBuckets(100, 1000, lambda: self.now), lambda: self.now)
        self.core = core
        self.read_pacer = core.bus.read_pacer
        self._kind = toy_session

    def new(self, address: str = "192.0.2.1") -> Any:
        return self._kind(self.core.bus, "somebody", address)


@pytest.fixture
def paced(core: Any, toy_session: Any) -> Paced:
    return Paced(core, toy_session)


def test_bytes_are_paced_by_network_and_links_are_not(paced: Paced) -> None:
    one, other, link = paced.new(), paced.new("192.0.2.2"), paced.new("")
    assert paced.read_pacer.record_read(one, 1000) == 0
    assert paced.read_pacer.record_bytes("192.0.2.1", 50, None) == pytest.approx(0.5)
    assert paced.read_pacer.record_read(other, 50) == 0
    assert paced.read_pacer.record_bytes("192.0.2.2", 1000, None) == pytest.approx(0.5)
    assert paced.read_pacer.record_read(one, 1_000_000) == MAX_PAUSE, "nobody is left alone for longer"
    assert paced.read_pacer.record_read(link, 1_000_000) == 0


def test_a_slow_sender_does_not_wait_for_others_of_its_network(paced: Paced) -> None:
    read_pacer = ReadPacer(TokenBuckets(1 << 20, 1 << 20, lambda: paced.now), lambda: paced.now)
    much, little = paced.new(), paced.new()
    assert read_pacer.record_read(much, 2 << 20) == pytest.approx(1), (
        "of its own share it would have to wait for 8 seconds"
    )
    assert read_pacer.record_read(little, CONNECTION_BURST) == 0
    assert read_pacer.record_read(little, CONNECTION_RATE // 2) == pytest.approx(0.5)
    paced.now += 2
    assert read_pacer.record_read(much, 1000) == 0


def test_a_new_connection_owes_nothing_for_bytes_of_a_closed_one(paced: Paced) -> None:
    read_pacer = ReadPacer(TokenBuckets(1, 1, lambda: paced.now), lambda: paced.now)
    for _ in range(10):  # each has the place in memory of the one before it
        session = paced.new()
        assert read_pacer.record_read(session, CONNECTION_BURST) == 0
        assert read_pacer.record_read(session, CONNECTION_RATE) == pytest.approx(1)
        session.receive_eof()
        del session


def test_while_the_log_is_crowded_each_connection_gets_its_share(paced: Paced) -> None:
    crowded = True
    read_pacer = ReadPacer(TokenBuckets(1 << 30, 1 << 30, lambda: paced.now), lambda: paced.now, None, lambda: crowded)
    one, other = paced.new(), paced.new()
    assert read_pacer.record_read(one, CONNECTION_BURST) == 0
    assert read_pacer.record_read(one, CONNECTION_RATE // 4) == pytest.approx(0.25)
    assert read_pacer.record_read(other, 1000) == 0, "who sends little does not wait"
    crowded = False
    assert read_pacer.record_read(one, 1 << 20) == 0


def test_published_bytes_of_a_sender_are_bounded_across_networks(paced: Paced) -> None:
    paced.core.bus.throttle = lambda *_: 0.0
    one, other = paced.new("192.0.2.1"), paced.new("192.0.2.2")
    author = paced.core.bus.peers.identity("toy", "somebody")
    for session in one, other:
        paced.core.bus.bind(session, author)
    one.pace("lobby")
    paced.core.bus.publish(Message("lobby", author, "toy", b"x" * 1050), one)
    with pytest.raises(Throttled) as refused:
        other.pace("lobby")
    assert refused.value.retry_after_seconds == pytest.approx(0.5)
    paced.new("192.0.2.3").pace("lobby")
    paced.now += 0.5
    other.pace("lobby")


def test_requests_over_the_rate_pause_their_own_connection_and_never_close_it(paced: Paced) -> None:
    one, other = paced.new(), paced.new()
    paced.core.bus.throttle = lambda *_: 1.0
    for _ in range(FREE_REFUSALS):
        with pytest.raises(Throttled):
            one.pace("lobby")
    assert paced.read_pacer.record_read(one, 0) == 0, "a few cost nothing"
    for count in range(1, 5):
        with pytest.raises(Throttled):
            one.pace("lobby")
        assert paced.read_pacer.record_read(one, 0) == pytest.approx(count * REFUSAL_PAUSE)
    assert paced.read_pacer.record_read(other, 0) == 0
    for _ in range(10 * MAX_MALFORMED):
        with pytest.raises(Throttled):
            one.pace("lobby")
    assert one.closing is None


def test_malformed_input_pauses_and_finally_closes_its_own_connection(paced: Paced) -> None:
    one, other = paced.new(), paced.new()
    for _ in range(MAX_MALFORMED):
        one.record_malformed()
    assert paced.read_pacer.record_read(one, 0) == MAX_PAUSE
    assert one.closing is None
    one.record_malformed()
    assert one.closing is not None
    assert one.closing.code == 1008
    assert other.closing is None


def test_occasional_malformed_input_is_tolerated(paced: Paced) -> None:
    one = paced.new()
    for _ in range(3 * MAX_MALFORMED):
        one.record_malformed()
        paced.now += 1.0
        assert paced.read_pacer.record_read(one, 0) == 0
    assert one.closing is None


def test_nothing_is_penalised_without_limits(core: Any, toy_session: Any) -> None:
    core.bus.read_pacer = ReadPacer(None, lambda: 0.0)
    session = toy_session(core.bus, "somebody", "192.0.2.1")
    for _ in range(2 * MAX_MALFORMED):
        session.record_malformed()
    assert session.closing is None
    assert core.bus.read_pacer.record_read(session, 1 << 40) == 0


def test_penalised_connections_of_a_network_share_a_tenth_of_the_loop(paced: Paced) -> None:
    bad, worse, good, elsewhere = paced.new(), paced.new(), paced.new(), paced.new("192.0.2.2")
    for session in bad, worse, elsewhere:
        session.record_malformed()
    assert paced.read_pacer.record_read(bad, 0, PENALTY_BURST) == 0
    assert paced.read_pacer.record_read(bad, 0, 0.01) == pytest.approx(0.01 / PENALTY_SHARE)
    assert paced.read_pacer.record_read(worse, 0, 0.01) == pytest.approx(0.02 / PENALTY_SHARE), "all of them together"
    assert paced.read_pacer.record_read(good, 0, 1.0) == 0, "whatever its neighbours do"
    assert paced.read_pacer.record_read(elsewhere, 0, PENALTY_BURST) == 0
    assert paced.read_pacer.record_read(bad, 0, 1000.0) == MAX_PAUSE
    paced.now += PENALTY_SECONDS
    assert paced.read_pacer.record_read(bad, 0, 1.0) == 0, "it is forgotten"


@pytest.mark.parametrize("again", [1, 7, 10**9], ids=["always", "sometimes", "never"])
def test_reconnecting_after_malformed_messages_gains_no_loop_time(paced: Paced, again: int) -> None:
    read_pacer, begin, worked, honest = paced.read_pacer, paced.now, 0.0, paced.new()
    attackers = [(begin, paced.new()) for _ in range(3)]  # and when each is read next
    for count in range(1, 10_000):
        (at, one), *rest = sorted(attackers, key=lambda each: each[0])
        if at > begin + 30 or paced.now > begin + 30:
            break
        paced.now = max(paced.now, at) + 0.01
        one.record_malformed()
        worked += 0.01
        wait = read_pacer.record_read(one, 0, 0.01)
        if count % again == 0 or one.closing is not None:
            read_pacer.connection_closed(one)
            one.receive_eof()
            one = paced.new()
            wait = read_pacer.connection_opened(one)
        attackers = [(paced.now + wait, one), *rest]
        assert read_pacer.record_read(honest, 0, 0.01) == 0, "whatever its neighbours do"
    assert worked < PENALTY_SHARE * 30 + PENALTY_BURST + 0.5


def test_a_new_connection_inherits_a_penalty_until_it_expires(paced: Paced) -> None:
    bad, read_pacer = paced.new(), paced.read_pacer
    bad.record_malformed()
    read_pacer.charge_loop_time(bad, 1.0)
    read_pacer.connection_closed(bad)
    elsewhere, first, second = paced.new("192.0.2.2"), paced.new(), paced.new()
    assert read_pacer.connection_opened(elsewhere) == 0
    assert read_pacer.connection_opened(first) == MAX_PAUSE
    assert read_pacer.connection_opened(second) == 0
    read_pacer.connection_closed(first)
    read_pacer.connection_closed(second)
    paced.now += PENALTY_SECONDS
    assert read_pacer.connection_opened(paced.new()) == 0
    assert read_pacer.connection_opened(paced.new()) == 0
    assert not read_pacer._inherited


def test_a_network_gets_a_share_of_the_loop_while_others_have_input(paced: Paced) -> None:
    read_pacer, here, there = paced.read_pacer, "192.0.2.1", "192.0.2.2"
    read_pacer.record_bytes(here, 1, None)
    paced.now += 2 * SEVERAL_SECONDS
    read_pacer.record_bytes(here, 1, None)
    assert read_pacer.charge_network(here, 10.0) == 0, "nobody else is there"
    read_pacer.record_bytes(there, 1, None)
    assert read_pacer.charge_network(here, SHARE_BURST) == 0
    assert read_pacer.charge_network(here, 0.015) == pytest.approx(0.015 / REQUEST_SHARE)
    assert read_pacer.charge_network(there, 0.015) == 0, "each network has a share of its own"
    assert read_pacer.charge_network("", 10.0) == 0
    assert read_pacer.charge_network(here, 10.0) == MAX_PAUSE
    paced.now += MAX_PAUSE
    read_pacer.record_bytes(here, 1, None)
    read_pacer.record_bytes(there, 1, None)
    assert read_pacer.charge_network(here, 0.0) == 0, "nobody waits for longer, however much others have used"
    paced.now += 2 * SEVERAL_SECONDS
    read_pacer.record_bytes(there, 1, None)
    assert read_pacer.charge_network(here, 0.0) == 0, "it is alone again"


def test_a_network_counts_while_what_it_sent_before_is_handled(paced: Paced) -> None:
    """Hundreds of requests may be read at once, and answered for seconds."""
    read_pacer, here, there = paced.read_pacer, "192.0.2.1", "192.0.2.2"
    read_pacer.record_bytes(here, 1, None)
    for _ in range(3):
        paced.now += SEVERAL_SECONDS
        read_pacer.record_bytes(there, 1, None)
        read_pacer.charge_network(here, SHARE_BURST)
        assert read_pacer.is_shared
        assert read_pacer.serves_others(here)
        assert not read_pacer.serves_others(""), "nobody is paced whose network is not known"
        assert read_pacer.charge_network(here, 1.0) > 0
        paced.now += MAX_PAUSE


def test_long_reads_of_all_sessions_of_a_network_share_the_loop(paced: Paced) -> None:
    read_pacer, first, second, other = paced.read_pacer, paced.new(), paced.new(), paced.new("192.0.2.2")
    assert read_pacer.record_read(first, 1, 10.0) == 0, "nobody else is there"
    read_pacer.record_read(other, 1)
    assert read_pacer.record_read(first, 1, SHARE_BURST) == 0
    charged = 0.015 + PAUSE_SECONDS
    assert read_pacer.record_read(second, 1, 0.015) == pytest.approx(charged / READING_SHARE), "a pause takes time too"
    assert read_pacer.record_read(second, 1) == 0, "a short read does not wait for them"
    read_pacer.charge_answer(first.network, 0.003)
    charged += 0.003 + 0.001 + PAUSE_SECONDS
    assert read_pacer.record_read(second, 1, 0.001) == pytest.approx(charged / READING_SHARE), "long answers count"
    assert read_pacer.charge_network(first.network, SHARE_BURST) == 0, "HTTP requests have a share of their own"
    assert read_pacer.record_read(other, 1, 0.015) == 0, "each network has a share of its own"
