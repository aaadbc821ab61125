"""The first half of the table of attacks, against one gateway with default settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .attack import Attack
from .house import USUAL, House, house, rows


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("attacks")) as made:
        yield made


@pytest.mark.parametrize("attack", rows(USUAL[::2]))
def test_its_bounds_hold(gateway: House, attack: Attack) -> None:
    outcome = gateway.play(attack)
    assert outcome.faults() == [], (outcome.report, outcome.cost, outcome.wait)
