"""Some attacks need a gateway with keys, with TLS, on trio or with few descriptors, and some have to wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gateway.settings.limits import Limits
from tests.attacks.attack import Attack
from tests.attacks.reused_stage import SPECIAL, ReusedStage, reused_stage, rows

SOONER = 6.0  # seconds by which handshakes end sooner here than by default, and what waits for that
ENV = {"TRELLIS_LIMITS__HANDSHAKE_SECONDS": str(Limits().handshake_seconds - SOONER)}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReusedStage]:
    with reused_stage(tmp_path_factory.mktemp("attacks"), ENV) as made:
        yield made


@pytest.mark.parametrize("attack", rows(SPECIAL))
def test_its_bounds_hold(gateway: ReusedStage, attack: Attack) -> None:
    if attack.seconds and attack.dropped:
        attack = replace(attack, seconds=attack.seconds - SOONER, dropped=attack.dropped - SOONER)
    outcome = gateway.play(attack)
    assert outcome.faults() == [], (outcome.report, outcome.cost, outcome.wait)
