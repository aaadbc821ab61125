"""The genuine clients from npm: installed when the first test needs them, each run in a process of its own."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

NODE = Path(__file__).parent / "interop" / "node"
SECONDS = 600  # for the installation
WAIT = 30.0  # seconds for anything that a client does


class NodeClient:
    """A client: it takes commands and reports events, both lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def do(self, verb: str, **fields: Any) -> None:
        """Give it a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": verb, **fields}).encode() + b"\n")

    async def next_event(self, event: str) -> Any:
        """The next *event*; an end or an error before it fails the test."""
        assert self._process.stdout is not None
        while line := await asyncio.wait_for(self._process.stdout.readline(), WAIT):
            found = json.loads(line)
            assert found["event"] not in {"error", "disconnected", "closed"} - {event}, found
            if found["event"] == event:
                return found
        raise AssertionError(f"the client ended before it reported {event!r}")

    async def subscribe(self, **where: Any) -> None:
        """Subscribe to *where*, which is in the client's own terms."""
        self.do("subscribe", **where)
        await self.next_event("subscribed")


@asynccontextmanager
async def node_client(script: str, *arguments: str) -> AsyncIterator[NodeClient]:
    """The client that *script* runs, once it is connected."""
    process = await asyncio.create_subprocess_exec(
        "node", script, *arguments, cwd=NODE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        client = NodeClient(process)
        await client.next_event("ready")
        yield client
        client.do("quit")
        await asyncio.wait_for(process.wait(), WAIT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def require_node() -> str:
    """The program; skips where there is none, and fails in the gate."""
    if (found := shutil.which("node")) is None:
        _do_without("there is no node on this machine")
    return str(found)


def require_clients() -> Path:
    """The folder with the clients in its node_modules; skips where they cannot be had, and fails in the gate."""
    if reason := _missing():
        _do_without(reason)
    return NODE


def _do_without(reason: str) -> None:
    if os.environ.get("TRELLIS_REQUIRE_INTEROP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _missing() -> str:
    """Why the clients are not here, after an attempt to install them; empty if they are."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        return "there is no node with npm on this machine"
    with (NODE / "package.json").open() as package:
        fcntl.flock(package, fcntl.LOCK_EX)  # another process of the suite may be installing them
        names = json.load(package)["dependencies"]
        installed = NODE / "node_modules"
        # npm writes the list of what it has installed at the end.
        if all((installed / name).exists() for name in (*names, ".package-lock.json")):
            return ""
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=SECONDS, check=False)
        return "" if done.returncode == 0 else f"npm ci failed: {done.stderr[-500:]}"
