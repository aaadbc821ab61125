"""Long answers are collected in slices, between which other connections are served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from adapters.sprout.outgoing.answers import SLICE, SLICE_BYTES, AnswerLine, FoundNode, NodeCollector, PendingAnswer
from adapters.sprout.store.line_cache import LineCache
from adapters.sprout.wire.codec import MAX_BODY
from gateway.core.errors import Unavailable
from gateway.core.message import Form, PendingForm
from tests.still import PATIENCE

COUNT = 200


def id_of(line: str) -> str:
    return line.split(" ")[0]


@pytest.fixture
def thread(place: Any, alice: Any, announce: Callable[..., str]) -> list[str]:
    """A community, and a thread below it."""
    nodes = [str(alice.community("lobby"))]
    for number in range(COUNT):
        nodes.append(alice.reply(nodes[-1], f"{number}"))
    assert announce(place.connect(), alice.identity, *nodes) == "status 77 0\n"
    place.index()
    return nodes


def requests(thread: list[str]) -> dict[str, tuple[str, list[str]]]:
    """What is asked, and the nodes of the answer."""
    community, first, second, last = id_of(thread[0]), id_of(thread[1]), id_of(thread[2]), id_of(thread[-1])
    query = "\n".join(("query 1 150", *map(id_of, thread[1:151]), ""))
    return {
        "list": ("list 1 2 150\n", thread[:-151:-1]),
        "query": (query, thread[1:151]),
        "ancestry": (f"ancestry 1 {last} 150\n", thread[-151:-1]),
        "leaves_of a community": (f"leaves_of 1 {community} 150\n", thread[-150:]),
        "leaves_of a conversation": (f"leaves_of 1 {first} 150\n", thread[-150:]),
        "leaves_of a reply": (f"leaves_of 1 {second} 150\n", thread[-150:]),
    }


KINDS = ["list", "query", "ancestry", "leaves_of a community", "leaves_of a conversation", "leaves_of a reply"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_looks_up_more_than_a_slice(
    kind: str, place: Any, thread: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, (request, expected) = place.connect(), requests(thread)[kind]
    place.posted.drain()
    looked = 0
    line_at = place.adapter.parts.nodes.line_at

    def counting(seq: int) -> Form | None:
        nonlocal looked
        looked += 1
        form: Form | None = line_at(seq)
        return form

    monkeypatch.setattr(place.adapter.parts.nodes, "line_at", counting)
    assert line.send(request) == ""
    steps = [looked]
    other = place.connect()
    while not (heard := line.read()):  # its first line at least
        assert other.send("version 5 0.0\n") == "status 5 0\n", "others are served meanwhile"
        before = looked
        place.posted.get(timeout=PATIENCE)()
        steps.append(looked - before)
    assert max(steps) <= SLICE
    assert sum(steps) == len(expected)
    assert heard + line.ask("") == "\n".join((f"response 1 {len(expected)}", *expected, ""))


@pytest.mark.usefixtures("thread")
def test_requests_after_a_long_response_wait_for_it(place: Any) -> None:
    line = place.connect()
    assert line.send("list 1 2 150\nversion 2 0.0\n") == ""
    heard = line.ask("version 3 0.0\n")
    assert [each for each in heard.splitlines() if each[:4] != "SHA5"] == [
        "response 1 150",
        "status 2 0",
        "status 3 0",
    ]


@pytest.mark.usefixtures("thread")
def test_collection_stops_when_the_peer_leaves(place: Any) -> None:
    line = place.connect()
    line.send("list 1 2 150\n")
    assert line.session.held_size > SLICE * 100, "what was gathered is told"
    line.close()
    place.posted.drain()
    assert place.posted.empty()


@pytest.mark.usefixtures("thread")
def test_an_unreadable_response_is_refused_and_the_next_is_complete(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = place.connect()
    line.send("list 1 2 150\n")
    with monkeypatch.context() as patch:

        def fails(_seq: int) -> None:
            raise Unavailable("the disk")

        patch.setattr(place.adapter.parts.nodes, "line_at", fails)
        place.settle()
        assert line.read() == "status 1 1\n"
    assert line.ask("list 2 2 150\n").startswith("response 2 150\n")


def test_bytes_of_slices_and_responses_are_bounded() -> None:
    size = SLICE_BYTES // 2 + 1

    def find() -> Iterator[FoundNode | None]:
        for seq in count():
            yield FoundNode(seq, b"x" * size)

    gathering = NodeCollector(find)
    assert not gathering.advance()
    assert [(line.seq, line.size, line.text) for line in gathering.lines()] == [(0, size, None), (1, size, None)]
    while not gathering.advance():
        pass
    assert MAX_BODY < gathering.size <= MAX_BODY + 2 * size


def test_the_first_collection_is_used_if_the_second_fails() -> None:
    pending, rounds = PendingForm(), 0

    def find() -> Iterator[FoundNode | None]:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise Unavailable("the disk")
        yield FoundNode(1, pending)

    told: list[list[AnswerLine] | None] = []
    answer = PendingAnswer(find, lambda call: call(), told.append)
    answer.advance()
    assert told == []
    pending.fill(b"line")
    assert (told, answer.over) == ([[AnswerLine(1, 4, b"line")]], True)


@pytest.fixture
def waiting(place: Any, thread: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A connection that has taken the first line of a long answer; `read` counts the lines that are read again."""
    line = place.connect()
    line.send(f"leaves_of 1 {id_of(thread[0])} {COUNT}\nversion 2 0.0\n")
    line.session.blocked = True
    place.settle()
    monkeypatch.setattr(place.adapter.signer, "lines", LineCache())
    line.reads = 0
    read = place.store.entry

    def counting(seq: int) -> Any:
        line.reads += 1
        return read(seq)

    monkeypatch.setattr(place.store, "entry", counting)
    assert line.session.data_to_send() == [b"response 1 %d" % COUNT]
    return line


def test_a_long_response_is_read_again_as_the_peer_takes_it(place: Any, thread: list[str], waiting: Any) -> None:
    place.settle()
    assert waiting.reads == SLICE, "one part, and no more until that is taken"
    assert SLICE * 100 < waiting.session.held_size < 2 * SLICE * 600, "nothing else is kept"
    assert waiting.session.saturated, "and what was asked behind it waits"
    said = "\n".join(("", *thread[1:], "status 2 0", ""))
    assert waiting.ask("") == said
    assert waiting.reads == COUNT
    assert waiting.session.held_size == 0


def test_messages_follow_a_long_response(thread: list[str], waiting: Any) -> None:
    said = "SHA512_B32__said said"
    waiting.session.announce(said.encode())
    heard = waiting.ask("")
    assert heard.startswith("\n" + "\n".join(thread[1:]) + "\nannounce ")
    assert said in heard


@pytest.mark.parametrize("entry", [None, "another"])
def test_a_long_response_that_becomes_unreadable_ends_the_connection(
    place: Any, waiting: Any, entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.settle()
    waiting.session.data_to_send()
    other = None if entry is None else place.store.entry(place.store.of_type(1, 1)[0].seq)
    monkeypatch.setattr(place.store, "entry", lambda _seq: other)
    place.settle()
    assert waiting.session.closing.code == 1011
    assert waiting.read() == ""
