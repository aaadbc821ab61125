"""The other half of the table of attacks, against one gateway with default settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.attack import Attack
from tests.attacks.reused_stage import USUAL, ReusedStage, reused_stage, rows


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReusedStage]:
    with reused_stage(tmp_path_factory.mktemp("attacks")) as made:
        yield made


@pytest.mark.parametrize("attack", rows(USUAL[1::2]))
def test_its_bounds_hold(gateway: ReusedStage, attack: Attack) -> None:
    outcome = gateway.play(attack)
    assert outcome.faults() == [], (outcome.report, outcome.cost, outcome.wait)
