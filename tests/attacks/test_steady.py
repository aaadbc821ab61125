"""The mixed traffic of the steady load detects growth and lost messages; the hour itself is part of `make soak`."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.steady import Resources, SteadyLoad, grown


def test_growth_is_found() -> None:
    flat = [Resources(100.0 + n % 7, 40 + n % 3, 12, 12 + n % 2) for n in range(40)]
    assert grown(flat) == []
    assert grown([]) == []
    warming = [Resources(50.0, 20, 8, 12)] * 10 + flat
    assert grown(warming) == [], "what is held at first is not compared"
    leaking = [Resources(100.0 + n, 40 + n, 12 + n // 8, 12 + n) for n in range(40)]
    assert [words.split()[0] for words in grown(leaking)] == ["memory", "descriptors", "threads", "tasks"]


def test_rounds_of_mixed_traffic_lose_no_messages(tmp_path: Path) -> None:
    load = SteadyLoad(tmp_path, seed=4, settle=0.5, filling=0)
    load.run(0.1)
    assert len(load.rounds) == 1
    assert load.rounds[0].held.tasks > 0
    assert load.sent > 0
    assert load.faults() == []
