"""The lines of genuine peers are parsed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import (
    NO_ID,
    Announce,
    Response,
    StatusCode,
    Version,
)
from tests.adapters.sprout.wire.parsing import Refused, outcomes

TRANSCRIPTS = sorted((Path(__file__).parents[3] / "vectors/sprout/transcripts").glob("*.txt"))
TRANSCRIPTS = [path for path in TRANSCRIPTS if path.stem != "60-partial-line"]  # its lines are parts of one


# What clients said that the reference closed the connection for, or died of: what we answer instead.
BETTER: dict[str, list[Refused]] = {
    "02-version-too-new": [Refused(1, StatusCode.PROTOCOL_TOO_NEW)],
    "05-version-malformed": [Refused(1, 1)],
    "06-version-missing-minor": [Refused(1, 1)],
    "09-extra-field": [Refused(1, 1)],
    "10-blank-lines-between": [Refused(NO_ID, 1)],
    "11-id-overflow": [Refused(NO_ID, 1)],
    "12-unknown-verb": [Refused(NO_ID, 1)],
    "14-uppercase-verb": [Refused(1, 1)],
    "19-list-negative": [Refused(1, 1)],
    "21-list-huge-type": [Refused(1, 1)],
    "27-query-negative": [Refused(1, 1)],
    "32-query-path-traversal": [Refused(1, 1)],
    "45-leaves_of-negative": [Refused(1, 1)],
    "49-subscribe-bad-id": [Refused(1, 1)],
    "55-announce-negative": [Refused(1, 1)],
}
BAD_NODES = {"56-announce-bad-base64": 1, "57-announce-padded-base64": 1}


def conversations(path: Path) -> dict[tuple[str, str], list[bytes]]:
    """The lines that were sent, by connection and direction; most transcripts have one connection."""
    lines: dict[tuple[str, str], list[bytes]] = {}
    for match in re.finditer(r"^(?:\s*[\d.]+ (c\d+) )?([<>]) ?(.*)$", path.read_text(), re.MULTILINE):
        if match[3] != "[closed]":
            lines.setdefault((match[1] or "", match[2]), []).append(match[3].encode())
    return lines


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_messages_of_genuine_peers_are_parsed(path: Path) -> None:
    for (_, direction), lines in conversations(path).items():
        wire = b"".join(line + b"\n" for line in lines)
        said = outcomes([wire])
        frames = [one for one in said if not isinstance(one, (Refused, str))]
        refusals = [one for one in said if isinstance(one, (Refused, str))]
        unreadable = sum(len(one.unreadable) for one in frames if isinstance(one, (Announce, Response)))
        assert refusals == (BETTER.get(path.stem, []) if direction == ">" else [])
        assert unreadable == (BAD_NODES.get(path.stem, 0) if direction == ">" else 0)
        if not refusals and not unreadable:
            assert b"".join(map(codec.encode, frames)).split() == wire.split()


def test_a_request_in_three_writes_is_one() -> None:
    assert outcomes([b"ver", b"sion 1 0", b".0\n"]) == [Version(1)]


def test_refusals_are_in_the_transcripts() -> None:
    assert BETTER.keys() | BAD_NODES.keys() <= {path.stem for path in TRANSCRIPTS}
