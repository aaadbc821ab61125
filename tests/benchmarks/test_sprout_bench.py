"""The benchmark of Sprout: its nodes are sound, its ratios right, and a short round of it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.forest.validate import validate
from adapters.sprout.wire.codec import NodeLine
from benchmarks import sprout_works
from benchmarks.sprout import Round, main, table
from benchmarks.sprout_nodes import trees
from benchmarks.sprout_works import Announce


def node(line: NodeLine) -> forest.Node:
    return forest.decode_as(line.id, line.raw)


def test_the_nodes_that_are_announced_are_valid() -> None:
    first, second = trees(2, 3)
    assert first.identity == second.identity
    for tree in (first, second):
        held = {line.id: node(line) for line in (tree.identity, tree.community)}
        for line in (tree.identity, tree.community, *tree.replies):
            made = node(line)
            assert validate(made, line.raw, 0, held.get(made.author), held.get(made.parent)).ok
        assert len({line.id for line in tree.replies}) == 3


def test_ratios_are_to_the_reference_relay() -> None:
    rounds = [Round("announce", "go", 100, 0.1, 0.2), Round("announce", "trellis", 100, 0.01, 0.1)]
    *_, row = table(rounds).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:] == ["trellis", "10,000 (10,000)", "10.0", "1,000", "2.0", "8.0"]


def test_a_short_round_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sprout_works.WORKS, "announce", lambda: Announce(70))
    asked = ["--rounds", "1", "--servers", "trellis", "--works", "announce", "--out", str(tmp_path)]
    assert main(asked) == 0
    (written,) = tmp_path.glob("*.json")
    (kept,) = json.loads(written.read_text())
    assert kept["items"] == 70
    assert kept["cpu_seconds"] > 0
