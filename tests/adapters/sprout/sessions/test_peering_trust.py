"""The claimed channels and origins of dialled relays are accepted only from trusted gateways."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import Reply, decode, sign_community, sign_identity
from adapters.sprout.wire import base64url
from gateway.core.message import Message
from tests.adapters.sprout.sessions.peering_lines import id_of, response, signed

ORIGIN = "0190b3c2-1111-7abc-8def-000000000001"  # an id that another gateway gave


@pytest.fixture
def trusting(make_place: Callable[..., Any], alice: Any) -> Any:
    """A gateway that believes alice, which is another one."""
    return make_place(sprout={"gateways": [alice.id]})


def community_for(author: Any, channel: str, name: str = "any name") -> str:
    """A community as a gateway makes it."""
    metadata = twig.encode({"channel/1": channel.encode()})
    return str(author.line(sign_community(name, author.id, author.key, author._moment(), metadata)))


def test_a_trusted_community_is_the_channel_that_it_claims(trusting: Any, alice: Any, bob: Any, announce: Any) -> None:
    own, strange = community_for(alice, "the hall"), community_for(bob, "the hall", "stranger")
    announce(trusting.connect(), bob.identity, strange, alice.identity, own)
    assert trusting.bus.channels.address("sprout", "the hall") == id_of(own)
    assert trusting.bus.channels.address("sprout", "stranger") == id_of(strange)


@pytest.mark.parametrize("channel", ["gateway/stats", "", "bad\x07", "a/@b"])
def test_a_trusted_community_cannot_claim_an_invalid_channel(
    channel: str, trusting: Any, alice: Any, announce: Any
) -> None:
    made = community_for(alice, channel, "plain")
    announce(trusting.connect(), alice.identity, made)
    assert trusting.bus.channels.channel("sprout", id_of(made)) == "plain"


def test_a_second_community_is_an_alias_of_the_channel(
    trusting: Any, alice: Any, announce: Any, make_place: Any
) -> None:
    place, toy = trusting, trusting.toy()
    place.bus.subscribe(toy, "lobby")
    place.toy().say({"n": 1})
    place.settle()
    ours, theirs = place.bus.channels.address("sprout", "lobby"), community_for(alice, "lobby")
    line = place.connect()
    announce(line, alice.identity, theirs, alice.reply(theirs, "hello"))
    assert place.bus.channels.address("sprout", "lobby") == ours
    assert toy.heard[-1].content == b'{"content":"hello"}'
    answer = place.toy().say({"n": "answer"}, parent=toy.heard[-1].id)
    place.settle()
    heard = nodes(line.ask(f"leaves_of 1 {id_of(theirs)} 9\n"))
    (reply,) = [node for node in heard.values() if isinstance(node, Reply) and b"answer" in node.content.blob]
    assert (reply.community, reply.depth, heard[reply.parent].depth) == (id_of(theirs), 2, 1)
    child = place.toy().say({"n": "below"}, parent=answer.id)
    place.settle()
    heard = nodes(line.ask(f"leaves_of 2 {id_of(theirs)} 9\n"))
    (deeper,) = [node for node in heard.values() if isinstance(node, Reply) and b"below" in node.content.blob]
    assert (deeper.community, deeper.depth, deeper.conversation) == (id_of(theirs), 3, reply.parent)
    assert child.refs["sprout"]["community"] == id_of(theirs)
    again = make_place(sprout={"gateways": [alice.id]})  # it is so after a restart as well
    listener = again.toy()
    again.bus.subscribe(listener, "lobby")
    announce(again.connect(), alice.reply(theirs, "hello again"))
    assert listener.heard[-1].content == b'{"content":"hello again"}'


def nodes(text: str) -> dict[str, Any]:
    """The nodes on the lines of an answer."""
    pairs = (line.split(" ") for line in text.splitlines() if line.startswith("SHA512"))
    return {id: decode(base64url.decode(wire.encode())) for id, wire in pairs}


def test_a_copy_of_a_held_message_is_kept_and_not_published(place: Any, bob: Any, announce: Any) -> None:
    said = place.toy().say({"content": "once"})
    place.settle()
    line, toy = place.connect(), place.toy()
    place.bus.subscribe(toy, "lobby")
    community = line.ask("list 0 1 1\n").splitlines()[1]
    copy = signed(bob, community, "once", origin=said.id)
    ear = place.connect()
    ear.ask(f"subscribe 0 {id_of(community)}\n")
    assert announce(line, bob.identity, copy) == "status 77 0\n"
    assert toy.heard == []
    assert id_of(copy) not in ear.read()
    assert line.ask(f"query 1 1\n{id_of(copy)}\n") == response(1, copy)
    for _ in range(2):  # also before it is in the tables
        assert place.bus.canonical_id(id_of(copy)) == said.id
        place.index()
    answer = bob.reply(copy, "to the copy")
    announce(line, answer)
    assert toy.heard[-1].parent == said.id


def test_messages_of_a_trusted_gateway_are_known_by_their_origin(
    trusting: Any, alice: Any, bob: Any, announce: Any
) -> None:
    place, toy, line = trusting, trusting.toy(), trusting.connect()
    community = community_for(alice, "lobby")
    announce(line, alice.identity, community, bob.identity)
    place.bus.subscribe(toy, "lobby")
    # alice signs for somebody with her own key, as gateways do
    guest = type(alice)("alice")
    guest.identity = guest.line(sign_identity("peer 7 (toys)", alice.key, alice.now))
    announce(line, guest.identity, signed(guest, community, "one", origin=ORIGIN))
    announce(line, signed(bob, community, "two", origin=ORIGIN[:-1] + "2"))
    assert [message.content for message in toy.heard] == [b'{"content":"one"}', b'{"content":"two"}']
    assert place.bus.find(ORIGIN).id == toy.heard[0].id
    assert place.bus.find(ORIGIN[:-1] + "2") is None  # bob is nobody whose word is taken
    announce(line, signed(alice, community, "one", origin=ORIGIN))
    assert len(toy.heard) == 2
    answer = place.toy().say({"n": "answer"}, parent=ORIGIN)
    assert answer.parent == toy.heard[0].id


def test_a_forged_origin_id_suppresses_no_message(trusting: Any, alice: Any, bob: Any, announce: Any) -> None:
    place, listener = trusting, trusting.toy()
    place.bus.subscribe(listener, "lobby")
    theirs = community_for(alice, "lobby")
    place.bus.publish(Message("lobby", place.toy().peer, "toy", b'{"content":"forged"}', id=ORIGIN))
    metadata = twig.encode({"origin/1": ORIGIN.encode()})
    line = place.connect()
    announce(line, alice.identity, bob.identity, theirs)
    says = [(alice, "true"), (alice, "true"), (bob, "true"), (alice, "forged"), (bob, "else")]
    announce(line, *(author.reply(theirs, text, metadata) for author, text in says))
    heard = [json.loads(message.content)["content"] for message in listener.heard]
    assert heard == ["forged", "true", "else"]
    assert place.gateway.metrics.counts["ids_taken"] == {("sprout",): 2}
