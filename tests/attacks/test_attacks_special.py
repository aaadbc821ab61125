"""Attacks that need a gateway with keys, with TLS, on trio or with few descriptors; and those that wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.access.limits import Limits

from .attack import Attack
from .reused_stage import SPECIAL, reused_stage, rows

SOONER = 6.0  # seconds by which handshakes end sooner here than by default, and what waits for that
ENV = {"TRELLIS_LIMITS__HANDSHAKE_SECONDS": str(Limits().handshake_seconds - SOONER)}


@pytest.mark.parametrize("attack", rows(SPECIAL))
def test_its_bounds_hold(tmp_path: Path, attack: Attack) -> None:
    if attack.seconds and attack.dropped:
        attack = replace(attack, seconds=attack.seconds - SOONER, dropped=attack.dropped - SOONER)
    with reused_stage(tmp_path, ENV) as gateway:
        outcome = gateway.play(attack)
        assert outcome.faults() == [], (outcome.report, outcome.cost, outcome.wait)
