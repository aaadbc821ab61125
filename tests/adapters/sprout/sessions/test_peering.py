"""A gateway exchanges communities and nodes with a relay that it dials."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.sprout.arrivals.waiting import MAX_ASKED, REQUEST_TIMEOUT
from adapters.sprout.forest.forest import Reply, decode, sign_identity
from adapters.sprout.hub.rights import LINK_PRINCIPAL
from adapters.sprout.sessions.dialled_relays import Address, read_address
from adapters.sprout.sessions.peering import MAX_REREQUESTED, SLICE, WINDOW
from adapters.sprout.settings import SproutSettings
from adapters.sprout.wire import base64url
from adapters.sprout.wire.codec import MAX_BODY, MAX_NODES
from gateway.core.outbox import LOW_WATER
from tests.adapters.sprout.sessions.peering_lines import dial, id_of, lines, response


def test_a_dialled_session_sends_the_requests_of_genuine_relays(place: Any, alice: Any) -> None:
    community = alice.community("woods")
    reply = alice.reply(community, "hello")
    line = dial(place)
    assert line.ask(response(0, community)) == f"query 1 1\n{alice.id}\n"
    assert line.ask(response(1, alice.identity)).splitlines() == [
        f"subscribe 2 {id_of(community)}",
        f"leaves_of 3 {id_of(community)} {MAX_NODES}",
    ]
    ear = place.toy()
    place.bus.subscribe(ear, "woods")
    assert line.ask("status 2 0\n" + response(3, reply)) == ""
    assert [message.content for message in ear.heard] == [b'{"content":"hello"}']
    assert line.session.report() == {"communities": 1, "behind": 0, "missing": 0, "caughtUp": True}


def test_missing_ancestors_of_a_response_are_requested(place: Any, alice: Any, bob: Any) -> None:
    community = alice.community("woods")
    first = bob.reply(community, "first")
    second = alice.reply(first, "second")
    line = dial(place)
    line.ask(response(0, community))
    line.ask(response(1, alice.identity))
    assert line.ask(response(3, second)) == f"ancestry 4 {id_of(second)} 2\n"
    assert line.ask(response(4, community, first)) == f"query 5 1\n{bob.id}\n"
    assert line.ask(response(5, bob.identity)) == ""
    assert place.store.seq(id_of(second)) is not None


def test_only_nodes_that_the_relay_lacks_are_announced(place: Any, alice: Any, announce: Callable[..., str]) -> None:
    community = alice.community("woods")
    replies = [alice.reply(community, str(number)) for number in range(4)]
    announce(place.connect(), alice.identity, community, *replies)
    line = dial(place)
    assert lines(line.ask(response(0))) == [
        "announce 1 2",
        alice.id,
        id_of(community),
        f"subscribe 2 {id_of(community)}",
        f"leaves_of 3 {id_of(community)} {MAX_NODES}",
    ]
    assert lines(line.ask(response(3, replies[1], replies[3]))) == [
        "announce 4 2",
        id_of(replies[0]),
        id_of(replies[2]),
    ]


def test_messages_of_other_protocols_are_signed_for_a_relay(place: Any) -> None:
    place.toy().say({"n": 1})
    place.settle()
    line = dial(place)
    line.ask(response(0))
    community = place.bus.channels.address("sprout", "lobby")
    told = line.ask(response(3)).splitlines()
    node = decode(base64url.decode(told[-1].split(" ")[1].encode()))
    assert isinstance(node, Reply)
    assert (node.community, json.loads(node.content.blob)) == (community, {"n": 1})


def test_later_channels_are_followed(place: Any) -> None:
    line, toy = dial(place), place.toy()
    line.ask(response(0))
    toy.say({"n": 1}, "new")
    place.settle()
    community = place.bus.channels.address("sprout", "new")
    told = lines(line.read())
    assert any(text.startswith("subscribe ") and text.endswith(community) for text in told)
    (asked,) = [text for text in told if text.startswith("leaves_of ")]
    assert lines(line.ask(response(int(asked.split(" ")[1]))))[-1].startswith("SHA512")
    toy.say({"n": 2}, "new")
    place.settle()
    assert len([text for text in lines(line.read()) if text.startswith("SHA512")]) == 1


def test_a_refused_list_does_not_end_the_exchange(place: Any, alice: Any, announce: Callable[..., str]) -> None:
    announce(place.connect(), alice.identity, alice.community("woods"))
    line = dial(place)
    assert "subscribe" in line.ask("status 0 1\n")


def test_communities_are_exchanged_in_a_window(place: Any, alice: Any, announce: Callable[..., str]) -> None:
    announce(place.connect(), alice.identity, *(alice.community(f"c{n}") for n in range(WINDOW + 2)))
    line = dial(place)
    asked = [text for text in lines(line.ask(response(0))) if text.startswith("leaves_of")]
    assert len(asked) == WINDOW
    more = lines(line.ask(response(int(asked[0].split(" ")[1]))))
    assert len([text for text in more if text.startswith("leaves_of")]) == 1


def test_a_relay_that_does_not_answer_is_disconnected(place: Any) -> None:
    line = dial(place)
    line.session.tick(place.clock.now + REQUEST_TIMEOUT)
    assert not line.session.closing
    line.session.tick(place.clock.now + REQUEST_TIMEOUT + 1)
    assert line.session.closing.reason == "it does not answer"


def test_channels_without_a_right_are_not_shared(make_place: Callable[..., Any], alice: Any, announce: Any) -> None:
    place = make_place(auth={"grants": {LINK_PRINCIPAL: ["*:open"], "sprout:friend": ["*:*"]}})
    announce(place.connect("sprout:friend"), alice.identity, alice.community("open"), alice.community("closed"))
    told = lines(dial(place).ask(response(0)))
    assert len([text for text in told if text.startswith("subscribe")]) == 1


def test_only_channels_of_its_patterns_are_exchanged(place: Any, alice: Any, bob: Any, announce: Any) -> None:
    place.bus.subscribe(ear := place.toy(), "other")
    news, other = alice.community("news/a"), alice.community("other")
    announce(place.connect(), alice.identity, news, other, alice.reply(other, "here"))
    line = dial(place, channels=["news/*", "there"])
    there, strange = bob.community("there"), bob.community("strange")
    asked = line.ask(response(0, there, strange))
    assert asked == f"query 1 1\n{bob.id}\n"
    told = lines(line.ask(response(1, bob.identity)))
    followed = [text.split(" ")[2] for text in told if text.startswith("subscribe ")]
    assert set(followed) == {id_of(news), id_of(there)}
    assert (place.store.seq(id_of(there)) is not None, place.store.seq(id_of(strange))) == (True, None)
    assert id_of(other) not in told
    announce(place.connect(), alice.reply(other, "stays"))
    carol = str(alice.line(sign_identity("carol", alice.key, alice.now)))
    announce(place.connect(), carol)
    assert line.read() == "", "neither a reply nor an author of another channel is told of"
    line.ask("announce 9 1\n" + alice.reply(other, "does not come in") + "\n")
    assert [json.loads(message.content)["content"] for message in ear.heard] == ["here", "stays"]
    assert line.ask(f"subscribe 8 {id_of(other)}\nleaves_of 7 {id_of(other)} 9\n") == "status 8 1\nresponse 7 0\n"
    assert line.ask(f"query 6 1\n{id_of(carol)}\n") == response(6, carol), "authors may be asked for"
    assert line.session.report()["communities"] == 2


def test_an_inward_link_announces_nothing(place: Any, alice: Any, announce: Any) -> None:
    community, reply = alice.community("woods"), alice.reply(alice.community("woods"), "hello")
    announce(place.connect(), alice.identity, community)
    line = dial(place, direction="in")
    assert lines(line.ask(response(0))) == [
        f"subscribe 1 {id_of(community)}",
        f"leaves_of 2 {id_of(community)} {MAX_NODES}",
    ]
    reply = alice.reply(community, "from there")
    place.bus.subscribe(ear := place.toy(), "woods")
    assert line.ask(response(2, reply)) == ""
    assert [message.content for message in ear.heard] == [b'{"content":"from there"}']
    announce(place.connect(), alice.reply(community, "from here"))
    place.toy().say({"n": 1}, "new")
    place.settle()
    assert not [text for text in lines(line.read()) if text.startswith(("announce", "SHA512"))]
    assert line.ask(f"query 6 2\n{alice.id}\n{id_of(community)}\n") == "response 6 0\n"


def test_an_outward_link_accepts_nothing(place: Any, alice: Any, bob: Any, announce: Any) -> None:
    community = alice.community("woods")
    known, missing = alice.reply(community, "known"), alice.reply(community, "missing")
    announce(place.connect(), alice.identity, community, known, missing)
    line = dial(place, direction="out")
    line.ask(response(0, bob.community("theirs")))
    theirs = bob.reply(community, "theirs")
    told = lines(line.ask(response(3, known, theirs)))
    assert [text for text in told if text.startswith("SHA512")] == [id_of(missing)], "what it has is not announced"
    assert line.ask(f"announce 9 2\n{bob.identity}\n{theirs}\n") == "status 9 0\n"
    assert [place.store.seq(id_of(node)) for node in (bob.identity, theirs)] == [None, None]
    announce(place.connect(), after := alice.reply(community, "after"))
    assert lines(line.read())[1:] == [id_of(after)]
    assert line.session.report() == {"communities": 1, "behind": 0, "missing": 0, "caughtUp": True}


def test_a_dialled_session_keeps_reading_while_its_announces_wait(place: Any) -> None:
    dialled, accepted = dial(place).session, place.connect().session
    for session in (dialled, accepted):
        session.send(b"x" * LOW_WATER)
    assert dialled.ask_to_read()
    assert not accepted.ask_to_read()


def test_a_dialled_session_is_not_throttled(make_place: Callable[..., Any], alice: Any) -> None:
    one = {"rate": 0.1, "burst": 1.0}
    place = make_place(limits={"peer": one, "channel": one, "address": one})
    community = alice.community("woods")
    announced = "\n".join(("announce 9 3", alice.identity, community, alice.reply(community, "hello"), ""))
    dialled, accepted = dial(place), place.connect()
    assert accepted.ask(announced) == ""  # it has to wait
    assert "status 9 0\n" in dialled.ask(announced)


def test_answers_of_any_length_are_taken_in_slices(place: Any, alice: Any, bob: Any) -> None:
    community = alice.community("woods")
    replies = [bob.reply(community, str(number)) for number in range(2 * SLICE + 1)]
    line, turns = dial(place), list[Callable[[], None]]()
    line.session.post = turns.append
    line.ask(response(0, community))
    line.ask(response(1, alice.identity))
    line.ask(response(3, *replies))
    for _ in range(2):  # in which authors are looked for
        turns.pop()()
    assert line.read() == f"query 4 1\n{bob.id}\n"
    line.ask(response(4, bob.identity))
    for _ in range(2):  # in which parents are
        assert place.store.seq(id_of(replies[0])) is None
        turns.pop()()
    for taken in (SLICE, 2 * SLICE):
        assert [place.store.seq(id_of(reply)) is not None for reply in replies].count(True) == taken
        assert not line.session.ask_to_read()
        turns.pop()()
    assert place.store.seq(id_of(replies[-1])) is not None
    assert not turns
    line.read()
    assert line.session.report()["caughtUp"]


def test_nodes_cut_from_a_response_are_requested_again(place: Any, alice: Any, bob: Any) -> None:
    community = alice.community("woods")
    largest = "x" * 65_000
    replies = [
        bob.reply(community, largest + str(number)) for number in range(2 * MAX_REREQUESTED + MAX_BODY // 87_500)
    ]
    line = dial(place)
    line.session.post = place.posted.put
    held = {id_of(node): node for node in (*replies, bob.identity)}
    line.ask(response(0, community))
    line.ask(response(1, alice.identity))
    asked, rounds = line.ask(response(3, *replies, "this is no node")), 0
    while found := [text.split(" ") for text in asked.splitlines() if text.startswith("query")]:
        assert not line.session.report()["caughtUp"]
        ((_, id, count),) = found
        assert int(count) <= MAX_REREQUESTED
        wanted = asked.splitlines()[-int(count) :]
        asked, rounds = line.ask(response(int(id), *(held[node] for node in wanted))), rounds + 1
    assert rounds > 2
    assert all(place.store.seq(id_of(reply)) is not None for reply in replies)
    assert line.session.report()["caughtUp"]
    refused = {reason: count for (_, reason), count in place.gateway.metrics.counts["refused"].items()}
    assert refused == {"malformed": 1}


def test_nodes_cut_twice_are_not_requested_again(place: Any, alice: Any) -> None:
    community = alice.community("woods")
    replies = [alice.reply(community, "x" * 65_000 + str(number)) for number in range(2 + MAX_BODY // 87_000)]
    line = dial(place)
    line.session.post = place.posted.put
    line.ask(response(0, community))
    line.ask(response(1, alice.identity))
    asked = line.ask(response(3, *replies))
    assert asked.startswith("query 4 ")
    assert "query" not in line.ask(response(4, *replies))
    assert line.session.report()["caughtUp"]


def test_more_orphans_than_may_wait_are_all_taken(place: Any, alice: Any, bob: Any) -> None:
    community = alice.community("woods")
    tops = [bob.reply(community, f"top {number}") for number in range(MAX_ASKED + 5)]
    replies = [alice.reply(top, "below") for top in tops]
    line = dial(place)
    line.session.post = place.posted.put
    held = {id_of(node): node for node in (*tops, community)}
    line.ask(response(0, community))
    asked = line.ask(response(1, alice.identity))
    asked += line.ask(response(3, *replies))
    while questions := [text.split(" ") for text in asked.splitlines() if text.startswith(("ancestry", "query"))]:
        asked = ""
        for verb, id, node, *_ in questions:
            if verb == "query":
                asked += line.ask(response(int(id), bob.identity))
            else:
                top = tops[[id_of(reply) for reply in replies].index(node)]
                asked += line.ask(response(int(id), held[id_of(community)], top))
    assert all(place.store.seq(id_of(node)) is not None for node in (*tops, *replies))


def test_a_link_belongs_to_no_author(place: Any, alice: Any) -> None:
    community = alice.community("woods")
    line = dial(place)
    line.ask(response(0, community))
    line.ask(response(1, alice.identity))
    line.ask(response(3, alice.reply(community, "hello")))
    assert line.session.identity is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("arbor.example:7117", Address("arbor.example", 7117, True)),
        ("tcp://127.0.0.1:7777", Address("127.0.0.1", 7777, False)),
        ("[::1]:7778", Address("::1", 7778, True)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "arbor.example", ":7777", "a:0", "a:65536", "a:x", "a:-1", "http://a:80", "a/b:7", "a:٣"]
)
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        read_address(text)


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("peers", ["arbor.example"], "is not HOST:PORT"),
        ("peers", [{"url": "arbor.example"}], "is not HOST:PORT"),
        ("peers", [{"url": "a:1", "channels": []}], "at least 1 item"),
        ("peers", [{"url": "a:1", "channels": ["\n"]}], "neither a channel nor a pattern"),
        ("peers", [{"url": "a:1", "direction": "up"}], "'in', 'out' or 'both'"),
        ("peers", ["a:1", {"url": "a:1", "channels": ["x"]}], "the same url twice"),
        ("gateways", ["Trellis 0c81364f2d97a0bb"], "not the ids of nodes"),
        ("authorities", "no/such.pem", "is not a file"),
        ("authorities", __file__, "holds no certificates"),
    ],
)
def test_invalid_settings(setting: str, value: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        SproutSettings.model_validate({setting: value})
