"""Plays runs of a cluster and reports their outcomes."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gateway.commands.cluster_demo import differences, log_of
from tests.faults.harness import checks
from tests.faults.harness.connections import ConnectionClosed, HttpConnection, RequestRefused
from tests.faults.harness.fork_server import DidNotStart, ForkServer, GatewayProcess
from tests.faults.harness.ledger import Ledger
from tests.faults.harness.load import CHANNELS
from tests.faults.harness.shim import NoCompiler

from .fault_injector import POLL, RECOVERY, ClusterFaultInjector
from .machines import ClusterGateway, Servers
from .plan import GATEWAYS, NEWCOMER, ClusterPlan, plan
from .roaming_clients import RoamingClients

CATCH_UP = 45.0  # seconds for listeners to receive what was accepted
STAY, QUICK_STAY = (1.0, 6.0), (0.5, 3.0)  # seconds that a client stays at a gateway
LOST = "another gateway claimed the turn"  # the message of a gateway that has to start again


@dataclass
class ClusterOutcome:
    """What came of a run; `violations` are the promises that were broken."""

    plan: ClusterPlan
    accepted: int = 0
    delivered: int = 0
    restarts: int = 0  # of gateways that had lost their turn
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        state = "ok" if not self.violations else f"WRONG ({len(self.violations)})"
        faults = ", ".join(self.plan.faults)
        return (
            f"seed {self.plan.seed}: {state}, {self.accepted} accepted, {self.delivered} delivered, "
            f"{self.restarts} lost their turn, {self.seconds:.1f} s: {faults}"
        )


class ClusterRun:
    """One run of *plan*, in the directory *place*."""

    def __init__(self, plan: ClusterPlan, fork_server: ForkServer, place: Path, *, quick: bool) -> None:
        self._plan = plan
        self._fork_server = fork_server
        self._place = place
        self._ledger = Ledger()
        self._servers = Servers(place)
        self._members: dict[str, ClusterGateway] = {}
        self._chance = plan.chance("clients")
        self._over = False
        self._clients = RoamingClients(self._some, self._ledger, self._chance, QUICK_STAY if quick else STAY)
        self._injector = ClusterFaultInjector(self._servers, self._members, self._ledger)

    def _some(self) -> GatewayProcess:
        """A gateway that runs."""
        found = [member.running for member in self._members.values() if member.running is not None]
        if not found:
            raise ConnectionClosed("no gateway runs")
        return self._chance.choice(found)

    async def play(self) -> ClusterOutcome:
        """Play all rounds; what came of it."""
        begun = time.monotonic()
        try:
            await self._start()
            await self._rounds()
            await self._end()
        except (DidNotStart, RequestRefused, OSError, TimeoutError) as error:
            where = " > ".join(frame.name for frame in traceback.extract_tb(error.__traceback__))
            self._ledger.add_violation(f"{type(error).__name__}: {error} ({where})")
        finally:
            for member in self._members.values():
                await member.kill()
            await self._servers.stop()
        ledger, ends = self._ledger, [end for member in self._members.values() for end in member.ends]
        for end in ends:
            if LOST not in end:
                ledger.add_violation(end)
        accepted = sum(sent.accepted for sent in ledger.messages.values())
        return ClusterOutcome(
            self._plan, accepted, ledger.deliveries, len(ends), time.monotonic() - begun, ledger.violations
        )

    async def _start(self) -> None:
        await self._servers.start()
        for name, loop in zip((*GATEWAYS, NEWCOMER), self._plan.loops, strict=True):
            settings = {
                "TRELLIS_LIMITS__RATES": "off",
                "TRELLIS_LOOP": loop,
                "TRELLIS_AUTH__GRANTS": '{"anonymous": ["*:*", "admin:*"]}',
                "TRELLIS_LOG__SEGMENT_BYTES": str(self._plan.segment_bytes),
            }
            self._members[name] = ClusterGateway(
                self._place, name, await self._servers.ways_for(), settings, self._fork_server
            )
        self._injector.expected_down.add(NEWCOMER)
        first, *others = (self._members[name] for name in GATEWAYS)
        await first.start()
        for member in others:
            member.copy_keys(first)
        await asyncio.gather(*(member.start() for member in others))

    async def _rounds(self) -> None:
        """Play all rounds under load; then wait until every listener has received everything."""
        async with self._clients.traffic(), AsyncExitStack() as stack:
            keeper = asyncio.create_task(self._keep())
            stack.push_async_callback(_ended, keeper)
            for number, each in enumerate(self._plan.rounds):
                self._clients.resume()
                await asyncio.gather(*(self._injector.inject(fault) for fault in each.faults))
                await self._all_run()
                when = f"after round {number} ({', '.join(fault.kind for fault in each.faults)})"
                running = [member for member in self._members.values() if member.running is not None]
                await asyncio.gather(*(self._injector.accepts(member, RECOVERY, when) for member in running))
                await asyncio.sleep(each.quiet_seconds)
                if keeper.done():
                    keeper.result()
            self._clients.over = True
            await self._all_heard()

    async def _keep(self) -> None:
        """Start gateways again that ended by themselves, as systemd does, or that a fault is done with."""
        while True:
            for member in self._members.values():
                await member.has_ended()
                if member.running is None and member.name not in self._injector.expected_down:
                    with suppress(DidNotStart):
                        await member.start()
            await asyncio.sleep(POLL)

    async def _all_run(self) -> None:
        """Wait until all gateways run that should."""
        end = time.monotonic() + 2 * RECOVERY
        wanted = [member for member in self._members.values() if member.name not in self._injector.expected_down]
        while down := [member for member in wanted if member.running is None]:
            if time.monotonic() > end:
                raise DidNotStart("; ".join(f"{member.name}: {member.start_error[-600:]}" for member in down))
            await asyncio.sleep(POLL)

    async def _all_heard(self) -> None:
        """Every listener receives every accepted message, up to one published last, at whichever gateway it is."""
        async with asyncio.timeout(RECOVERY):
            for channel in CHANNELS:
                await self._publish_last(channel)
        end = time.monotonic() + CATCH_UP
        while missing := self._unheard():
            if time.monotonic() > end:
                for listener, tokens in missing.items():
                    self._ledger.add_violation(f"{listener} was never shown {len(tokens)}: {sorted(tokens)[:9]}")
                return
            await asyncio.sleep(POLL)

    async def _publish_last(self, channel: str) -> None:
        """Publish at a gateway that answers: one that runs may be about to end, because it has lost its turn."""
        for attempt in itertools.count():
            with suppress(ConnectionClosed):
                async with HttpConnection(self._some().http) as http:
                    if await checks.publish(http, self._ledger, f"last.{channel}.{attempt}", channel) == 201:
                        return
            await asyncio.sleep(POLL)

    def _unheard(self) -> dict[str, set[str]]:
        """The accepted messages that each listener lacks; REST shows the encrypted ones, Arbor's `list` all nodes."""
        found = {}
        for listener in (
            "streamr",
            "sprout",
            *(f"{who} of {where}" for who in ("events", "page") for where in CHANNELS),
        ):
            channels = [channel for channel in CHANNELS if listener.endswith(f" of {channel}")] or CHANNELS
            wanted = {sent.token for sent in self._ledger.accepted if sent.channel in channels}
            if lacking := wanted - self._clients.heard_by.get(listener, {}).keys():
                found[listener] = lacking
        return found

    async def _end(self) -> None:
        """Every gateway has everything, by every protocol, and the same log."""
        first, *others = [member.running for member in self._members.values() if member.running is not None]
        await checks.GatewayChecks(first, self._ledger, self._clients.communities, sure=True).check_all()
        for running in others:
            async with HttpConnection(running.http) as http:
                for channel in CHANNELS:
                    checks.check_history(self._ledger, channel, *await checks.served(http, channel))
        await self._relay_heard()
        for member in self._members.values():
            if (code := await member.stop()) != 0:
                self._ledger.add_violation(f"gateway {member.name} stopped with exit code {code}")
        begun = [member for member in self._members.values() if (member.data / "log").is_dir()]  # also the newcomer
        logs = {member.name: log_of(member.data) for member in begun}
        for difference in differences(logs):
            self._ledger.add_violation(difference)
        checks.check_log(self._ledger, self._members[GATEWAYS[0]].data / "log", set())

    async def _relay_heard(self) -> None:
        """Each connection of the topic relay received a part of the channel without a gap, in its order.

        At the end may be what a gateway delivered that did not get it into the stream, and ended. It is not in the
        log, or somewhere else, because its sender published it again.
        """
        async with HttpConnection(self._some().http) as http:
            for channel in CHANNELS:
                order = [each.token for each in (await checks.served(http, channel))[0] if not each.late]
                place = {token: number for number, token in enumerate(order)}
                for heard in filter(None, (each[channel] for each in self._clients.relay_heard)):
                    places = [place.get(token, -1) for token in heard]
                    known = next((i for i, at in enumerate(places) if at != places[0] + i or at < 0), len(places))
                    for token, at in zip(heard[known:], places[known:], strict=True):
                        if at >= 0 and token not in self._ledger.resent:
                            self._ledger.add_violation(f"a connection of the topic relay heard {places} of {channel}")


async def play(seed: int, rounds: int, fork_server: ForkServer, place: Path, *, quick: bool = False) -> ClusterOutcome:
    """Play the run of *seed* in a new directory below *place*; it goes if all was well."""
    directory = place / f"seed{seed}"
    directory.mkdir(parents=True)
    outcome = await ClusterRun(plan(seed, rounds, quick=quick), fork_server, directory, quick=quick).play()
    if not outcome.violations:
        shutil.rmtree(directory)
    return outcome


async def _ended(task: asyncio.Task[None]) -> None:
    """End *task*, and let whatever it came to be."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def summary(outcomes: list[ClusterOutcome], seconds: float) -> str:
    """All runs, which took so many *seconds* together, in a few lines."""
    faults = Counter(kind for outcome in outcomes for kind in outcome.plan.faults)
    rounds = sum(len(outcome.plan.rounds) for outcome in outcomes)
    return "\n".join(
        [
            f"{len(outcomes)} runs of {rounds} rounds from seed {outcomes[0].plan.seed}, "
            f"{sum(bool(outcome.violations) for outcome in outcomes)} with faults of the cluster, {seconds:.0f} s",
            f"accepted {sum(outcome.accepted for outcome in outcomes):,}, delivered "
            f"{sum(outcome.delivered for outcome in outcomes):,}, "
            f"{sum(outcome.restarts for outcome in outcomes)} gateways lost their turn and started again",
            "injected: " + ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())),
        ]
    )


def main() -> None:
    """Play the runs that the command line asks for; the exit code is 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=1, help="how many runs, with seeds that follow each other")
    parser.add_argument("--rounds", type=int, default=10, help="of each run")
    parser.add_argument(
        "--quick", action="store_true", help="a fixed set of faults that last no longer than they have to"
    )
    parser.add_argument("--keep", type=Path, help="where the files of a run that went wrong stay")
    options = parser.parse_args()
    place = options.keep or Path(tempfile.mkdtemp(prefix="trellis-cluster-"))
    begun = time.monotonic()
    try:
        with ForkServer() as fork_server:
            outcomes = []
            for seed in range(options.seed, options.seed + options.runs):
                outcome = asyncio.run(play(seed, options.rounds, fork_server, place, quick=options.quick))
                outcomes.append(outcome)
                _say(str(outcome), *(f"    {text}" for text in outcome.violations))
    except NoCompiler as error:
        sys.exit(str(error))
    _say(summary(outcomes, time.monotonic() - begun))
    if any(outcome.violations for outcome in outcomes):
        _say(f"the files are in {place}")
        sys.exit(1)


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
