"""The gateway subscribes to new communities of a relay that dialled in, and sends it those that begin here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import sign_community
from adapters.sprout.sessions.auto_subscriber import MAX_FOLLOWED
from adapters.sprout.wire.codec import MAX_NODES

from .peering_lines import id_of, lines, response


@pytest.fixture
def old(place: Any, bob: Any, announce: Callable[..., str]) -> str:
    """A community that the gateway holds."""
    line: str = bob.community("old")
    announce(place.connect(), bob.identity, line)
    return line


def load(place: Any, *communities: str) -> Any:
    """A relay that has dialled in, and subscribed to these communities."""
    line = place.connect()
    line.ask(f"list 0 1 {MAX_NODES}\n")
    for number, community in enumerate(communities, 1):
        assert line.ask(f"subscribe {number} {id_of(community)}\n") == f"status {number} 0\n"
    return line


@pytest.mark.parametrize("empty", [True, False])
def test_a_community_of_the_relay_is_followed_on_both_sides(
    place: Any, alice: Any, request: pytest.FixtureRequest, empty: bool
) -> None:
    relay = load(place, *(() if empty else (request.getfixturevalue("old"),)))
    community = alice.community("young")
    before, after = alice.reply(community, "before"), alice.reply(community, "after")
    told = lines(relay.ask(f"announce 8 2\n{alice.identity}\n{community}\n"))
    assert sorted(told) == sorted(["status 8 0", f"subscribe 0 {id_of(community)}"])
    toy = place.toy()
    place.bus.subscribe(toy, "young")
    assert relay.ask("status 0 0\n") == f"leaves_of 1 {id_of(community)} {MAX_FOLLOWED}\n"
    assert relay.ask(response(1, community, before)) == ""
    assert relay.ask(f"announce 9 1\n{after}\n") == "status 9 0\n"
    assert [json.loads(message.content)["content"] for message in toy.heard] == ["before", "after"]
    toy.say("from elsewhere", "young")
    place.settle()
    assert len([text for text in lines(relay.read()) if text.startswith("SHA512")]) == 2, "its author, and the reply"


def test_a_community_that_begins_here_is_followed(place: Any, old: str) -> None:
    relay, toy = load(place, old), place.toy()
    toy.say("first", "new")
    place.settle()
    community = place.bus.channels.address("sprout", "new")
    (asked,) = [text for text in lines(relay.read()) if text.startswith("subscribe")]
    number = asked.split(" ")[1]
    assert asked == f"subscribe {number} {community}"
    relay.ask(f"status {number} 0\n")
    toy.say("second", "new")
    place.settle()
    assert any(text.startswith("SHA512") for text in lines(relay.read()))


def test_a_community_that_begins_while_it_subscribes_is_followed_later(place: Any, old: str, alice: Any) -> None:
    relay, community = load(place), alice.community("young")
    assert "subscribe" not in relay.ask(f"announce 8 2\n{alice.identity}\n{community}\n")
    assert lines(relay.ask(f"subscribe 9 {id_of(old)}\n")) == ["status 9 0", f"subscribe 0 {id_of(community)}"]


def test_a_refused_subscription_stops_no_other(
    make_place: Callable[..., Any], alice: Any, bob: Any, announce: Callable[..., str]
) -> None:
    """A community that has expired is not told of, one that it may not hear it is refused."""
    grants = {"sprout:anonymous": ["publish:*", "history:*", "subscribe:old", "subscribe:young"]}
    place = make_place(auth={"grants": grants})
    ends = twig.encode({"expiration/1": b"2026-11-21T06:00:00Z"})
    brief = alice.line(sign_community("brief", alice.id, alice.key, alice.now, ends))
    old, closed, young = bob.community("old"), bob.community("closed"), alice.community("young")
    assert announce(place.connect(), alice.identity, bob.identity, brief, old, closed) == "status 77 0\n"
    place.clock.now += 3_600_000
    relay = load(place, old)
    assert relay.ask(f"subscribe 2 {id_of(closed)}\n") == "status 2 1\n"
    told = lines(relay.ask(f"announce 8 1\n{young}\n"))
    assert sorted(told) == sorted(["status 8 0", f"subscribe 0 {id_of(young)}"])


def test_a_client_that_chose_its_communities_gets_no_subscribe_request(place: Any, old: str, alice: Any) -> None:
    community = alice.community("young")
    chose, quiet = load(place), place.connect()
    chose.ask(f"subscribe 1 {id_of(alice.community('none of these'))}\n")
    assert old
    place.connect().ask(f"announce 8 2\n{alice.identity}\n{community}\n")
    assert "subscribe" not in chose.read() + quiet.read()


def test_a_peer_that_refuses_a_subscription_receives_no_messages(place: Any, old: str, alice: Any) -> None:
    relay, community, toy = load(place, old), alice.community("young"), place.toy()
    relay.ask(f"announce 8 2\n{alice.identity}\n{community}\n")
    assert relay.ask("status 0 1\n") == ""
    toy.say("from elsewhere", "young")
    place.settle()
    assert id_of(community) not in relay.session.wanted
    assert not relay.session.channels.keys() & {"young"}
