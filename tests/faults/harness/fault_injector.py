"""The faults of a life: what is done to a running gateway, and what it has to do meanwhile and afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .checks import HistoryMessage, check_history, first_message, publish, ready, reported, served
from .connections import ConnectionClosed, HttpConnection, RequestRefused, Socket, abort, until_disconnected
from .fork_server import GatewayProcess
from .ledger import Ledger, SentMessage
from .load import CHANNELS
from .plan import GatewayFault
from .shim import Call, Kind

RECOVERY = 10.0  # seconds after which messages are taken again; `log.RETRY` is 1
HALVES = (b"", b"POST /v1/chan", b"GET /relay HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n")
READ_CHECKS = 3  # at what retention has left
REMOVING = 0.05  # seconds from when messages leave the index until their file goes
HALF_OPEN = 12  # connections that send half a request
FLOOD, FLOOD_SIZE = 100, 60_000  # messages that a slow reader does not read, and characters of each
SYNCS = (0.005, 0.03)  # seconds that a slow disk takes longer

# What the shim is told, by kind of fault: which files, which calls, and whether the log can take nothing meanwhile.
SYSTEM_CALLS: dict[str, tuple[Kind, tuple[Call, ...], bool]] = {
    "full disk": (Kind.LOG, (Call.WRITE,), True),
    "bad write": (Kind.LOG, (Call.WRITE,), True),
    "bad sync": (Kind.LOG, (Call.SYNC,), True),
    "short write": (Kind.LOG, (Call.WRITE,), False),
    "no file": (Kind.LOG, (Call.OPEN,), False),
    "no rename": (Kind.LOG, (Call.RENAME,), False),
    "bad read": (Kind.LOG, (Call.READ,), False),
    "no unlink": (Kind.LOG, (Call.UNLINK,), False),
    "full index": (Kind.INDEX, (Call.WRITE,), False),
}
REPORTED = {Kind.LOG: ("disk", "retention"), Kind.INDEX: ("index", "retention")}  # of which `/metrics` counts more


class HistoryRead(NamedTuple):
    """A history that was *found*, and the sequences that had been *accepted* before."""

    channel: str
    found: list[HistoryMessage]
    accepted: dict[str, int | None]

    def may_lack(self, sent: SentMessage) -> bool:
        """Whether it was accepted only since then, or once more."""
        return sent.token not in self.accepted or self.accepted[sent.token] != sent.seq


class FaultInjector:
    """Injects faults into one gateway, and records in the *ledger* which promises it breaks."""

    def __init__(self, running: GatewayProcess, ledger: Ledger, chance: random.Random, name: str) -> None:
        self._running = running
        self._control = running.control
        self._ledger = ledger
        self._chance = chance
        self._name = name
        self._probes = 0
        self._http = HttpConnection(running.http)
        self._reads: list[HistoryRead] = []

    async def inject(self, fault: GatewayFault) -> None:
        """Let *fault* happen, look at the gateway meanwhile, and see it go on afterwards."""
        async with self._http:
            await self._http.connect()
            if fault.kind in SYSTEM_CALLS:
                await self._fail(fault)
            else:
                await {"pause": self._pause, "clock": self._clock, "descriptors": self._descriptors}[fault.kind](fault)
            await self._check_recovery(fault)
            await self._check_reads()

    @asynccontextmanager
    async def conditions(self, kinds: tuple[str, ...]) -> AsyncIterator[None]:
        """Conditions that last for the whole life."""
        tasks = [asyncio.create_task(self._apply_condition(kind), name=kind) for kind in kinds if kind != "calm"]
        try:
            yield
            flooded = [task for task in tasks if task.get_name() == "slow reader"]
            if flooded and (await asyncio.wait(flooded, timeout=RECOVERY))[1]:
                self._ledger.add_violation("who reads waits for who does not")
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    # Faults

    async def _fail(self, fault: GatewayFault) -> None:
        kind, calls, refusing = SYSTEM_CALLS[fault.kind]
        halves = fault.kind == "short write"
        before = self._control.failures(kind, *calls)
        known = await reported(self._http)
        for call in calls:
            self._control.fail(kind, call, fault.error, halves=halves)
        end = time.monotonic() + fault.seconds
        if refusing:
            while self._control.failures(kind, *calls) == before and time.monotonic() < end:
                await asyncio.sleep(0.005)
            await self._check_refusal()
        elif fault.kind in ("no file", "bad read"):
            await self._read_histories()
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        self._control.heal()
        failed = self._control.failures(kind, *calls) - before
        if failed and fault.error and fault.kind not in ("bad read", "no file"):
            await self._check_report(fault.kind, REPORTED[kind], known)

    async def _check_refusal(self) -> None:
        """Nothing can be written: no message is accepted, and /readyz is 503 once that was noticed."""
        end = time.monotonic() + RECOVERY
        token = self._probe()
        asking = asyncio.create_task(self._ask(token))
        unready = False
        try:
            while time.monotonic() < end and not unready:
                with suppress(OSError):
                    unready = (await self._http.ask("GET", "/readyz"))[0] == 503
                await asyncio.sleep(0.02)
            if not unready:
                self._ledger.add_violation("the log cannot be written, and /readyz is 200")
            if asking.done() and asking.result() == 201:
                self._ledger.add_violation(f"{token} was accepted while the log could not be written")
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _read_histories(self) -> None:
        """Ask for the histories while the log cannot be read: an answer has everything, or is an error."""
        accepted = {sent.token: sent.seq for sent in self._ledger.accepted}
        for channel in CHANNELS:
            with suppress(OSError, RequestRefused):
                found, _ = await served(self._http, channel)
                self._reads.append(HistoryRead(channel, found, accepted))

    async def _check_reads(self) -> None:
        """What was answered then had everything that was accepted before, and that retention has left since.

        What the log tells of that can lag behind, as long as it takes to remove a file.
        """
        for _ in range(READ_CHECKS if self._ledger.retention_runs else 1):
            if not (wrong := await self._missing_from_reads()):
                break
        for complaint in wrong:
            self._ledger.add_violation(f"an answer was not complete: {complaint}")
        self._reads.clear()

    async def _missing_from_reads(self) -> list[str]:
        """What the answers lacked."""
        ledger = self._ledger
        held = Ledger(ledger.messages, ledger.nodes, ledger.chains, resent=ledger.resent, locate=ledger.locate)
        if self._reads and ledger.retention_runs:
            await asyncio.sleep(REMOVING)
            held.record_retention(*await first_message(self._http))
        for read in self._reads:
            held.damaged = {sent.token for sent in ledger.messages.values() if read.may_lack(sent)}
            # Retention may have taken a message that was sent again, which was then accepted once more after that read.
            held.damaged |= ledger.resent if ledger.retention_runs else set()
            check_history(held, read.channel, [each for each in read.found if each.seq >= held.first_retained])
        return held.violations

    async def _pause(self, fault: GatewayFault) -> None:
        self._running.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        self._running.signal(signal.SIGCONT)

    async def _clock(self, fault: GatewayFault) -> None:
        self._control.clock(fault.amount)
        await asyncio.sleep(fault.seconds)
        self._control.clock(0)

    async def _descriptors(self, fault: GatewayFault) -> None:
        """The process has as many descriptors as it may have."""
        before = resource.prlimit(self._running.pid, resource.RLIMIT_NOFILE)
        used = len(list(Path(f"/proc/{self._running.pid}/fd").iterdir()))
        resource.prlimit(self._running.pid, resource.RLIMIT_NOFILE, (used, before[1]))
        await self._read_histories()
        await asyncio.sleep(fault.seconds)
        resource.prlimit(self._running.pid, resource.RLIMIT_NOFILE, before)

    # Checks

    async def _check_recovery(self, fault: GatewayFault) -> None:
        """After *fault* messages are accepted again, and the gateway is ready."""
        end = time.monotonic() + RECOVERY
        status = 0
        while status != 201 and time.monotonic() < end:
            with suppress(OSError):
                status = await self._ask(self._probe())
            await asyncio.sleep(0.02)
        if status != 201:
            self._ledger.add_violation(f"after {fault.kind} no message is accepted any more: {status}")
            return
        with suppress(OSError):
            if not await ready(self._http, max(1.0, end - time.monotonic())):
                self._ledger.add_violation(f"after {fault.kind} /readyz stays 503")

    async def _check_report(self, kind: str, counted: tuple[str, ...], before: Counter[str]) -> None:
        """More faults are *counted* than there were *before*, of one kind or another."""
        end = time.monotonic() + RECOVERY
        while time.monotonic() < end:
            with suppress(OSError):
                now = await reported(self._http)
                if any(now[each] > before[each] for each in counted):
                    return
            await asyncio.sleep(0.02)
        self._ledger.add_violation(f"unreported: {kind}")

    def _probe(self) -> str:
        self._probes += 1
        return f"probe{self._name}.{self._probes}"

    async def _ask(self, token: str) -> int:
        async with HttpConnection(self._running.http) as http:
            return await publish(http, self._ledger, token)

    # Conditions

    async def _apply_condition(self, kind: str) -> None:
        work: dict[str, Callable[[], Awaitable[None]]] = {
            "slow disk": self._slow_disk,
            "slow reader": self._slow_reader,
            "half-open": self._half_open,
            "churn": self._churn,
        }
        await until_disconnected(work[kind]())

    async def _slow_disk(self) -> None:
        seconds = self._chance.uniform(*SYNCS)
        while True:  # `heal` ends it as well
            self._control.slow(Kind.LOG, Call.SYNC, seconds)
            await asyncio.sleep(0.05)

    async def _slow_reader(self) -> None:
        """One peer does not read while many messages are published; another, which reads, receives all of them."""
        async with (
            Socket(self._running.http, "/relay") as lazy,
            Socket(self._running.http, "/relay") as good,
            Socket(self._running.http, "/relay") as client,
        ):
            for peer in (lazy, good):
                await peer.send(json.dumps({"type": 2, "topic": "flood"}))
                await peer.answer(lambda frame: frame["type"] == 2)
            lazy.inner.transport.pause_reading()
            lazy.inner.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            heard: list[int] = []
            refused: list[int] = []
            async with asyncio.TaskGroup() as tasks:
                listening = [
                    tasks.create_task(self._flooded(peer, told)) for peer, told in ((good, heard), (client, refused))
                ]
                for number in range(FLOOD):
                    await client.send(json.dumps({"type": 6, "topic": "flood", "n": number, "text": "x" * FLOOD_SIZE}))
                while len(heard) + len(refused) < FLOOD:
                    await asyncio.sleep(0.02)
                for task in listening:
                    task.cancel()
            if heard != sorted(set(heard)):
                self._ledger.add_violation(f"a good reader beside a slow one heard {heard}")

    @staticmethod
    async def _flooded(peer: Socket, told: list[int]) -> None:
        """Note the numbers of the messages that *peer* receives, and of its own that are refused."""
        while True:
            frame = await peer.receive()
            if frame["type"] == 6:
                told.append(frame.get("n", 0))

    async def _half_open(self) -> None:
        """Connections that send half a request and then nothing; some are reset."""
        kept = []
        try:
            for number in range(HALF_OPEN):
                address = self._running.sprout if number % 3 == 0 else self._running.http
                host, _, port = address.rpartition(":")
                _, writer = await asyncio.open_connection(host, int(port))
                kept.append(writer)
                writer.write(self._chance.choice(HALVES) if number % 3 else b"announce 1 5\nSHA5")
                if self._chance.random() < 0.3:
                    reset(writer)
                await asyncio.sleep(0.02)
            await asyncio.sleep(60)
        finally:
            for writer in kept:
                abort(writer)

    async def _churn(self) -> None:
        """Peers that come and go."""
        while True:
            with suppress(ConnectionClosed, OSError, TimeoutError):
                async with Socket(self._running.http, "/relay") as peer:
                    await peer.send(json.dumps({"type": 2, "topic": self._chance.choice(CHANNELS)}))
            with suppress(OSError):
                host, _, port = self._running.sprout.rpartition(":")
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"version 1 0.0\n")
                reset(writer)
            await asyncio.sleep(0.02)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a crash would: without a word."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
