"""The programs of a cluster: NATS servers and gateways, with a way of its own between each two that can be cut."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import nats
from nats.errors import Error

from tests.faults.harness.fork_server import DidNotStart, ForkServer, GatewayProcess
from tests.faults.harness.shim import Control
from tests.nats import NatsServer
from tests.ports import reserved_port

from .plan import SERVERS
from .proxy import FaultProxy

STREAM = "main"  # as `cluster.name` has it
LEASE_SECONDS = 1.0
START_SECONDS = 30.0  # for the servers to elect who leads them
# Only routes through a proxy are advertised.
ROUTES = """cluster {{ name: trellis, listen: "127.0.0.1:{port}", routes: {routes}, no_advertise: true,
                   advertise: "127.0.0.1:1" }}
"""


class Servers:
    """NATS servers that keep one stream; each reaches the others, and gateways reach each, by proxies."""

    def __init__(self, folder: Path) -> None:
        ports = {name: reserved_port() for name in SERVERS}
        self.routes = {(a, b): FaultProxy(ports[b]) for a in SERVERS for b in SERVERS if a != b}
        self.servers: dict[str, NatsServer] = {}
        for name in SERVERS:
            urls = [f"nats://127.0.0.1:{way.port}" for (a, _), way in self.routes.items() if a == name]
            text = ROUTES.format(port=ports[name], routes=json.dumps(urls))
            self.servers[name] = NatsServer(folder / f"nats-{name}", name, text, start=False)
        self.ways: list[FaultProxy] = [*self.routes.values()]
        self._clients: dict[str, list[FaultProxy]] = {name: [] for name in SERVERS}

    async def start(self) -> None:
        """Start all, and wait until they have found each other and answer."""
        await asyncio.gather(*(way.start() for way in self.routes.values()))
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in self.servers.values()))
        client = await nats.connect([each.url for each in self.servers.values()])
        try:
            manager = client.jsm(timeout=0.3)
            async with asyncio.timeout(START_SECONDS):
                while True:
                    with suppress(Error, OSError, TimeoutError):
                        await manager.account_info()
                        return
                    await asyncio.sleep(0.05)
        finally:
            await client.close()

    async def ways_for(self) -> dict[str, FaultProxy]:
        """Make ways to all servers, for one gateway."""
        ways = {name: FaultProxy(server.port) for name, server in self.servers.items()}
        for name, way in ways.items():
            await way.start()
            self.ways.append(way)
            self._clients[name].append(way)
        return ways

    def ways_of(self, name: str, *, gateways: bool) -> list[FaultProxy]:
        """The ways between the server *name* and the others, and with *gateways* those from gateways to it."""
        routes = [way for ends, way in self.routes.items() if name in ends]
        return [*routes, *(self._clients[name] if gateways else ())]

    async def leader(self) -> str:
        """The name of the server that leads the stream; the first one while there is none."""
        with suppress(Error, OSError, TimeoutError, AssertionError):
            client = await nats.connect([each.url for each in self.servers.values()], connect_timeout=1)
            try:
                cluster = (await client.jetstream().stream_info(STREAM)).cluster
                assert cluster is not None
                return cluster.leader or SERVERS[0]
            finally:
                await client.close()
        return SERVERS[0]

    async def stop(self) -> None:
        """End all."""
        for server in self.servers.values():
            server.kill()
        for way in self.ways:
            await way.stop()


class ClusterGateway:
    """The gateway *name*, which is started again and again on its data."""

    def __init__(
        self, folder: Path, name: str, ways: dict[str, FaultProxy], settings: dict[str, str], fork_server: ForkServer
    ) -> None:
        self.name = name
        self.data = folder / name
        self.ways = ways
        self.running: GatewayProcess | None = None  # None while it is down
        self.ends: list[str] = []  # its last output when it ended by itself
        self.start_error = ""  # when it did not start
        self.lives = 0
        self._changing = asyncio.Lock()  # a start and an end wait for each other
        self._place = folder / f"{name}-lives"
        self._fork_server = fork_server
        self.settings = settings | {
            "TRELLIS_CLUSTER__URL": json.dumps([f"nats://127.0.0.1:{way.port}" for way in ways.values()]),
            "TRELLIS_CLUSTER__GATEWAY": name,
            "TRELLIS_CLUSTER__REPLICAS": str(len(SERVERS)),
            "TRELLIS_CLUSTER__LEASE_SECONDS": str(LEASE_SECONDS),
        }

    def copy_keys(self, other: ClusterGateway) -> None:
        """Have the keys of *other*, as all members need."""
        shutil.copytree(other.data / "keys", self.data / "keys", dirs_exist_ok=True)

    async def start(self) -> None:
        """Start it, and wait until it has read what the stream has. `DidNotStart` if it ends instead."""
        async with self._changing:
            self.lives += 1
            self._place.mkdir(exist_ok=True)
            control = Control(self._place / f"control{self.lives}")
            place = self._place / str(self.lives)
            try:
                self.running = await self._fork_server.start(self.data, place, self.settings, control)
            except DidNotStart as error:
                self.start_error = str(error)
                raise

    async def kill(self) -> None:
        """End it with signal 9; one that is being started, once it runs."""
        async with self._changing:
            running, self.running = self.running, None
            if running is not None:
                running.kill()
                await self._fork_server.ended(pid=running.pid)

    async def stop(self) -> int:
        """End it as an operator does, one that is being started once it runs; its exit code, -9 if it did not end."""
        async with self._changing:
            return await self._stop()

    async def _stop(self) -> int:
        running, self.running = self.running, None
        if running is None:
            return 0
        running.signal(signal.SIGCONT)
        running.stop()
        try:
            return await self._fork_server.ended(pid=running.pid)
        except TimeoutError:
            running.kill()
            await self._fork_server.ended(pid=running.pid)
            return -signal.SIGKILL

    async def has_ended(self) -> bool:
        """Whether it ended by itself, as who lost its turn does; then it is down."""
        running = self.running
        if running is None or Path(f"/proc/{running.pid}").exists():
            return False
        code = await self._fork_server.ended(pid=running.pid)
        self.running = None
        self.ends.append(f"{self.name} ended with {code}: {running.output[-600:]}")
        return True


__all__ = ["ClusterGateway", "DidNotStart", "Servers"]
