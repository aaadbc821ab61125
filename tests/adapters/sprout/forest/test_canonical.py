"""Another encoding of a signature publishes nothing, and proves nothing about its sender."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.sprout.forest import forest, packets, twig
from adapters.sprout.forest.canonical import canonical_id
from adapters.sprout.wire import base64url
from tests.adapters.sprout.conftest import nodes
from tests.adapters.sprout.mint.signed_nodes import cut_behind_the_messages, response
from tests.adapters.sprout.sessions.node_ids import id_of, ids

VECTORS = Path(__file__).parents[3] / "vectors" / "sprout"
VALID: list[Any] = json.loads((VECTORS / "valid.json").read_text())


def anew(line: str) -> list[str]:
    """The node on *line* in all other ways in which its signature can be written: no key is needed for that."""
    raw = base64url.decode(line.partition(" ")[2].encode())
    node = forest.decode(raw)
    (packet,) = packets.read_packets(node.signature)
    body, found = packet.body, []
    hashed_end = 6 + int.from_bytes(body[4:6], "big")
    check_at = hashed_end + 2 + int.from_bytes(body[hashed_end : hashed_end + 2], "big")
    check, value = body[check_at : check_at + 2], body[check_at + 4 :]
    issuer = packets.write_subpackets([(packets.ISSUER, packets.read_signature(body).issuer)])
    for area in (b"", issuer):
        for bits in (int.from_bytes(value, "big").bit_length(), 8 * len(value)):
            unsigned = len(area).to_bytes(2, "big") + area + check + bits.to_bytes(2, "big") + value
            for signature in packets.minimal_encodings(
                packets.OpenPGPPacket(packets.SIGNATURE, body[:hashed_end] + unsigned)
            ):
                other = forest.with_signature(node, raw, signature)
                found.append(f"{forest.node_id(other)} {base64url.encode(other).decode()}")
    others = [each for each in dict.fromkeys(found) if each != line]
    assert len(others) in (3, 7)
    return others


def count(place: Any, question: str) -> int:
    """How many nodes answer *question*."""
    place.index()
    found: int = place.connect().ask(question).count("\nSHA512")
    return found


@pytest.mark.parametrize("vector", VALID, ids=lambda vector: vector["name"])
def test_other_encodings_are_known_by_the_canonical_id(vector: Any) -> None:
    id, wire = vector["node"]["id"], vector["node"]["raw_b64u"]
    for line in (f"{id} {wire}", *anew(f"{id} {wire}")):
        name, _, text = line.partition(" ")
        raw = base64url.decode(text.encode())
        assert canonical_id(name, forest.decode(raw), raw) == id


def test_a_copy_with_another_signature_encoding_is_ignored(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    author, other = place.connect(), place.connect()
    reply = alice.reply(lobby, "once")
    announce(author, reply)
    announce(other, *anew(reply))
    assert len(toy.heard) == 1
    assert author.session.identity is not None
    assert other.session.identity is None
    announce(author, alice.reply(lobby, "twice"), *anew(reply))
    assert len(toy.heard) == 2


def test_both_encodings_find_one_message(make_place: Any, place: Any, lobby: str, alice: Any, announce: Any) -> None:
    """Some programs may sign in a way of their own: that is no fault."""
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    reply = alice.reply(lobby, "once")
    first, *others = anew(reply)
    author, other = place.connect(), place.connect()
    announce(author, first)
    assert author.session.identity is not None
    announce(other, *others)
    announce(other, alice.reply(lobby, "twice"), reply)
    assert len(toy.heard) == 2
    for get in (lambda: place, make_place):
        each = get()
        announce(each.connect(), *others, reply)
        assert count(each, f"leaves_of 1 {id_of(lobby)} 99\n") == 4
        for line in (first, reply):
            assert response(each.connect().ask(f"query 1 1\n{id_of(line)}\n")).splitlines()[1:] == [line]


def test_other_encodings_are_recognised_after_a_restart(
    make_place: Any, place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    reply = alice.reply(lobby, "once")
    announce(place.connect(), anew(reply)[0])
    again = make_place()
    toy, other = again.toy(), again.connect()
    again.bus.subscribe(toy, "lobby")
    announce(other, reply)
    announce(other, *anew(reply))
    assert toy.heard == []
    assert other.session.identity is None


def test_other_encodings_need_the_right_to_publish(
    make_place: Any, place: Any, lobby: str, alice: Any, announce: Any
) -> None:
    reply = alice.reply(lobby, "once")
    announce(place.connect(), anew(reply)[0])
    before = count(place, f"leaves_of 1 {id_of(lobby)} 99\n")
    again = make_place(auth={"grants": {"sprout:anonymous": ["subscribe:*", "history:*"]}})
    assert announce(again.connect(), reply).endswith(" 1\n")
    assert count(again, f"leaves_of 1 {id_of(lobby)} 99\n") == before


def test_replies_to_either_encoding_reply_to_the_message(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any
) -> None:
    toy = place.toy()
    place.bus.subscribe(toy, "lobby")
    reply = alice.reply(lobby, "once")
    announce(place.connect(), anew(reply)[0], reply)
    announce(place.connect(), bob.identity, bob.reply(reply, "an answer"))
    said, answer = toy.heard
    assert answer.parent == said.id


def test_identities_and_communities_are_held_once(
    make_place: Any, place: Any, lobby: str, alice: Any, bob: Any, announce: Any
) -> None:
    before = [count(place, f"list 1 {kind} 99\n") for kind in (0, 1)]
    announce(place.connect(), *anew(alice.identity), *anew(lobby))
    assert [count(place, f"list 1 {kind} 99\n") for kind in (0, 1)] == before
    announce(place.connect(), *anew(bob.identity))
    assert count(place, "list 1 0 99\n") == before[0] + 1
    place = make_place()
    announce(place.connect(), *anew(bob.identity))
    assert count(place, "list 1 0 99\n") == before[0] + 1
    announce(place.connect(), bob.identity, *anew(bob.identity))
    assert count(place, "list 1 0 99\n") == before[0] + 2
    again = make_place()
    announce(again.connect(), bob.identity, *anew(bob.identity))
    assert count(again, "list 1 0 99\n") == before[0] + 2


def test_another_encoding_of_the_gateways_node_is_one_message(place: Any, community: str, announce: Any) -> None:
    toy, ear = place.toy(), place.connect()
    ear.send(f"subscribe 0 {community}\n")
    toy.say({"content": "hello"})
    place.settle()
    lines = [line for line in ear.read().splitlines() if line.startswith("SHA512")]
    before = count(place, f"leaves_of 1 {community} 99\n"), count(place, "list 1 0 99\n")
    for line in lines:
        announce(place.connect(), *anew(line))
    assert (count(place, f"leaves_of 1 {community} 99\n"), count(place, "list 1 0 99\n")) == before


def test_a_direct_message_with_another_encoding_is_not_delivered(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any
) -> None:
    author, reader, other = place.connect(), place.connect(), place.connect()
    for peer in (author, reader):
        peer.send(f"subscribe 0 {id_of(lobby)}\n")
    announce(reader, bob.identity, bob.reply(lobby, "i am bob"))
    announce(author, alice.reply(lobby, "i am alice"))
    reader.read()
    private = alice.reply(lobby, "psst", twig.encode({"to/1": bob.id.encode()}))
    announce(author, private)
    assert len(ids(reader.read())) == 1
    announce(other, *anew(private))
    assert ids(reader.read()) == []
    assert other.session.identity is None
    other_way = anew(alice.reply(lobby, "psst again", twig.encode({"to/1": bob.id.encode()})))
    announce(author, *other_way)
    assert len(ids(reader.read())) == 1


def test_another_encoding_does_not_recover_a_lost_node(
    make_place: Any, place: Any, community: str, announce: Any
) -> None:
    toy, ear = place.toy(), place.connect()
    place.bus.bind(toy, place.bus.peers.identity("toy", "somebody"))
    ear.send(f"subscribe 0 {community}\n")
    toy.say(1)
    place.settle()
    identity, reply = [line for line in ear.read().splitlines() if line.startswith("SHA512")]
    conversation = response(place.connect().ask(f"ancestry 1 {id_of(reply)} 1\n")).splitlines()[1]
    cut_behind_the_messages(place)
    again = make_place()
    client = again.connect()
    client.send(f"subscribe 0 {community}\n")
    announce(client, anew(identity)[0], anew(conversation)[0])
    announce(again.connect(), identity, conversation, reply)
    for line in (identity, conversation, reply):
        assert response(again.connect().ask(f"query 1 1\n{id_of(line)}\n")).splitlines()[1:] == [line]
    toy = again.toy()
    again.bus.bind(toy, again.bus.peers.identity("toy", "somebody"))
    toy.say(2)
    again.settle()
    authors = [node.author for _, node, _ in nodes(client.read()) if isinstance(node, forest.Reply)]
    assert authors[-1:] == [id_of(identity)]
