"""Announces on a connection are accepted, published or refused, or wait for other nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.arrivals import waiting
from adapters.sprout.forest import twig
from adapters.sprout.outgoing import announcing
from adapters.sprout.wire import base64url, codec
from tests.adapters.sprout.sessions.node_ids import UNKNOWN, alice_line, id_of, ids, refused

MINUTE = 60_000


# Announces


def test_a_reply_reaches_all_protocols_but_not_its_announcer(place: Any, lobby: str, alice: Any) -> None:
    mouth, ear, toy = place.connect(), place.connect(), place.toy()
    for line in (mouth, ear):
        assert line.send(f"subscribe 0 {id_of(lobby)}\n") == "status 0 0\n"
    place.bus.subscribe(toy, "lobby")
    reply = alice.reply(lobby, "hi")
    assert mouth.ask(f"announce 1 1\n{reply}\n") == "status 1 0\n"
    assert ear.read() == f"announce 0 1\n{reply}\n"
    (message,) = toy.heard
    assert json.loads(message.content) == {"content": "hi"}
    assert (message.sender.identity, message.sender.name) == (alice.id, "alice")
    assert message.native == {"sprout": id_of(reply)}
    assert message.parent is None
    assert place.gateway.index.message(id_of(reply)).id == message.id


def test_a_reply_to_a_reply_names_its_parent(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    first = alice.reply(lobby, "first")
    announce(place.connect(), first, alice.reply(first, "second"))
    one, two = toy.heard
    assert two.parent == one.id
    assert json.loads(two.content) == {"content": "second", "inReplyTo": one.id}


def test_json_in_a_reply_is_that_value(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    marked = twig.encode({"json/1": b"true"})
    announce(place.connect(), alice.reply(lobby, '{"n":\n 1.50}', marked), alice.reply(lobby, "{no json", marked))
    assert [message.content for message in toy.heard] == [b'{"n":  1.50}', b'{"content":"{no json"}']


def test_status_0_is_sent_once_the_node_is_on_disk(place: Any, lobby: str, alice: Any) -> None:
    line = place.connect()
    assert line.send(f"announce 1 1\n{alice.reply(lobby, 'hi')}\n") == ""
    place.settle()
    assert line.read() == "status 1 0\n"


def test_a_known_node_is_accepted_and_not_published(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    ear, reply = place.connect(), alice.reply(lobby, "hi")
    ear.send(f"subscribe 0 {id_of(lobby)}\n")
    mouth = place.connect()
    assert announce(mouth, reply) == announce(mouth, reply) == "status 77 0\n"
    assert announce(place.connect(), alice.identity, lobby, reply) == "status 77 0\n"
    assert ids(ear.read()) == [id_of(reply)]


def test_a_duplicate_waits_for_the_first_to_be_on_disk(place: Any, lobby: str, alice: Any) -> None:
    one, two, reply = place.connect(), place.connect(), alice.reply(lobby, "hi")
    assert one.send(f"announce 1 1\n{reply}\n") + two.send(f"announce 1 1\n{reply}\n") == ""
    place.settle()
    assert one.read() == two.read() == "status 1 0\n"


def test_identities_and_communities_are_sent_to_all_other_connections(place: Any, bob: Any, announce: Any) -> None:
    mouth, ear = place.connect(), place.connect()
    community = bob.community("bobs")
    assert announce(mouth, bob.identity, community) == "status 77 0\n"
    assert ear.read() == f"announce 0 2\n{bob.identity}\n{community}\n"
    assert place.bus.channels.channel("sprout", id_of(community)) == "bobs"


def test_a_forged_node_is_refused_and_not_published(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    raw = bytearray(base64url.decode(alice.reply(lobby, "forged").split(" ")[1].encode()))
    raw[-1] ^= 1
    forged = alice.line(bytes(raw))
    assert announce(place.connect(), forged) == "status 77 1\n"
    assert announce(place.connect(), forged, alice.reply(lobby, "genuine")) == "status 77 0\n"
    assert [json.loads(message.content) for message in toy.heard] == [{"content": "genuine"}]
    assert refused(place) == {"the signature is not the author's": 2}


def test_a_node_under_another_id_is_refused(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    _, wire = alice.reply(lobby, "hi").split(" ")
    assert announce(place.connect(), f"{UNKNOWN} {wire}") == "status 77 1\n"


def test_every_invalid_vector_stays_off_the_bus(place: Any, valid: dict[str, str], announce: Any, vectors: Any) -> None:
    announce(place.connect(), *valid.values())
    toy, line = place.toy(), place.connect()
    for channel in place.bus.channels.registered():
        place.bus.subscribe(toy, channel)
    for vector in json.loads((vectors / "invalid.json").read_text()):
        raw = base64url.decode(vector["node"]["raw_b64u"].encode())
        answer = announce(line, alice_line(raw))
        waits = vector["name"] in {"unknown_parent", "unknown_author", "community_unknown_author"}
        status = "status 77 0\n" if vector["name"] == "expired" else "status 77 1\n"
        assert answer == status or (waits and "status" not in answer), vector["name"]
    assert not toy.heard


def test_a_presence_node_publishes_no_message(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    presence = alice.reply(lobby, "", twig.encode({"activity/1": b"0", "invisible/1": b"true"}))
    assert announce(place.connect(), presence) == "status 77 0\n"
    assert not toy.heard
    assert place.connect().send(f"query 1 1\n{id_of(presence)}\n") == "response 1 0\n"


def test_a_private_node_is_never_stored(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    private = alice.reply(lobby, "for nobody", twig.encode({"private/1": b"true"}))
    assert announce(place.connect(), private) == "status 77 0\n"
    place.index()
    assert place.connect().send(f"query 1 1\n{id_of(private)}\n") == "response 1 0\n"
    assert not [
        path for path in place.gateway.settings.data.rglob("*") if path.is_file() and b"for nobody" in path.read_bytes()
    ]


def test_an_old_reply_is_history_for_other_protocols(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    toy, ear, mouth = place.toy(), place.connect(), place.connect()
    place.bus.subscribe(toy, "lobby")
    ear.send(f"subscribe 0 {id_of(lobby)}\n")
    old = alice.reply(lobby, "old", created=place.clock.now - 11 * MINUTE)
    announce(mouth, old)
    assert ids(ear.read()) == [id_of(old)]
    assert not toy.heard
    assert mouth.session.identity is None, "it does not say that its author is here"
    (message,) = place.gateway.index.history("lobby")
    assert message.timestamp == place.clock.now - 11 * MINUTE


def test_a_connection_of_one_author_is_bound_and_of_two_a_link(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any
) -> None:
    line = place.connect()
    announce(line, alice.reply(lobby, "hi"))
    assert line.session.who.identity == alice.id
    announce(line, bob.identity, bob.reply(lobby, "hi"))
    assert line.session.link
    assert line.session.who == line.session.peer


def test_messages_queued_for_a_reader_share_one_announce(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    ear, mouth = place.connect(), place.connect()
    ear.send(f"subscribe 0 {id_of(lobby)}\n")
    one, two, three = (alice.reply(lobby, text) for text in ("one", "two", "three"))
    announce(mouth, one, two)
    assert ear.read() == f"announce 0 2\n{one}\n{two}\n"
    announce(mouth, three)
    assert ear.read() == f"announce 1 1\n{three}\n"


def test_answers_keep_their_place_among_announces(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    ear, mouth = place.connect(), place.connect()
    ear.send(f"subscribe 0 {id_of(lobby)}\n")
    one, two, orphan = alice.reply(lobby, "one"), alice.reply(lobby, "two"), alice.reply(alice.reply(lobby, ""), "")
    announce(mouth, one)
    ear.session.receive_data(f"version 1 0.0\nannounce 2 1\n{orphan}\n".encode())
    announce(mouth, two)
    told = ear.read().splitlines()
    assert told[:3] == ["announce 0 1", one, "status 1 0"]
    assert told[3:] == [f"ancestry 1 {id_of(orphan)} 2", "announce 2 1", two], "ids only grow"


def test_announces_before_a_request_have_lower_ids(place: Any, lobby: str, alice: Any) -> None:
    ear, toy = place.connect(), place.toy()
    ear.send(f"subscribe 0 {id_of(lobby)}\n")
    place.bus.subscribe(toy, "lobby")
    toy.say("hello")
    place.settle()
    assert ear.session.waiting, "said, and not written yet"
    orphan = alice.reply(alice.reply(lobby, ""), "")
    ear.session.receive_data(f"announce 2 1\n{orphan}\n".encode())
    told = [line for line in ear.read().splitlines() if not line.startswith("SHA512")]
    assert told == ["announce 0 2", f"ancestry 1 {id_of(orphan)} 2"], "ids only grow"


def test_a_request_keeps_the_size_of_the_outbox(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    ear, mouth = place.connect(), place.connect()
    ear.send(f"subscribe 0 {id_of(lobby)}\n")
    announce(mouth, alice.reply(lobby, "one"))
    orphan = alice.reply(alice.reply(lobby, ""), "")
    ear.session.receive_data(f"announce 2 1\n{orphan}\n".encode())
    before = ear.session.held_size
    told = ear.read()
    assert before - ear.session.held_size == len(told), "its announce is longer than the nodes in it"


def test_nodes_of_an_announce_are_bounded(
    place: Any, lobby: str, alice: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "MAX_NODES_ANNOUNCED", 2)
    ear, replies = place.connect(), [alice.reply(lobby, str(n)) for n in range(5)]
    ear.send(f"subscribe 0 {id_of(lobby)}\n")
    announce(place.connect(), *replies)
    heard = ear.read()
    assert [line for line in heard.splitlines() if line.startswith("announce")] == [
        "announce 0 2",
        "announce 1 2",
        "announce 2 1",
    ]
    assert ids(heard) == [id_of(reply) for reply in replies]


def test_bytes_of_an_announce_are_bounded(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    ear, big = place.connect(), [alice.reply(lobby, f"{n}" + "x" * 65_000) for n in range(60)]
    ear.send(f"subscribe 0 {id_of(lobby)}\n")
    mouth = place.connect()
    for start in range(0, 60, 20):
        announce(mouth, *big[start : start + 20])
    text = ear.read()
    assert ids(text) == [id_of(node) for node in big]
    first, second = text.removeprefix("announce ").split("announce ")
    assert len(first) - codec.MAX_BODY < len("0 60\n") < len(second)


def test_a_long_announce_is_answered_once(
    place: Any, lobby: str, alice: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.sprout.wire.parser.MAX_PART", 3)
    thread = [alice.reply(lobby, "0")]
    for n in range(1, 8):
        thread.append(alice.reply(thread[-1], str(n)))
    line = place.connect()
    assert announce(line, *thread[::-1]) == "status 77 0\n", "no question is needed: all of it came"
    assert len(place.gateway.index.history("lobby")) == 8
    forged = [f"{id_of(node)} {thread[0].split(' ')[1]}" for node in thread[1:]]
    assert announce(line, *forged) == "status 77 1\n"
    assert announce(line, *forged[:4], alice.reply(lobby, "good"), *forged[4:]) == "status 77 0\n"


def test_a_long_announce_that_ends_early_is_refused(
    place: Any, lobby: str, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.sprout.wire.parser.MAX_PART", 2)
    line, replies = place.connect(), [alice.reply(lobby, str(n)) for n in range(4)]
    text = "\n".join(("announce 1 5", *replies[:3], "announce 2 1", replies[3], ""))
    assert line.ask(text) == "status 1 1\nstatus 2 0\n"
    assert len(place.gateway.index.history("lobby")) == 3, "what came whole was taken"


# Waiting


def test_children_may_come_before_their_parents(place: Any, alice: Any, announce: Any) -> None:
    toy = place.toy()
    place.bus.subscribe(toy, "tree")
    community = alice.community("tree")
    one = alice.reply(community, "one")
    two = alice.reply(one, "two")
    three = alice.reply(two, "three")
    assert announce(place.connect(), three, two, one, community, alice.identity) == "status 77 0\n"
    assert [json.loads(message.content)["content"] for message in toy.heard] == ["one", "two", "three"]


def test_missing_nodes_are_requested_and_taken_in_order(place: Any, alice: Any, announce: Any) -> None:
    community = alice.community("tree")
    one = alice.reply(community, "one")
    two = alice.reply(one, "two")
    line = place.connect()
    assert announce(line, two) == f"query 0 1\n{alice.id}\nancestry 1 {id_of(two)} 2\n"
    assert line.ask(f"response 1 2\n{community}\n{one}\n") == "", "its author is asked for already"
    assert line.ask(f"response 0 1\n{alice.identity}\n") == "status 77 0\n", "all of it is on disk"
    assert ids(line.send(f"leaves_of 5 {id_of(community)} 9\n")) == [id_of(community), id_of(one), id_of(two)]


def test_a_response_with_an_unknown_author_waits(place: Any, lobby: str, alice: Any, bob: Any, announce: Any) -> None:
    line, parent = place.connect(), bob.reply(lobby, "by somebody unknown")
    child = alice.reply(parent, "child")
    announce(line, child)
    assert line.ask(f"response 0 1\n{parent}\n") == f"query 1 1\n{bob.id}\n"
    line.ask(f"response 1 1\n{bob.identity}\n")
    assert ids(line.send(f"leaves_of 5 {id_of(parent)} 9\n")) == [id_of(parent), id_of(child)]


def test_waiting_nodes_are_refused_if_their_author_arrives_forged(place: Any, alice: Any, announce: Any) -> None:
    community = alice.community("tree")
    line = place.connect()
    assert announce(line, community, alice.reply(community, "hi")) == f"query 0 1\n{alice.id}\n"
    assert line.ask(f"response 0 1\n{alice.identity[:-3]}AAA\n") == "status 77 1\n"
    assert refused(place) == {"not the node of that id": 1, "its author or parent is unknown": 2}


@pytest.mark.parametrize("answer", ["response 0 0\n", "status 0 4\n"])
def test_an_announce_is_refused_if_requested_ancestors_do_not_arrive(
    place: Any, lobby: str, alice: Any, announce: Any, answer: str
) -> None:
    line = place.connect()
    orphan = alice.reply(alice.reply(lobby, "never sent"), "orphan")
    assert announce(line, orphan) == f"ancestry 0 {id_of(orphan)} 2\n"
    assert line.ask(answer) == "status 77 4\n"
    assert refused(place) == {"its author or parent is unknown": 1}
    assert announce(line, orphan) == f"ancestry 1 {id_of(orphan)} 2\n", "it may try again"


def test_waiting_ends_after_a_timeout(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    line = place.connect()
    announce(line, alice.reply(alice.reply(lobby, "never sent"), "orphan"))
    place.clock.now += waiting.REQUEST_TIMEOUT - 1
    place.bus.tick()
    assert not refused(place)
    place.clock.now += 1
    place.bus.tick()
    assert refused(place) == {"its author or parent is unknown": 1}


def test_retired_replies_are_taken_only_for_kept_ones(
    make_place: Callable[..., Any], alice: Any, announce: Any
) -> None:
    place = make_place(log={"keep_days": 1})
    line, community = place.connect(), alice.community("lobby")
    announce(line, alice.identity, community)
    before = place.clock.now - 2 * 24 * 60 * MINUTE
    oldest = alice.reply(community, "oldest", created=before)
    old = alice.reply(oldest, "old", created=before + 1)
    last = place.gateway.log.next_seq
    assert announce(line, oldest, old) == "status 77 0\n"
    assert place.gateway.log.next_seq == last
    new = alice.reply(old, "new")
    assert announce(line, old, new) == f"ancestry 0 {id_of(new)} 3\n"
    assert line.ask(f"response 0 3\n{community}\n{oldest}\n{old}\n") == "status 77 0\n"
    assert ids(line.send(f"leaves_of 1 {id_of(oldest)} 9\n")) == [id_of(node) for node in (oldest, old, new)]


def test_an_unrequested_response_is_ignored(place: Any, lobby: str, alice: Any) -> None:
    line, reply = place.connect(), alice.reply(lobby, "hi")
    assert line.ask(f"response 0 1\n{reply}\n") == ""
    assert line.send(f"query 1 1\n{id_of(reply)}\n") == "response 1 0\n"
