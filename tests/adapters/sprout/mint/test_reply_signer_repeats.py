"""Nodes that are signed again are the same: after a restart, from a rebuilt index, and without their facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.forest.forest import Reply
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.wire.codec import NodeLine
from tests.adapters.sprout.conftest import nodes, pairs
from tests.adapters.sprout.mint.signed_nodes import asked_again, cut_behind_the_messages, forms, response, said_before


def test_a_restart_changes_nothing_and_logs_nothing(make_place: Callable[..., Any], place: Any, community: str) -> None:
    before, logged = said_before(place, community), forms(place)
    assert logged == 3
    again = make_place()
    assert asked_again(again, community) == before
    assert forms(again) == logged


def test_rebuilding_the_index_signs_nothing(
    make_place: Callable[..., Any], place: Any, community: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = said_before(place, community)
    place.stop()
    for file in place.gateway.settings.data.glob("index.sqlite*"):
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(SecretKey, "sign", None)
        again = make_place()
        again.settle()
    assert asked_again(again, community) == before


def test_nodes_are_signed_identically_after_their_facts_were_lost(
    make_place: Callable[..., Any], place: Any, community: str
) -> None:
    """A crash right behind the messages: neither identity nor conversation nor community nor form is on disk."""
    before = said_before(place, community)
    cut_behind_the_messages(place)
    again = make_place()
    assert asked_again(again, community) == before
    assert asked_again(again, community) == before


def test_lost_nodes_are_recovered_from_peers(
    make_place: Callable[..., Any], place: Any, community: str, announce: Any
) -> None:
    """A crash, as above; the client announces what it holds before anybody needs any of it."""
    toy, ear = place.toy(), place.connect()
    place.bus.bind(toy, place.bus.peers.identity("toy", "somebody"))
    ear.send(f"subscribe 0 {community}\n")
    for n in range(3):
        toy.say(n)
    place.settle()
    questions = f"leaves_of 1 {community} 9\nlist 2 0 9\nlist 3 2 9\n"
    lost = [line for line in ear.read().splitlines() if line.startswith("SHA512")]
    replies = [line.split(" ")[0] for line in lost[1:]]
    conversation = response(place.connect().ask(f"ancestry 1 {replies[0]} 1\n")).splitlines()[1]
    questions += f"leaves_of 4 {conversation.split(' ')[0]} 9\nancestry 5 {replies[2]} 9\n"
    before = response(place.connect().ask(questions))
    cut_behind_the_messages(place)
    again = make_place()
    client = again.connect()
    client.send(f"subscribe 0 {community}\n")
    assert announce(client, lost[0], conversation, *lost[1:]).endswith("status 77 0\n")
    assert response(again.connect().ask(questions)) == before
    toy = again.toy()
    again.bus.bind(toy, again.bus.peers.identity("toy", "somebody"))
    toy.say(4)
    toy.say(5)
    again.settle()
    assert [type(node) for _, node, _ in nodes(client.read())] == [Reply, Reply], "its author is known"


def test_a_node_with_another_id_than_before_is_a_fault(
    make_place: Callable[..., Any], place: Any, community: str
) -> None:
    message = place.toy().say({"n": 1})
    place.store.log_form(
        message.seq, NodeLine("SHA512_B32__MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY", bytes(60), b"")
    )
    place.settle()
    again = make_place()
    assert response(again.connect().ask(f"leaves_of 1 {community} 1\n")) == "response 1 0"
    assert again.gateway.metrics.counts["faults"]["form",] == 2, "looked for, and once more"


def test_nodes_signed_at_the_same_time_keep_their_order(place: Any, ear: Any) -> None:
    toy = place.toy()
    first = toy.say({"content": "0"})
    place.settle()
    said = [first, *(toy.say({"content": str(n)}, parent=first.id if n % 3 == 0 else None) for n in range(1, 30))]
    thread = [said[7]]
    for n in range(10):
        thread.append(toy.say(n, parent=thread[-1].id))
    place.settle()
    heard = [(id, node) for id, node, _ in nodes(ear.read()) if isinstance(node, Reply)]
    origins = [pairs(node)["origin/1"].decode() for _, node in heard]
    assert origins == [message.id for message in (*said, *thread[1:])]
    ids = {origin: id for origin, (id, _) in zip(origins, heard, strict=True)}
    assert [node.parent for _, node in heard[-10:]] == [ids[message.id] for message in thread[:-1]]
