"""An answer keeps its thread, by any id of the question and however soon it arrives.

All four protocols ask, all four answer, at a gateway whose index is told of nothing, and at one whose index is level.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.wire import base64url
from gateway import runtime
from gateway.core.frames import payload
from gateway.core.message import Message
from gateway.http import history
from gateway.http.callers import Caller
from gateway.http.media import parse_content
from gateway.http.publish import Publisher as RestPublisher
from tests.adapters.streamr.conftest import Publisher
from tests.properties.in_process_gateway import NAMES, NOW, InProcessGateway, template
from tests.properties.parties import Party, RelayParty, RestParty, SproutParty, StreamrParty
from tests.still import Clock

PROTOCOLS = ("topic_relay", "sprout", "streamr", "rest")
CHANNEL = NAMES[0]


class Table:
    """A *instance* with somebody of each protocol in a channel, who hear what is said there under the ids it has."""

    def __init__(self, instance: InProcessGateway, clock: Clock) -> None:
        self.instance = instance
        self.clock = clock
        self.relay, self.rest = RelayParty(instance), RestParty(instance)
        self.alice, self.arbor, self.streamr = (
            SproutParty(instance, "alice"),
            SproutParty(instance, "bob"),
            StreamrParty(instance),
        )
        for party in (self.arbor, self.streamr):
            party.join(CHANNEL)
        self.drain(self.arbor)
        self.drain(self.streamr)
        self.signer = Publisher(0xA11CE)
        self.nodes: dict[str, forest.Reply] = {}
        self.said = 0

    def say(self, protocol: str, content: dict[str, Any], below: str | None = None) -> Message:
        """Say *content* in that protocol, in Arbor *below* a node; as the gateway took it."""
        self.said += 1
        before = self.instance.gateway.log.next_seq
        match protocol:
            case "topic_relay":
                self.relay.send({"type": 6, "topic": CHANNEL, **content})
            case "streamr":
                row = self.signer.message(CHANNEL, content, self.clock(), self.said)
                self.streamr.send([2, 8, "r", row, None])
            case "rest":
                publisher = RestPublisher(Caller(self.instance.gateway, self.rest._request(None)), CHANNEL, None)
                publisher.publish(parse_content(json.dumps(content).encode()))
            case "sprout":
                self.reply(content["content"], below)
        return next(m for m in self.instance.gateway.index.newest(CHANNEL) if m.seq >= before)

    def reply(self, text: str, below: str | None) -> None:
        """Say something in Arbor."""
        community = self.alice._community(CHANNEL)
        place = forest.ReplyPosition(community, 1, community, forest.NULL_ID)
        if below is not None:
            place = forest.position_below(below, self.nodes[below])
        self.alice.announce(self.alice._reply(place, text, {}))

    def heard(self) -> tuple[dict[str, str], list[str]]:
        """What was said since the last time: the nodes, each with its parent, and the ids in Streamr."""
        self.instance.settle()
        lines = (line.split(b" ") for line in self.drain(self.arbor).split(b"\n") if line.startswith(b"SHA512"))
        raws = {id.decode(): base64url.decode(wire) for id, wire in lines}
        nodes = {id: node for id, raw in raws.items() if isinstance(node := forest.decode(raw), forest.Reply)}
        self.nodes |= nodes
        frames = [json.loads(frame) for frame in self.drain(self.streamr).split(b"\n") if frame.startswith(b"[2,0,")]
        return {id: node.parent for id, node in nodes.items()}, [json.dumps(row[1]) for *_, row in frames]

    def drain(self, party: Party) -> bytes:
        """What was sent to *party*."""
        data = b""
        for session in party.sessions:
            while frames := session.data_to_send():
                data += b"\n".join(payload(frame) if session.text else frame for frame in frames) + b"\n"
        return data

    def level(self) -> None:
        """Wait until everything that was said is in the tables."""
        self.instance.settle(synced=True)
        self.instance._run_until(
            lambda done: self.instance.gateway.index.submit(lambda: self.instance.posted.put(done))
        )


@pytest.fixture(scope="module", params=["waiting", "applied"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """A table at a gateway whose index is told of nothing, or at one where it is level before anybody answers."""
    clock = Clock(NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "clock", clock)
        instance = InProcessGateway(Path(copytree(template(), tmp_path_factory.mktemp("house") / "data")))
        found = Table(instance, clock)
        if request.param == "waiting":
            index = instance.gateway.index
            patch.setattr(
                instance.gateway.log, "on_synced", lambda batch: setattr(index, "_synced", batch.entries[-1].seq)
            )
            patch.setattr(found, "level", lambda: instance.settle(synced=True))
        yield found
        instance.stop()


@pytest.mark.parametrize("answerer", PROTOCOLS)
@pytest.mark.parametrize("asker", PROTOCOLS)
def test_an_immediate_answer_keeps_its_thread(table: Table, asker: str, answerer: str) -> None:
    table.heard()
    question = table.say(asker, {"content": "who is there?"})
    parents, (place,) = table.heard()
    node = list(parents)[-1]  # the conversation of the day may come before
    table.level()
    now, names = table.clock.now, (node,) if answerer == "sprout" else (node, place, question.id)
    for id in names:
        answer = table.say(answerer, {"content": "I am", "inReplyTo": id}, below=id)
        assert answer.parent == question.id, id
    assert table.clock.now - now == (answerer == "sprout"), "no two nodes of Arbor have one moment"
    parents, places = table.heard()
    assert list(parents.values()) == [node] * len(names)
    assert len(places) == len(names)


@pytest.mark.parametrize("asker", PROTOCOLS)
def test_rest_has_a_message_by_every_id(table: Table, asker: str) -> None:
    table.heard()
    said = table.say(asker, {"content": "where am I?"})
    parents, (place,) = table.heard()
    table.level()
    for id in (list(parents)[-1], place, said.id):
        assert history.find_message(table.instance.gateway, CHANNEL, id).id == said.id
