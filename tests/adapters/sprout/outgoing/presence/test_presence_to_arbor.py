"""Presence of peers of other protocols is announced on Arbor to clients that announce presence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.forest import forest, twig
from adapters.sprout.forest.forest import Identity, Reply
from adapters.sprout.forest.node_rules import validate
from adapters.sprout.outgoing import presence
from adapters.sprout.outgoing.presence import INTERVAL, MAX_PEERS, PACE
from adapters.sprout.wire import base64url
from gateway.core.message import Message, Peer
from tests.adapters.sprout.conftest import nodes
from tests.adapters.sprout.outgoing.presence.conftest import ACTIVE, MINUTE, asks, listen, settle, told, word


@pytest.mark.usefixtures("watcher")
def test_a_new_subscriber_receives_the_presence_of_all_peers(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    mouth = listen(place, lobby)
    announce(mouth, word(alice, lobby))
    settle(place)
    late = listen(place, lobby)
    assert told(late) == []
    settle(place)
    ids = [node.author for _, node, _ in nodes(mouth.read()) if isinstance(node, Reply)]
    assert told(late) == [(ids[0], "0"), (alice.id, "0")], "once each: the peer from elsewhere, and the author"
    settle(place)
    assert told(late) == []


def test_a_new_subscriber_receives_one_announcement_of_a_newcomer(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any
) -> None:
    line = listen(place, lobby)
    line.session.link = True  # as a relay, through which many speak
    announce(line, word(bob, lobby))
    announce(place.connect(), word(alice, lobby))
    settle(place)
    settle(place)
    assert told(line) == [(alice.id, "0")], "and nothing of what it said itself"


@pytest.mark.usefixtures("watcher")
def test_a_subscriber_receives_one_announcement_while_a_node_is_signed(place: Any, lobby: str) -> None:
    listen(place, lobby)
    place.clock.now += 1000
    place.gateway.tick()
    line = listen(place, lobby)
    place.settle()
    settle(place)
    assert [said for _, said in told(line)] == ["0"]


@pytest.mark.usefixtures("watcher")
def test_a_subscriber_receives_one_announcement_while_nodes_are_repeated(place: Any, lobby: str) -> None:
    listen(place, lobby)
    settle(place)
    place.clock.now += INTERVAL - 1000
    line = listen(place, lobby)
    settle(place)
    settle(place)
    assert [said for _, said in told(line)] == ["0"]


def test_joins_and_leaves_are_announced_on_arbor(place: Any, lobby: str, watcher: Any) -> None:
    line = listen(place, lobby)
    settle(place)
    name = f"peer {watcher.peer.number} (Toys)"
    text = line.read()
    found = {id: node for id, node, _ in nodes(text)}
    (author,) = (id for id, node in found.items() if isinstance(node, Identity) and node.name.text == name)
    (said,) = (node for node in found.values() if isinstance(node, Reply))
    assert (said.parent, said.author, said.depth, said.content.text) == (lobby.split(" ")[0], author, 1, "")
    assert twig.decode(said.metadata.blob) == ACTIVE | {"expiration/1": b"2026-11-21T05:56:41Z"}
    other = place.toy()
    place.bus.subscribe(other, "lobby")
    place.bus.unsubscribe(watcher, "lobby")
    settle(place)
    assert told(line) == [(author, "1"), (f"peer {other.peer.number} (Toys)", "0")]
    place.index()
    assert place.gateway.index.history("lobby") == []


@pytest.mark.usefixtures("watcher")
def test_nodes_about_other_peers_are_valid(place: Any, lobby: str) -> None:
    line = listen(place, lobby)
    settle(place)
    text = line.read() + line.send(f"query 1 1\n{lobby.split(' ')[0]}\n")
    known = {id: node for id, node, _ in nodes(text)}
    for _, node, raw in nodes(text):
        if isinstance(node, Reply | Identity):
            assert validate(node, raw, place.clock.now, known.get(node.author), known.get(node.parent)).ok
    assert sum(isinstance(node, Reply) for node in known.values()) == 1


def test_a_peer_that_leaves_at_once_costs_no_signature(place: Any, lobby: str) -> None:
    line, toy = listen(place, lobby), place.toy()
    settle(place)
    line.read()
    before = place.gateway.log.next_seq
    place.bus.subscribe(toy, "lobby")
    place.bus.unsubscribe(toy, "lobby")
    settle(place)
    assert line.read() == ""
    assert place.gateway.log.next_seq == before, "no identity was made"


@pytest.mark.usefixtures("watcher")
def test_a_peer_that_stays_is_announced_again(place: Any, lobby: str) -> None:
    line = listen(place, lobby)
    settle(place)
    ((_, _),) = told(line)
    place.clock.now += INTERVAL - 2000
    settle(place)
    assert told(line) == []
    settle(place)
    assert [said for _, said in told(line)] == ["0"]


def test_nothing_is_signed_without_listeners_on_arbor(place: Any, lobby: str, watcher: Any) -> None:
    before = place.gateway.log.next_seq
    settle(place)
    assert place.gateway.log.next_seq == before
    line = listen(place, lobby)
    settle(place)
    line.close()
    place.bus.unsubscribe(watcher, "lobby")
    settle(place)
    after = place.gateway.log.next_seq
    place.bus.subscribe(watcher, "lobby")
    place.clock.now += INTERVAL
    settle(place)
    assert place.gateway.log.next_seq == after
    again = listen(place, lobby)
    settle(place)
    assert [said for _, said in told(again)] == ["0"]


def test_announcements_are_paced_and_bounded(place: Any, lobby: str) -> None:
    toys = [place.toy() for _ in range(MAX_PEERS + 10)]
    for toy in toys:
        place.bus.subscribe(toy, "lobby")
    line = listen(place, lobby)
    counts = []
    for _ in range(MAX_PEERS // PACE + 2):
        settle(place)
        counts.append(len(told(line)))
    assert counts == [PACE] * (MAX_PEERS // PACE) + [0, 0]
    place.bus.unsubscribe(toys[0], "lobby")
    settle(place)
    assert sorted(said for _, said in told(line)) == ["0", "1"], "one leaves, and there is room for another"


def test_the_gateway_ignores_its_own_announcements(place: Any, lobby: str, watcher: Any, announce: Any) -> None:
    line = listen(place, lobby)
    settle(place)
    *_, (_, _, raw) = nodes(line.read())
    place.bus.unsubscribe(watcher, "lobby")
    assert announce(place.connect(), f"{forest.node_id(raw)} {base64url.encode(raw).decode()}") == "status 77 0\n"
    assert [peer.number for peer in place.bus.peers_in("lobby")] == [line.session.peer.number]


def test_a_peer_of_another_protocol_is_addressed_by_its_identity(
    place: Any, lobby: str, alice: Any, announce: Any, watcher: Any
) -> None:
    line = listen(place, lobby)
    settle(place)
    (author,) = (id for id, node, _ in nodes(line.read()) if isinstance(node, Identity) and b"Toys" in node.name.blob)
    whisper = alice.reply(lobby, "psst", twig.encode({"to/1": author.encode()}))
    assert announce(line, whisper) == "status 77 0\n"
    (message,) = watcher.heard
    assert isinstance(message, Message)
    assert message.target == Peer(watcher.peer.number, "toy")
    nobody = alice.reply(lobby, "psst", twig.encode({"to/1": place.adapter.mint.id.encode()}))
    assert announce(line, nobody) == "status 77 4\n", "the gateway itself is no peer"


def test_presence_is_sent_to_many_new_subscribers_in_rounds(
    place: Any, lobby: str, alice: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "MAX_ANNOUNCED", 4)
    announce(place.connect(), word(alice, lobby))
    many = [listen(place, lobby) for _ in range(6)]
    gone = many.pop(2)
    gone.close()
    heard: list[int] = []
    for _ in range(4):
        settle(place)
        heard.append(sum(len(told(line)) for line in many))
    assert heard == [2, 1, 2, 0], "each hears of it once, and some a second later"


# Whom it is told


@pytest.fixture
def silent(make_place: Callable[..., Any], alice: Any, bob: Any, announce: Any) -> tuple[Any, str]:
    """A gateway as it is by default, and the line of a community."""
    place, line = make_place(), alice.community("lobby")
    announce(place.connect(), alice.identity, bob.identity, line)
    return place, line


def test_changes_in_many_communities_take_turns(
    place: Any, alice: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "LOOKED_AT", 2 * presence._PEERS_PER_COMMUNITY)
    line, words = place.connect(), place.gateway.adapters[0].parts.presence
    for number in range(9):
        community = alice.community(f"room {number}")
        announce(line, alice.identity, community)
        line.send(f"subscribe {number} {community.split()[0]}\n")
    settle(place)
    looked_at = list[str]()

    def look(channel: str, _now: int) -> int:
        looked_at.append(channel)
        return 0

    monkeypatch.setattr(words, "_update", look)
    for number in range(9):
        place.bus.subscribe(place.toy(), f"room {number}")
    posted = list[Callable[[], None]]()
    monkeypatch.setattr(words, "_post", posted.append)
    words.tick(place.clock.now)
    counts = [len(looked_at)]
    while posted:
        posted.pop()()
        counts.append(len(looked_at) - sum(counts))
    assert counts == [2, 2, 2, 2, 1]
    assert sorted(looked_at) == [f"room {number}" for number in range(9)]


def test_clients_that_announce_no_presence_receive_none(silent: tuple[Any, str], alice: Any, announce: Any) -> None:
    place, lobby = silent
    quiet, toy = listen(place, lobby), place.toy()
    place.bus.subscribe(toy, "lobby")
    before = place.gateway.log.next_seq
    settle(place)
    assert place.gateway.log.next_seq == before, "nothing is signed for nobody"
    announce(place.connect(), word(alice, lobby))
    place.bus.unsubscribe(toy, "lobby")
    for _ in range(2):
        place.clock.now += INTERVAL
        settle(place)
    assert quiet.read() == ""


def test_a_client_that_announces_presence_receives_that_of_others(
    silent: tuple[Any, str], alice: Any, bob: Any, announce: Any
) -> None:
    place, lobby = silent
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    quiet, line = listen(place, lobby), asks(place, lobby, alice)
    settle(place)
    settle(place)
    assert told(line) == [(f"peer {toy.peer.number} (Toys)", "0")]
    announce(place.connect(), word(bob, lobby))
    assert told(line) == [(bob.id, "0")]
    hall = alice.community("hall")
    line.ask(f"announce 5 1\n{hall}\nsubscribe 6 {hall.split(' ')[0]}\n")
    place.bus.subscribe(toy, "hall")
    settle(place)
    settle(place)
    assert [said for _, said in told(line)] == ["0"], "also elsewhere"
    assert told(quiet) == []


def test_announcing_older_nodes_is_not_announcing_presence(
    silent: tuple[Any, str], alice: Any, bob: Any, announce: Any
) -> None:
    """Clients announce all that they hold whenever they connect, also words that they do not know."""
    place, lobby = silent
    toy, shown = place.toy(), word(bob, lobby)
    place.bus.subscribe(toy, "lobby")
    place.clock.now += MINUTE
    quiet = listen(place, lobby)
    announce(quiet, shown)
    settle(place)
    settle(place)
    assert told(quiet) == []
    assert bob.id in [peer.identity for peer in place.bus.peers_in("lobby")], "what it says still holds"
    alice.now = place.clock.now
    announce(quiet, word(alice, lobby))
    settle(place)
    settle(place)
    assert [said for _, said in told(quiet)] == ["0", "0"]
