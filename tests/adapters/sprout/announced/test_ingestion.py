"""Nodes that arrive before their ancestors wait for them, at the scale of whole groves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.sprout.arrivals import waiting
from adapters.sprout.arrivals.acknowledgements import ANSWER_TIMEOUT
from adapters.sprout.forest import forest
from adapters.sprout.hub.rights import LINK_PRINCIPAL
from adapters.sprout.sessions.peering import Peering
from adapters.sprout.wire import base64url
from gateway.core.principal import Principal
from gateway.storage import log


def id_of(node: str) -> str:
    return node.split(" ")[0]


def refused(place: Any) -> dict[str, int]:
    return {reason: count for (_, reason), count in place.gateway.metrics.counts["refused"].items()}


class GrovePeer:
    """A peer with a grove that answers each question as a genuine relay does."""

    def __init__(self, line: Any, nodes: list[str]) -> None:
        self.line = line
        self.nodes = {id_of(node): node for node in nodes}
        self.open: list[int] = []  # how many questions there were at once

    def announce(self, *nodes: str) -> str:
        """Announce nodes, answer what is asked; what the announce was answered with."""
        heard = told = self.line.ask("\n".join((f"announce 77 {len(nodes)}", *nodes, "")))
        while answers := self.answers(heard):
            assert "status" not in told, "not everything is here"
            self.open.append(len(answers))
            heard = self.line.ask("".join(answers))
            told += heard
        (status,) = (line for line in told.splitlines() if line.startswith("status"))
        return str(status)

    def answers(self, heard: str) -> list[str]:
        """What to say to the questions in what was *heard*."""
        lines = heard.splitlines()
        answers = []
        for at, (verb, *words) in enumerate(line.split(" ") for line in lines):
            if verb == "ancestry":
                answers.append(self.response(words[0], self.above(words[1], int(words[2]))))
            elif verb == "query":
                ids = lines[at + 1 : at + 1 + int(words[1])]
                answers.append(self.response(words[0], [self.nodes[id] for id in ids if id in self.nodes]))
        return answers

    def above(self, id: str, levels: int) -> list[str]:
        """The lines of the nodes above one, shallowest first."""
        above: list[str] = []
        while len(above) < levels and (parent := self.nodes.get(parent_of(self.nodes[id]))) is not None:
            above.append(parent)
            id = id_of(parent)
        return above[::-1]

    @staticmethod
    def response(id: str, nodes: list[str]) -> str:
        return "\n".join((f"response {id} {len(nodes)}", *nodes, ""))


def parent_of(node: str) -> str:
    return forest.decode(base64url.decode(node.split(" ")[1].encode())).parent


def held(place: Any, nodes: list[str]) -> int:
    return sum(place.store.seq(id_of(node)) is not None for node in nodes)


@pytest.fixture
def lobby(place: Any, alice: Any, announce: Callable[..., str]) -> str:
    community = str(alice.community("lobby"))
    announce(place.connect(), alice.identity, community)
    return community


def thread(author: Any, root: str, depth: int) -> list[str]:
    nodes = [root]
    for number in range(depth):
        nodes.append(author.reply(nodes[-1], str(number)))
    return nodes


def forged(author: Any, parent: str) -> str:
    """A node that is not what its author signed."""
    node = forest.decode(base64url.decode(author.reply(parent, "said").split(" ")[1].encode()))
    assert isinstance(node, forest.Reply)
    return str(author.line(forest.encode(replace(node, content=forest.Content(b"never said")))))


@pytest.mark.slow
def test_a_thousand_leaves_in_one_announce_bring_their_ancestors(place: Any, lobby: str, alice: Any) -> None:
    tops = [alice.reply(lobby, f"top {number}") for number in range(1000)]
    leaves = [alice.reply(top, "leaf") for top in tops]
    peer = GrovePeer(place.connect(), [lobby, *tops, *leaves])
    assert peer.announce(*leaves) == "status 77 0"
    assert held(place, tops + leaves) == 2000
    assert max(peer.open) == waiting.MAX_ASKED
    assert not refused(place)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["the leaf", "the newest", "all, reversed"])
def test_a_deep_thread_comes_in_any_order(place: Any, lobby: str, alice: Any, first: str) -> None:
    nodes = thread(alice, lobby, 3000)
    begin = {"the leaf": nodes[-1:], "the newest": nodes[-1024:], "all, reversed": nodes[:0:-1]}[first]
    peer = GrovePeer(place.connect(), nodes)
    assert peer.announce(*begin) == "status 77 0"
    assert held(place, nodes) == len(nodes)
    assert not refused(place)
    assert len(peer.open) < 100, "not node by node"


def test_deferred_nodes_are_requested_again(place: Any, lobby: str, bob: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING", 2)
    replies = [bob.reply(lobby, str(number)) for number in range(100)]
    peer = GrovePeer(place.connect(), [bob.identity, *replies])
    assert peer.announce(*replies) == "status 77 0"
    assert held(place, replies) == 100


def test_deferred_nodes_may_arrive_in_several_responses(
    place: Any, lobby: str, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING", 1)
    top = alice.reply(lobby, "top")
    one, two, three = (alice.reply(top, str(number)) for number in range(3))
    line = place.connect()
    line.ask(f"announce 1 3\n{one}\n{two}\n{three}\n")
    assert line.ask(f"response 0 1\n{top}\n") == f"query 1 2\n{id_of(two)}\n{id_of(three)}\n"
    assert line.ask(f"response 1 1\n{two}\n") == f"query 2 1\n{id_of(three)}\n", "there was no room for it"
    assert line.ask("response 2 0\n") == "status 1 4\n", "it will not come"
    assert held(place, [top, one, two, three]) == 3


def test_evicted_announces_are_answered(
    place: Any, lobby: str, alice: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING", 2)
    monkeypatch.setattr(waiting, "MAX_DEFERRED", 1)
    top = alice.reply(lobby, "top")
    orphans = [alice.reply(top, str(number)) for number in range(4)]
    line = place.connect()
    assert announce(line, *orphans) == f"ancestry 0 {id_of(orphans[0])} 2\n"
    assert refused(place) == {"too many wait for others": 1}
    assert line.ask(f"response 0 1\n{top}\n") == f"query 1 1\n{id_of(orphans[2])}\n"
    assert line.ask(f"response 1 1\n{orphans[2]}\n") == "status 77 4\n"
    assert held(place, orphans) == 3


@pytest.mark.parametrize("ended", [False, True])
def test_a_parent_on_another_connection_releases_waiting_nodes(
    place: Any, lobby: str, alice: Any, announce: Any, ended: bool
) -> None:
    line, top = place.connect(), alice.reply(lobby, "top")
    leaf = alice.reply(top, "leaf")
    assert announce(line, leaf) == f"ancestry 0 {id_of(leaf)} 2\n", "nothing is promised"
    if ended:
        line.close()
    assert announce(place.connect(), top) == "status 77 0\n"
    place.settle()
    assert held(place, [top, leaf]) == (1 if ended else 2)
    assert line.read() == ("" if ended else "status 77 0\n")
    assert not refused(place)


def test_a_thread_that_waits_on_many_connections_is_taken_at_once(place: Any, lobby: str, alice: Any) -> None:
    chain = thread(alice, lobby, 6)[1:]
    lines = [place.connect() for _ in chain]
    for line, node in list(zip(lines, chain, strict=True))[:0:-1]:
        assert "status" not in line.ask(f"announce 1 1\n{node}\n")
    assert lines[0].ask(f"announce 1 1\n{chain[0]}\n") == "status 1 0\n"
    for _ in chain:
        place.settle()
    assert [line.read() for line in lines[1:]] == ["status 1 0\n"] * 5
    assert held(place, chain) == 6
    assert not place.adapter.parts.quota._awaited


def test_a_direct_message_releases_waiting_replies(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    """What is never logged wakes those who wait for it as well."""
    private = alice.reply(lobby, "private", b"private/1\0true")
    below, line = alice.reply(private, "below"), place.connect()
    assert "status" not in announce(line, below)
    announce(place.connect(), private)
    place.settle()
    assert line.read() == "status 77 0\n"
    assert held(place, [private, below]) == 0


def test_an_overdue_announce_is_answered_and_still_taken(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    line, top = place.connect(), alice.reply(lobby, "top")
    leaf, beside = alice.reply(top, "leaf"), alice.reply(lobby, "beside")
    announce(line, leaf, beside)
    assert held(place, [beside]) == 1
    place.clock.now += ANSWER_TIMEOUT - 1
    place.bus.tick()
    assert line.ask("") == ""
    place.clock.now += 1
    place.bus.tick()
    assert line.ask("") == "status 77 4\n"
    announce(place.connect(), top)
    place.settle()
    assert held(place, [leaf]) == 1
    assert line.read() == "", "it was answered"


def test_the_same_node_may_wait_in_several_announces(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    line, top = place.connect(), alice.reply(lobby, "top")
    leaf = alice.reply(top, "leaf")
    line.ask(f"announce 1 1\n{leaf}\nannounce 2 2\n{leaf}\n{alice.reply(lobby, 'beside')}\n")
    assert announce(place.connect(), top) == "status 77 0\n"
    place.settle()
    assert line.read() == "status 1 0\nstatus 2 0\n"


def test_unanswered_announces_are_bounded(place: Any, lobby: str, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.sprout.arrivals.acknowledgements.MAX_UNANSWERED", 3)
    leaf, line = alice.reply(alice.reply(lobby, "top"), "leaf"), place.connect()
    told = line.ask("".join(f"announce {number} 1\n{leaf}\n" for number in range(5)))
    assert [text for text in told.splitlines() if text.startswith("status")] == ["status 0 4", "status 1 4"]


def test_nodes_that_arrived_meanwhile_are_not_requested(
    place: Any, lobby: str, alice: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_ASKED", 1)
    line, tops = place.connect(), [alice.reply(lobby, str(number)) for number in range(2)]
    leaves = [alice.reply(top, "leaf") for top in tops]
    assert announce(line, *leaves).count("ancestry") == 1
    announce(place.connect(), tops[1])
    assert line.ask(f"response 0 1\n{tops[0]}\n") == "status 77 0\n"
    assert held(place, leaves) == 2


def test_nodes_cut_from_a_response_are_requested_again(
    place: Any, lobby: str, alice: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = alice.reply(lobby, "top")
    middle = alice.reply(top, "middle")
    leaf = alice.reply(middle, "leaf")
    line = place.connect()
    assert announce(line, leaf) == f"ancestry 0 {id_of(leaf)} 3\n"
    monkeypatch.setattr("adapters.sprout.wire.parser.MAX_BODY", len(lobby) + len(top) + 10)
    assert line.ask(f"response 0 3\n{lobby}\n{top}\n{middle}\n") == f"query 1 1\n{id_of(middle)}\n"
    assert line.ask(f"response 1 1\n{middle}\n") == "status 77 0\n"
    assert held(place, [top, middle, leaf]) == 3


def test_nodes_below_a_refused_one_are_refused(place: Any, lobby: str, alice: Any, bob: Any) -> None:
    lie = forged(bob, lobby)
    below = [alice.reply(lie, str(number)) for number in range(3)]
    line = place.connect()
    assert line.ask("\n".join(("announce 1 4", lie, *below, ""))) == f"query 0 1\n{bob.id}\n"
    assert line.ask(f"response 0 1\n{bob.identity}\n") == "status 1 1\n"
    assert refused(place) == {"the signature is not the author's": 1, "its author or parent is unknown": 3}
    assert not any(id_of(node) in line.session._arrivals._waiting for node in below)


def test_parents_are_requested_if_the_announce_ends_early(
    place: Any, lobby: str, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.sprout.wire.parser.MAX_PART", 1)
    leaf = alice.reply(alice.reply(lobby, "top"), "leaf")
    heard = place.connect().ask(f"announce 1 9\n{leaf}\nversion 2 0.0\n")
    assert f"ancestry 0 {id_of(leaf)} 2\n" in heard


@pytest.mark.timeout(30)
def test_a_damaged_parent_is_requested_and_logged_again(
    make_place: Callable[..., Any], alice: Any, announce: Callable[..., str], tmp_path: Path
) -> None:
    """What cannot be read is as good as not held: it is asked for, and logged once more."""
    place = make_place()
    lobby = alice.community("lobby")
    top = alice.reply(lobby, "top")
    announce(place.connect(), alice.identity, lobby, top)
    place.index()
    place.stop()
    (segment,) = (tmp_path / "data/log").iterdir()
    whole = top.partition(" ")[2].encode()
    segment.write_bytes(segment.read_bytes().replace(whole, whole.swapcase()))
    place, leaf = make_place(), alice.reply(top, "leaf")
    peer = GrovePeer(place.connect(), [lobby, top, leaf])
    assert peer.announce(leaf) == "status 77 0"
    assert sum(peer.open) == 1
    assert held(place, [leaf]) == 1
    assert top in peer.line.ask(f"query 1 1\n{id_of(top)}\n").splitlines()


# A log that cannot be written


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, place: Any) -> Callable[[bool], None]:
    """Fills the disk below the log of *place*, or makes room again, and waits until that has been noticed."""
    written = log._write_all

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(full: bool) -> None:
        monkeypatch.setattr(log, "_write_all", refuse if full else written)
        if full:
            place.toy().say("this is written later")
        place.until(lambda: (place.gateway.log.failing is not None) == full)

    monkeypatch.setattr(log, "RETRY_SECONDS", 0.02)
    return fill


def test_announces_are_refused_while_the_log_cannot_be_written(
    place: Any, lobby: str, alice: Any, full: Callable[[bool], None]
) -> None:
    """What was refused is asked for once it can; all else goes on meanwhile."""
    line, top = place.connect(), alice.reply(lobby, "top")
    below, beside, later = alice.reply(top, "below"), alice.reply(lobby, "beside"), alice.reply(lobby, "later")
    assert line.send(f"announce 0 1\n{below}\n") == f"ancestry 0 {id_of(below)} 2\n"
    full(True)
    assert line.send(f"announce 1 1\n{beside}\nversion 2 0.0\n") == "status 1 1\nstatus 2 0\n"
    assert line.send(f"announce 3 2\n{lobby}\n{top}\n") == "status 0 1\nstatus 3 1\n", "also what waited for it"
    assert refused(place) == {"the log cannot be written": 2, "its author or parent is unknown": 1}
    place.bus.tick()
    assert line.read() == ""
    full(False)
    place.until(lambda: not place.bus.congested)
    place.bus.tick()
    assert line.read() == f"query 1 2\n{id_of(beside)}\n{id_of(below)}\n", "the other was asked for already"
    line.ask(f"response 1 2\n{beside}\n{below}\nresponse 0 1\n{top}\n")
    assert held(place, [top, below, beside]) == 3
    assert line.ask(f"announce 4 2\n{beside}\n{later}\n") == "status 4 0\n"


def test_a_dialled_relay_waits_while_the_log_cannot_be_written(
    place: Any, lobby: str, alice: Any, full: Callable[[bool], None]
) -> None:
    """It would not tell it again."""
    line = type(place.connect())(place, place.adapter.open(Peering, Principal(LINK_PRINCIPAL)))
    line.ask("response 0 0\n")
    top = alice.reply(lobby, "top")
    full(True)
    assert "status" not in line.send(f"announce 1 1\n{top}\n")
    full(False)
    place.until(lambda: not place.bus.congested)
    place.bus.tick()
    assert "status 1 0\n" in line.ask("")
    assert held(place, [top]) == 1
