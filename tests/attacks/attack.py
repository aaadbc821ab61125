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
    """One row of the table. `told` are words that one of the answers to the attacker has to begin with.

    `dropped` is in how many seconds every connection has to be gone; `seconds` how long the attack needs to take, 0
    where any time will do; `needs` what the gateway has to be: `keys`, `tls`, `trio`, `few` (descriptors), `small`,
    and what it dials: `link` (a relay), `broker` (of Streamr), `peer` (an Arbor relay).
    """

    name: str
    what: str
    run: Run
    memory: float = MEMORY
    dropped: float | None = None
    told: tuple[str, ...] = ()
    seconds: float = 0
    needs: frozenset[str] = frozenset()
    patience: float = PATIENCE
    brief: bool = True  # whether `make test` plays it
