"""Transcripts of genuine programs and the reference relay are replayed (tests/vectors/sprout/transcripts)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TRANSCRIPTS = Path(__file__).parents[3] / "vectors/sprout/transcripts"
FILES = {path.stem: path for path in sorted(TRANSCRIPTS.glob("*.txt"))}
TIMED = re.compile(r" *[0-9.]+ (\w+) ([<>!]) (.*)")

# Those that are no transcripts, or need what we have not.
NOT_REPLAYED = {
    "60-partial-line": "cut within lines; test_a_line_may_come_in_pieces",
    "61-lexing-notes": "notes; tests/adapters/sprout/wire/test_codec.py has them",
    "81-corrupt-grove-file": "there are no files of nodes that could be corrupt",
    "82-corrupt-grove-file-leaves_of": "likewise",
}

# Where the reference closes the connection (or dies) and we answer.
INSTEAD_OF_CLOSING = {
    "05-version-malformed": ["status 1 1"],
    "06-version-missing-minor": ["status 1 1"],
    "09-extra-field": ["status 1 1"],
    "10-blank-lines-between": ["status -1 1", "status 1 0", "status 2 0"],
    "11-id-overflow": ["status -1 1"],
    "12-unknown-verb": ["status -1 1", "status 2 0"],
    "14-uppercase-verb": ["status 1 1"],
    "19-list-negative": ["status 1 1"],
    "21-list-huge-type": ["status 1 1"],
    "27-query-negative": ["status 1 1"],
    "32-query-path-traversal": ["status 1 1"],
    "37-ancestry-unknown": ["status 1 4"],
    "45-leaves_of-negative": ["status 1 1"],
    "49-subscribe-bad-id": ["status 1 1"],
    "55-announce-negative": ["status 1 1"],
    "56-announce-bad-base64": ["status 1 1"],
    "57-announce-padded-base64": ["status 1 1"],
}

# What is left out of a transcript: the reference drops a reply that we take, and takes it when it comes again.
LEFT_OUT = {"71-fanout": 3}


class SentLine(NamedTuple):
    """A line of a transcript: the connection, `>` to the relay or `<` from it, and what was said."""

    connection: str
    direction: str
    text: str


def said(name: str) -> Iterator[SentLine]:
    for line in FILES[name].read_text().splitlines()[LEFT_OUT.get(name, 0) and 2 + LEFT_OUT[name] :]:
        if line.endswith("[closed]"):
            continue
        if timed := TIMED.fullmatch(line):
            yield SentLine(*timed.groups())
        elif line[:1] in "<>" and line:
            yield SentLine("", line[0], line[2:])


class Replay:
    """Plays the clients of a transcript; `heard` and `expected` have the lines that came, and should, by connection."""

    def __init__(self, place: Any) -> None:
        self.place = place
        self.lines: dict[str, Any] = {}
        self.heard: dict[str, list[str]] = {}
        self.expected: dict[str, list[str]] = {}

    def play(self, name: str) -> None:
        lines = list(said(name))
        for connection in {line.connection for line in lines}:
            if connection not in self.lines:
                self.lines[connection] = self.place.connect()
            self.heard[connection], self.expected[connection] = [], []
        for here, after in zip(lines, [*lines[1:], None], strict=True):
            if here.direction == "<":
                self.expected[here.connection].append(here.text)
                continue
            self.lines[here.connection].session.receive_data(f"{here.text}\n".encode())
            if after is None or after.direction == "<":
                self.place.settle()
                for connection, line in self.lines.items():
                    self.heard[connection] += line.ask("").splitlines()


@pytest.fixture
def grove(place: Any, valid: dict[str, str], announce: Callable[..., str]) -> Any:
    """A gateway that holds the valid vectors, and nothing of its own among them."""
    announce(place.connect(), *valid.values())
    place.adapter.parts.rights.may_read = lambda _session, spot: spot.key != place.adapter.mint.id
    return place


@pytest.mark.parametrize("name", [name for name in FILES if name < "62" and name not in NOT_REPLAYED])
def test_a_client_gets_the_answers_of_the_reference(grove: Any, name: str) -> None:
    replay = Replay(grove)
    replay.play(name)
    assert replay.heard == {"": INSTEAD_OF_CLOSING.get(name, replay.expected[""])}


def test_a_line_may_come_in_pieces(place: Any) -> None:
    line = place.connect()
    sent = [said.text for said in said("60-partial-line") if said.direction == ">"][:3]
    assert [line.send(piece) for piece in (*sent, "\n")] == ["", "", "", "status 1 0\n"]


@pytest.fixture
def young() -> dict[str, str]:
    """The nodes of the whole tree in transcript 80, which the earlier ones need."""
    lines = [line.text for line in said("80-batch-whole-tree") if line.connection == "X" and line.direction == ">"]
    names = ("identity", "community", "reply1", "reply2", "reply3")
    return dict(zip(names, (line for line in lines if line.startswith("SHA512")), strict=False))


def test_70_a_reply_needs_no_subscription(grove: Any) -> None:
    replay = Replay(grove)
    replay.play("70-announce-unsubscribed")
    assert replay.heard == replay.expected
    (node,) = [line.text for line in said("70-announce-unsubscribed") if line.text.startswith("SHA512")]
    id = node.split(" ")[0]
    assert grove.connect().send(f"query 5 1\n{id}\n") == f"response 5 1\n{node}\n"


def test_71_and_72_subscribing_and_unsubscribing(grove: Any) -> None:
    replay = Replay(grove)
    for name in ("71-fanout", "72-unsubscribe-stops"):
        replay.play(name)
        assert replay.heard == replay.expected


def test_74_a_community_is_announced_to_all_connections(
    grove: Any, young: dict[str, str], announce: Callable[..., str]
) -> None:
    announce(grove.connect(), young["identity"])
    replay = Replay(grove)
    replay.play("74-community-to-all")
    text = replay.heard["Y"][0]
    assert text == "announce 0 1"  # the reference had announced two before
    assert replay.heard["Y"][1:] == replay.expected["Y"][1:]
    assert replay.heard["X"] == replay.expected["X"]


def test_75_ancestors_of_a_reply_are_requested(grove: Any, young: dict[str, str], announce: Callable[..., str]) -> None:
    announce(grove.connect(), young["identity"], young["community"])
    replay = Replay(grove)
    replay.play("75-unknown-parent-ancestry")
    status, *asked = replay.expected["X"][1:]
    assert replay.heard["X"] == [replay.expected["X"][0], *asked, status], "answered when it is on disk"
    grove.settle()
    id = young["reply3"].split(" ")[0]
    assert grove.connect().send(f"query 5 1\n{id}\n") == f"response 5 1\n{young['reply3']}\n"


def test_76_and_77_an_author_is_requested_and_may_be_unknown(grove: Any) -> None:
    replay = Replay(grove)
    for name in ("76-unknown-author-query", "77-unknown-author-status4"):
        replay.play(name)
        (told,) = replay.heard.values()
        (expected,) = replay.expected.values()
        status = next(text for text in expected if text in ("status 2 0", "status 3 0"))
        expected.remove(status)
        assert told == [*expected, status[:-1] + "4"], "answered when it is known that it is not"


def test_79_a_batch(grove: Any) -> None:
    replay = Replay(grove)
    replay.play("79-batch-ok")
    assert replay.heard == replay.expected


def test_80_a_whole_tree_in_one_announce(place: Any) -> None:
    replay = Replay(place)
    replay.play("80-batch-whole-tree")
    assert replay.heard["X"] == ["response 1 0", "status 2 0", "status 3 0"], "no question is needed"
    assert nodes(replay.heard["Y"]) == nodes(replay.expected["Y"]), "the reference makes an announce of each"


def nodes(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("SHA512")]


def test_90_the_messages_of_wisteria(grove: Any, announce: Callable[..., str]) -> None:
    replay = Replay(grove)
    replay.play("90-wisteria-live")
    *answers, head, node = replay.expected["c0"]  # what another client announced at the end
    assert replay.heard["c0"] == answers
    announce(grove.connect(), node)
    assert replay.lines["c0"].read().splitlines() == [head, node]


def test_91_the_requests_of_a_genuine_relay_that_dials(place: Any, announce: Callable[..., str]) -> None:
    told = dict.fromkeys(nodes([line.text for line in said("91-relay-peers-relay") if line.direction == "<"]))
    announce(place.connect(), *told)
    place.adapter.parts.rights.may_read = lambda _session, spot: spot.key != place.adapter.mint.id
    replay = Replay(place)
    replay.play("91-relay-peers-relay")
    assert replay.heard == replay.expected


def test_every_transcript_is_replayed_or_has_a_reason_not_to() -> None:
    named = {
        name for name in FILES if re.search(f"test_({name[:2]}|\\d\\d_and_{name[:2]})_", Path(__file__).read_text())
    }
    assert {name for name in FILES if name >= "62"} == named | {name for name in NOT_REPLAYED if name >= "62"}


DOCUMENT = (Path(__file__).parents[4] / "docs/protocols.md").read_text()


@pytest.mark.parametrize("name", [*INSTEAD_OF_CLOSING, *NOT_REPLAYED, *LEFT_OUT])
def test_differences_from_the_reference_are_documented(name: str) -> None:
    assert f"`{name}`" in DOCUMENT


def test_differences_in_invalid_vectors_are_documented(vectors: Path) -> None:
    waits = {"unknown_parent", "unknown_author", "community_unknown_author"}  # as there: asked for
    names = {vector["name"] for vector in json.loads((vectors / "invalid.json").read_text())} - waits
    assert {name for name in names if f"`{name}`" not in DOCUMENT} == set()
