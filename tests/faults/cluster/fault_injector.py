"""The faults of a round: what is done to servers and gateways, and what the cluster has to do meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from gateway.commands.cluster_remove import remove_from
from gateway.commands.common import CommandError
from gateway.settings.settings import ClusterSettings
from tests.faults.harness.checks import publish
from tests.faults.harness.connections import HttpConnection
from tests.faults.harness.ledger import Ledger
from tests.faults.harness.shim import Call, Kind

from .machines import ClusterGateway, Servers
from .plan import GATEWAYS, NEWCOMER, SERVERS, ClusterFault
from .proxy import FaultProxy

NOTICED = 20.0  # seconds until a full disk is noticed, and others accept, on a machine that is busy
RECOVERY = 45.0  # seconds after which every gateway accepts again; NATS servers elect a leader in four to nine
POLL = 0.05


class ClusterFaultInjector:
    """Injects faults into the *members* and *servers* of a cluster, and records broken promises in the *ledger*."""

    def __init__(self, servers: Servers, members: dict[str, ClusterGateway], ledger: Ledger) -> None:
        self._servers = servers
        self._members = members
        self._ledger = ledger
        self._probes = 0
        self.expected_down: set[str] = set()  # gateways that a fault keeps down

    async def inject(self, fault: ClusterFault) -> None:
        """Inject *fault*, and end it."""
        await asyncio.sleep(fault.delay)
        kind, _, what = fault.kind.partition(" ")
        deeds: dict[str, Callable[[ClusterFault], Awaitable[None]]] = {
            "full disk": self._full_disk,
            "clock": self._clock,
            "no quorum": self._no_quorum,
            "newcomer": self._newcomer,
        }
        if fault.kind in deeds:
            await deeds[fault.kind](fault)
        elif what in ("gateway", "holder"):
            name = await self._holder() if what == "holder" else fault.victim
            await self._disturb_gateway(kind, name, fault.seconds)
        else:
            name = await self._servers.leader() if what == "leader" else fault.victim
            await self._disturb_server(kind, name, fault.seconds)

    async def _disturb_gateway(self, kind: str, name: str, seconds: float) -> None:
        member = self._members[name]
        if kind in ("kill", "stop"):
            self.expected_down.add(name)
            if kind == "kill":
                await member.kill()
            elif code := await member.stop():
                self._ledger.add_violation(f"gateway {name} stopped with exit code {code}")
            await asyncio.sleep(seconds)
            self.expected_down.discard(name)
        elif kind == "pause":
            await self._paused([member.running] if member.running else [], seconds)
        else:
            await _apart([*member.ways.values()], kind, seconds)

    async def _disturb_server(self, kind: str, name: str, seconds: float) -> None:
        server = self._servers.servers[name]
        if kind == "kill":
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(server.start)
        elif kind == "pause":
            await self._paused([server.process], seconds)
        else:
            ways = self._servers.ways_of(name, gateways=kind == "lose")
            await _apart(ways, "cut" if kind == "cut" else "hang", seconds)

    @staticmethod
    async def _paused(processes: list[Any], seconds: float) -> None:
        for process in processes:
            _signal(process, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        for process in processes:
            _signal(process, signal.SIGCONT)

    async def _no_quorum(self, fault: ClusterFault) -> None:
        names = [name for name in SERVERS if name != fault.victim][:2]
        await self._paused([self._servers.servers[name].process for name in names], fault.seconds)

    async def _holder(self) -> str:
        """The gateway whose turn it is, as one of them reports; the first one if none does."""
        for member in self._members.values():
            if member.running is not None:
                with suppress(OSError):
                    async with asyncio.timeout(1), HttpConnection(member.running.http) as http:
                        stats: Any = await http.json("/v1/stats")
                        if stats["cluster"]["turn"] in GATEWAYS:
                            return str(stats["cluster"]["turn"])
        return GATEWAYS[0]

    # What takes one gateway out of service, and not the others

    async def _full_disk(self, fault: ClusterFault) -> None:
        victim = self._members[fault.victim]
        if victim.running is None:
            return
        victim.running.control.fail(Kind.LOG, Call.WRITE, fault.error)
        try:
            await asyncio.sleep(fault.seconds)
            await self._check_refusal(victim)
            for member in self._members.values():
                if member is not victim and member.running is not None:
                    await self.accepts(member, NOTICED, f"while the disk of {victim.name} is full")
        finally:
            if victim.running is not None:
                victim.running.control.heal()

    async def _check_refusal(self, victim: ClusterGateway) -> None:
        """It is not ready, and accepts nothing, while its log cannot be written."""
        end = time.monotonic() + NOTICED
        while victim.running is not None and time.monotonic() < end:
            with suppress(OSError):
                async with HttpConnection(victim.running.http) as http:
                    if (await http.ask("GET", "/readyz"))[0] == 503 and await self._probe(http) == 503:
                        return
            await asyncio.sleep(POLL)
        if victim.running is not None:
            self._ledger.add_violation(f"the disk of {victim.name} is full, and it is ready or accepts")

    async def _clock(self, fault: ClusterFault) -> None:
        victim = self._members[fault.victim]
        if (running := victim.running) is None:
            return
        running.control.clock(fault.amount)
        await asyncio.sleep(fault.seconds)
        await self.accepts(victim, RECOVERY, f"while its clock is {fault.amount:.0f} s ahead")
        running.control.clock(0)

    # A gateway more, and one less

    async def _newcomer(self, _fault: ClusterFault) -> None:
        newcomer, first = self._members[NEWCOMER], self._members[GATEWAYS[0]]
        if NEWCOMER in self.expected_down:
            shutil.rmtree(newcomer.data, ignore_errors=True)  # it may have been removed, under the same name
            newcomer.data.mkdir()
            newcomer.copy_keys(first)
            self.expected_down.discard(NEWCOMER)  # so it is started
            return
        self.expected_down.add(NEWCOMER)  # before it is killed, which waits for a start that is under way
        await newcomer.kill()
        urls = tuple(server.url for server in self._servers.servers.values())
        async with asyncio.timeout(RECOVERY):
            while True:
                with suppress(CommandError):  # another fault keeps the servers from answering
                    await remove_from(ClusterSettings(url=urls), NEWCOMER)
                    return

    # Checks

    async def accepts(self, member: ClusterGateway, seconds: float, when: str) -> None:
        """Record a violation if the gateway does not accept a message within so many *seconds*, as long as it runs."""
        end = time.monotonic() + seconds
        status = 0
        while member.running is not None and time.monotonic() < end:
            with suppress(OSError):
                async with HttpConnection(member.running.http) as http:
                    if (status := await self._probe(http)) == 201:
                        return
            await asyncio.sleep(POLL)
        if member.running is not None:
            self._ledger.add_violation(f"gateway {member.name} accepts nothing {when}: {status}")

    async def _probe(self, http: HttpConnection) -> int:
        self._probes += 1
        return await publish(http, self._ledger, f"probe.{self._probes}")


async def _apart(ways: list[FaultProxy], kind: str, seconds: float) -> None:
    for way in ways:
        way.cut() if kind == "cut" else way.hang()
    await asyncio.sleep(seconds)
    for way in ways:
        way.heal()


def _signal(process: Any, number: signal.Signals) -> None:
    """Send a signal to a gateway, or to a server."""
    send = getattr(process, "send_signal", None) or process.signal
    send(number)
