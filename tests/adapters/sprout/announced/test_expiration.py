"""An expired node is offered to no Arbor peer, whatever the source of its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.forest import twig

LIFE = 60_000  # ms


def id_of(node: str) -> str:
    return node.split(" ")[0]


def expiring(place: Any) -> bytes:
    """TWIG of what expires in a minute; the clock of the tests began at six o'clock."""
    moment = f"2026-11-21T0{5 + (place.clock.now + LIFE - 1_795_237_200_000) // 3_600_000}"
    seconds = (place.clock.now + LIFE) % 3_600_000 // 1000
    return twig.encode({"expiration/1": f"{moment}:{seconds // 60:02}:{seconds % 60:02}.0000000000Z".encode()})


@pytest.fixture
def lobby(place: Any, alice: Any, announce: Callable[..., str]) -> str:
    community: str = alice.community("lobby")
    announce(place.connect(), alice.identity, community)
    return community


@pytest.mark.parametrize("kept", ["in memory", "on disk", "after a restart"])
def test_expired_nodes_are_not_offered(
    place: Any, lobby: str, alice: Any, announce: Any, make_place: Any, kept: str
) -> None:
    short = alice.reply(lobby, "short", expiring(place))
    below, long = alice.reply(short, "below"), alice.reply(lobby, "long")
    assert announce(place.connect(), short, below, long) == "status 77 0\n"
    place.index()
    if kept == "on disk":
        place.adapter.signer.lines.__init__()
    if kept == "after a restart":
        place = make_place()
    line = place.connect()
    questions = (
        f"query 1 1\n{id_of(short)}\n",
        f"ancestry 2 {id_of(below)} 1\n",
        f"leaves_of 3 {id_of(lobby)} 9\n",
        "list 4 2 9\n",
    )
    before = [line.ask(question).count("\n") - 1 for question in questions]
    assert before == [1, 1, 4, 3]
    place.clock.now += LIFE - 1
    assert [line.ask(question).count("\n") - 1 for question in questions] == before
    place.clock.now += 1
    after = [line.ask(question) for question in questions]
    assert [answer.count("\n") - 1 for answer in after] == [0, 0, 2, 1], "what is below it goes with it"
    assert not any(short in answer for answer in after)
    assert announce(line, alice.reply(below, "deeper")) == "status 77 0\n", "what is below it is not lost"


def test_expired_nodes_are_not_announced_to_relays(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    short = alice.reply(lobby, "short", expiring(place))
    announce(place.connect(), short)
    spot = place.adapter.parts.nodes.info(id_of(short))
    assert place.adapter.parts.nodes.line_at(spot.seq) == short.encode()
    place.clock.now += LIFE
    assert place.adapter.parts.nodes.line_at(spot.seq) is None


def test_a_client_that_holds_nothing_newer_is_not_refused(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    """Genuine clients announce the leaves of what they hold when they connect, and give up where that is refused."""
    short = alice.reply(lobby, "short", expiring(place))
    place.clock.now += LIFE
    assert announce(place.connect(), short) == "status 77 0\n"
    assert place.store.seq(id_of(short)) is None
