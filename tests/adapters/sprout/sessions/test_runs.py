"""Nodes that arrive together are processed as one run, with the results of single nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from time import sleep
from typing import Any, NamedTuple

import pytest

from adapters.sprout.arrivals import arrivals
from adapters.sprout.forest import forest, twig
from adapters.sprout.wire import base64url
from adapters.sprout.wire.codec import encode_announce
from gateway.core.message import LATE_AFTER
from tests.adapters.sprout.conftest import NOW, Forge
from tests.still import PATIENCE

ROUNDS = 25  # communities, each with its own pieces in an order of its own


class Outcome(NamedTuple):
    """What became of the nodes of one community: answers, what others heard, and why nodes were refused."""

    answers: list[str]
    toys: list[tuple[Any, ...]]
    arbor: list[str]
    refused: dict[str, int]
    asked: list[str]


def of(line: str) -> forest.Reply:
    node = forest.decode(base64url.decode(line.split(" ")[1].encode()))
    assert isinstance(node, forest.Reply)
    return node


def pieces(alice: Forge, bob: Forge, community: str, other: str, random: Random) -> list[str]:
    """Nodes of all kinds, in any order; some come twice."""
    top, hidden = alice.reply(community, "top"), alice.reply(community, "hidden")
    plain = [alice.reply(community, f"plain {n}") for n in range(8)]
    genuine = of(alice.reply(community, "said"))
    forged = [alice.line(forest.encode(replace(genuine, content=forest.Content(b"never said %d" % n)))) for n in (1, 2)]
    wrong = replace(genuine, community=other.split(" ")[0])
    lines = [
        top,
        *plain,
        *(bob.reply(community, f"bob's {n}") for n in range(3)),
        *(alice.reply(top, f"deep {n}") for n in range(3)),
        *forged,
        alice.line(forest.encode(wrong)),
        alice.reply(hidden, "whose parent nobody has"),
        alice.reply(community, '{"a": 1}', twig.encode({"json/1": b"true"})),
        alice.reply(community, "expired", twig.encode({"expiration/1": b"2000-01-01T00:00:00Z"})),
        alice.reply(community, "a secret", twig.encode({"private/1": b"true"})),
        *(alice.reply(community, f"old {n}", created=NOW - LATE_AFTER - 1000 + n) for n in range(2)),
        alice.reply(other, "elsewhere"),
        f"{plain[0].split(' ')[0]} {plain[1].split(' ')[1]}",
        *random.choices(plain, k=3),
    ]
    random.shuffle(lines)
    return lines


def outcome(place: Any, community: str, chunks: Iterable[bytes]) -> Outcome:
    """Send *chunks* on a connection of its own."""
    channel = place.adapter.parts.nodes.channel(community.split(" ")[0])
    line, listener, toy = place.connect(), place.connect(), place.toy()
    listener.ask(f"subscribe 0 {community.split(' ')[0]}\n")
    place.bus.subscribe(toy, channel)
    before = dict(place.gateway.metrics.counts["refused"])
    heard = "".join(line.send(chunk) for chunk in chunks)
    place.settle()
    heard += line.read()
    natives = {message.id: message.native["sprout"] for message in toy.heard}
    counts = place.gateway.metrics.counts["refused"]
    told = listener.read().splitlines()
    for each in (line, listener):
        each.close()
    toy.receive_eof()
    return Outcome(
        [each for each in heard.splitlines() if each.startswith("status")],
        [
            (m.native, m.sender.identity, m.parent and natives.get(m.parent), m.timestamp, m.content.split(b",")[0])
            for m in toy.heard
        ],
        [each for each in told if each.startswith("SHA512")],
        {label[1]: count - before.get(label, 0) for label, count in counts.items() if count != before.get(label, 0)},
        [each for each in heard.splitlines() if each.startswith(("query", "ancestry"))],
    )


def alone(nodes: list[str]) -> list[bytes]:
    return [encode_announce(id, node.encode()) for id, node in enumerate(nodes)]


def together(nodes: list[str]) -> list[bytes]:
    return [b"".join(alone(nodes))]


def in_one(nodes: list[str]) -> list[bytes]:
    return [encode_announce(0, *(node.encode() for node in nodes))]


@pytest.mark.slow
@pytest.mark.parametrize("way", [together, in_one])
def test_a_run_has_the_outcomes_of_single_nodes(
    make_place: Callable[..., Any], alice: Forge, bob: Forge, way: Callable[[list[str]], list[bytes]]
) -> None:
    random = Random(20261122)
    roots = [str(alice.community(f"room {n}")) for n in range(ROUNDS + 1)]
    sets = [pieces(alice, bob, root, roots[-1], random) for root in roots[:-1]]
    outcomes = []
    for ways in (alone, way):
        place = make_place(ways.__name__)
        place.connect().ask(encode_announce(0, *(each.encode() for each in (alice.identity, bob.identity, *roots))))
        outcomes.append([outcome(place, root, ways(nodes)) for root, nodes in zip(roots, sets, strict=False)])
    for one, many in zip(*outcomes, strict=True):
        assert many.toys == one.toys
        assert many.arbor == one.arbor
        assert many.refused == one.refused
        if way is together:
            assert sorted(many.answers) == sorted(one.answers)
            assert sorted(many.asked) == sorted(one.asked)
    assert any(each.refused.get("the signature is not the author's") for each in outcomes[0])
    assert all(len(each.toys) >= 15 for each in outcomes[0])


def test_nodes_read_together_share_one_sync(
    place: Any, alice: Forge, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many portions the shell hands it over in: each sync costs as much as a few nodes."""
    community = str(alice.community("lobby"))
    announce(place.connect(), alice.identity, community)
    monkeypatch.setattr("gateway.storage.log.LINGER_SECONDS", PATIENCE)
    line, log = place.connect(), place.gateway.log
    place.settle()
    log._has_waiters.clear()  # of those whom the last sync came to meet
    nodes, before = alone([alice.reply(community, str(n)) for n in range(32)]), log.batch_records.cumulative()[-1]
    while nodes:
        while log._has_waiters.is_set():  # the log's thread begins to write what somebody waits for
            sleep(0.001)
        portion, nodes = nodes[:4], nodes[4:]
        line.session.more_follows = bool(nodes)
        assert "status" not in line.send(b"".join(portion))
    heard = line.ask("")
    assert [each.split()[2] for each in heard.splitlines()] == ["0"] * 32
    assert log.batch_records.cumulative()[-1] == before + 1


def test_a_throttled_burst_continues_where_it_stopped(place: Any, alice: Forge, announce: Any) -> None:
    community = str(alice.community("lobby"))
    announce(place.connect(), alice.identity, community)
    left = 5

    def throttle(_principal: Any, _peer: Any, _channel: str) -> float:
        nonlocal left
        left -= 1
        return 0.5 if left < 0 else 0.0

    place.bus.throttle = throttle
    line = place.connect()
    nodes = [alice.reply(community, str(n)) for n in range(12)]
    told = line.ask(b"".join(alone(nodes))).splitlines()
    assert len(told) == 5
    for _ in range(2):
        left = 5
        line.session.tick(place.clock())
        place.settle()
        told += line.read().splitlines()
    assert told == [f"status {n} 0" for n in range(12)]


def test_replies_that_arrive_together_are_one_run(
    place: Any, alice: Forge, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    community = str(alice.community("lobby"))
    announce(place.connect(), alice.identity, community)
    runs: list[int] = []
    publish = place.bus.publish_run

    def publish_run(run: list[Any], origin: Any) -> None:
        runs.append(len(run))
        publish(run, origin)

    monkeypatch.setattr(place.bus, "publish_run", publish_run)
    nodes = [alice.reply(community, str(n)) for n in range(arrivals.MAX_RUN + 10)]
    place.connect().ask(b"".join(alone(nodes)))
    assert runs == [arrivals.MAX_RUN, 10]
