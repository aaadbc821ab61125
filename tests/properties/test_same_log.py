"""Gateways that take the same submissions in the same order write the same log lines, byte for byte.

Random peers of all four protocols publish at either of two gateways, on a real disk and with real signatures. Each
takes what the other submitted when it likes, its threads come when they like, its clock jumps, and it restarts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.forest.node_rules import EXPIRATION, expiration
from adapters.sprout.wire import base64url
from gateway import runtime
from gateway.core.message import LATE_AFTER
from gateway.http.media import parse_content
from gateway.http.publish import Publisher
from tests.adapters.streamr.conftest import Publisher as Signer
from tests.properties.cluster import ClusterInstance, Stream, copy_of, next_seq
from tests.properties.in_process_gateway import NAMES, NOW, InProcessGateway, template
from tests.properties.parties import Party, RelayParty, RestParty, SproutParty, StreamrParty
from tests.still import Clock

SOAK = "TRELLIS_SOAK" in os.environ
SEEDS = range(200) if SOAK else (2, 4, 8)
MOVES = 80
CHANNELS = (*NAMES, "new", "news/today")


class SignedParty(StreamrParty):
    """A Streamr client that signs, and answers older messages."""

    def __init__(self, instance: InProcessGateway, seed: int, signed: list[Any]) -> None:
        super().__init__(instance)
        self.signer, self.signed = Signer(seed), signed

    def answer(self, channel: str, text: str, parent: str) -> None:
        """Publish an answer to the message with the id *parent*."""
        self.sent += 1
        content = {"content": text, "inReplyTo": parent}
        message = self.signer.message(channel, content, self.instance.gateway.bus.clock(), self.sent)
        self.signed.append(message)
        self.send([2, 8, "say", message, None])

    def say_again(self, random: Random) -> None:
        """Publish what it, or another one at the other gateway, signed before."""
        if self.signed:
            self.send([2, 8, "again", random.choice(self.signed), None])


class AnsweringParty(RestParty):
    """A program that answers older messages."""

    def answer(self, channel: str, text: str, parent: str) -> None:
        """Publish an answer to the message with the id *parent*, with a key, twice."""
        content = parse_content(json.dumps({"content": text, "inReplyTo": parent}).encode())
        for _ in range(2):
            Publisher(self._caller(), channel, text).publish(content)


class ArborParty(SproutParty):
    """An Arbor client that answers the nodes it is shown; what it says expires, or does not."""

    def __init__(self, instance: InProcessGateway, name: str, random: Random) -> None:
        super().__init__(instance, name)
        self.random = random
        self.shown: dict[str, forest.Reply] = {}
        self.lines: list[bytes] = []  # of what is shown

    def say(self, channel: str, text: str) -> None:
        community = self._community(channel)
        self.announce(self._reply(forest.ReplyPosition(community, 1, community, forest.NULL_ID), text, self._pairs()))

    def receive(self, data: bytes) -> None:
        super().receive(data)
        for words in map(bytes.split, data.split(b"\n")):
            if len(words) == 2 and words[0].startswith(b"SHA512"):
                node = forest.decode(raw := base64url.decode(words[1]))
                if isinstance(node, forest.Reply):
                    self.lines.append(raw)
                    self.shown[words[0].decode()] = node

    def answer_one(self, text: str) -> None:
        """Answer any node."""
        if self.shown:
            id = self.random.choice(list(self.shown))
            self.announce(self._reply(forest.position_below(id, self.shown[id]), text, self._pairs()))

    def _pairs(self) -> dict[str, bytes]:
        soon = self.instance.gateway.bus.clock() + 40_000
        return {EXPIRATION: expiration(soon)} if self.random.random() < 0.5 else {}


class Walk:
    """Two gateways, and who talks to them."""

    def __init__(self, folder: Path, clock: Clock, seed: int) -> None:
        self.random = Random(seed)
        self.clock = clock
        first = copy_of(template(), folder / "a")
        second = copy_of(template(), folder / "b")
        self.stream = Stream(next_seq(first))
        self.signed: list[Any] = []  # Streamr messages
        self.nodes = [ClusterInstance(self.stream, first), ClusterInstance(self.stream, second)]
        self.parties: dict[ClusterInstance, list[Party]] = {node: self._enter(node) for node in self.nodes}
        self.said = 0

    def move(self) -> None:
        """Do something at one gateway."""
        node = self.random.choice(self.nodes)
        moves: list[tuple[Callable[[ClusterInstance], None], int]] = [
            *((self._say, 12), (self._answer, 16), (self._take_some, 6), (self._run_posted, 6)),
            *((self._tick, 2), (self._jump, 6), (self._repeat, 2), (self._copy, 4), (self._restart, 1)),
        ]
        (chosen,) = self.random.choices([move for move, _ in moves], [weight for _, weight in moves])
        chosen(node)

    def finish(self) -> list[list[bytes]]:
        """Settle and stop all; the lines of each log."""
        for _ in range(3):  # what one takes may have it sign
            for node in self.nodes:
                node.catch_up()
                node.instance.settle(synced=True)
        for node in self.nodes:
            self._exit(node)
            node.catch_up()
        for node in self.nodes:
            node.catch_up()
            node.instance.settle(synced=True)
        return [node.lines() for node in self.nodes]

    def stop(self) -> None:
        """Stop all."""
        for node in self.nodes:
            node.stop()

    # Moves

    def _say(self, node: ClusterInstance) -> None:
        node.catch_up()
        party, text = self.random.choice(self.parties[node]), self._text()
        channel = self.random.choice(NAMES if isinstance(party, SproutParty) else CHANNELS)
        for _ in range(self.random.randint(1, 3)):
            party.publish(channel, text)
        party.read()

    def _answer(self, node: ClusterInstance) -> None:
        node.catch_up()
        party = self.random.choice(self.parties[node])
        party.read()
        index = node.instance.gateway.index
        parents = [message for channel in CHANNELS for message in islice(index.newest(channel), 10)]
        parents = [parent for parent in parents if parent.protocol == "sprout"] or parents
        if isinstance(party, ArborParty):
            party.answer_one(self._text())
        elif parents and isinstance(party, SignedParty | AnsweringParty):
            parent = self.random.choice(parents)
            party.answer(parent.channel, self._text(), parent.id)
        else:
            self._say(node)

    def _take_some(self, node: ClusterInstance) -> None:
        node.take(self.random.randint(1, 5))

    def _run_posted(self, node: ClusterInstance) -> None:
        node.catch_up()
        if self.random.random() < 0.3:
            node.instance.settle()
        node.instance.posted.drain()

    def _tick(self, node: ClusterInstance) -> None:
        node.catch_up()
        node.instance.gateway.tick()

    def _jump(self, _node: ClusterInstance) -> None:
        self.clock.now += self.random.choice((-5_000, 1, 20_000, 20_000))

    def _repeat(self, _node: ClusterInstance) -> None:
        """A batch comes once more, as after an answer that was lost."""
        self.stream.entries.append(self.random.choice(self.stream.entries))

    def _copy(self, node: ClusterInstance) -> None:
        """Somebody brings what was published at either gateway before."""
        node.catch_up()
        for party in self.parties[node]:
            if isinstance(party, SignedParty):
                party.say_again(self.random)
            elif isinstance(party, ArborParty) and party.shown:
                party.announce(*party.lines[-2:])

    def _restart(self, node: ClusterInstance) -> None:
        node.catch_up()
        self._exit(node)
        node.restart()
        self.parties[node] = self._enter(node)

    def _enter(self, node: ClusterInstance) -> list[Party]:
        node.catch_up()
        instance, is_first = node.instance, node.data.name == "a"
        parties = [
            RelayParty(instance),
            StreamrParty(instance),
            SignedParty(instance, 1 + is_first, self.signed),
            AnsweringParty(instance),
        ]
        parties.append(ArborParty(instance, "alice" if is_first else "bob", self.random))
        for party in parties:
            for channel in NAMES:
                party.join(channel)
        return parties

    def _exit(self, node: ClusterInstance) -> None:
        node.catch_up()
        for party in self.parties[node]:
            party.disconnect()
        node.instance.settle(synced=True)

    def _text(self) -> str:
        self.said += 1
        return f"text {self.said}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(NOW)
    monkeypatch.setattr(runtime, "clock", clock)
    return clock


@pytest.fixture
def walk_from(tmp_path: Path, clock: Clock) -> Iterator[Callable[[int], Walk]]:
    """Begins a walk."""
    walks: list[Walk] = []

    def begin(seed: int) -> Walk:
        walks.append(Walk(tmp_path, clock, seed))
        return walks[-1]

    yield begin
    for walk in walks:
        walk.stop()
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_gateways_write_the_same_lines(walk_from: Callable[[int], Walk], seed: int) -> None:
    walk = walk_from(seed)
    for _ in range(MOVES):
        walk.move()
    one, other = walk.finish()
    for mine, theirs in zip(one, other, strict=False):
        assert mine == theirs
    assert len(one) == len(other) == walk.stream.records()
    again = [key for key, times in Counter(map(what, one)).items() if key is not None and times > 1]
    assert not again, "nothing is logged twice"
    records = [json.loads(line) for line in one]
    assert not broken_links(records)
    peers = [each for each in records if each["kind"] == "peer" and "sender" in each]
    known = {(each["peer"], each["protocol"], each["sender"]) for each in peers}
    assert len(known) == len({each[0] for each in known}) == len({each[1:] for each in known})


def test_a_copy_is_recognised_at_the_other_gateway(walk_from: Callable[[int], Walk]) -> None:
    """Without a signature too: a client that connects elsewhere publishes again what it may not have got through."""
    walk = walk_from(0)
    for text in ("first", "once"):  # before the second, each knows how far the channel is
        walk.clock.now += 1
        message = [32, ["lobby", 0, walk.clock.now, 1, "", "c"], None, 27, 0, 0, None, f'"{text}"', None, 0, None]
        for node in walk.nodes:
            node.catch_up()
            party = next(party for party in walk.parties[node] if type(party) is StreamrParty)
            party.send([2, 8, "say", message, None])
            party.read()
    one, _ = walk.finish()
    assert sum(b'"once' in line for line in one) == 1


def broken_links(records: Iterable[dict[str, Any]]) -> list[int]:
    """The sequences of messages that do not follow the one before of their sender, as readers in Streamr need it."""
    broken, heads = [], dict[tuple[Any, ...], list[int]]()
    for each in records:
        link = each.get("refs", {}).get("streamr")
        if link is None or each.get("timestamp", each["time"]) < each["time"] - LATE_AFTER:
            continue
        chain = each["channel"], each["peer"], each["protocol"]
        if link[2:4] != heads.get(chain, []):
            broken.append(each["seq"])
        heads[chain] = link[:2]
    return broken


def what(line: bytes) -> tuple[Any, ...] | None:
    """What must be logged once only: a node, a form of a message, a message by its author's id or key."""
    record = json.loads(line)
    if record["kind"] == "form":
        return "form", record["of"]
    if record["kind"] == "message" and record["protocol"] == "rest":
        return ("key", record["key"]) if "key" in record else None
    native = json.dumps(record.get("native", ""))
    return (
        None if native == '""' or '"", "c"' in native else ("native", native)
    )  # anybody may choose the id of an unsigned message
