"""Descendants of removed nodes are not offered to Arbor peers: neither as history, nor live, nor to relays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import NULL_ID, Identity, Reply, decode, sign_community, sign_identity
from adapters.sprout.forest.node_rules import validate
from adapters.sprout.store.lineage import MAX_CLIMB
from adapters.sprout.wire import base64url
from adapters.sprout.wire.codec import MAX_NODES
from tests.adapters.sprout.sessions.peering_lines import dial, response

LIFE = 60_000  # ms
SMALL = {"segment_bytes": 4096, "keep_bytes": 8192}


def id_of(node: str) -> str:
    return node.split(" ")[0]


def expiring(place: Any) -> bytes:
    """TWIG of what expires in a minute."""
    return twig.encode({"expiration/1": f"{moment(place.clock.now + LIFE)}".encode()})


def moment(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def nodes(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("SHA512")]


def load(place: Any, community: str, now: int = 0) -> set[str]:
    """Load *community* as the reference does, and check each node with what came before; the ids of all replies.

    For each of what `leaves_of` tells, that is its ancestry and the authors of all of these.
    """
    line = place.connect()
    held = {id_of(community): decode(base64url.decode(community.split(" ")[1].encode()))}

    def take(told: str) -> None:
        id, wire = told.split(" ")
        raw = base64url.decode(wire.encode())
        node = decode(raw)
        if node.author != NULL_ID and node.author not in held:
            (author,) = nodes(line.ask(f"query 1 1\n{node.author}\n"))
            take(author)
        if id not in held:
            parent = held.get(node.parent) if isinstance(node, Reply) else None
            verdict = validate(node, raw, now, held.get(node.author), parent)
            assert verdict.ok, (verdict, node)
            held[id] = node

    for leaf in nodes(line.ask(f"leaves_of 1 {id_of(community)} {MAX_NODES}\n")):
        for each in nodes(line.ask(f"ancestry 2 {id_of(leaf)} {MAX_NODES}\n")):
            take(each)
        take(leaf)
    listed = nodes(line.ask(f"list 3 2 {MAX_NODES}\n"))
    assert {id_of(node) for node in listed} <= held.keys(), "what is listed can be checked as well"
    line.close()
    return {id for id, node in held.items() if isinstance(node, Reply)}


@pytest.fixture
def lobby(place: Any, alice: Any, announce: Callable[..., str]) -> str:
    community: str = alice.community("lobby")
    announce(place.connect(), alice.identity, community)
    return community


def ids(*replies: str) -> set[str]:
    return set(map(id_of, replies))


# Expiry


@pytest.mark.parametrize("kept", ["in memory", "on disk", "after a restart"])
def test_a_subtree_expires_with_its_root(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, make_place: Any, kept: str
) -> None:
    short = alice.reply(lobby, "short", expiring(place))
    below = bob.reply(short, "below")
    deep, others = alice.reply(below, "deep"), [bob.reply(lobby, str(number)) for number in range(5)]
    assert announce(place.connect(), bob.identity, short, below, deep, *others) == "status 77 0\n"
    if kept != "in memory":
        place.index()
    if kept == "after a restart":
        place = make_place()
    assert load(place, lobby) == ids(short, below, deep, *others)
    place.clock.now += LIFE
    assert load(place, lobby) == ids(*others)
    line = place.connect()
    assert line.ask(f"query 1 2\n{id_of(below)}\n{id_of(deep)}\n") == "response 1 0\n"
    assert line.ask(f"ancestry 2 {id_of(deep)} 3\n") == "status 2 4\n"
    assert line.ask(f"leaves_of 3 {id_of(below)} 3\n") == "response 3 0\n"


def test_replies_below_an_expired_node_reach_only_other_protocols(
    place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    short = alice.reply(lobby, "short", expiring(place))
    announce(place.connect(), short)
    ear, toy = place.connect(), place.toy()
    ear.send(f"subscribe 0 {id_of(lobby)}\n")
    place.bus.subscribe(toy, "lobby")
    place.clock.now += LIFE
    below, beside = alice.reply(short, "below"), alice.reply(lobby, "beside")
    assert announce(place.connect(), below, alice.reply(below, "deeper"), beside) == "status 77 0\n"
    assert [json.loads(message.content)["content"] for message in toy.heard] == ["below", "deeper", "beside"]
    assert [message.undelivered for message in toy.heard] == [("sprout",), ("sprout",), ()]
    assert nodes(ear.read()) == [beside]


def test_a_foreign_reply_to_an_expired_thread_is_placed_below_its_day(
    place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    short = alice.reply(lobby, "short", expiring(place))
    below = alice.reply(short, "below")
    announce(place.connect(), short, below)
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    before = toy.say("in time", parent=id_of(below))
    place.settle()
    assert load(place, lobby) == ids(short, below) | {place.adapter.parts.nodes.store.form_id(before.seq)}
    place.clock.now += LIFE
    late = toy.say("late", parent=id_of(below))
    assert late.parent is not None, "others know what it answers"
    place.settle()
    offered = load(place, lobby)
    assert place.adapter.parts.nodes.store.form_id(late.seq) in offered
    assert len(offered) == 2, "it, and the conversation of its day"


def test_a_community_expires_with_all_its_replies(place: Any, alice: Any, announce: Any) -> None:
    community = alice.line(sign_community("brief", alice.id, alice.key, alice.now, expiring(place)))
    reply = alice.reply(community, "hi")
    line, ear, toy = place.connect(), place.connect(), place.toy()
    announce(line, alice.identity, community, reply)
    assert len(nodes(line.ask(f"query 1 2\n{id_of(community)}\n{id_of(reply)}\n"))) == 2
    ear.send(f"subscribe 0 {id_of(community)}\n")
    assert toy.say("in time", "brief").undelivered == ()
    place.settle()
    assert nodes(ear.read())
    place.clock.now += LIFE
    assert toy.say("late", "brief").undelivered == ("sprout",), "what others say as well"
    place.settle()
    assert not nodes(ear.read())
    assert nodes(line.read()), "who is not subscribed was told of an identity in time"
    assert not nodes(line.ask(f"query 1 2\n{id_of(community)}\n{id_of(reply)}\nlist 2 1 9\nlist 3 2 9\n"))


def test_an_expired_identity_is_offered_while_it_is_needed(place: Any, lobby: str, bob: Any, announce: Any) -> None:
    bob.identity = bob.line(sign_identity("brief", bob.key, bob.now, expiring(place)))
    reply = bob.reply(lobby, "hi")
    announce(place.connect(), bob.identity, reply)
    place.clock.now += LIFE
    assert load(place, lobby) == ids(reply)


# Retention


def retire(place: Any) -> None:
    """Let retention take what it can, and a second pass."""
    place.index()
    retention = place.gateway.retention
    retention.tick()
    place.until(lambda: not retention._busy)
    place.adapter.tick(place.clock.now)


def thread(author: Any, community: str, length: int) -> list[str]:
    """Each reply answers the one before it."""
    found, parent = [], community
    for number in range(length):
        parent = author.reply(parent, f"{number} {'x' * 200}")
        found.append(parent)
    return found


def kept(place: Any, replies: Iterable[str]) -> list[str]:
    return [reply for reply in replies if place.gateway.index.find(id_of(reply)) is not None]


@pytest.mark.parametrize("restarted", [False, True])
def test_replies_to_retired_messages_are_not_offered(
    make_place: Callable[..., Any], alice: Any, announce: Any, restarted: bool
) -> None:
    place = make_place(log=SMALL)
    community = alice.community("lobby")
    chain, flat = thread(alice, community, 30), list[str]()
    announce(place.connect(), alice.identity, community)
    for reply in chain:
        flat.append(alice.reply(community, "beside"))
        announce(place.connect(), reply, flat[-1])
    assert load(place, community) == ids(*chain, *flat)
    retire(place)
    if restarted:
        place = make_place(log=SMALL)
    assert 0 < len(kept(place, chain)) < len(chain)
    assert load(place, community) == ids(*kept(place, flat))


def half_retired(place: Any, alice: Any, announce: Any) -> tuple[str, list[str]]:
    """A community, and a thread in it of which retention took the upper part."""
    community = alice.community("lobby")
    chain = thread(alice, community, 20)
    announce(place.connect(), alice.identity, community)
    for reply in chain:
        announce(place.connect(), reply)
    retire(place)
    return community, chain


def test_retired_ancestors_of_a_new_reply_are_requested(
    make_place: Callable[..., Any], alice: Any, announce: Any
) -> None:
    place = make_place(log=SMALL)
    community, chain = half_retired(place, alice, announce)
    left = kept(place, chain)
    assert 1 < len(left) < len(chain)
    gone = chain[: -len(left)]
    ear, toy, line = place.connect(), place.toy(), place.connect()
    ear.send(f"subscribe 0 {id_of(community)}\n")
    place.bus.subscribe(toy, "lobby")
    again = alice.reply(chain[-1], "I go on")
    told = announce(line, again)
    assert f"query 0 1\n{id_of(gone[-1])}\n" in told
    told = line.ask(f"response 0 1\n{gone[-1]}\n")
    assert f"ancestry 1 {id_of(gone[-1])} {len(gone)}\n" in told
    line.ask(response(1, community, *gone[:-1]))
    place.posted.drain()
    line.session.tick(place.clock.now)
    place.settle()
    assert [json.loads(message.content)["content"] for message in toy.heard][-1] == "I go on"
    assert again in nodes(ear.read())
    assert load(place, community) == ids(*chain, again)


def test_a_reply_is_taken_if_its_ancestors_do_not_arrive(
    make_place: Callable[..., Any], alice: Any, announce: Any
) -> None:
    place = make_place(log=SMALL)
    community, chain = half_retired(place, alice, announce)
    ear, toy, line = place.connect(), place.toy(), place.connect()
    ear.send(f"subscribe 0 {id_of(community)}\n")
    place.bus.subscribe(toy, "lobby")
    again = alice.reply(chain[-1], "I go on")
    announce(line, again)
    line.ask("response 0 0\n")
    line.session.tick(place.clock.now)
    place.settle()
    assert [json.loads(message.content)["content"] for message in toy.heard] == ["I go on"]
    assert not nodes(ear.read())
    assert load(place, community) == set()


def test_a_reply_to_a_retired_thread_opens_a_new_one(make_place: Callable[..., Any], alice: Any, announce: Any) -> None:
    place = make_place(log=SMALL)
    community, chain = half_retired(place, alice, announce)
    answer = place.toy().say("I answer", parent=id_of(chain[-1]))
    place.settle()
    offered = load(place, community)
    assert place.adapter.parts.nodes.store.form_id(answer.seq) in offered


def test_a_long_thread_is_looked_up_in_slices(
    make_place: Callable[..., Any], place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    root = alice.reply(lobby, "short", expiring(place))
    chain = [root, *thread(alice, root, MAX_CLIMB + 50)]
    announce(place.connect(), *chain[:200])
    announce(place.connect(), *chain[200:])
    place.index()
    place = make_place()  # nothing is remembered
    lineage, last = place.adapter.parts.nodes.lineage, place.store.seq(id_of(chain[-1]))
    steps = lineage.completeness(last)
    assert [next(steps) for _ in range(MAX_CLIMB)] == [None] * MAX_CLIMB
    assert lineage.is_complete(last)
    assert not lineage._chains
    place.clock.now += LIFE
    assert not lineage.is_complete(last), "its conversation is looked at"
    place.clock.now -= 1
    assert len(nodes(place.connect().ask(f"leaves_of 1 {id_of(lobby)} {MAX_NODES}\n"))) == len(chain) + 1
    assert len(lineage._chains) > len(chain)


def test_provisionally_complete_nodes_are_checked_later(
    make_place: Callable[..., Any], place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    """In the middle of a long thread something has expired, and nobody remembers that when somebody goes on with it."""
    top = thread(alice, lobby, 9)
    short = alice.reply(top[-1], "short", expiring(place))
    deep = thread(alice, short, MAX_CLIMB + 9)
    announce(place.connect(), *top, short, *deep)
    place.index()
    place = make_place()
    place.clock.now += LIFE
    alice.now = place.clock.now
    again = alice.reply(deep[-1], "I go on")
    announce(place.connect(), again)
    assert load(place, lobby) == ids(*top)
    lineage = place.adapter.parts.nodes.lineage
    place.until(lambda: not lineage._provisional)
    assert not lineage.is_complete(place.store.seq(id_of(again)))


# Peers


def test_incomplete_nodes_are_not_announced_to_relays(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    short = alice.reply(lobby, "short", expiring(place))
    below, long = alice.reply(short, "below"), alice.reply(lobby, "long")
    announce(place.connect(), short, below, long)
    place.clock.now += LIFE
    line = dial(place)
    told = [*nodes(line.ask(response(0))), *nodes(line.ask(response(3)))]
    assert sorted(told) == sorted([alice.identity, lobby, long])


def test_a_link_with_missing_ancestors_is_not_caught_up(place: Any, alice: Any) -> None:
    """The other side offers a reply, and not what it stands below."""
    community = alice.community("woods")
    parent = alice.reply(community, "withheld")
    child = alice.reply(parent, "offered")
    line = dial(place)
    line.ask(response(0, community))
    line.ask(response(1, alice.identity))
    asked = line.ask(response(3, child))
    while "ancestry" in asked:
        number = next(text for text in asked.splitlines() if text.startswith("ancestry")).split(" ")[1]
        asked = line.ask(response(int(number), community))
    report = line.session.report()
    assert (report["behind"], report["missing"], report["caughtUp"]) == (0, 1, False)
    place.connect().ask(f"announce 7 2\n{parent}\n{child}\n")
    assert line.session.report()["caughtUp"], "it came another way"


def test_nodes_below_a_refused_one_are_not_missing(place: Any, lobby: str, alice: Any) -> None:
    """The other side still offers what has expired."""
    short = alice.reply(lobby, "short", expiring(place))
    below = alice.reply(short, "below")
    place.clock.now += LIFE
    line = dial(place)
    line.ask(response(0))
    asked = line.ask(response(3, short, below))
    number = next(text for text in asked.splitlines() if text.startswith("ancestry")).split(" ")[1]
    line.ask(response(int(number), lobby, short))
    assert line.session.report()["caughtUp"]
    assert place.store.seq(id_of(below)) is None


def test_an_expired_author_can_be_asked_for(place: Any, bob: Any, alice: Any) -> None:
    bob.identity = bob.line(sign_identity("brief", bob.key, bob.now, expiring(place)))
    community = alice.community("woods")
    reply = bob.reply(community, "hi")
    place.clock.now += LIFE
    line = dial(place)
    line.ask(response(0, community))
    line.ask(response(1, alice.identity))
    assert f"query 4 1\n{bob.id}\n" in line.ask(response(3, reply))
    line.ask(response(4, bob.identity))
    assert isinstance(place.adapter.parts.nodes.node(bob.id), Identity)
    assert place.store.seq(id_of(reply)) is not None
