"""The gateway signs identities, communities, conversations and the messages of other protocols."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.forest.forest import Community, Identity, Reply
from adapters.sprout.forest.node_rules import validate
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.mint import reply_signer
from adapters.sprout.mint.keyfile import make_key, read_key
from adapters.sprout.mint.mint import display_name
from adapters.sprout.wire import base64url
from gateway.core.message import Peer
from gateway.storage import index
from tests.adapters.sprout.conftest import nodes, pairs
from tests.adapters.sprout.mint.signed_nodes import response
from tests.still import PATIENCE

DAY = 86_400_000


def test_a_channel_becomes_a_community_signed_by_the_gateway(place: Any, community: str) -> None:
    line = place.connect()
    ((id, node, _),) = nodes(line.send("list 1 1 9\n"))
    assert id == community
    assert isinstance(node, Community)
    assert (node.name.text, node.author, pairs(node)) == ("lobby", place.adapter.mint.id, {"channel/1": b"lobby"})
    ((own, identity, _),) = nodes(line.send("list 1 0 9\n"))
    assert own == node.author
    assert identity.name.text.startswith("Trellis ")


def test_a_new_community_is_announced_to_every_connection(place: Any) -> None:
    lines = [place.connect(), place.connect()]
    place.bus.channels.register("new")
    place.settle()
    for line in lines:
        ((_, node, _),) = nodes(line.read())
        assert node.name.text == "new"


def test_messages_of_others_follow_their_identity(place: Any, ear: Any, community: str) -> None:
    other, toy = place.connect(), place.toy()
    message = toy.say({"content": "hello, forest"})
    place.settle()
    text = ear.read()
    assert [line for line in text.splitlines() if line.startswith("announce")] == ["announce 0 2"]
    (who, identity, _), (id, reply, _) = nodes(text)
    assert isinstance(identity, Identity)
    assert identity.name.text == f"peer {toy.peer.number} (Toys)"
    assert isinstance(reply, Reply)
    assert (reply.content.text, reply.author, reply.created) == ("hello, forest", who, message.timestamp)
    assert (reply.community, reply.conversation, reply.depth) == (community, reply.parent, 2)
    assert pairs(reply) == {"origin/1": message.id.encode()}
    assert other.read().count("announce") == 1, "the identity is for everybody"
    place.index()
    assert place.gateway.index.find(id).id == message.id


def test_all_that_the_gateway_signs_is_valid(place: Any, ear: Any, alice: Any, announce: Any) -> None:
    announce(ear, alice.identity)
    toy = place.toy()
    first = toy.say({"n": 1})
    toy.say({"content": "two", "inReplyTo": first.id}, parent=first.id)
    place.settle()
    community = place.bus.channels.address("sprout", "lobby")
    text = ear.read() + ear.send(f"leaves_of 1 {community} 99\nlist 2 0 99\n")
    known = {id: node for id, node, _ in nodes(text)}
    for _, node, raw in nodes(text):
        assert validate(node, raw, place.clock.now, known.get(node.author), known.get(node.parent)).ok
    assert len(known) == 1 + 1 + 1 + 1 + 1 + 2, "alice, the gateway, toy; community, conversation, two replies"


def test_the_conversation_of_the_day(place: Any, ear: Any, community: str) -> None:
    toy = place.toy()
    toy.say(1)
    toy.say(2)
    place.clock.now += DAY
    toy.say(3)
    place.settle()
    replies = [node for _, node, _ in nodes(ear.read()) if isinstance(node, Reply)]
    assert replies[0].parent == replies[1].parent != replies[2].parent
    text = ear.send(f"ancestry 5 {replies[0].parent} 9\nquery 6 1\n{replies[0].parent}\n")
    (above, _, _), (_, conversation, _) = nodes(text)
    assert above == community
    assert (conversation.depth, conversation.author, conversation.content.text) == (
        1,
        place.adapter.mint.id,
        "2026-11-21",
    )
    assert pairs(conversation) == {"channel/1": b"lobby"}


def test_threads(place: Any, ear: Any, alice: Any, announce: Any) -> None:
    toy, mouth = place.toy(), place.connect()
    place.bus.subscribe(toy, "lobby")
    first = toy.say({"content": "question"})
    place.settle()
    *_, (id, node, raw) = nodes(ear.read())
    answer = alice.reply(alice.line(raw), "answer")
    assert announce(mouth, alice.identity, answer).endswith("status 77 0\n")
    (message,) = toy.heard
    assert json.loads(message.content) == {"content": "answer", "inReplyTo": first.id}
    ear.read()
    by_native_id = toy.say({"content": "why?", "inReplyTo": answer.split(" ")[0]}, parent=answer.split(" ")[0])
    by_canonical_id = toy.say({"content": "how?", "inReplyTo": message.id}, parent=message.id)
    elsewhere = toy.say({"content": "what?", "inReplyTo": "nothing"}, parent="nothing")
    place.settle()
    why, how, what = (node for _, node, _ in nodes(ear.read()))
    for reply in (why, how):
        assert (reply.parent, reply.depth, reply.conversation) == (answer.split(" ")[0], 4, node.parent)
    assert (how.content.text, set(pairs(how))) == ("how?", {"origin/1"})
    assert pairs(why)["json/1"] == b"true", "its id of the parent is not the canonical one, and must not be lost"
    assert (what.parent, json.loads(what.content.blob)) == (node.parent, json.loads(elsewhere.content))
    assert by_native_id.refs["sprout"]["parent"] == by_canonical_id.refs["sprout"]["parent"] == message.id
    del id


def test_a_parent_in_another_channel_is_ignored(place: Any) -> None:
    toy = place.toy()
    elsewhere = toy.say({"n": 1}, "elsewhere")
    assert toy.say({"n": 2}, parent=elsewhere.id).refs["sprout"] == {}


def test_replies_that_were_never_shown_are_sealed_from_the_top(place: Any, community: str) -> None:
    toy = place.toy()
    thread = [toy.say({"n": 0})]
    for n in range(1, 40):
        thread.append(toy.say({"n": n}, parent=thread[-1].id))
    place.index()
    line = place.connect()
    ((id, node, _),) = nodes(response(line.ask(f"leaves_of 1 {community} 1\n")))
    assert node.depth == 41
    assert len([*nodes(line.ask(f"ancestry 2 {id} 99\n"))]) == 41


@pytest.mark.parametrize("verb", ["leaves_of 1 {} 9", "list 1 2 9"])
def test_the_first_answer_has_the_conversations_that_it_opens(place: Any, community: str, verb: str) -> None:
    toy = place.toy()
    for day in range(2):
        place.clock.now += day * DAY
        for n in range(2):
            toy.say(n)
    place.index()
    line, question = place.connect(), verb.format(community) + "\n"
    first = response(line.ask(question))
    replies = [node for _, node, _ in nodes(first) if isinstance(node, Reply)]
    assert sorted(node.depth for node in replies) == [1, 1, 2, 2, 2, 2]
    ages = [node.created for _, node, _ in nodes(first)]
    assert ages == sorted(ages, reverse=verb.startswith("list"))
    assert response(line.ask(question)) == first


def test_the_first_answer_keeps_the_newest(place: Any, community: str) -> None:
    toy = place.toy()
    for n in range(4):
        toy.say(n)
    answer = response(place.connect().ask(f"leaves_of 1 {community} 3\n"))
    assert [node.content.blob for _, node, _ in nodes(answer)] == [b"1", b"2", b"3"]


def test_deep_replies_are_found_at_once(
    place: Any, ear: Any, community: str, monkeypatch: pytest.MonkeyPatch, make_place: Callable[..., Any]
) -> None:
    gathered = threading.Event()  # until then nothing of it is in the tables
    monkeypatch.setattr(index, "sleep", lambda _seconds: gathered.wait(PATIENCE))
    toy = place.toy()
    thread = [toy.say(0)]
    for n in range(1, 4):
        thread.append(toy.say(n, parent=thread[-1].id))
    place.settle()
    heard = [(id, node) for id, node, _ in nodes(ear.read()) if isinstance(node, Reply)]
    ids, conversation = [id for id, _ in heard], heard[0][1].parent
    questions = {conversation: [conversation, *ids], ids[0]: ids, ids[2]: ids[2:]}

    def answers(line: Any) -> dict[str, list[str]]:
        found = {id: nodes(response(line.ask(f"leaves_of 1 {id} 9\n"))) for id in questions}
        return {id: [each for each, _, _ in each_found] for id, each_found in found.items()}

    assert place.gateway.index.applied_seq < thread[0].seq
    assert answers(ear) == questions
    gathered.set()
    place.index()
    assert place.gateway.index.applied_seq >= thread[-1].seq
    assert answers(ear) == questions
    assert answers(make_place().connect()) == questions
    assert community


def test_a_mixed_thread_continues_after_a_restart(
    make_place: Callable[..., Any], community: str, alice: Any, announce: Any
) -> None:
    """Each is one deeper than what it answers, in the same conversation, in whatever run that was said."""
    place, line = make_place(), ""
    last: Any = None
    node: Any = None
    for n in range(9):
        if n % 3 == 2:
            place = make_place()
        ear, toy = place.connect(), place.toy()
        ear.send(f"subscribe 0 {community}\n")
        place.bus.subscribe(toy, "lobby")
        if n % 2:
            line = alice.reply(line, str(n))
            assert announce(place.connect(), alice.identity, line).endswith("status 77 0\n")
            (message,) = toy.heard
            assert message.parent == last.id
        else:
            message = toy.say({"content": str(n)}, parent=last and last.id)
            place.settle()
            *_, (_, _, raw) = nodes(ear.read())
            line = alice.line(raw)
        last = message
        id = line.split(" ")[0]
        above = [(each, node) for each, node, _ in nodes(place.connect().ask(f"ancestry 2 {id} 99\n"))]
        node = forest.decode(base64url.decode(line.split(" ")[1].encode()))
        assert isinstance(node, Reply)
        assert (node.depth, len(above)) == (n + 2, n + 2)
        assert (node.conversation, node.community) == (above[1][0], community)
        assert node.parent == above[-1][0]
    answer = response(make_place().connect().ask(f"leaves_of 1 {node.conversation} 99\n"))
    assert len([*nodes(answer)]) == 10


def test_a_thread_that_is_too_deep_opens_a_new_one(place: Any, community: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_signer, "MAX_DEPTH", 4)
    toy, parent, depths = place.toy(), None, []
    for n in range(6):
        message = toy.say({"n": n}, parent=parent)
        parent = message.id
        depths.append(message.refs["sprout"].get("depth", 2))
    assert depths == [2, 3, 4, 2, 3, 4]
    del community


def test_messages_too_long_for_a_node_are_undelivered(place: Any, ear: Any) -> None:
    toy = place.toy()
    longest = {"content": "ü" * 32_767 + "x"}
    assert toy.say(longest).undelivered == ()
    assert toy.say({"content": "x" * 65_536}).undelivered == ("sprout",)
    assert toy.say(b'{"content": "' + b"\\u0041" * 60_000 + b'"}').undelivered == (), "it is its text that counts"
    assert toy.say({"n": "x" * 65_530}).undelivered == ("sprout",)
    place.settle()
    replies = [node for _, node, _ in nodes(ear.read()) if isinstance(node, Reply)]
    assert [len(reply.content.blob) for reply in replies] == [65_535, 60_000]


def test_nothing_is_signed_before_it_is_needed(place: Any, community: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signed: list[int] = []
    sign = SecretKey.sign

    def counted(self: SecretKey, data: bytes, created_seconds: int) -> bytes:
        signed.append(created_seconds)
        return sign(self, data, created_seconds)

    monkeypatch.setattr(SecretKey, "sign", counted)
    toy = place.toy()
    for n in range(20):
        toy.say({"n": n})
    place.index()
    assert not signed
    place.connect().ask(f"leaves_of 1 {community} 5\n")
    assert len(signed) == 1 + 1 + 5, "an identity, a conversation, and what was asked for"


def test_a_node_that_cannot_be_signed_delays_nothing(place: Any, ear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = place.toy()
    with monkeypatch.context() as patch:
        patch.setattr(SecretKey, "sign", None)
        toy.say({"n": 1})
        place.settle()
    toy.say({"n": 2})
    place.settle()
    replies = [node for _, node, _ in nodes(ear.read()) if isinstance(node, Reply)]
    assert [json.loads(reply.content.blob) for reply in replies] == [{"n": 2}]


def test_only_the_owner_can_read_the_key_file(place: Any, make_place: Callable[..., Any]) -> None:
    path = place.gateway.home.secrets / "sprout.privkey"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    id = place.adapter.mint.id
    assert make_place().adapter.mint.id == id
    assert (key := read_key(path)) is not None
    assert key.file == path.read_bytes()


def test_read_key_returns_none_until_a_key_is_made(tmp_path: Path) -> None:
    path = tmp_path / "sprout.privkey"
    assert read_key(path) is None
    made = make_key(path, 1_700_000_000_000)
    assert (key := read_key(path)) is not None
    assert key.fingerprint == made.fingerprint


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (Peer(42, "topic_relay"), "peer 42 (topic relay)"),
        (Peer(7, "streamr", "0xab12cd34ef56ab12cd34ef56ab12cd34ef56cd34"), "0xab12…cd34 (topic relay)"),
        (Peer(8, "rest", "rest"), "rest (topic relay)"),
        (Peer(9, "rest", "ops", "ops"), "ops"),
        (Peer(9, "rest", "x", "two\nlines"), "two lines"),
        (Peer(9, "rest", "x", "ü" * 200), "ü" * 128),
    ],
)
def test_names_of_senders(peer: Peer, name: str) -> None:
    assert display_name(peer, "topic relay") == name
