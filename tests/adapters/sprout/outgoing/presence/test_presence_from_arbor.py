"""Presence that authors announce on Arbor reaches all protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.outgoing import presence
from adapters.sprout.outgoing.presence import VALIDITY
from tests.adapters.sprout.outgoing.presence.conftest import ACTIVE, INACTIVE, MINUTE, listen, settle, told, word


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


def test_the_validity_of_an_announcement_is_bounded(
    place: Any, lobby: str, alice: Any, announce: Any, watcher: Any
) -> None:
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
def test_replaying_a_dropped_announcement_does_not_identify_the_connection(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(presence, limit, 1)
    eve = listen(place, lobby)
    announce(place.connect(), hers := word(alice, lobby))
    announce(place.connect(), word(bob, lobby))
    announce(eve, hers)
    assert eve.session.identity is None


def test_replaying_an_expired_announcement_does_not_identify_the_connection(
    place: Any, lobby: str, alice: Any, announce: Any
) -> None:
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
