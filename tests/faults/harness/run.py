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
from .connections import HttpConnection, RequestRefused
from .fault_injector import FaultInjector
from .fork_server import STOP_SECONDS, DidNotStart, ForkServer, GatewayProcess
from .ledger import Ledger
from .load import CHANNELS, LoadClients
from .plan import Life, RunPlan, plan
from .retired import RetentionAudit, index_differences
from .shim import Control, NoCompiler

CATCH_UP = 10.0  # seconds for listeners to be shown what was accepted
NOTICED = 5.0  # seconds until a gateway is known to have killed itself, on a machine that is busy
QUIET_SECONDS = 0.08  # seconds of traffic before, between and after faults


@dataclass
class RunOutcome:
    """What came of a run; `violations` are the promises that were broken."""

    plan: RunPlan
    accepted: int = 0
    delivered: int = 0
    damaged: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        state = "ok" if not self.violations else f"WRONG ({len(self.violations)})"
        faults = ", ".join(self.plan.fault_names)
        return (
            f"seed {self.plan.seed}: {state}, {self.accepted} accepted, {self.delivered} delivered, "
            f"{self.damaged} damaged, {self.seconds:.1f} s: {faults}"
        )


class FaultRun:
    """One run of *plan*, in the directory *place*."""

    def __init__(self, plan: RunPlan, fork_server: ForkServer, place: Path) -> None:
        self._plan = plan
        self._fork_server = fork_server
        self._place = place
        self._data = place / "data"
        self._audit = RetentionAudit(self._data)
        self._ledger = Ledger(retention_runs=plan.keep_bytes is not None, locate=self._audit.positions)
        self._damaged: set[int] = set()
        self._sure = True
        self._communities: dict[str, str] = {}
        self._last: dict[str, int] = {}  # the last message's sequence, by channel

    async def play(self) -> RunOutcome:
        """Play all lives; the outcome."""
        begun = time.monotonic()
        damage = disk.Damage()
        try:
            for number, life in enumerate(self._plan.lives):
                damage = await self._live(number, life, damage)
        except (DidNotStart, RequestRefused, OSError, TimeoutError) as error:
            where = " > ".join(frame.name for frame in traceback.extract_tb(error.__traceback__))
            self._ledger.add_violation(f"{type(error).__name__}: {error} ({where})")
        ledger = self._ledger
        accepted = sum(sent.accepted for sent in ledger.messages.values())
        seconds = time.monotonic() - begun
        return RunOutcome(self._plan, accepted, ledger.deliveries, len(ledger.damaged), seconds, ledger.violations)

    async def _live(self, number: int, life: Life, damage: disk.Damage) -> disk.Damage:
        control = Control(self._place / f"control{number}")
        self._audit.forget()
        running = await self._start(number, control)
        control.kill_after(life.kill_step)
        try:
            if not await self._dies(running, self._lives(running, number, life, damage)):
                await self._end(running, number, life)
        except BaseException:
            await running.where()
            running.kill()
            await self._fork_server.ended()
            raise
        self._check_output(running)
        chance = self._plan.chance(f"damage {number}")
        if life.end == "power cut":
            self._damaged |= disk.cut_power(control, self._data / "log", chance)
        if life.damage == "nothing":
            if life.kill_step or number == len(self._plan.lives) - 1:
                await self._check_index(number)
            return disk.Damage()
        damage = disk.damage(life.damage, self._data, chance)
        self._ledger.mark_damaged(damage.tokens, damage.last)
        self._damaged |= damage.seqs
        self._sure = self._sure and not damage.roots
        return damage

    async def _start(self, number: int, control: Control) -> GatewayProcess:
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
        return await self._fork_server.start(self._data, place, settings, control, retain_often=keep is not None)

    async def _lives(self, running: GatewayProcess, number: int, life: Life, damage: disk.Damage) -> None:
        await self._check_start(running, damage)
        await self._talk(running, number, life)

    async def _dies(self, running: GatewayProcess, living: Coroutine[Any, Any, None]) -> bool:
        """Whether the gateway killed itself while it was *living*."""
        life, death = asyncio.create_task(living), asyncio.create_task(running.gone())
        try:
            await asyncio.wait((life, death), return_when=asyncio.FIRST_COMPLETED)
            if life.done() and life.exception() is not None:
                await asyncio.wait((death,), timeout=NOTICED)
            if not death.done() or running.control.kill_pending or not running.control.steps:
                await life
                return False
        finally:
            for task in (life, death):
                task.cancel()
            await asyncio.gather(life, death, return_exceptions=True)
        await self._fork_server.ended()
        return True

    async def _check_index(self, number: int) -> None:
        """The index agrees with the log, now that the gateway is down and nothing of it was damaged."""
        if self._plan.keep_bytes is not None and self._sure and not self._damaged:
            differences = await asyncio.to_thread(index_differences, self._data, self._place / f"copies{number}")
            for difference in differences:
                self._ledger.add_violation(difference)

    async def _check_start(self, running: GatewayProcess, damage: disk.Damage) -> None:
        """It has started: it is ready, has everything, and has reported what was damaged."""
        async with HttpConnection(running.http) as http:
            if not await checks.ready(http, CATCH_UP):
                self._ledger.add_violation("it has started, and is not ready")
        if not self._ledger.messages:
            return
        await self._ask(running)
        async with HttpConnection(running.http) as http:
            if damage.tokens and not damage.unread and not (await checks.reported(http))["record"]:
                self._ledger.add_violation(f"unreported: {len(damage.tokens)} damaged messages")

    async def _talk(self, running: GatewayProcess, number: int, life: Life) -> None:
        chance = self._plan.chance(f"talk {number}")
        clients = LoadClients(lambda: running, self._ledger, chance, str(number), sure=self._sure)
        injector = FaultInjector(running, self._ledger, self._plan.chance(f"trouble {number}"), str(number))
        clients.communities.update(self._communities)
        last = number == len(self._plan.lives) - 1
        async with clients.traffic():
            self._communities = clients.communities
            async with injector.conditions(life.conditions):
                await asyncio.sleep(QUIET_SECONDS)
                for fault in life.faults:
                    clients.resume()
                    await injector.inject(fault)
                    await asyncio.sleep(QUIET_SECONDS)
            if last:
                clients.over = True
                await self._check_event_streams(running)
        if last:
            await self._ask(running)

    async def _ask(self, running: GatewayProcess) -> None:
        await checks.GatewayChecks(running, self._ledger, self._communities, sure=self._sure).check_all()

    async def _check_event_streams(self, running: GatewayProcess) -> None:
        """Event streams that went on through all lives were shown everything, up to a message published last."""
        await asyncio.sleep(0.05)
        async with HttpConnection(running.http) as http:
            for channel in CHANNELS:
                token = f"calm.{channel}"
                if await checks.publish(http, self._ledger, token, channel) == 201:
                    self._last[channel] = self._ledger.messages[token].seq or 0
                end = time.monotonic() + CATCH_UP
                while missing := await self._missing(http, channel):
                    if time.monotonic() > end:
                        self._ledger.add_violation(f"an event stream of {channel} was never shown {missing[:9]}")
                        break
                    await asyncio.sleep(0.05)
        if self._ledger.retention_runs and self._sure and not self._damaged:
            self._check_gaps()

    def _check_gaps(self) -> None:
        """Every sequence was shown by an event stream, or covered by a gap that it reported."""
        self._audit.positions()
        for (channel, seq), late in self._audit.records.items():
            told = (channel, seq) in self._ledger.seen or seq >= self._last.get(channel, 0)
            gaps = self._ledger.gaps.get(channel, ())
            if not (late or told or any(after < seq < before for after, before in gaps)):
                self._ledger.add_violation(f"no event stream was shown {seq} of {channel}, nor told of a gap: {gaps}")

    async def _missing(self, http: HttpConnection, channel: str) -> list[int]:
        found, _ = await checks.served(http, channel)
        return [each.seq for each in found if not each.late and (channel, each.seq) not in self._ledger.seen]

    async def _end(self, running: GatewayProcess, number: int, life: Life) -> None:
        if life.end != "stop":
            running.kill()
            await self._fork_server.ended()
            return
        running.stop()
        try:
            code = await self._fork_server.ended(STOP_SECONDS)
        except TimeoutError:
            self._ledger.add_violation(f"it did not stop within {STOP_SECONDS:.0f} s")
            raise
        if code and not (life.kill_step and code == -signal.SIGKILL):  # it may kill itself while it stops, too
            self._ledger.add_violation(f"it stopped with {code}")
        if number == len(self._plan.lives) - 1:
            checks.check_log(self._ledger, self._data / "log", self._damaged)

    def _check_output(self, running: GatewayProcess) -> None:
        if "Traceback" in running.output:
            self._ledger.add_violation(f"a traceback: {running.output[running.output.index('Traceback') :][:2000]}")


async def play(seed: int, fork_server: ForkServer, place: Path) -> RunOutcome:
    """Play the run of *seed* in a new directory below *place*; it goes if all was well."""
    directory = place / f"seed{seed}"
    directory.mkdir(parents=True)
    outcome = await FaultRun(plan(seed), fork_server, directory).play()
    if not outcome.violations:
        shutil.rmtree(directory)
    return outcome


def summary(outcomes: list[RunOutcome], seconds: float) -> str:
    """All runs, which took so many *seconds* together, in a few lines."""
    wrong = [text for outcome in outcomes for text in outcome.violations]
    faults = Counter(name for outcome in outcomes for name in outcome.plan.fault_names)
    counts = Counter(
        next((word for word in ("lost", "order", "unreported") if word in text), "other") for text in wrong
    )
    lines = [
        f"{len(outcomes)} runs from seed {outcomes[0].plan.seed}, {sum(bool(o.violations) for o in outcomes)} with "
        f"faults of the gateway, {seconds:.0f} s",
        f"accepted {sum(o.accepted for o in outcomes):,}, delivered {sum(o.delivered for o in outcomes):,}, "
        f"damaged by the harness {sum(o.damaged for o in outcomes):,}",
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
    if any(outcome.violations for outcome in outcomes):
        _say(f"the files are in {place}")
        sys.exit(1)


async def _all(seeds: deque[int], jobs: int, place: Path) -> list[RunOutcome]:
    """Play the runs of *seeds*, so many at once."""
    outcomes: list[RunOutcome] = []

    async def some() -> None:
        with ForkServer() as fork_server:
            while seeds:
                outcomes.append(outcome := await play(seeds.popleft(), fork_server, place))
                _say(str(outcome), *(f"    {text}" for text in outcome.violations))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(jobs):
            tasks.create_task(some())
    return sorted(outcomes, key=lambda outcome: outcome.plan.seed)


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
