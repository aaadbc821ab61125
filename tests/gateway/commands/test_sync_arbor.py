"""`trellis sync` hands signed Arbor nodes over, and the other gateway verifies and stores the same nodes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from adapters.sprout.wire import base64url
from gateway.cli import app
from gateway.commands import sync as sync_command
from tests.adapters.sprout.conftest import Forge
from tests.server import Server

from .test_sync import Pair, history, publish

SECONDS = 30
WAIT = 60  # seconds


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two gateways that trust each other's names of channels."""
    homes = [tmp_path_factory.mktemp(name) / "data" for name in ("one", "two")]
    ids = []
    for home in homes:
        Server(home).stop()
        ids.append(run("identity", "show", "--json", "--data", str(home))["identity"])
    trust = [{"TRELLIS_SPROUT__GATEWAYS": json.dumps([id])} for id in reversed(ids)]
    with Server(homes[0], env=trust[0]) as one, Server(homes[1], env=trust[1]) as two:
        yield one, two


@pytest.fixture
def author() -> Callable[[str], Forge]:
    """Makes an author whose nodes are of now."""

    def author(name: str) -> Forge:
        forge = Forge(name)
        forge.now = int(time.time() * 1000) - 10_000
        return forge

    return author


def run(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*arguments], env={"TRELLIS_KEY": None})
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def sync(one: Server, two: Server, *arguments: str, code: int = 0) -> Any:
    return run("sync", two.http, *arguments, "--json", "--gateway", one.http, code=code)


def ask(server: Server, request: str) -> list[str]:
    """Send a request over TCP; its answer, with as many nodes as that says it has."""
    host, _, port = server.sprout.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT) as wire, wire.makefile("r") as stream:
        wire.sendall(request.encode())
        answer = stream.readline().strip()
        count = int(answer.split(" ")[2]) if answer.startswith("response") else 0
        return [answer, *(stream.readline().strip() for _ in range(count))]


def announce(server: Server, *nodes: str) -> None:
    assert ask(server, "\n".join((f"announce 77 {len(nodes)}", *nodes, ""))) == ["status 77 0"]


def held(server: Server, *nodes: str) -> bool:
    """Whether a gateway has all *nodes*, byte for byte."""
    ids = [node.partition(" ")[0] for node in nodes]
    found = ask(server, "\n".join((f"query 5 {len(ids)}", *ids, "")))
    return found == [f"response 5 {len(ids)}", *nodes]


def said(server: Server, channel: str) -> list[tuple[Any, ...]]:
    """What was said: the author and the text, and by their nodes which message and which parent it is."""
    messages = history(server, channel)
    ids = {message["id"]: message["native"]["sprout"] for message in messages}
    return sorted(
        (
            *(m["timestamp"], m["sender"]["identity"], m["content"]["content"]),
            *(m["native"]["sprout"], ids.get(m["inReplyTo"])),
        )
        for m in messages
    )


def test_nodes_are_the_same_at_both_gateways(gateways: Pair, author: Callable[[str], Forge]) -> None:
    one, two = gateways
    alice, bob = author("alice"), author("bob")
    community = alice.community("forest")
    first = alice.reply(community, "both have it")
    thread = [first]
    for n in range(4):
        thread.append((bob, alice)[n % 2].reply(thread[-1], f"only here {n}"))
    there = bob.reply(first, "only there")
    announce(one, alice.identity, bob.identity, community, *thread)
    announce(two, alice.identity, community, first, bob.identity, there)
    done = sync(one, two, "--channels", "forest")
    assert (done["pushed"], done["pulled"], done["refused"]) == (4, 1, [])
    for server in gateways:
        assert held(server, alice.identity, bob.identity, community, *thread, there)
    assert said(one, "forest") == said(two, "forest")
    assert {who for _, who, *_ in said(two, "forest")} == {alice.id, bob.id}
    again = sync(one, two, "--channels", "forest")
    assert (again["here"], again["there"]) == (0, 0)


def test_a_gateway_that_knows_nothing_of_a_community_gets_all_of_it(
    gateways: Pair, author: Callable[[str], Forge], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers may come before what they answer, as authors' clocks differ."""
    monkeypatch.setattr(sync_command, "BATCH", 1)
    one, two = gateways
    alice, bob = author("alice"), author("bob")
    community = bob.community("grove")
    thread = [community]
    for n in range(5):
        thread.append(alice.reply(thread[-1], f"level {n}", created=alice.now - n))
    announce(one, bob.identity, alice.identity, *thread)
    done = sync(one, two, "--channels", "grove")
    assert (done["pushed"], done["refused"]) == (5, [])
    assert held(two, bob.identity, alice.identity, *thread)
    assert said(one, "grove") == said(two, "grove")


def test_replies_to_foreign_messages_keep_their_parent(gateways: Pair, author: Callable[[str], Forge]) -> None:
    """The nodes that a gateway made of messages of other protocols come with the first node that needs them."""
    one, two = gateways
    alice = author("alice")
    question = publish(one, "mixed", {"text": "a question"})
    answer_to = publish(one, "mixed", {"text": "another", "inReplyTo": question})
    line = node_saying(one, "mixed", "another")
    reply = alice.reply(line, "an answer")
    announce(one, alice.identity, reply)
    done = sync(one, two, "--channels", "mixed")
    assert (done["pushed"], done["refused"]) == (3, [])
    assert held(two, reply)
    told = {m["id"]: m for m in history(two, "mixed")}
    (found,) = [m for m in told.values() if m["sender"]["identity"] == alice.id]
    assert found["inReplyTo"] == answer_to
    assert told[answer_to]["inReplyTo"] == question
    again = sync(one, two, "--channels", "mixed")
    assert (again["here"], again["there"]) == (0, 0)


def node_saying(server: Server, channel: str, text: str) -> str:
    """The line of the node with *text* that a gateway made in *channel*."""
    community = httpx.put(f"http://{server.http}/v1/channels/{channel}").raise_for_status().json()["community"]
    nodes = ask(server, f"leaves_of 5 {community} 100\n")[1:]
    (line,) = [node for node in nodes if text.encode() in base64url.decode(node.split(" ")[1].encode())]
    return line


def test_the_names_of_channels_have_to_agree(gateways: Pair, author: Callable[[str], Forge]) -> None:
    one, two = gateways
    alice = author("alice")
    community = alice.community("taken")
    announce(one, alice.identity, community, alice.reply(community, "one"))
    publish(two, "taken", "it is another channel there")
    refused = sync(one, two, "--channels", "taken", "--push", code=1)["refused"]
    assert len(refused) == 1
    assert "another channel" in refused[0]
    assert not held(two, community)


def test_nodes_with_uncompared_ancestors_are_reported(gateways: Pair, author: Callable[[str], Forge]) -> None:
    one, two = gateways
    alice = author("alice")
    community = alice.community("old")
    old = alice.reply(community, "two hours old", created=alice.now - 7_200_000)
    announce(one, alice.identity, community, old, alice.reply(old, "new"))
    refused = sync(one, two, "--channels", "old", "--since", "1h", code=1)["refused"]
    assert len(refused) == 1
    assert old.split(" ")[0] in refused[0]
    assert sync(one, two, "--channels", "old")["pushed"] == 2


def test_forged_nodes_are_refused(gateways: Pair, author: Callable[[str], Forge]) -> None:
    two = gateways[1]
    alice = author("carol-gpg")
    community = alice.community("forged")
    wire = partial(lambda node: node.split(" ")[1])
    line = {"id": "x", "channel": "forged", "protocol": "sprout", "timestamp": 1, "content": 1}
    good = alice.reply(community, "good")
    needs = [wire(alice.identity), wire(community)]
    raw = wire(good)
    lines = [
        line | {"wire": raw},
        line | {"wire": raw, "needs": needs[1:]},
        line | {"wire": raw[:-4] + "AAAA", "needs": needs},
        line | {"wire": "?", "needs": needs},
        line | {"wire": raw, "needs": ["?"]},
        line | {"wire": wire(community), "needs": needs},
        line | {"wire": raw, "needs": needs, "channel": "elsewhere"},
        line | {"wire": raw, "needs": [needs[0]] * 65},
        line | {"wire": raw, "needs": needs},
        line | {"wire": raw},
    ]
    body = "\n".join(map(json.dumps, lines))
    found = httpx.post(f"http://{two.http}/v1/sync/import", content=body, timeout=SECONDS).raise_for_status()
    results = [json.loads(result) for result in found.text.splitlines()]
    assert [each["status"] for each in results] == [
        *("incomplete", "incomplete", 400, 400, 400, 400, 400, 400, "accepted", "known")
    ]
    assert results[0]["missing"] == [community.split(" ")[0]]
    assert alice.id in results[1]["missing"]
    assert [m["content"]["content"] for m in history(two, "forged")] == ["good"]


def test_a_message_brings_no_nodes_of_other_communities(gateways: Pair, author: Callable[[str], Forge]) -> None:
    """They would be published on channels that nobody exchanges, with the rights of whoever hands them over."""
    two = gateways[1]
    alice = author("alice")
    ours, theirs = alice.community("ours"), alice.community("theirs")
    smuggled, good = alice.reply(theirs, "smuggled"), alice.reply(ours, "good")
    ids, wires = zip(*(node.split(" ") for node in (alice.identity, ours, theirs, smuggled, good)), strict=True)
    line = {"id": ids[-1], "channel": "ours", "protocol": "sprout", "timestamp": 1, "content": 1, "wire": wires[-1]}
    lines = [line | {"needs": wires[:-2]}, line | {"needs": wires[:-1]}, line | {"needs": wires[:2]}]
    body = "\n".join(map(json.dumps, lines))
    found = httpx.post(f"http://{two.http}/v1/sync/import", content=body, timeout=SECONDS).raise_for_status()
    assert [json.loads(result)["status"] for result in found.text.splitlines()] == [400, 400, "accepted"]
    assert not history(two, "theirs")
    assert [m["content"]["content"] for m in history(two, "ours")] == ["good"]
