"""Presence in Arbor, in both directions: Arbor's reaches everybody, other protocols' reaches Arbor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.forest import forest, twig
from adapters.sprout.forest.forest import Identity, Reply
from adapters.sprout.forest.validate import validate
from adapters.sprout.outgoing import presence
from adapters.sprout.outgoing.presence import INTERVAL, MAX_PEERS, PACE, VALIDITY
from adapters.sprout.wire import base64url
from gateway.core.message import Message, Peer
from tests.adapters.sprout.conftest import nodes
from tests.adapters.sprout.sessions.test_peering import dial, response
from tests.adapters.sprout.store.test_lineage import load

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


# From Arbor


def test_other_protocols_see_an_author_join_and_leave(
    place: Any, lobby: str, alice: Any, announce: Any, watcher: Any
) -> None:
    line = place.connect()
    assert announce(line, word(alice, lobby)) == "status 77 0\n"
    assert watcher.seen == [("+", alice.id)]
    assert [peer.identity for peer in place.bus.peers_in("lobby")] == [None, alice.id]
    announce(line, word(alice, lobby))
    assert watcher.seen == [("+", alice.id)], "once"
    announce(line, word(alice, lobby, INACTIVE))
    assert watcher.seen == [("+", alice.id), ("-", alice.id)]
    assert not watcher.heard, "it is not a message"


def test_presence_is_forwarded_verbatim_and_not_stored(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    mouth, ear, elsewhere = listen(place, lobby), listen(place, lobby), place.connect()
    settle(place)
    ear.read()
    said = word(alice, lobby)
    announce(mouth, said)
    assert ear.read().splitlines()[-1] == said
    assert said not in elsewhere.read()
    assert not mouth.read()
    place.index()
    id = said.split(" ")[0]
    assert elsewhere.send(f"query 1 1\n{id}\n") == "response 1 0\n"
    assert id not in elsewhere.send(f"leaves_of 2 {lobby.split(' ')[0]} 99\n")
    assert not place.gateway.index.history("lobby")
    files = [path.read_bytes() for path in place.gateway.settings.data.rglob("*") if path.is_file()]
    assert not any(id.encode() in data for data in files)


def test_a_listener_is_present_already_and_gets_a_name(
    place: Any, lobby: str, alice: Any, announce: Any, watcher: Any
) -> None:
    line = listen(place, lobby)
    number = line.session.peer.number
    announce(line, word(alice, lobby))
    assert line.session.identity.identity == alice.id
    assert watcher.seen == [("+", number), ("-", number), ("+", alice.id)]
    announce(line, word(alice, lobby, INACTIVE))
    assert watcher.seen[3:] == [("-", alice.id)], "it listens on, but says that nobody is there"
    assert [peer.number for peer in place.bus.peers_in("lobby")] == [watcher.peer.number]
    announce(line, word(alice, lobby))
    line.close()
    assert watcher.seen[4:] == [("+", alice.id), ("-", alice.id)]


def test_a_peer_that_left_while_inactive_is_not_announced_again(
    place: Any, lobby: str, alice: Any, announce: Any, watcher: Any
) -> None:
    line = listen(place, lobby)
    announce(line, word(alice, lobby), word(alice, lobby, INACTIVE))
    seen = list(watcher.seen)
    line.close()
    assert watcher.seen == seen
    announce(listen(place, lobby), word(alice, lobby))
    assert watcher.seen[-1] == ("+", alice.id)


@pytest.mark.parametrize(("pairs", "stays"), [({}, VALIDITY), ({"expiration/1": b"2026-11-21T05:48:00Z"}, 80_000)])
def test_an_announcement_is_valid_until_it_expires(
    place: Any, lobby: str, alice: Any, announce: Any, watcher: Any, pairs: Any, stays: int
) -> None:
    announce(place.connect(), word(alice, lobby, ACTIVE | pairs))
    place.clock.now += stays - 1000
    place.gateway.tick()
    assert watcher.seen == [("+", alice.id)]
    settle(place)
    assert watcher.seen == [("+", alice.id), ("-", alice.id)]


def test_no_announcement_is_valid_for_ever(place: Any, lobby: str, alice: Any, announce: Any, watcher: Any) -> None:
    announce(place.connect(), word(alice, lobby, ACTIVE | {"expiration/1": b"2099-01-01T00:00:00Z"}))
    place.clock.now += presence.MAX_VALIDITY
    place.gateway.tick()
    assert watcher.seen == [("+", alice.id), ("-", alice.id)]


def test_old_long_or_malformed_announcements_are_dropped(
    place: Any, lobby: str, alice: Any, announce: Any, watcher: Any
) -> None:
    line, ear = place.connect(), listen(place, lobby)
    watcher.seen.clear()
    settle(place)
    ear.read(), line.read()
    now = place.clock.now
    for said in (
        word(alice, lobby, created=now - 11 * MINUTE),
        word(alice, lobby, created=now + 11 * MINUTE),
        word(alice, lobby, text="x" * presence.MAX_LINE),
        word(alice, lobby, ACTIVE | {"activity/1": b"2"}),
    ):
        assert announce(line, said) == "status 77 0\n"
    expired = word(alice, lobby, ACTIVE | {"expiration/1": b"2020-01-01T00:00:00Z"})
    assert announce(line, expired) == "status 77 0\n"
    assert (watcher.seen, ear.read()) == ([], "")
    assert line.session.identity is None


def test_copies_and_older_announcements_are_ignored(
    place: Any, lobby: str, alice: Any, announce: Any, watcher: Any
) -> None:
    line, other = place.connect(), place.connect()
    before, said, left = word(alice, lobby, INACTIVE), word(alice, lobby), word(alice, lobby, INACTIVE)
    announce(line, said)
    announce(other, said, before)
    assert watcher.seen == [("+", alice.id)]
    assert other.session.identity is None, "only who says it first is taken for its author"
    announce(line, left)
    announce(other, said)
    assert watcher.seen == [("+", alice.id), ("-", alice.id)]


def test_nodes_older_than_a_connection_do_not_identify_it(
    make_place: Callable[..., Any], place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    said = word(alice, lobby)
    announce(place.connect(), said)
    place.clock.now += MINUTE
    again = make_place(sprout={"presence": "tell"})
    bobs = again.connect()
    announce(bobs, said)  # as genuine clients do with all that they hold
    assert bobs.session.identity is None
    assert [peer.identity for peer in again.bus.peers_in("lobby")] == [alice.id], "what it says still holds"


def test_a_connection_may_forward_presence_of_another_author(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, watcher: Any
) -> None:
    line = place.connect()
    announce(line, bob.reply(lobby, "it is me"))
    announce(line, word(alice, lobby))
    assert line.session.identity.identity == bob.id
    assert not line.session.link
    assert watcher.seen == [("+", alice.id)]


def test_presence_needs_the_right_to_publish(make_place: Callable[..., Any], alice: Any, announce: Any) -> None:
    grants = {"sprout:anonymous": ["subscribe:*", "history:*"], "sprout:owner": ["*:*"]}
    place = make_place(auth={"grants": grants})
    lobby = alice.community("lobby")
    announce(place.connect("sprout:owner"), alice.identity, lobby)
    assert announce(place.connect(), word(alice, lobby)) == "status 77 1\n"
    assert place.bus.peers_in("lobby") == []


def test_announcements_kept_of_a_community_are_bounded(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "MAX_AUTHORS", 1)
    announce(place.connect(), word(alice, lobby), word(bob, lobby))
    assert told(line := listen(place, lobby)) == []
    settle(place)
    assert told(line) == [(bob.id, "0")]


@pytest.mark.parametrize("limit", ["MAX_AUTHORS", "MAX_STATUSES"])
def test_dropping_an_announcement_identifies_nobody(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(presence, limit, 1)
    eve = listen(place, lobby)
    announce(place.connect(), hers := word(alice, lobby))
    announce(place.connect(), word(bob, lobby))
    announce(eve, hers)
    assert eve.session.identity is None


def test_an_expired_announcement_identifies_nobody(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    eve = listen(place, lobby)
    announce(place.connect(), hers := word(alice, lobby, created=place.clock.now + 9 * MINUTE))
    place.clock.now += VALIDITY
    settle(place)
    announce(eve, hers)
    assert eve.session.identity is None


def test_announcements_kept_of_all_communities_are_bounded(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "MAX_STATUSES", 2)
    hall = bob.community("hall")
    announce(place.connect(), hall, word(alice, lobby), word(bob, hall), word(bob, lobby))
    for line, heard in ((lobby, {alice.id, bob.id}), (hall, set())):
        late = listen(place, line)
        settle(place)
        assert {author for author, _ in told(late)} == heard, "the oldest where nobody spoke for longest is gone"
    announce(place.connect(), word(bob, lobby, INACTIVE), word(alice, hall))
    place.clock.now += VALIDITY
    settle(place)
    assert (place.adapter.parts.presence._received, place.adapter.parts.presence._received_count) == ({}, 0)


# To Arbor


@pytest.mark.usefixtures("watcher")
def test_a_subscriber_is_told_who_is_present(place: Any, lobby: str, alice: Any, announce: Any) -> None:
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


def test_a_new_subscriber_is_told_of_a_newcomer_once(
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
def test_a_subscriber_is_told_once_while_a_node_is_signed(place: Any, lobby: str) -> None:
    listen(place, lobby)
    place.clock.now += 1000
    place.gateway.tick()
    line = listen(place, lobby)
    place.settle()
    settle(place)
    assert [said for _, said in told(line)] == ["0"]


@pytest.mark.usefixtures("watcher")
def test_a_subscriber_is_told_once_while_nodes_are_repeated(place: Any, lobby: str) -> None:
    listen(place, lobby)
    settle(place)
    place.clock.now += INTERVAL - 1000
    line = listen(place, lobby)
    settle(place)
    settle(place)
    assert [said for _, said in told(line)] == ["0"]


def test_arbor_is_told_who_joins_and_leaves(place: Any, lobby: str, watcher: Any) -> None:
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


def test_nothing_is_signed_while_nobody_on_arbor_listens(place: Any, lobby: str, watcher: Any) -> None:
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


def test_the_gateways_own_announcements_are_not_taken_again(
    place: Any, lobby: str, watcher: Any, announce: Any
) -> None:
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


def test_many_new_subscribers_are_told_in_turns(
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


def test_clients_that_announce_no_presence_are_told_of_nobody(
    silent: tuple[Any, str], alice: Any, announce: Any
) -> None:
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


def test_a_client_that_announces_presence_is_told_of_others(
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


# Answers to it


@pytest.mark.parametrize("later", [0, VALIDITY, 24 * 60 * MINUTE])
@pytest.mark.parametrize("whose", ["the gateway's", "an author's"])
def test_a_reply_to_presence_replies_to_its_parent(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, watcher: Any, whose: str, later: int, make_place: Any
) -> None:
    """A client that does not know these words shows an empty message, and its user answers that."""
    line = listen(place, lobby)
    if whose == "an author's":
        announce(place.connect(), word(bob, lobby, ACTIVE | {"expiration/1": b"2026-11-21T05:56:00Z"}))
    settle(place)
    said = next(text for text in line.read().splitlines()[::-1] if text.startswith("SHA512"))
    place.clock.now += later
    alice.now = place.clock.now
    reply = alice.reply(said, "I thought that was a message")
    more = alice.reply(reply, "and on")
    verb, number, *of = announce(line, reply, more).split()
    assert (verb, of) == ("ancestry", [reply.split(" ")[0], "2"])
    assert line.ask(response(int(number), lobby, said)) == "status 77 0\n"
    first, second = watcher.heard
    assert first.content == b'{"content":"I thought that was a message"}'
    assert first.parent is None, "the community"
    assert second.parent == first.id
    place.index()
    place = make_place()
    assert load(place, lobby) == {text.split(" ")[0] for text in (said, reply, more)}


def test_a_reply_to_presence_below_a_message_replies_to_the_message(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, watcher: Any
) -> None:
    top, line = alice.reply(lobby, "top"), place.connect()
    announce(line, top)
    said = word(bob, top)
    reply = alice.reply(said, "hi")
    announce(line, said, reply)
    line.ask(f"response 0 3\n{lobby}\n{top}\n{said}\n")
    first, second = watcher.heard
    assert second.parent == first.id
    assert load(place, lobby) == {text.split(" ")[0] for text in (top, said, reply)}


def test_another_gateway_gets_the_reply_and_its_parent(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, make_place: Any
) -> None:
    line, said = place.connect(), word(bob, lobby, ACTIVE | {"expiration/1": b"2026-11-21T05:56:00Z"})
    reply = alice.reply(said, "hi")
    announce(line, reply)
    line.ask(f"response 0 2\n{lobby}\n{said}\n")
    second = make_place("second")
    second.clock.now += VALIDITY
    other = dial(second)
    other.ask(response(0, lobby))
    other.ask(response(1, alice.identity))
    other.ask(response(3, said, reply))
    assert other.ask(response(4, bob.identity)) == f"ancestry 5 {reply.split(' ')[0]} 2\n"
    other.ask(response(5, lobby, said))
    assert load(second, lobby) == {text.split(" ")[0] for text in (said, reply)}
    assert other.session.report()["caughtUp"]
