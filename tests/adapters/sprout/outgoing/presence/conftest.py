"""A community on Arbor, a peer of another protocol in it, and the nodes by which presence is announced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import Identity
from tests.adapters.sprout.conftest import nodes

ACTIVE = {"activity/1": b"0", "invisible/1": b"true"}
INACTIVE = {"activity/1": b"1", "invisible/1": b"true"}
MINUTE = 60_000


def word(author: Any, lobby: str, pairs: dict[str, bytes] = ACTIVE, text: str = "", **fields: Any) -> str:
    """The line of what an author says of himself."""
    line: str = author.reply(lobby, text, twig.encode(pairs), **fields)
    return line


def told(line: Any) -> list[tuple[str, str]]:
    """Who was said to be active ("0") or not to whoever reads *line*, by the name of the author."""
    names, words = {}, []
    for id, node, _ in nodes(line.read()):
        if isinstance(node, Identity):
            names[id] = node.name.text
        elif "activity/1" in (pairs := twig.decode(node.metadata.blob)):
            words.append((names.get(node.author, node.author), pairs["activity/1"].decode()))
    return words


def settle(place: Any) -> None:
    """A second passes, and everything that was begun is done."""
    place.clock.now += 1000
    place.gateway.tick()
    place.settle()


@pytest.fixture
def place(make_place: Callable[..., Any]) -> Any:
    """A gateway that tells all who listen."""
    return make_place(sprout={"presence": "tell"})


@pytest.fixture
def lobby(place: Any, alice: Any, bob: Any, announce: Any) -> str:
    """The line of a community."""
    line: str = alice.community("lobby")
    announce(place.connect(), alice.identity, bob.identity, line)
    return line


@pytest.fixture
def watcher(place: Any, lobby: str) -> Any:
    """A peer of the other protocol, with whom it saw come and leave."""
    assert lobby
    toy = place.toy()
    toy.seen = []
    toy.hears_presence = True
    toy.peer_joined = lambda _channel, peer: toy.seen.append(("+", peer.identity or peer.number))
    toy.peer_left = lambda _channel, peer: toy.seen.append(("-", peer.identity or peer.number))
    place.bus.subscribe(toy, "lobby")
    return toy


def asks(place: Any, lobby: str, author: Any) -> Any:
    """A client of *author* that listens, and tells of itself."""
    line = listen(place, lobby)
    line.ask(f"announce 9 1\n{word(author, lobby)}\n")
    return line


def listen(place: Any, lobby: str) -> Any:
    line = place.connect()
    line.send(f"subscribe 0 {lobby.split(' ')[0]}\n")
    return line
