"""Attacks that need a gateway with keys, with TLS, on trio or with few descriptors; and those that wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from .attack import Attack
from .house import SPECIAL, house, rows


@pytest.mark.parametrize("attack", rows(SPECIAL))
def test_its_bounds_hold(tmp_path: Path, attack: Attack) -> None:
    with house(tmp_path) as gateway:
        outcome = gateway.play(attack)
        assert outcome.faults() == [], (outcome.report, outcome.cost, outcome.wait)
