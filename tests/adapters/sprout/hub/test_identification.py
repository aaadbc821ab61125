"""Only fresh nodes of an author identify a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.forest import twig
from adapters.sprout.hub.identification import CLOCK_SKEW, MAX_AGE
from gateway.adapter import ConnectionRequest
from gateway.core.message import Message
from gateway.core.principal import Principal

HOME, ELSEWHERE = "192.0.2.1", "198.51.100.7"
SECOND = 1000  # ms


def id_of(line: str) -> str:
    return line.split(" ")[0]


def connect(place: Any, address: str = HOME) -> Any:
    return type(place.connect())(place, place.adapter.accept(ConnectionRequest(Principal("sprout:anonymous", address))))


def whisper_to(place: Any, author: str) -> int:
    """A toy says something to *author* alone; how many connections get it."""
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    peer = place.bus.peers.identity("sprout", author, None)
    return int(place.bus.direct(Message("lobby", toy.who, "toy", b'{"content":"psst"}'), peer.number))


@pytest.fixture
def lobby(place: Any, alice: Any, bob: Any, announce: Callable[..., str]) -> str:
    """A community of Alice's called lobby, which the gateway holds."""
    community: str = alice.community("lobby")
    announce(place.connect(), alice.identity, bob.identity, community)
    return community


@pytest.fixture
def alices(place: Any, lobby: str, alice: Any, announce: Callable[..., str]) -> Any:
    """Alice's own connection, on which she said something."""
    line = connect(place)
    line.send(f"subscribe 0 {id_of(lobby)}\n")
    announce(line, alice.reply(lobby, "it is me"))
    line.read()
    return line


def test_a_fresh_node_identifies_its_author(place: Any, alices: Any, alice: Any) -> None:
    assert alices.session.who.identity == alice.id
    assert whisper_to(place, alice.id) == 1


@pytest.mark.parametrize(
    ("opened", "made", "arrives"),
    [
        (CLOCK_SKEW + 2, 1, CLOCK_SKEW + 2),  # read elsewhere before this line was there
        (0, SECOND, SECOND + MAX_AGE + 1),  # made while it was there, but too long ago
        (0, 3 * MAX_AGE, SECOND),  # not made yet
    ],
)
def test_a_node_from_another_relay_does_not_identify_the_connection(
    opened: int, made: int, arrives: int, place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    start = place.clock.now
    reply = alice.reply(lobby, "said on another relay", created=start + made)
    place.clock.now = start + opened
    line = connect(place)
    line.send(f"subscribe 0 {id_of(lobby)}\n")
    place.clock.now = start + arrives
    assert announce(line, reply) == "status 77 0\n"
    assert place.store.seq(id_of(reply)) is not None, "said for all that"
    assert line.session.identity is None
    assert whisper_to(place, alice.id) == 0


def test_replaying_an_authors_node_does_not_bind_another_connection(
    place: Any, lobby: str, alices: Any, alice: Any, announce: Any
) -> None:
    thief, ear = connect(place, ELSEWHERE), place.toy()
    thief.send(f"subscribe 0 {id_of(lobby)}\n")
    place.bus.subscribe(ear, "lobby")
    stolen = alice.reply(lobby, "said on two relays at once")
    assert announce(thief, stolen) == "status 77 0\n"
    assert ear.heard[-1].sender.identity == alice.id, "they are her words"
    assert thief.session.identity is None, "but not her connection"
    thief.read()
    assert whisper_to(place, alice.id) == 1
    place.settle()
    assert "announce" in alices.read()
    assert "psst" not in thief.read()


@pytest.mark.usefixtures("alices")
def test_a_second_device_at_the_same_address_is_the_authors_too(
    place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    other = connect(place)
    other.send(f"subscribe 0 {id_of(lobby)}\n")
    announce(other, alice.reply(lobby, "from my other terminal"))
    assert other.session.who.identity == alice.id
    assert whisper_to(place, alice.id) == 2


def test_an_author_can_reconnect_from_another_address(
    place: Any, lobby: str, alices: Any, alice: Any, announce: Any
) -> None:
    alices.close()
    moved = connect(place, ELSEWHERE)
    announce(moved, alice.reply(lobby, "on the train"))
    assert moved.session.who.identity == alice.id


def test_an_old_node_makes_a_link_and_no_author(place: Any, lobby: str, alices: Any, bob: Any, announce: Any) -> None:
    place.clock.now += 2 * MAX_AGE
    announce(alices, bob.reply(lobby, "a minute ago", created=place.clock.now - MAX_AGE - SECOND))
    assert alices.session.link, "who brings what others say is a relay"
    assert alices.session.identity is None


def test_an_old_presence_announcement_does_not_identify_the_connection(
    place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    word = alice.reply(lobby, "", twig.encode({"activity/1": b"0", "invisible/1": b"true"}))
    line = connect(place)
    place.clock.now += MAX_AGE + SECOND
    announce(line, word)
    assert line.session.identity is None
    assert alice.id in {peer.identity for peer in place.bus.peers_in("lobby")}, "she says that she is there"


@pytest.fixture
def strict(make_place: Callable[..., Any], alice: Any, bob: Any, announce: Any) -> Any:
    place = make_place(sprout={"identify": "never"})
    place.community = alice.community("lobby")
    announce(place.connect(), alice.identity, bob.identity, place.community)
    return place


def test_the_setting_never_identifies_no_connection(strict: Any, alice: Any, announce: Any) -> None:
    line, toy = connect(strict), strict.toy()
    strict.bus.subscribe(toy, "lobby")
    line.send(f"subscribe 0 {id_of(strict.community)}\n")
    word = alice.reply(strict.community, "", twig.encode({"activity/1": b"0", "invisible/1": b"true"}))
    whisper = alice.reply(strict.community, "psst", f"to/1\0{toy.peer.number}".encode())
    for node in (alice.reply(strict.community, "hi"), word, whisper):
        assert announce(line, node) == "status 77 0\n"
    assert line.session.identity is None
    assert [message.sender.identity for message in toy.heard] == [alice.id] * 2, "what she signs is hers"
    assert whisper_to(strict, alice.id) == 0
    toy = strict.toy()
    strict.bus.subscribe(toy, "lobby")
    number = line.session.peer.number
    assert strict.bus.direct(Message("lobby", toy.who, "toy", b"1"), number) == 1, (
        "a connection has a number of its own"
    )


# Rights of authors


@pytest.fixture
def closed(make_place: Callable[..., Any], alice: Any) -> Any:
    """A gateway on which Alice may say something in lobby, whoever brings it, and strangers may do nothing."""
    place = make_place(auth={"grants": {f"sprout:{alice.id}": ["publish:lobby"]}})
    place.community = alice.community("lobby")
    return place


def test_an_authors_right_to_publish_holds_on_any_connection(closed: Any, alice: Any, bob: Any, announce: Any) -> None:
    line = connect(closed)
    assert announce(line, alice.identity) == "status 77 0\n"
    assert announce(line, closed.community) == "status 77 0\n"
    assert announce(line, alice.reply(closed.community, "hi")) == "status 77 0\n"
    assert announce(line, bob.identity) == "status 77 1\n", "a stranger"
    assert announce(line, alice.community("elsewhere")) == "status 77 1\n", "no right there"


def test_an_authors_rights_include_no_reading(closed: Any, alice: Any, announce: Any) -> None:
    line = connect(closed)
    hello = alice.reply(closed.community, "hi")
    announce(line, alice.identity, closed.community, hello)
    assert line.session.identity is not None
    assert line.send(f"subscribe 1 {id_of(closed.community)}\n") == "status 1 1\n"
    assert line.send(f"query 2 1\n{id_of(hello)}\n") == "response 2 0\n"
    assert line.send("list 3 2 10\n") == "response 3 0\n"
    whisper = alice.reply(closed.community, "psst", f"to/1\0{line.session.peer.number}".encode())
    assert announce(line, whisper) == "status 77 1\n", "nor to anything else"
