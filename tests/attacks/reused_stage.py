"""Attacks as tests: one gateway for many of them, each played for a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .attack import Attack
from .stage import AttackOutcome, Stage
from .table import ATTACKS

SECONDS = 1.2  # that an attack takes which has no time of its own
MOMENT = 2.0  # seconds to wait until earlier attackers are gone; starting another gateway takes no longer
QUIET = 0.3  # seconds before and after: tests do not compare with quiet time, which takes a quiet machine

BRIEF = [attack for attack in ATTACKS if attack.brief]
USUAL = [attack for attack in BRIEF if not attack.needs and not attack.seconds]
SPECIAL = sorted(
    (attack for attack in BRIEF if attack.needs or attack.seconds), key=lambda attack: sorted(attack.needs)
)


class ReusedStage:
    """A gateway that is attacked again and again, and replaced after a fault, or by one that an attack needs."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._count = 0
        self._needs: frozenset[str] = frozenset()
        self._stage: Stage | None = None

    @property
    def stage(self) -> Stage:
        """Return the gateway, a new one if the last had a fault."""
        if self._stage is None:
            self._count += 1
            self._stage = Stage(self._folder / str(self._count), self._needs, self._env).__enter__()
        return self._stage

    def play(self, attack: Attack) -> AttackOutcome:
        """Play *attack*, on another gateway if this one would go on reading for long what others left behind."""
        if self._stage is not None and (attack.needs != self._needs or not self._stage.rest(MOMENT)):
            self._leave(None)
        self._needs = attack.needs
        try:
            outcome = self.stage.play(attack, SECONDS, QUIET)
        except BaseException:
            self._leave(RuntimeError())
            raise
        if outcome.faults():
            self._leave(RuntimeError())
        return outcome

    def close(self) -> None:
        """Stop the gateway; it has to stop in order, whatever was done to it."""
        self._leave(None)

    def _leave(self, error: Exception | None) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.__exit__(None if error is None else RuntimeError, error, None)


@contextmanager
def reused_stage(folder: Path, env: dict[str, str] | None = None) -> Iterator[ReusedStage]:
    """Make a `ReusedStage`, and close it at the end."""
    made = ReusedStage(folder, env or {})
    try:
        yield made
    finally:
        made.close()


def rows(attacks: Iterable[Attack]) -> list[object]:
    """Return *attacks* as parameters of a test."""
    return [pytest.param(attack, id=attack.name) for attack in attacks]
