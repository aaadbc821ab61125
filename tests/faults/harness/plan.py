"""What happens in a run, decided by its seed alone.

A run is a few lives of one gateway on one data directory. In each all clients are active; its `conditions` last for the
whole life, its `faults` come one after another. Then it ends, and while it is down its files may be damaged.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, replace

SHORT, LONG = 0.12, 0.3  # seconds that a fault lasts

# The faults of a life, one after another. fmt: off
FAULTS: dict[str, tuple[int, ...]] = {  # by kind, the errors that system calls may return
    "pause": (),  # SIGSTOP, then SIGCONT
    "full disk": (errno.ENOSPC, errno.EDQUOT),  # no write to the log
    "bad write": (errno.EIO,),
    "bad sync": (errno.EIO,),  # what was written before is in doubt
    "short write": (0, errno.ENOSPC),  # each write does half
    "no file": (errno.EMFILE, errno.ENFILE),  # the log can open none
    "no rename": (errno.EIO,),  # no segment can be sealed
    "bad read": (errno.EIO,),  # what is in the log cannot be read
    "no unlink": (errno.EIO, errno.EROFS),  # nothing can be removed from the log
    "full index": (errno.ENOSPC, errno.EIO),  # no write to the index
    "descriptors": (),  # the process can open nothing at all
    "clock": (),  # the time of day jumps
}
# fmt: on
CONDITIONS = ("slow disk", "slow reader", "half-open", "churn", "calm")
ENDS = ("power cut", "kill", "stop")
DAMAGE = (
    "nothing",
    "flip in sealed",
    "flip in open",
    "cut sealed",
    "cut open",
    "zeros",
    "no index",
    "cut index",
    "garbage in index",
    "flip in index",
    "no journal",
)
JUMPS = (-86_400 * 3, -3_600, -30, -2, 2, 30, 3_600, 86_400 * 3)  # seconds
SEGMENTS = (4_096, 20_000, 64 << 20)  # bytes after which a file of the log is sealed
KEPT = (10_000, 30_000, 80_000)  # bytes of the log that are kept, in a third of the runs
STEPS = 250  # of retention at most, after which a gateway is killed in the middle of it


@dataclass(frozen=True)
class GatewayFault:
    """A fault that lasts some *seconds*; *error* is what system calls say, *amount* how far the clock jumps."""

    kind: str
    seconds: float
    error: int = 0
    amount: float = 0.0


@dataclass(frozen=True)
class Life:
    """From one start of the gateway to its end, and what is done to its files after it.

    *kill_step* is the step of retention or compaction at which the gateway kills itself, 0 for none.
    """

    conditions: tuple[str, ...]
    faults: tuple[GatewayFault, ...]
    end: str
    damage: str
    kill_step: int = 0


@dataclass(frozen=True)
class RunPlan:
    """A run. Damage and the moments of things draw from `chance`, which the same seed makes the same.

    *keep_bytes*: the gateway retires and compacts all the time, and keeps no more than that.
    """

    seed: int
    segment_bytes: int
    lives: tuple[Life, ...]
    keep_bytes: int | None = None
    loop: str = "asyncio"

    def chance(self, what: str) -> random.Random:
        """A source of chance for one purpose."""
        return random.Random(f"{self.seed} {what}")

    @property
    def fault_names(self) -> list[str]:
        """The names of all that happens."""
        lived = [
            [*life.conditions, *(fault.kind for fault in life.faults), life.end, life.damage] for life in self.lives
        ]
        kill_steps = ["kill while retiring" for life in self.lives if life.kill_step]
        return [name for names in (*lived, kill_steps) for name in names if name not in ("calm", "nothing", "stop")]


def plan(seed: int) -> RunPlan:
    """The run of *seed*: seeds that follow each other go through all kinds of faults and damage."""
    chance = random.Random(f"plan {seed}")
    count = chance.choice((2, 2, 2, 3))
    lives = [_life(seed, number, chance, last=number == count - 1) for number in range(count)]
    segment, loop = chance.choice(SEGMENTS), "trio" if chance.random() < 0.1 else "asyncio"
    if seed % 3:
        return RunPlan(seed, segment, tuple(lives), loop=loop)
    *mortal, last = lives
    kill_steps = [chance.randint(1, STEPS) if chance.random() < 0.7 else 0 for _ in mortal]
    killed = [replace(life, kill_step=kill_step) for life, kill_step in zip(mortal, kill_steps, strict=True)]
    return RunPlan(seed, SEGMENTS[0], (*killed, last), chance.choice(KEPT), loop)


def _life(seed: int, number: int, chance: random.Random, *, last: bool) -> Life:
    kinds = list(FAULTS)
    first = kinds[(seed + number * 5) % len(kinds)]
    faults = [_fault(kind, chance) for kind in (first, *chance.sample(kinds, chance.randint(0, 1)))]
    conditions = tuple(chance.sample(CONDITIONS, chance.randint(1, 2)))
    if last:
        return Life(conditions, tuple(faults), "stop", "nothing")
    damage = DAMAGE[(seed // 2) % len(DAMAGE)] if number == 0 else "nothing"
    return Life(conditions, tuple(faults), chance.choice(ENDS if damage == "nothing" else ENDS[:2]), damage)


def _fault(kind: str, chance: random.Random) -> GatewayFault:
    errors = FAULTS[kind]
    return GatewayFault(kind, chance.uniform(SHORT, LONG), chance.choice(errors) if errors else 0, chance.choice(JUMPS))
