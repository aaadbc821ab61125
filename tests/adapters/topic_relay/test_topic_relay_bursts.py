"""A burst of messages keeps its order with all other output to a peer."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.topic_relay.session import TopicRelaySession
from gateway.core.outbox import BURST_FACTOR, LOW_WATER

Peers = list[TopicRelaySession]


def say(session: TopicRelaySession, number: int, topic: str = "t") -> None:
    session.receive_data(b'{"type":6,"topic":"%b","n":%d}' % (topic.encode(), number))


def numbers(relay: Any, session: TopicRelaySession) -> list[Any]:
    return [packet.get("n") for packet in relay.packets(session)]


@pytest.fixture
def peers(relay: Any) -> Peers:
    return list(relay.members(3))


def test_a_burst_reaches_all_listeners_in_order(relay: Any, peers: Peers) -> None:
    for number in range(20):
        say(peers[0], number)
    assert [numbers(relay, peer) for peer in peers] == [[], list(range(20)), list(range(20))]


def test_two_publishers_receive_only_the_messages_of_each_other(relay: Any, peers: Peers) -> None:
    a, b, c = peers
    for number in range(6):
        say((a, b)[number % 2], number)
    assert numbers(relay, a) == [1, 3, 5]
    assert numbers(relay, b) == [0, 2, 4]
    assert numbers(relay, c) == list(range(6))


def test_an_answer_follows_the_messages_published_before_it(relay: Any, peers: Peers) -> None:
    a, b, _ = peers
    say(a, 1)
    b.receive_data(b'{"type":1,"topic":"t","n":2}')
    say(a, 3)
    assert numbers(relay, b) == [1, 2, 3]


def test_a_direct_message_keeps_its_place_in_a_burst(relay: Any, peers: Peers) -> None:
    a, b, c = peers
    say(a, 1)
    a.receive_data(b'{"type":4,"topic":"t","dst":%d,"n":2}' % b.peer.number)
    say(a, 3)
    assert numbers(relay, b) == [1, 2, 3]
    assert numbers(relay, c) == [1, 3]


def test_peers_that_join_or_leave_during_a_burst_receive_their_part(relay: Any, peers: Peers) -> None:
    a, b, _ = peers
    late = relay.open()
    say(a, 1)
    b.receive_data(b'{"type":3,"topic":"t"}')
    late.receive_data(b'{"type":2,"topic":"t","n":0}')
    say(a, 2)
    assert numbers(relay, b) == [1]
    assert numbers(relay, late) == [0, 2]


def test_a_close_follows_the_messages_published_before_it(relay: Any, peers: Peers) -> None:
    a, b, _ = peers
    say(a, 1)
    b.close(1001, "the gateway is stopping")
    say(a, 2)
    assert numbers(relay, b) == [1]


def test_a_listener_is_woken_for_a_burst_at_once(peers: Peers) -> None:
    a, b, c = peers
    woken: list[TopicRelaySession] = []
    for peer in peers:
        peer.wake = partial(woken.append, peer)
    say(a, 1)
    assert woken == [b, c]
    say(a, 2)
    assert woken == [b, c], "once"
    b.data_to_send()
    say(a, 3)
    assert woken == [b, c, b]


def test_a_peer_that_does_not_read_a_burst_is_closed(relay: Any, peers: Peers) -> None:
    a, slow, quick = peers
    quick.blocked = False
    text = b'{"type":6,"topic":"t","n":7,"text":"%b"}' % (b"x" * LOW_WATER)[:60_000]
    for _ in range(slow.max_outbox // 60_000 + 1):
        a.receive_data(text)
        quick.data_to_send()
    assert slow.closing is not None
    assert slow.closing.code == 1013
    assert slow.data_to_send() == []
    assert quick.closing is None
    assert relay.metrics.counts["overflows"]["topic_relay",] == 1
    for _ in range(BURST_FACTOR * quick.max_outbox // 60_000 + 2):
        a.receive_data(text)
    assert quick.waiting == 0
    assert quick.closing is not None, "more than its burst, before its shell could write"


MOVES = st.sampled_from(["say", "answer", "direct", "take", "leave", "come"])


@given(moves=st.lists(st.tuples(MOVES, st.integers(0, 3))))
def test_any_order_of_events_is_the_order_of_every_listener(new_relay: Any, moves: list[tuple[str, int]]) -> None:
    relay = new_relay()
    peers = relay.members(4)
    inside = dict.fromkeys(range(4), True)
    expected: list[list[int]] = [[] for _ in peers]
    heard: list[list[int]] = [[] for _ in peers]
    for n, (move, who) in enumerate(moves):
        if move == "say":
            say(peers[who], n)
            for other in range(4):
                if other != who and inside[other]:
                    expected[other].append(n)
        elif move == "answer":
            peers[who].receive_data(b'{"type":1,"topic":"t","n":%d}' % n)
            expected[who].append(n)
        elif move == "direct":
            dst = (who + 1) % 4
            peers[who].receive_data(b'{"type":4,"topic":"t","dst":%d,"n":%d}' % (peers[dst].peer.number, n))
            if inside[dst]:
                expected[dst].append(n)
        elif move == "leave" and inside[who]:
            peers[who].receive_data(b'{"type":3,"topic":"t"}')
            inside[who] = False
        elif move == "come" and not inside[who]:
            peers[who].receive_data(b'{"type":2,"topic":"t"}')
            inside[who] = True
        elif move == "take":
            heard[who] += numbers(relay, peers[who])
    for who, peer in enumerate(peers):
        heard[who] += numbers(relay, peer)
        assert [n for n in heard[who] if n is not None] == expected[who]
