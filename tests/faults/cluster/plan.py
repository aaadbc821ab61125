"""What happens in a run of a cluster, decided by its seed alone.

A run is a number of rounds; in each, one or two faults befall a gateway or a NATS server under load.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass

GATEWAYS = ("one", "two", "three")
SERVERS = ("east", "west", "north")
NEWCOMER = "four"  # the gateway that is added and removed

GATEWAY_FAULTS = (
    "kill gateway",  # SIGKILL, and a new start
    "pause gateway",  # SIGSTOP, then SIGCONT
    "stop gateway",  # as an operator does
    "cut gateway",  # its connections to all servers are reset, and new ones refused
    "hang gateway",  # nothing passes between it and any server
    "full disk",  # its log takes nothing
    "clock",  # its time of day jumps
)
SERVER_FAULTS = (
    "kill server",
    "pause server",
    "cut server",  # off the other servers; gateways still reach it
    "hang server",  # nothing passes between it and the other servers
    "lose server",  # nothing passes between it and anybody
)
CLUSTER_FAULTS = (
    "kill leader",  # of the stream
    "cut leader",  # off the other servers
    "kill holder",  # the gateway that accepts
    "pause holder",
    "no quorum",  # two servers stand still
    "newcomer",  # a fourth gateway joins, or is killed and removed
)
FAULTS = (*GATEWAY_FAULTS, *SERVER_FAULTS, *CLUSTER_FAULTS)
QUICK = (  # what happens in each round of a quick run, in any order
    *(("kill gateway",), ("pause gateway", "clock"), ("cut gateway",), ("full disk",), ("newcomer",), ("newcomer",)),
    *(("kill holder", "kill leader"), ("cut gateway", "pause server"), ("cut server", "stop gateway"), ("no quorum",)),
)
JUMPS = (-86_400 * 3, -3_600, -30, -2, 2, 30, 300)  # seconds; further ahead all that authors date would be history
SECONDS, QUICK_SECONDS = (0.1, 5.0), (0.1, 0.3)  # that a fault lasts
LASTING = {"no quorum": 1.5}  # in a quick run: long enough for publishers to wait
QUIET_SECONDS = (0.2, 1.5)  # seconds of traffic after a round
SEGMENTS = (4_096, 20_000, 64 << 20)  # bytes after which a file of the log is sealed
TOGETHER = 0.2  # of the rounds have two faults at once


@dataclass(frozen=True)
class ClusterFault:
    """A fault of *kind* that befalls *victim*, a gateway or server by name, for some *seconds*.

    It begins after a *delay*; *amount* is how far the clock jumps, *error* what the disk says.
    """

    kind: str
    victim: str
    seconds: float
    delay: float = 0.0
    amount: float = 0.0
    error: int = 0


@dataclass(frozen=True)
class FaultRound:
    """Faults that begin at about the same time, and how many seconds of traffic follow."""

    faults: tuple[ClusterFault, ...]
    quiet_seconds: float


@dataclass(frozen=True)
class ClusterPlan:
    """A run; what its clients do draws from `chance`, which the same seed makes the same."""

    seed: int
    rounds: tuple[FaultRound, ...]
    segment_bytes: int
    loops: tuple[str, ...]  # of the gateways

    def chance(self, what: str) -> random.Random:
        """A source of chance for one purpose."""
        return random.Random(f"cluster {self.seed} {what}")

    @property
    def faults(self) -> list[str]:
        """The names of all that happens."""
        return [fault.kind for each in self.rounds for fault in each.faults]


def plan(seed: int, rounds: int = 10, *, quick: bool = False) -> ClusterPlan:
    """The run of *seed* with so many *rounds*; faults of a *quick* one last no longer than they have to."""
    chance = random.Random(f"cluster plan {seed}")
    kinds = list(QUICK) if quick else [(kind,) for kind in FAULTS]
    chance.shuffle(kinds)
    played: list[FaultRound] = []
    for number in range(rounds):
        faults = [_fault(kind, chance, quick=quick) for kind in kinds[number % len(kinds)]]
        if not quick and chance.random() < TOGETHER:
            faults.append(_fault(chance.choice(FAULTS), chance, quick=quick, delay=chance.uniform(0, 1)))
        played.append(FaultRound(tuple(faults), 0.05 if quick else chance.uniform(*QUIET_SECONDS)))
    loops = tuple("trio" if chance.random() < 0.1 else "asyncio" for _ in (*GATEWAYS, NEWCOMER))
    return ClusterPlan(seed, tuple(played), chance.choice(SEGMENTS), loops)


def _fault(kind: str, chance: random.Random, *, quick: bool, delay: float = 0.0) -> ClusterFault:
    victims = SERVERS if kind in SERVER_FAULTS else GATEWAYS
    seconds = chance.uniform(*(QUICK_SECONDS if quick else SECONDS))
    if quick:
        seconds = LASTING.get(kind, seconds)
    error = chance.choice((errno.ENOSPC, errno.EDQUOT, errno.EIO))
    return ClusterFault(kind, chance.choice(victims), seconds, delay, chance.choice(JUMPS), error)
