"""Plays runs and sums them up."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import checks, disk
from .ledger import Ledger
from .load import CHANNELS, Crowd
from .nursery import STOP_SECONDS, DidNotStart, Nursery, Running
from .plan import Life, Plan, plan
from .retired import Witness, index_is_the_log
from .shim import Control, NoCompiler
from .trouble import Trouble
from .wires import Http, Refused

CATCH_UP = 10.0  # seconds for listeners to be shown what was accepted
NOTICED = 5.0  # seconds until a gateway is known to have killed itself, on a machine that is busy
LULL = 0.08  # seconds of talk before, between and after blows


@dataclass
class Outcome:
    """What came of a run; `wrong` are the promises that were broken."""

    plan: Plan
    accepted: int = 0
    heard: int = 0
    excused: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        state = "ok" if not self.wrong else f"WRONG ({len(self.wrong)})"
        faults = ", ".join(self.plan.faults)
        return (
            f"seed {self.plan.seed}: {state}, {self.accepted} accepted, {self.heard} heard, {self.excused} damaged, "
            f"{self.seconds:.1f} s: {faults}"
        )


class Run:
    """One run of *plan*, in the directory *place*."""

    def __init__(self, plan: Plan, nursery: Nursery, place: Path) -> None:
        self._plan = plan
        self._nursery = nursery
        self._place = place
        self._data = place / "data"
        self._witness = Witness(self._data)
        self._ledger = Ledger(keeping=plan.keep_bytes is not None, look=self._witness.placed)
        self._damaged: set[int] = set()
        self._sure = True
        self._communities: dict[str, str] = {}
        self._last: dict[str, int] = {}  # what was said last, by channel

    async def play(self) -> Outcome:
        """Live all lives; what came of it."""
        begun = time.monotonic()
        harm = disk.Harm()
        try:
            for number, life in enumerate(self._plan.lives):
                harm = await self._live(number, life, harm)
        except (DidNotStart, Refused, OSError, TimeoutError) as error:
            where = " > ".join(frame.name for frame in traceback.extract_tb(error.__traceback__))
            self._ledger.complain(f"{type(error).__name__}: {error} ({where})")
        ledger = self._ledger
        accepted = sum(said.accepted for said in ledger.said.values())
        seconds = time.monotonic() - begun
        return Outcome(self._plan, accepted, ledger.heard, len(ledger.excused), seconds, ledger.wrong)

    async def _live(self, number: int, life: Life, harm: disk.Harm) -> disk.Harm:
        control = Control(self._place / f"control{number}")
        self._witness.forget()
        running = await self._start(number, control)
        control.doom(life.doom)
        try:
            if not await self._dies(running, self._lives(running, number, life, harm)):
                await self._end(running, number, life)
        except BaseException:
            await running.where()
            running.kill()
            await self._nursery.ended()
            raise
        self._complain_of_the_end(running)
        chance = self._plan.chance(f"damage {number}")
        if life.end == "power cut":
            self._damaged |= disk.cut_power(control, self._data / "log", chance)
        if life.damage == "nothing":
            if life.doom or number == len(self._plan.lives) - 1:
                await self._agrees(number)
            return disk.Harm()
        harm = disk.damage(life.damage, self._data, chance)
        self._ledger.excuse(harm.tokens, harm.last)
        self._damaged |= harm.seqs
        self._sure = self._sure and not harm.roots
        return harm

    async def _start(self, number: int, control: Control) -> Running:
        settings = {
            "TRELLIS_LIMITS__RATES": "off",
            "TRELLIS_LOOP": self._plan.loop,
            "TRELLIS_AUTH__GRANTS": json.dumps({"anonymous": ["*:*", "admin:*"]}),
            "TRELLIS_LOG__SEGMENT_BYTES": str(self._plan.segment_bytes),
        }
        keep = self._plan.keep_bytes
        if keep is not None:
            settings["TRELLIS_LOG__KEEP_BYTES"] = str(keep)
        place = self._place / f"life{number}"
        return await self._nursery.start(self._data, place, settings, control, retain_often=keep is not None)

    async def _lives(self, running: Running, number: int, life: Life, harm: disk.Harm) -> None:
        await self._settled(running, harm)
        await self._talk(running, number, life)

    async def _dies(self, running: Running, living: Coroutine[Any, Any, None]) -> bool:
        """Whether the gateway killed itself while it was *living*."""
        life, death = asyncio.create_task(living), asyncio.create_task(running.gone())
        try:
            await asyncio.wait((life, death), return_when=asyncio.FIRST_COMPLETED)
            if life.done() and life.exception() is not None:
                await asyncio.wait((death,), timeout=NOTICED)
            if not death.done() or running.control.doomed or not running.control.steps:
                await life
                return False
        finally:
            for task in (life, death):
                task.cancel()
            await asyncio.gather(life, death, return_exceptions=True)
        await self._nursery.ended()
        return True

    async def _agrees(self, number: int) -> None:
        """The index is what the log says, now that the gateway is down and nothing of it was damaged."""
        if self._plan.keep_bytes is not None and self._sure and not self._damaged:
            differences = await asyncio.to_thread(index_is_the_log, self._data, self._place / f"copies{number}")
            for difference in differences:
                self._ledger.complain(difference)

    async def _settled(self, running: Running, harm: disk.Harm) -> None:
        """It has started: it is ready, has everything, and has said what was damaged."""
        async with Http(running.http) as http:
            if not await checks.ready(http, CATCH_UP):
                self._ledger.complain("it has started, and is not ready")
        if not self._ledger.said:
            return
        await self._ask(running)
        async with Http(running.http) as http:
            if harm.tokens and not harm.unread and not (await checks.reported(http))["record"]:
                self._ledger.complain(f"unreported: {len(harm.tokens)} damaged messages")

    async def _talk(self, running: Running, number: int, life: Life) -> None:
        chance = self._plan.chance(f"talk {number}")
        crowd = Crowd(lambda: running, self._ledger, chance, str(number), sure=self._sure)
        trouble = Trouble(running, self._ledger, self._plan.chance(f"trouble {number}"), str(number))
        crowd.communities.update(self._communities)
        last = number == len(self._plan.lives) - 1
        async with crowd.talking():
            self._communities = crowd.communities
            async with trouble.weather(life.weather):
                await asyncio.sleep(LULL)
                for blow in life.blows:
                    crowd.stir()
                    await trouble.strike(blow)
                    await asyncio.sleep(LULL)
            if last:
                crowd.over = True
                await self._shown(running)
        if last:
            await self._ask(running)

    async def _ask(self, running: Running) -> None:
        await checks.Asking(running, self._ledger, self._communities, sure=self._sure).everything()

    async def _shown(self, running: Running) -> None:
        """Event streams that went on through all lives were shown everything, up to what is said last."""
        await asyncio.sleep(0.05)
        async with Http(running.http) as http:
            for channel in CHANNELS:
                token = f"calm.{channel}"
                if await checks.say(http, self._ledger, token, channel) == 201:
                    self._last[channel] = self._ledger.said[token].seq or 0
                end = time.monotonic() + CATCH_UP
                while missing := await self._missing(http, channel):
                    if time.monotonic() > end:
                        self._ledger.complain(f"an event stream of {channel} was never shown {missing[:9]}")
                        break
                    await asyncio.sleep(0.05)
        if self._ledger.keeping and self._sure and not self._damaged:
            self._skipped()

    def _skipped(self) -> None:
        """Complain of what no event stream was shown, and no gap told of."""
        self._witness.placed()
        for (channel, seq), late in self._witness.records.items():
            told = (channel, seq) in self._ledger.seen or seq >= self._last.get(channel, 0)
            gaps = self._ledger.gaps.get(channel, ())
            if not (late or told or any(after < seq < before for after, before in gaps)):
                self._ledger.complain(f"no event stream was shown {seq} of {channel}, nor told of a gap: {gaps}")

    async def _missing(self, http: Http, channel: str) -> list[int]:
        found, _ = await checks.served(http, channel)
        return [each.seq for each in found if not each.late and (channel, each.seq) not in self._ledger.seen]

    async def _end(self, running: Running, number: int, life: Life) -> None:
        if life.end != "stop":
            running.kill()
            await self._nursery.ended()
            return
        running.stop()
        try:
            code = await self._nursery.ended(STOP_SECONDS)
        except TimeoutError:
            self._ledger.complain(f"it did not stop within {STOP_SECONDS:.0f} s")
            raise
        if code and not (life.doom and code == -signal.SIGKILL):  # it may kill itself while it stops, too
            self._ledger.complain(f"it stopped with {code}")
        if number == len(self._plan.lives) - 1:
            checks.log_is_good(self._ledger, self._data / "log", self._damaged)

    def _complain_of_the_end(self, running: Running) -> None:
        if "Traceback" in running.said:
            self._ledger.complain(f"a traceback: {running.said[running.said.index('Traceback') :][:2000]}")


async def play(seed: int, nursery: Nursery, place: Path) -> Outcome:
    """Play the run of *seed* in a new directory below *place*; it goes if all was well."""
    directory = place / f"seed{seed}"
    directory.mkdir(parents=True)
    outcome = await Run(plan(seed), nursery, directory).play()
    if not outcome.wrong:
        shutil.rmtree(directory)
    return outcome


def summary(outcomes: list[Outcome], seconds: float) -> str:
    """All runs, which took so many *seconds* together, in a few lines."""
    wrong = [text for outcome in outcomes for text in outcome.wrong]
    faults = Counter(name for outcome in outcomes for name in outcome.plan.faults)
    counts = Counter(
        next((word for word in ("lost", "order", "unreported") if word in text), "other") for text in wrong
    )
    lines = [
        f"{len(outcomes)} runs from seed {outcomes[0].plan.seed}, {sum(bool(o.wrong) for o in outcomes)} with faults "
        f"of the gateway, {seconds:.0f} s",
        f"accepted {sum(o.accepted for o in outcomes):,}, delivered {sum(o.heard for o in outcomes):,}, "
        f"damaged by us {sum(o.excused for o in outcomes):,}",
        f"lost {counts['lost']}, reordered {counts['order']}, unreported {counts['unreported']}, "
        f"other {counts['other']}",
        "injected: " + ", ".join(f"{name} {count}" for name, count in sorted(faults.items())),
    ]
    return "\n".join(lines)


def main() -> None:
    """Play the runs that the command line asks for; the exit code is 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.harness", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=1, help="how many runs, with seeds that follow each other")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at once; half of one is waiting")
    parser.add_argument("--keep", type=Path, help="where the files of a run that went wrong stay")
    options = parser.parse_args()
    place = options.keep or Path(tempfile.mkdtemp(prefix="trellis-faults-"))
    begun = time.monotonic()
    seeds = deque(range(options.seed, options.seed + options.runs))
    try:
        outcomes = asyncio.run(_all(seeds, options.jobs, place))
    except NoCompiler as error:
        sys.exit(str(error))
    _say(summary(outcomes, time.monotonic() - begun))
    if any(outcome.wrong for outcome in outcomes):
        _say(f"the files are in {place}")
        sys.exit(1)


async def _all(seeds: deque[int], jobs: int, place: Path) -> list[Outcome]:
    """Play the runs of *seeds*, so many at once."""
    outcomes: list[Outcome] = []

    async def some() -> None:
        with Nursery() as nursery:
            while seeds:
                outcomes.append(outcome := await play(seeds.popleft(), nursery, place))
                _say(str(outcome), *(f"    {text}" for text in outcome.wrong))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(jobs):
            tasks.create_task(some())
    return sorted(outcomes, key=lambda outcome: outcome.plan.seed)


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
