"""A node in a response does not identify the connection that sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.message import LATE_AFTER


def id_of(node: str) -> str:
    return node.split(" ")[0]


@pytest.fixture
def lobby(place: Any, alice: Any, announce: Callable[..., str]) -> str:
    """A community of Alice's called lobby, which the gateway holds."""
    community: str = alice.community("lobby")
    announce(place.connect(), alice.identity, community)
    return community


def test_a_response_does_not_identify_the_peer(place: Any, lobby: str, alice: Any, bob: Any, announce: Any) -> None:
    line, new = place.connect(), bob.reply(lobby, "new")
    announce(line, bob.identity, bob.reply(new, "old", created=place.clock.now - LATE_AFTER - 1))
    line.ask(f"response 0 1\n{new}\n")
    assert place.store.seq(id_of(new)) is not None
    assert line.session.identity is None
    announce(line, alice.reply(lobby, "this is who it is"))
    assert line.session.who.identity == alice.id


def test_a_response_that_waits_does_not_identify_the_peer(place: Any, lobby: str, bob: Any, announce: Any) -> None:
    long_ago = place.clock.now - LATE_AFTER - 1
    line, missing = place.connect(), bob.reply(lobby, "missing", created=long_ago)
    announce(line, bob.identity, bob.reply(bob.reply(lobby, "asked for"), "old", created=long_ago))
    answer = bob.reply(missing, "new")
    line.ask(f"response 0 1\n{answer}\n")
    assert place.store.seq(id_of(answer)) is None
    announce(line, missing)
    assert place.store.seq(id_of(answer)) is not None
    assert line.session.identity is None


def test_a_direct_message_in_a_response_does_not_identify_the_peer(
    place: Any, lobby: str, bob: Any, announce: Any
) -> None:
    toy, line = place.toy(), place.connect()
    direct = bob.reply(lobby, "psst", f"to/1\0{toy.peer.number}".encode())
    announce(line, bob.identity, bob.reply(direct, "below"))
    line.ask(f"response 0 1\n{direct}\n")
    assert line.session.identity is None
    assert not toy.heard
