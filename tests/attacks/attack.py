"""What an attack is: a function, and the bounds that hold while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .target import Report, Target

Run = Callable[[Target, float], Report]  # the seconds are how long it goes on

MEMORY = 64.0  # MiB that one attack may make the gateway take, unless the table says otherwise
PATIENCE = 5.0  # seconds of CPU time that the gateway takes at most while an honest peer waits; machines differ


@dataclass(frozen=True)
class Attack:
    """One row of the table. `answers` are texts, each of which one of the answers to the attacker has to contain.

    Every connection has to be closed within `dropped` seconds. The attack takes `seconds`, or any time if that is 0.
    `needs` names what the gateway needs: `keys`, `tls`, `trio`, `few` (descriptors), and what it dials: `link` (a
    relay), `broker` (of Streamr), `peer` (an Arbor relay).
    """

    name: str
    what: str
    run: Run
    memory: float = MEMORY
    dropped: float | None = None
    answers: tuple[str, ...] = ()
    seconds: float = 0
    needs: frozenset[str] = frozenset()
    patience: float = PATIENCE
    brief: bool = True  # whether `make test` plays it
