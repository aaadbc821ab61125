"""A client keeps every node, announces all of them when it connects, and replies to private nodes.

That is what wisteria does (mapping.md, section 6): nothing of a direct message may get further by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.forest import twig
from gateway.core.message import Message

SECRET = "nobody else's business"
MINUTE = 60_000


class Wisteria:
    """Holds nodes by their ids, and is asked for them."""

    def __init__(self, forge: Any, lobby: str) -> None:
        self.forge = forge
        self.lobby = lobby
        self.held: dict[str, str] = {}
        self.keep(forge.identity, lobby)
        self.statuses: list[str] = []

    def keep(self, *lines: str) -> None:
        self.held |= {line.split(" ")[0]: line for line in lines}

    def connect(self, place: Any) -> None:
        """Subscribe, and announce all that it holds."""
        self.line = place.connect()
        self.place = place
        self.say(f"subscribe 1 {self.lobby.split(' ')[0]}\n")
        self.announce(*self.held.values())

    def announce(self, *lines: str) -> None:
        self.keep(*lines)
        self.say("\n".join((f"announce 2 {len(lines)}", *lines, "")))
        self.listen()

    def say(self, text: str) -> None:
        self.line.session.receive_data(text.encode())

    def listen(self) -> None:
        """Keep what it is told, and answer what it is asked until nothing more comes."""
        while True:
            self.place.settle()
            text: str = self.line.read()
            if not text:
                return
            lines = iter(text.splitlines())
            for line in lines:
                verb, number, value, *_ = [*line.split(" "), ""]
                if verb == "announce":
                    self.keep(*(next(lines) for _ in range(int(value))))
                elif verb == "status" and number == "2":
                    self.statuses.append(value)
                elif verb == "query":
                    self._answer(number, [next(lines) for _ in range(int(value))])
                elif verb == "ancestry":
                    self._answer(number, list(self.held))  # more than it was asked for

    def _answer(self, number: str, ids: list[str]) -> None:
        found = [self.held[id] for id in ids if id in self.held]
        self.say("\n".join((f"response {number} {len(found)}", *found, "")))

    def last(self) -> str:
        """The line of what it was shown last."""
        return [*self.held.values()][-1]


@pytest.fixture
def lobby(alice: Any) -> str:
    line: str = alice.community("lobby")
    return line


def check(place: Any, others: list[Any]) -> None:
    """Nobody heard it, nobody finds it, and it is nowhere on the disk."""
    place.index()
    for other in others:
        assert not [message for message in other.heard if SECRET.encode() in message.content]
    assert not [message for message in place.gateway.index.history("lobby") if SECRET.encode() in message.content]
    stranger = place.connect()
    root = place.bus.channels.address("sprout", "lobby")
    shown = stranger.ask(f"list 1 2 999\nleaves_of 2 {root} 999\n")
    assert SECRET not in shown
    secret = json.dumps(SECRET)[1:-1].encode()
    files = [path for path in place.gateway.settings.data.rglob("*") if path.is_file()]
    assert not [path for path in files if secret in path.read_bytes()]


def test_private_nodes_stay_private(make_place: Callable[..., Any], alice: Any, bob: Any, lobby: str) -> None:
    place = make_place()
    alices, bobs = Wisteria(alice, lobby), Wisteria(bob, lobby)
    alices.connect(place)
    bobs.connect(place)
    alices.announce(alice.reply(lobby, "hello"))
    bobs.announce(bob.reply(lobby, "hello too"))
    eve, toy = place.toy(), place.toy()
    for each in (eve, toy):
        place.bus.subscribe(each, "lobby")

    whisper = alice.reply(lobby, SECRET, twig.encode({"to/1": bob.id.encode()}))
    alices.announce(whisper)
    bobs.listen()
    assert whisper in bobs.held.values(), "it was delivered"
    answer = bob.reply(whisper, SECRET + "!")
    bobs.announce(answer)
    alices.listen()
    assert answer in alices.held.values(), "an ordinary reply to it goes back"
    place.bus.direct(Message("lobby", toy.who, "toy", json.dumps({"content": SECRET}).encode()), bob_number(place, bob))
    bobs.listen()
    from_elsewhere = bobs.last()
    bobs.announce(bob.reply(from_elsewhere, SECRET + "?"))
    assert [json.loads(message.content)["content"] for message in toy.heard] == [SECRET + "?"]
    toy.heard.clear()
    check(place, [eve, toy])

    for passes in (MINUTE, 6 * MINUTE, 60 * MINUTE):
        for client in (alices, bobs):
            client.line.close()
            client.connect(place)
        check(place, [eve, toy])
        place.clock.now += passes
        alice.now = bob.now = place.clock.now
        bobs.announce(bob.reply(whisper, SECRET + " (late)"), bob.reply(from_elsewhere, SECRET + " (late)"))
        check(place, [eve] if passes == MINUTE else [eve, toy])
        toy.heard.clear()


def test_private_nodes_announced_again_after_a_restart_are_dropped(
    make_place: Callable[..., Any], alice: Any, bob: Any, lobby: str
) -> None:
    place = make_place()
    alices, bobs = Wisteria(alice, lobby), Wisteria(bob, lobby)
    alices.connect(place)
    bobs.connect(place)
    bobs.announce(bob.reply(lobby, "hello"))
    whisper = alice.reply(lobby, SECRET, twig.encode({"to/1": bob.id.encode()}))
    alices.announce(whisper)
    bobs.listen()
    bobs.announce(bob.reply(whisper, SECRET + "!"))
    place.clock.now += MINUTE
    again = make_place()
    eve = again.toy()
    again.bus.subscribe(eve, "lobby")
    bobs.connect(again)
    assert bobs.line.session.who.identity is None, "it is not taken for the author of what it was told"
    assert bobs.statuses[-1] in ("0", "4"), "nor is it refused: it would give the community up"
    alices.connect(again)
    alice.now = bob.now = again.clock.now
    bobs.announce(bob.reply(whisper, SECRET + " (again)"))
    check(again, [eve])


def test_replies_below_a_forgotten_private_node_are_refused(
    make_place: Callable[..., Any], alice: Any, bob: Any, lobby: str
) -> None:
    place = make_place()
    bobs = Wisteria(bob, lobby)
    bobs.connect(place)
    place.clock.now += MINUTE
    again = make_place()
    eve = again.toy()
    again.bus.subscribe(eve, "lobby")
    bobs.keep(alice.identity, alice.reply(lobby, SECRET, twig.encode({"to/1": bob.id.encode()})))
    whisper = bobs.last()
    bobs.connect(again)
    assert bobs.statuses[-1] == "0", "it is a copy"
    bob.now = again.clock.now
    answer = bob.reply(whisper, SECRET + "!")
    bobs.announce(answer)
    assert bobs.statuses[-1] == "4", "it is told that nobody got it"
    bobs.announce(bob.reply(answer, SECRET + "!!"))
    assert bobs.statuses[-1] == "4", "nor what is below that"
    bobs.line.close()
    bobs.connect(again)
    assert bobs.statuses[-1] == "0", "a client whose first announce is refused gives the community up"
    check(again, [eve])


def test_an_undelivered_direct_message_is_refused_once(place: Any, alice: Any, bob: Any, lobby: str) -> None:
    alices, bobs = Wisteria(alice, lobby), Wisteria(bob, lobby)
    alices.connect(place)
    whisper = alice.reply(lobby, SECRET, twig.encode({"to/1": bob.id.encode()}))
    for _ in range(2):
        alices.announce(whisper)
        assert alices.statuses[-1] == "4"
    alices.line.close()
    alices.connect(place)
    assert alices.statuses[-1] == "0", "it tells all that it holds, and is not to give the community up"
    bobs.connect(place)
    bobs.announce(bob.reply(lobby, "here I am"))
    alices.announce(whisper)
    bobs.listen()
    assert (alices.statuses[-1], whisper in bobs.held.values()) == ("0", True), "once somebody is there it arrives"


def test_no_text_of_a_direct_message_is_kept(place: Any, alice: Any, lobby: str) -> None:
    alices = Wisteria(alice, lobby)
    alices.connect(place)
    alices.announce(alice.reply(lobby, "hello"))
    alices.announce(alice.reply(lobby, SECRET, twig.encode({"to/1": alice.id.encode()})))
    assert alices.statuses[-1] == "0"
    kept = place.adapter.parts.nodes.directs
    (direct,) = map(kept.find, kept._directs)
    assert (direct.node.content.blob, direct.node.metadata.blob) == (b"", b"")


def test_replaying_a_forgotten_direct_message_does_not_identify_the_connection(
    place: Any, alice: Any, bob: Any, lobby: str
) -> None:
    place.adapter.parts.nodes.directs._directs.limit = 1
    alices, bobs = Wisteria(alice, lobby), Wisteria(bob, lobby)
    alices.connect(place)
    bobs.connect(place)
    bobs.announce(bob.reply(lobby, "here I am"))
    whisper = alice.reply(lobby, SECRET, twig.encode({"to/1": bob.id.encode()}))
    alices.announce(whisper)
    bobs.announce(bob.reply(lobby, "flood", twig.encode({"to/1": alice.id.encode()})))
    another = place.connect()
    another.ask(f"subscribe 1 {lobby.split(' ')[0]}\n")
    another.ask(f"announce 2 1\n{whisper}\n")
    assert another.session.identity is None


def test_a_direct_message_from_the_future_is_dropped(place: Any, alice: Any, bob: Any, lobby: str) -> None:
    alices, bobs = Wisteria(alice, lobby), Wisteria(bob, lobby)
    alices.connect(place)
    bobs.connect(place)
    bobs.announce(bob.reply(lobby, "here I am"))
    for ahead in (9 * MINUTE, 11 * MINUTE):
        made = place.clock.now + ahead
        whisper = alice.reply(lobby, SECRET, twig.encode({"to/1": bob.id.encode()}), created=made)
        alices.announce(whisper)
        bobs.listen()
        assert (whisper in bobs.held.values()) is (ahead < 10 * MINUTE)


def bob_number(place: Any, bob: Any) -> int:
    number: int = place.bus.peers.find("sprout", bob.id).number
    return number


def test_the_gateways_client_answers_requests(place: Any, alice: Any, lobby: str) -> None:
    client = Wisteria(alice, lobby)
    client.connect(place)
    first = alice.reply(lobby, "first")
    client.keep(first)
    second = alice.reply(first, "second")
    client.say(f"announce 2 1\n{second}\n")
    client.listen()
    place.index()
    assert len(place.gateway.index.history("lobby")) == 2
