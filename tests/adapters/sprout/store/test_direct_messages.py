"""Direct messages from and to Arbor are private replies that are never stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import Reply
from gateway.core.message import Message
from tests.adapters.sprout.conftest import nodes, pairs

DAY = 86_400_000


def test_a_direct_message_to_arbor_is_private_and_never_stored(place: Any, ear: Any, community: str) -> None:
    toy, other = place.toy(), place.connect()
    other.send(f"subscribe 0 {community}\n")
    message = Message("lobby", toy.who, "toy", b'{"content":"psst"}')
    assert place.bus.direct(message, ear.session.peer.number) == 1
    place.settle()
    (_, identity, _), (id, node, _) = nodes(ear.read())
    assert identity.name.text == f"peer {toy.peer.number} (Toys)"
    assert node.content.text == "psst"
    assert pairs(node)["private/1"] == b"true"
    assert pairs(node)["expiration/1"] == b"2026-11-21T05:51:40Z"
    assert not [node for _, node, _ in nodes(other.read()) if isinstance(node, Reply)]
    assert ear.send(f"query 5 1\n{id}\n") == "response 5 0\n"


def test_a_direct_message_from_arbor_reaches_one_peer(place: Any, alice: Any, bob: Any, announce: Any) -> None:
    mouth, toy, other = place.connect(), place.toy(), place.toy()
    lobby = alice.community("lobby")
    announce(mouth, alice.identity, bob.identity, lobby)
    for peer in (toy, other):
        place.bus.subscribe(peer, "lobby")
    whisper = alice.reply(lobby, "psst", twig.encode({"to/1": str(toy.peer.number).encode()}))
    assert announce(mouth, whisper) == "status 77 0\n"
    (message,) = toy.heard
    assert (message.target, message.sender.identity) == (toy.peer, alice.id)
    assert json.loads(message.content) == {"content": "psst"}
    assert announce(mouth, whisper) == "status 77 0\n", "once"
    assert announce(place.connect(), whisper) == "status 77 0\n", "and from nobody else"
    assert len(toy.heard) == 1
    assert not other.heard
    nobody = alice.reply(lobby, "psst", twig.encode({"to/1": b"999999"}))
    assert announce(mouth, nobody) == "status 77 4\n"
    foreign = bob.reply(lobby, "psst", twig.encode({"to/1": str(toy.peer.number).encode()}))
    assert announce(mouth, foreign) == "status 77 0\n", "Bob's words, but not from Bob"
    old = alice.reply(lobby, "x", twig.encode({"to/1": str(toy.peer.number).encode()}), created=place.clock.now - DAY)
    assert announce(mouth, old) == "status 77 0\n"
    assert len(toy.heard) == 1
    assert mouth.session.identity.identity == alice.id


def test_arbor_to_arbor_by_the_authors_id(place: Any, alice: Any, bob: Any, announce: Any) -> None:
    mouth, ear = place.connect(), place.connect()
    lobby = alice.community("lobby")
    announce(mouth, alice.identity, bob.identity, lobby)
    announce(ear, bob.reply(lobby, "I am here"))
    ear.send(f"subscribe 0 {lobby.split(' ')[0]}\n")
    whisper = alice.reply(lobby, "psst", twig.encode({"to/1": bob.id.encode()}))
    assert announce(mouth, whisper) == "status 77 0\n"
    assert ear.read().splitlines()[-1] == whisper, "verbatim"


def test_a_reply_to_a_direct_message_is_routed_back(place: Any, ear: Any, alice: Any, announce: Any) -> None:
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    place.bus.direct(Message("lobby", toy.who, "toy", b'{"content":"psst"}'), ear.session.peer.number)
    place.settle()
    *_, (_, _, raw) = nodes(ear.read())
    assert announce(ear, alice.identity, alice.reply(alice.line(raw), "what?")) == "status 77 0\n"
    (message,) = toy.heard
    assert message.target == toy.peer
    place.clock.now += 6 * 60_000
    alice.now = place.clock.now
    assert announce(ear, alice.reply(alice.line(raw), "hello?")) == "status 77 4\n"
    assert len(toy.heard) == 1


def test_direct_messages_can_be_switched_off(make_place: Callable[..., Any], alice: Any, announce: Any) -> None:
    place = make_place(sprout={"direct": "refuse"})
    toy, line, lobby = place.toy(), place.connect(), alice.community("lobby")
    announce(line, alice.identity, lobby)
    place.bus.subscribe(toy, "lobby")
    whisper = alice.reply(lobby, "psst", twig.encode({"to/1": str(toy.peer.number).encode()}))
    assert announce(line, whisper) == "status 77 1\n"
    assert not toy.heard
