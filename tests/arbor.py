"""The genuine Arbor client and relay of tests/interop/arbor (sprout-go, forest-go), in processes of their own."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.server import Server

SOURCE = Path(__file__).parent / "interop/arbor"
WAIT = 60.0  # seconds
BUILD_SECONDS = 300


def require_arbor(package: str = ".") -> Path:
    """The program; the test is skipped, or with TRELLIS_REQUIRE_INTEROP=1 fails, where it cannot be built.

    Other programs than ours are those of the libraries that it is built on.
    """
    path, reason = _built(package)
    if path is not None:
        return path
    if os.environ.get("TRELLIS_REQUIRE_INTEROP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@cache
def _built(package: str) -> tuple[Path | None, str]:
    if shutil.which("go") is None:
        return None, "there is no go on this machine"
    folder = mkdtemp(prefix="arbor-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "program"
    command = ["go", "build", "-o", str(path), package]
    built = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    return (path, "") if built.returncode == 0 else (None, f"the client cannot be built: {built.stderr}")


class Arbor:
    """The program in a process of its own; `events` are those that it reported and no test has read yet.

    `ready` is its first event, `log` what it wrote to standard error, with every request that failed.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._errors = asyncio.create_task(self._read_errors())
        self.events: list[dict[str, Any]] = []
        self.ready: dict[str, Any] = {}
        self.log = ""

    async def do(self, command: str) -> dict[str, Any]:
        """Give it a command; what came of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        done = await self.next(command.split(" ")[0])
        assert "error" not in done, done
        return done

    async def next(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next event of that name with those fields; the others are kept."""
        wanted = {"event": event, **fields}
        while True:
            for place, line in enumerate(self.events):
                if wanted.items() <= line.items():
                    return self.events.pop(place)
            self.events.append(await self._line())

    async def settle(self, quiet: float = 1.0, is_complete: Callable[[], bool] = lambda: True) -> None:
        """Read until nothing more comes for *quiet* seconds, and *is_complete* says that nothing is missing."""
        while True:
            try:
                self.events.append(await asyncio.wait_for(self._line(), quiet))
            except TimeoutError:
                if is_complete():
                    return

    def ids(self, event: str) -> list[str]:
        """The ids of the nodes in such events, in order."""
        return [line["id"] for line in self.events if line["event"] == event]

    async def end(self) -> None:
        """End it, and read what it still wrote."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._errors

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while text := await self._process.stderr.read(1 << 16):
            self.log += text.decode(errors="replace")

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        text = await asyncio.wait_for(self._process.stdout.readline(), WAIT)
        assert text, "the client has ended"
        line: dict[str, Any] = json.loads(text)
        return line


@asynccontextmanager
async def arbor(program: Path, *flags: str) -> AsyncIterator[Arbor]:
    """The program, ready."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(program, *flags, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 20)
    client = Arbor(process)
    try:
        client.ready = await client.next("ready")
        yield client
    finally:
        await client.end()


async def community(server: Server, channel: str) -> str:
    """The id of the community that *channel* is, made if need be."""
    async with httpx.AsyncClient(base_url=f"http://{server.http}", timeout=WAIT) as client:
        path = f"/v1/channels/{quote(channel, safe='')}"
        (await client.put(path)).raise_for_status()
        while (id := (await client.get(path)).json().get("community")) is None:
            await asyncio.sleep(0.02)
        return str(id)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Play *scenario*, which does not last for ever."""
    asyncio.run(asyncio.wait_for(scenario(), 2 * WAIT))
