"""The faults of a life: what is done to a running gateway, and what it owes while they last and after them."""

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

from .checks import Served, first_message, ready, reported, say, served, whole
from .ledger import Ledger, Said
from .load import CHANNELS
from .nursery import Running
from .plan import Blow
from .shim import Call, Kind
from .wires import Closed, Http, Refused, Socket, hang_up, quietly

RECOVERY = 10.0  # seconds after which messages are taken again; `log.RETRY` is 1
HALVES = (b"", b"POST /v1/chan", b"GET /relay HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n")
LOOKS = 3  # at what retention has left
REMOVING = 0.05  # seconds from when messages leave the index until their file goes
CROWD = 12  # connections that say half of something
FLOOD, FLOOD_SIZE = 100, 60_000  # messages that a slow reader does not read, and characters of each
SYNCS = (0.005, 0.03)  # seconds that a slow disk takes longer

# What the shim is told, by kind of blow: which files, which calls, and whether the log can take nothing meanwhile.
STRIKES: dict[str, tuple[Kind, tuple[Call, ...], bool]] = {
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


class Look(NamedTuple):
    """A history that was *found*, and the sequences that had been *accepted* before."""

    channel: str
    found: list[Served]
    accepted: dict[str, int | None]

    def may_lack(self, said: Said) -> bool:
        """Whether it was accepted only since then, or once more."""
        return said.token not in self.accepted or self.accepted[said.token] != said.seq


class Trouble:
    """Strikes one gateway, and writes into the *ledger* what it does not bear."""

    def __init__(self, running: Running, ledger: Ledger, chance: random.Random, name: str) -> None:
        self._running = running
        self._control = running.control
        self._ledger = ledger
        self._chance = chance
        self._name = name
        self._probes = 0
        self._http = Http(running.http)
        self._looks: list[Look] = []

    async def strike(self, blow: Blow) -> None:
        """Let *blow* happen, look at the gateway meanwhile, and see it go on afterwards."""
        async with self._http:
            await self._http.connect()
            if blow.kind in STRIKES:
                await self._fail(blow)
            else:
                await {"pause": self._pause, "clock": self._clock, "descriptors": self._descriptors}[blow.kind](blow)
            await self._goes_on(blow)
            await self._were_whole()

    @asynccontextmanager
    async def weather(self, kinds: tuple[str, ...]) -> AsyncIterator[None]:
        """What lasts for the whole life."""
        tasks = [asyncio.create_task(self._weather(kind), name=kind) for kind in kinds if kind != "calm"]
        try:
            yield
            flooded = [task for task in tasks if task.get_name() == "slow reader"]
            if flooded and (await asyncio.wait(flooded, timeout=RECOVERY))[1]:
                self._ledger.complain("who reads waits for who does not")
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    # Blows

    async def _fail(self, blow: Blow) -> None:
        kind, calls, refusing = STRIKES[blow.kind]
        halves = blow.kind == "short write"
        before = self._control.failures(kind, *calls)
        known = await reported(self._http)
        for call in calls:
            self._control.fail(kind, call, blow.error, halves=halves)
        end = time.monotonic() + blow.seconds
        if refusing:
            while self._control.failures(kind, *calls) == before and time.monotonic() < end:
                await asyncio.sleep(0.005)
            await self._is_refused()
        elif blow.kind in ("no file", "bad read"):
            await self._look()
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        self._control.heal()
        failed = self._control.failures(kind, *calls) - before
        if failed and blow.error and blow.kind not in ("bad read", "no file"):
            await self._is_reported(blow.kind, REPORTED[kind], known)

    async def _is_refused(self) -> None:
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
                self._ledger.complain("the log cannot be written, and /readyz is 200")
            if asking.done() and asking.result() == 201:
                self._ledger.complain(f"{token} was accepted while the log could not be written")
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _look(self) -> None:
        """Ask for the histories while the log cannot be read: an answer has everything, or is an error."""
        accepted = {said.token: said.seq for said in self._ledger.accepted}
        for channel in CHANNELS:
            with suppress(OSError, Refused):
                found, _ = await served(self._http, channel)
                self._looks.append(Look(channel, found, accepted))

    async def _were_whole(self) -> None:
        """What was answered then had everything that was accepted before, and that retention has left since.

        What the log tells of that can lag behind, as long as it takes to remove a file.
        """
        for _ in range(LOOKS if self._ledger.keeping else 1):
            if not (wrong := await self._lacking()):
                break
        for complaint in wrong:
            self._ledger.complain(f"an answer was not whole: {complaint}")
        self._looks.clear()

    async def _lacking(self) -> list[str]:
        """What the answers lacked."""
        ledger = self._ledger
        held = Ledger(ledger.said, ledger.nodes, ledger.chains, again=ledger.again, look=ledger.look)
        if self._looks and ledger.keeping:
            await asyncio.sleep(REMOVING)
            held.keep(*await first_message(self._http))
        for look in self._looks:
            held.excused = {said.token for said in ledger.said.values() if look.may_lack(said)}
            # Retention may have taken what was said again, which was then accepted once more after the look.
            held.excused |= ledger.again if ledger.keeping else set()
            whole(held, look.channel, [each for each in look.found if each.seq >= held.kept])
        return held.wrong

    async def _pause(self, blow: Blow) -> None:
        self._running.signal(signal.SIGSTOP)
        await asyncio.sleep(blow.seconds)
        self._running.signal(signal.SIGCONT)

    async def _clock(self, blow: Blow) -> None:
        self._control.clock(blow.amount)
        await asyncio.sleep(blow.seconds)
        self._control.clock(0)

    async def _descriptors(self, blow: Blow) -> None:
        """The process has as many descriptors as it may have."""
        before = resource.prlimit(self._running.pid, resource.RLIMIT_NOFILE)
        used = len(list(Path(f"/proc/{self._running.pid}/fd").iterdir()))
        resource.prlimit(self._running.pid, resource.RLIMIT_NOFILE, (used, before[1]))
        await self._look()
        await asyncio.sleep(blow.seconds)
        resource.prlimit(self._running.pid, resource.RLIMIT_NOFILE, before)

    # What it owes

    async def _goes_on(self, blow: Blow) -> None:
        """After *blow* messages are taken again, and the gateway says so."""
        end = time.monotonic() + RECOVERY
        status = 0
        while status != 201 and time.monotonic() < end:
            with suppress(OSError):
                status = await self._ask(self._probe())
            await asyncio.sleep(0.02)
        if status != 201:
            self._ledger.complain(f"after {blow.kind} no message is taken any more: {status}")
            return
        with suppress(OSError):
            if not await ready(self._http, max(1.0, end - time.monotonic())):
                self._ledger.complain(f"after {blow.kind} /readyz stays 503")

    async def _is_reported(self, kind: str, counted: tuple[str, ...], before: Counter[str]) -> None:
        """More faults are *counted* than there were *before*, of one kind or another."""
        end = time.monotonic() + RECOVERY
        while time.monotonic() < end:
            with suppress(OSError):
                now = await reported(self._http)
                if any(now[each] > before[each] for each in counted):
                    return
            await asyncio.sleep(0.02)
        self._ledger.complain(f"unreported: {kind}")

    def _probe(self) -> str:
        self._probes += 1
        return f"probe{self._name}.{self._probes}"

    async def _ask(self, token: str) -> int:
        async with Http(self._running.http) as http:
            return await say(http, self._ledger, token)

    # Weather

    async def _weather(self, kind: str) -> None:
        work: dict[str, Callable[[], Awaitable[None]]] = {
            "slow disk": self._slow_disk,
            "slow reader": self._slow_reader,
            "half-open": self._half_open,
            "churn": self._churn,
        }
        await quietly(work[kind]())

    async def _slow_disk(self) -> None:
        seconds = self._chance.uniform(*SYNCS)
        while True:  # `heal` ends it as well
            self._control.slow(Kind.LOG, Call.SYNC, seconds)
            await asyncio.sleep(0.05)

    async def _slow_reader(self) -> None:
        """One peer does not read while much is said; another, which does, hears all of it."""
        async with (
            Socket(self._running.http, "/relay") as lazy,
            Socket(self._running.http, "/relay") as good,
            Socket(self._running.http, "/relay") as talker,
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
                    tasks.create_task(self._flooded(peer, told)) for peer, told in ((good, heard), (talker, refused))
                ]
                for number in range(FLOOD):
                    await talker.send(json.dumps({"type": 6, "topic": "flood", "n": number, "text": "x" * FLOOD_SIZE}))
                while len(heard) + len(refused) < FLOOD:
                    await asyncio.sleep(0.02)
                for task in listening:
                    task.cancel()
            if heard != sorted(set(heard)):
                self._ledger.complain(f"a good reader beside a slow one heard {heard}")

    @staticmethod
    async def _flooded(peer: Socket, told: list[int]) -> None:
        """Note the numbers of what *peer* is told, be it a message or that one of its own was refused."""
        while True:
            frame = await peer.receive()
            if frame["type"] == 6:
                told.append(frame.get("n", 0))

    async def _half_open(self) -> None:
        """Connections that say half of something and then nothing; some are torn down."""
        kept = []
        try:
            for number in range(CROWD):
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
                hang_up(writer)

    async def _churn(self) -> None:
        """Peers that come and go."""
        while True:
            with suppress(Closed, OSError, TimeoutError):
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
