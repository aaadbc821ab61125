"""What happens in a run, decided by its seed alone.

A run is a few lives of one gateway on one data directory. In each everybody talks; `weather` lasts for the whole life,
`blows` come one after another. Then it ends, and while it is down `damage` may be done to its files.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, replace

SHORT, LONG = 0.12, 0.3  # seconds that a blow lasts

# What is struck, one after another. fmt: off
BLOWS: dict[str, tuple[int, ...]] = {  # and the errors that may be
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
WEATHER = ("slow disk", "slow reader", "half-open", "churn", "calm")
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
class Blow:
    """A fault that lasts some *seconds*; *error* is what system calls say, *amount* how far the clock jumps."""

    kind: str
    seconds: float
    error: int = 0
    amount: float = 0.0


@dataclass(frozen=True)
class Life:
    """From one start of the gateway to its end, and what is done to its files after it.

    *doom* is the step of retention or compaction at which it ends earlier, 0 for none.
    """

    weather: tuple[str, ...]
    blows: tuple[Blow, ...]
    end: str
    damage: str
    doom: int = 0


@dataclass(frozen=True)
class Plan:
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
    def faults(self) -> list[str]:
        """The names of all that happens."""
        lived = [[*life.weather, *(blow.kind for blow in life.blows), life.end, life.damage] for life in self.lives]
        dooms = ["kill while retiring" for life in self.lives if life.doom]
        return [name for names in (*lived, dooms) for name in names if name not in ("calm", "nothing", "stop")]


def plan(seed: int) -> Plan:
    """The run of *seed*: seeds that follow each other go through all kinds of blows and damage."""
    chance = random.Random(f"plan {seed}")
    count = chance.choice((2, 2, 2, 3))
    lives = [_life(seed, number, chance, last=number == count - 1) for number in range(count)]
    segment, loop = chance.choice(SEGMENTS), "trio" if chance.random() < 0.1 else "asyncio"
    if seed % 3:
        return Plan(seed, segment, tuple(lives), loop=loop)
    *mortal, last = lives
    dooms = [chance.randint(1, STEPS) if chance.random() < 0.7 else 0 for _ in mortal]
    doomed = [replace(life, doom=doom) for life, doom in zip(mortal, dooms, strict=True)]
    return Plan(seed, SEGMENTS[0], (*doomed, last), chance.choice(KEPT), loop)


def _life(seed: int, number: int, chance: random.Random, *, last: bool) -> Life:
    kinds = list(BLOWS)
    first = kinds[(seed + number * 5) % len(kinds)]
    blows = [_blow(kind, chance) for kind in (first, *chance.sample(kinds, chance.randint(0, 1)))]
    weather = tuple(chance.sample(WEATHER, chance.randint(1, 2)))
    if last:
        return Life(weather, tuple(blows), "stop", "nothing")
    damage = DAMAGE[(seed // 2) % len(DAMAGE)] if number == 0 else "nothing"
    return Life(weather, tuple(blows), chance.choice(ENDS if damage == "nothing" else ENDS[:2]), damage)


def _blow(kind: str, chance: random.Random) -> Blow:
    errors = BLOWS[kind]
    return Blow(kind, chance.uniform(SHORT, LONG), chance.choice(errors) if errors else 0, chance.choice(JUMPS))
