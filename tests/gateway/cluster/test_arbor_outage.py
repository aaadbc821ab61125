"""What Arbor's peers get while a cluster accepts nothing: what is signed; what has to be signed or logged waits."""

from __future__ import annotations

import re

from .conftest import Pair
from .test_reads_elsewhere import COMMUNITY, WaitingClient

OUTAGE = "the cluster does not answer"


def lose_quorum(pair: Pair) -> None:
    """Nobody gets the turn from now on, and the second gateway refuses publishers."""
    first, here = pair.nodes
    first.catch_up()
    pair.settle()
    first.turn.pinned = True
    here.turn.callbacks.hold(OUTAGE)


def regain_quorum(pair: Pair) -> None:
    first, here = pair.nodes
    first.turn.pinned = False
    here.turn.tick()
    here.catch_up()
    here.instance.settle(synced=True)


def test_an_answer_with_a_node_that_was_never_signed_waits_and_so_does_what_follows(pair: Pair) -> None:
    first, _ = pair.nodes
    pair.enter(0, "rest").publish("lobby", "never offered")
    pair.settle()
    first.instance.settle(synced=True)
    lose_quorum(pair)
    client, other = WaitingClient(pair, 1, "sprout"), WaitingClient(pair, 1, "sprout")
    assert b"response 1 " in client.ask("version 0 0.0\nlist 1 1 9\n"), "communities are signed"
    assert client.ask(f"leaves_of 2 {COMMUNITY} 9\n") == b""
    assert client.ask(f"subscribe 3 {COMMUNITY}\n") == b"", "answers are in order"
    assert other.ask(f"version 0 0.0\nsubscribe 1 {COMMUNITY}\n") == b"status 0 0\n\nstatus 1 0\n"
    regain_quorum(pair)
    assert re.match(rb"response 2 [1-9]\d*\n", answer := client.heard())
    assert b"status 3 0" in answer
    for each in (client, other):
        each.session.receive_eof()


def test_an_announced_node_is_refused_and_requested_afterwards(pair: Pair) -> None:
    alice = pair.enter(1, "alice")
    here = pair.nodes[1].instance
    alice.publish("lobby", "accepted")
    pair.settle()
    here.settle(synced=True)
    assert b"status 1 0" in pair.heard(alice)
    lose_quorum(pair)
    before = here.gateway.log.next_seq
    alice.publish("lobby", "not accepted")
    assert b"status 2 1" in pair.heard(alice)
    assert here.gateway.log.next_seq == before
    regain_quorum(pair)
    here.gateway.bus.tick()
    assert re.search(rb"^query \d+ 1$", pair.heard(alice), re.MULTILINE)
    alice.disconnect()


def test_a_direct_message_to_an_arbor_peer_arrives_afterwards(pair: Pair) -> None:
    client, relay = WaitingClient(pair, 1, "sprout"), pair.enter(1, "topic_relay")
    client.ask(f"version 0 0.0\nsubscribe 1 {COMMUNITY}\n")
    lose_quorum(pair)
    client.heard()
    relay.send_direct("lobby", client.session.peer.number, "for one alone")
    assert client.heard() == b""
    regain_quorum(pair)
    assert b"announce " in client.heard()
    relay.disconnect()
    client.session.receive_eof()
