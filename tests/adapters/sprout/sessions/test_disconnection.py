"""Silent connections, and those that keep sending malformed or forged input, are disconnected."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.sprout.hub.rights import LINK_PRINCIPAL
from adapters.sprout.sessions.peering import Peering
from adapters.sprout.wire import base64url
from gateway.core.principal import Principal
from gateway.core.read_pacer import MAX_MALFORMED

SECONDS = 10  # limits.handshake_seconds unless it is set


def ticks(place: Any, count: int) -> None:
    for _ in range(count):
        place.bus.tick()


@pytest.mark.parametrize("said", ["", "vers", "announce 1 2\nhalf", "query 1 2\n"])
def test_a_silent_peer_is_disconnected(place: Any, said: str) -> None:
    line = place.connect()
    line.send(said)
    ticks(place, SECONDS)
    assert line.session.closing is None
    ticks(place, 1)
    assert line.session.closing is not None


def test_the_handshake_timeout_is_configurable(make_place: Any) -> None:
    place = make_place(limits={"rates": "off", "handshake_seconds": 2})
    line = place.connect()
    ticks(place, 3)
    assert line.session.closing is not None


def test_trickling_bytes_do_not_extend_the_timeout(place: Any) -> None:
    line = place.connect()
    for _ in range(SECONDS + 1):
        line.send("x")
        ticks(place, 1)
    assert line.session.closing is not None


@pytest.mark.parametrize("said", ["", "vers"])
def test_silence_does_not_count_while_the_gateway_reads_nothing(place: Any, said: str) -> None:
    line = place.connect()
    line.send(said)
    place.gateway.log.congested = True
    ticks(place, 100)
    assert line.session.closing is None
    place.gateway.log.congested = False
    ticks(place, SECONDS + 1)
    assert line.session.closing == (1002, "an incomplete message" if said else "no message")


@pytest.mark.parametrize("said", ["version 0 0.0\n", "nonsense\n"])
def test_a_peer_may_be_silent_after_its_first_message(place: Any, said: str) -> None:
    line = place.connect()
    line.send(said)
    ticks(place, 1000)
    assert line.session.closing is None


def test_a_dialled_relay_may_stay_silent(place: Any) -> None:
    line = type(place.connect())(place, place.adapter.open(Peering, Principal(LINK_PRINCIPAL)))
    ticks(place, 3 * SECONDS)
    assert line.session.closing is None


# Malformed and forged input


@pytest.fixture
def strict(make_place: Any, alice: Any, announce: Any) -> Any:
    """A gateway that counts what is malformed."""
    place = make_place(limits={"rates": "on"})
    place.lobby = alice.community("lobby")
    announce(place.connect(), alice.identity, place.lobby)
    return place


def forged(author: Any, parent: str) -> str:
    raw = bytearray(base64url.decode(author.reply(parent, "forged").split(" ")[1].encode()))
    raw[-1] ^= 1
    return str(author.line(bytes(raw)))


@pytest.mark.parametrize("said", ["nonsense\n", "list 1 1\n", "announce 1 1\nno node at all\n"])
def test_malformed_input_without_end_ends_the_connection(strict: Any, said: str) -> None:
    line = strict.connect()
    for _ in range(MAX_MALFORMED - 1):
        line.send(said)
    assert line.session.closing is None, "some of it is answered"
    line.send(said * 10)
    assert line.session.closing is not None


def test_forged_nodes_without_end_end_the_connection(strict: Any, alice: Any) -> None:
    line, node = strict.connect(), forged(alice, strict.lobby)
    for number in range(MAX_MALFORMED + 10):
        line.send(f"announce {number} 1\n{node}\n")
    assert line.session.closing is not None


def test_refused_nodes_are_not_malformed(strict: Any, alice: Any, bob: Any) -> None:
    line = strict.connect()
    unknown, late = bob.reply(strict.lobby, "by a stranger"), alice.reply(strict.lobby, "x" * 9, created=1)
    for number in range(MAX_MALFORMED + 10):
        line.send(f"announce {number} 1\n{(unknown, late)[number % 2]}\nancestry 7 {bob.id} 1\nversion 8 1.0\n")
    assert line.session.closing is None


def test_a_valid_node_excuses_forged_ones_beside_it(strict: Any, alice: Any) -> None:
    line, node = strict.connect(), forged(alice, strict.lobby)
    for number in range(MAX_MALFORMED + 10):
        line.send(f"announce {number} 2\n{node}\n{alice.identity}\n")
    assert line.session.closing is None, "genuine relays keep forged nodes, and tell all they have"


def test_a_peer_that_the_operator_chose_is_not_judged(strict: Any) -> None:
    line = type(strict.connect())(strict, strict.adapter.open(Peering, Principal(LINK_PRINCIPAL)))
    for _ in range(MAX_MALFORMED + 10):
        line.send("nonsense\n")
    assert line.session.closing is None
