"""One Sprout connection after another: what is answered, taken, refused, kept waiting and asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.sprout.announces import waiting
from adapters.sprout.forest import forest, twig
from adapters.sprout.outgoing import announcing
from adapters.sprout.sessions.session import MESSAGE_SECONDS, SproutSession
from adapters.sprout.wire import base64url, codec

UNKNOWN = "SHA512_B32__MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"
MINUTE = 60_000


def id_of(node: str) -> str:
    return node.split(" ")[0]


def ids(text: str) -> list[str]:
    """The ids of the nodes in an announce or a response."""
    return [id_of(line) for line in text.splitlines() if line.startswith("SHA512")]


def refused(place: Any) -> dict[str, int]:
    return {reason: count for (_, reason), count in place.gateway.metrics.counts["refused"].items()}


@pytest.fixture
def lobby(place: Any, alice: Any, announce: Callable[..., str]) -> str:
    """A community of Alice's called lobby, which the gateway holds."""
    community: str = alice.community("lobby")
    assert announce(place.connect(), alice.identity, community) == "status 77 0\n"
    return community


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


def test_status_0_comes_when_it_is_on_disk_and_not_before(place: Any, lobby: str, alice: Any) -> None:
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


def test_an_identity_and_a_community_go_to_everybody_else(place: Any, bob: Any, announce: Any) -> None:
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


def alice_line(raw: bytes) -> str:
    return f"{forest.node_id(raw)} {base64url.encode(raw).decode()}"


def test_presence_is_no_message(place: Any, lobby: str, alice: Any, announce: Any) -> None:
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


def test_an_answer_may_have_to_wait_as_well(place: Any, lobby: str, alice: Any, bob: Any, announce: Any) -> None:
    line, parent = place.connect(), bob.reply(lobby, "by somebody unknown")
    child = alice.reply(parent, "child")
    announce(line, child)
    assert line.ask(f"response 0 1\n{parent}\n") == f"query 1 1\n{bob.id}\n"
    line.ask(f"response 1 1\n{bob.identity}\n")
    assert ids(line.send(f"leaves_of 5 {id_of(parent)} 9\n")) == [id_of(parent), id_of(child)]


def test_nodes_below_one_that_is_given_up_are_given_up(place: Any, alice: Any, announce: Any) -> None:
    community = alice.community("tree")
    line = place.connect()
    assert announce(line, community, alice.reply(community, "hi")) == f"query 0 1\n{alice.id}\n"
    assert line.ask(f"response 0 1\n{alice.identity[:-3]}AAA\n") == "status 77 1\n"
    assert refused(place) == {"not the node of that id": 1, "its author or parent is unknown": 2}


@pytest.mark.parametrize("answer", ["response 0 0\n", "status 0 4\n"])
def test_nodes_that_do_not_arrive_are_given_up(place: Any, lobby: str, alice: Any, announce: Any, answer: str) -> None:
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


# Subscriptions


def test_an_unknown_community_is_joined_when_it_arrives(place: Any, alice: Any, announce: Any) -> None:
    ear, community = place.connect(), alice.community("later")
    assert ear.send(f"subscribe 0 {id_of(community)}\n") == "status 0 0\n"
    reply = alice.reply(community, "hi")
    announce(place.connect(), alice.identity, community, reply)
    assert ids(ear.read()) == [alice.id, id_of(community), id_of(reply)]


def test_unsubscribing_before_a_community_arrives(place: Any, alice: Any, announce: Any) -> None:
    ear, community = place.connect(), alice.community("later")
    ear.send(f"subscribe 0 {id_of(community)}\nunsubscribe 1 {id_of(community)}\n")
    announce(place.connect(), alice.identity, community)
    assert not ear.session.channels


def test_a_second_subscription_changes_nothing(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    ear = place.connect()
    request = f"subscribe 0 {id_of(lobby)}\n"
    assert ear.send(request * 2) == "status 0 0\n" * 2
    announce(place.connect(), alice.reply(lobby, "hi"))
    assert ear.read().count("announce") == 1
    assert ear.send(f"unsubscribe 1 {id_of(lobby)}\n" * 2) == "status 1 0\n" * 2
    announce(place.connect(), alice.reply(lobby, "hi again"))
    assert ear.read() == ""


# Answers


def test_a_response_holds_as_much_as_is_allowed(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    big = [alice.reply(lobby, str(n) + "x" * 60_000) for n in range(60)]
    line = place.connect()
    for start in range(0, 60, 20):
        announce(line, *big[start : start + 20])
    answer = line.ask(f"leaves_of 1 {id_of(lobby)} 1024\n")
    assert len(answer) <= codec.MAX_BODY + 100
    held = ids(answer)
    assert held == [id_of(node) for node in big[-len(held) :]], "the newest are kept"
    assert 40 < len(held) < 60
    newest_first = ids(line.ask("list 2 2 1024\n"))
    assert newest_first == held[::-1]


def test_requests_wait_while_the_peer_does_not_read(place: Any, lobby: str) -> None:
    line = place.connect()
    request = f"query 1 1\n{id_of(lobby)}\n".encode()
    line.session.receive_data(request * 10_000)
    first = line.session.data_to_send()
    assert sum(map(len, first)) < 200_000, "no more is parsed than there is room for"
    assert not line.session.ask_to_read() or line.session.has_more
    rest = line.read()
    assert b"".join(first).decode().count("response") + rest.count("response") == 10_000


def test_a_deep_thread_works(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    thread = [alice.reply(lobby, "0")]
    for n in range(1, 300):
        thread.append(alice.reply(thread[-1], str(n)))
    line = place.connect()
    assert announce(line, *thread) == "status 77 0\n"
    expected = [id_of(node) for node in thread]
    assert ids(line.ask(f"ancestry 1 {expected[-1]} 9999\n")) == [id_of(lobby), *expected[:-1]]
    assert ids(line.send(f"ancestry 1 {expected[-1]} 2\n")) == expected[-3:-1]
    place.index()
    assert ids(line.ask(f"leaves_of 1 {expected[5]} 9999\n")) == expected[5:]
    assert ids(line.send(f"leaves_of 1 {expected[0]} 10\n")) == expected[-10:]


# Limits and rights


def test_a_peer_beyond_its_rate_is_read_more_slowly(make_place: Callable[..., Any], alice: Any) -> None:
    slow = {"rates": "on", "peer": {"rate": 0.001, "burst": 3}}
    place = make_place(limits=slow)
    line, community = place.connect(), alice.community("lobby")
    nodes = [alice.identity, community, *(alice.reply(community, str(n)) for n in range(6))]
    assert line.ask("\n".join((f"announce 1 {len(nodes)}", *nodes, "version 2 0.0\n"))) == ""
    assert not line.session.ask_to_read()
    place.bus.throttle = None  # seconds pass
    place.bus.tick()
    place.settle()
    assert line.read() == "status 2 0\nstatus 1 0\n"
    assert len(place.gateway.index.history("lobby")) == 6


def test_a_busy_peer_slows_no_other(make_place: Callable[..., Any]) -> None:
    place = make_place(limits={"channel": {"rate": 1, "burst": 1}})
    many, one = place.connect(), place.connect()
    assert many.send("list 0 1 9\n" * 50) == "response 0 0\n" * 50
    assert one.send("list 1 1 9\n") == "response 1 0\n"


def test_rights_are_asked_at_each_verb(make_place: Callable[..., Any], alice: Any) -> None:
    place = make_place(auth={"grants": {"sprout:anonymous": ["publish:lobby", "subscribe:open"]}})
    line, ear = place.connect(), place.connect()
    lobby, hidden, opened = (alice.community(name) for name in ("lobby", "hidden", "open"))
    reply = alice.reply(lobby, "hi")
    assert line.ask(f"announce 1 3\n{alice.identity}\n{lobby}\n{reply}\n") == "status 1 0\n"
    assert line.ask(f"announce 2 1\n{hidden}\n") == "status 2 1\n", "may not publish there"
    assert line.ask(f"announce 3 1\n{alice.reply(opened, 'hi')}\n").startswith("ancestry"), "it waits"
    assert ear.send(f"subscribe 1 {id_of(lobby)}\n").endswith("status 1 1\n"), "may not listen"
    assert line.send(f"leaves_of 2 {id_of(lobby)} 9\n") == f"response 2 1\n{lobby}\n", "may not read"
    assert line.send(f"query 3 1\n{id_of(reply)}\n") == "response 3 0\n"
    assert line.send(f"ancestry 4 {id_of(reply)} 9\n") == "status 4 4\n"
    assert refused(place)["Forbidden"] == 1


def test_peers_without_rights_make_and_learn_no_identities(make_place: Callable[..., Any], alice: Any) -> None:
    place = make_place(auth={"grants": {"key:ada": ["publish:lobby"]}})
    line = place.connect()
    last = place.gateway.log.next_seq
    assert line.ask(f"announce 1 1\n{alice.identity}\n") == "status 1 1\n"
    assert place.gateway.log.next_seq == last, "nothing is logged for it"
    assert line.send("list 2 0 9\n") == "response 2 0\n"
    place.toy().say("hi")
    place.settle()
    assert line.read() == "", "who speaks here is not its business"


def test_half_a_message_is_not_waited_for_for_ever(place: Any) -> None:
    line = place.connect()
    line.send("version 0 0.0\n")
    line.send("query 1 2\n")
    for _ in range(MESSAGE_SECONDS):
        place.bus.tick()
    assert line.session.closing is None
    line.send(f"{UNKNOWN}\n")
    for _ in range(MESSAGE_SECONDS + 1):
        place.bus.tick()
    assert line.session.closing is not None


def test_trickling_bytes_do_not_reset_the_timeout(place: Any) -> None:
    line = place.connect()
    line.send("version 0 0.0\n")
    line.send("query 1 2\n")
    for _ in range(MESSAGE_SECONDS):
        line.send("x")
        place.bus.tick()
    assert line.session.closing is None
    line.send("x")
    place.bus.tick()
    assert line.session.closing is not None


@pytest.mark.parametrize("text", ["on 0 0.0\nversi", "sense\nnon"])
def test_complete_messages_reset_the_timeout(place: Any, text: str) -> None:
    line = place.connect()
    line.send("version 0 0.0\n")
    for _ in range(3):
        for _ in range(MESSAGE_SECONDS):
            place.bus.tick()
        assert line.send(text).startswith("status ")
    assert line.session.closing is None


def test_a_long_announce_may_take_long_in_parts(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.sprout.wire.parser.MAX_PART", 1)
    line = place.connect()
    line.send("version 0 0.0\n")
    line.send("announce 1 9\n")
    for _ in range(3):
        for _ in range(MESSAGE_SECONDS):
            place.bus.tick()
        line.send("no node\n")
    assert line.session.closing is None


@pytest.mark.parametrize(
    ("before", "id"), [("", -1), ("announce 5 2\n", 5), ("query 6 1\n", 6), ("list 7 ", 7), ("response 8 1\n", -1)]
)
def test_a_line_without_an_end_is_answered_and_closes(place: Any, before: str, id: int) -> None:
    line = place.connect()
    assert line.send(before + "x" * (codec.MAX_LINE + 1)) == f"status {id} 1\n"
    assert line.session.closing is not None


def test_a_connection_that_has_ended_is_forgotten(place: Any, lobby: str, alice: Any) -> None:
    line = place.connect()
    line.send(f"subscribe 0 {id_of(lobby)}\nannounce 1 1\n{alice.reply(lobby, 'hi')}\n")
    line.close()
    place.settle()
    assert not [
        session for session in place.bus.sessions() if isinstance(session, SproutSession) and session is line.session
    ]
    assert line.session not in place.adapter.parts.audience.sessions


# Any bytes

PIECES = [verb.decode() for verb in codec.VERBS] + [
    "0",
    "1",
    "-1",
    "2",
    "99999999999",
    "0.0",
    "1.0",
    UNKNOWN,
    "\n",
    "\n",
    " ",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_of_a_node_changed_keep_it_off_the_bus(
    place: Any, valid: dict[str, str], data: st.DataObject
) -> None:
    line = place.connect()
    line.ask("\n".join((f"announce 0 {len(valid)}", *valid.values(), "")))
    raw = bytearray(base64url.decode(data.draw(st.sampled_from(sorted(valid.values()))).split(" ")[1].encode()))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    changed = alice_line(bytes(raw))
    if changed in valid.values():
        return  # changed back
    last = place.gateway.log.next_seq
    answer = line.ask(f"announce 1 1\n{changed}\n").splitlines()
    asked = any(question.startswith(("query", "ancestry")) for question in answer)
    assert asked or answer[0] == "status 1 1", "what is asked for decides"
    assert place.gateway.log.next_seq == last
    assert line.send(f"query 2 1\n{id_of(changed)}\n") == "response 2 0\n"
    line.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_survived(place: Any, valid: dict[str, str], data: st.DataObject) -> None:
    nodes = list(valid.values())[:8]
    piece = st.sampled_from([*PIECES, *nodes, *(node[:-3] + "AAA" for node in nodes)])
    text = st.lists(piece, max_size=40).map(lambda pieces: " ".join(pieces).replace(" \n ", "\n").encode())
    line = place.connect()
    for chunk in data.draw(st.lists(st.one_of(st.binary(max_size=200), text), max_size=5)):
        line.session.receive_data(chunk)
        line.read()
    line.close()
    place.settle()


# Statuses


def test_statuses_without_effect_are_passed_over_as_if_each_was_read(
    place: Any, lobby: str, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among requests, rubbish and nodes whose parents the gateway asks for; cut anywhere, mostly behind a line."""
    random = Random(20261123)
    orphan = alice.reply(alice.reply(lobby, "never sent"), "an orphan")
    statuses = ["status 0 0\n", "status 0 0\nstatus 1 0\n", "status 1 1\n", f"status {10**17} {10**17}\n"]
    others = [
        *("status 0 0 0\n", "status x 0\n", f"status 0 {10**18}\n", "status -1 0\n", "status  0 0\n", "status 0 0\r\n"),
        *("version 2 0.0\n", "query 3 1\n", f"{id_of(lobby)}\n", "nothing\n", "\n", "list 5 1 x\n", "response 0 1\n"),
        f"announce 6 1\n{orphan}\n",
    ]
    passed = 0

    def play(chunks: list[str]) -> tuple[Any, ...]:
        line = place.connect()
        heard = [line.send(chunk) for chunk in chunks]
        session = line.session
        parser, asked = session._parser, session._arrivals._requests._open
        line.close()
        state = parser.in_message, parser._skipping, parser.message_id, sorted(asked)
        return heard, state, session.handshake, session._silent_seconds

    for _ in range(300):
        lines = random.choices([*statuses, *others], [8] * len(statuses) + [1] * len(others), k=8)
        text = "".join(lines)
        ends = [at for at in accumulate(map(len, lines)) if random.random() < 0.8]
        cuts = sorted({0, len(text), *ends, *random.choices(range(len(text)), k=random.randrange(2))})
        chunks = [text[at:end] for at, end in pairwise(cuts)]
        at_once = play(chunks)
        passed += sum(codec.are_statuses(chunk.encode()) for chunk in chunks)
        with monkeypatch.context() as patch:
            patch.setattr(codec, "are_statuses", lambda _data: False)
            assert play(chunks) == at_once, chunks
    assert passed > 300


def test_a_client_of_http_is_told_that_this_is_another_port(place: Any) -> None:
    line = place.connect()
    told = line.send("GET /v1/channels HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, text = told.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    assert f"Content-Length: {len(text)}" in head
    assert text.startswith("This port speaks Sprout")
    assert line.session.closing is not None
