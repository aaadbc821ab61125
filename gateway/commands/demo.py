"""`trellis demo`: a gateway of its own, peers of every protocol, and which messages arrived."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from gateway.demo_clients import ReceivedMessage, RelayClient, RestClient, SproutClient, StreamrClient

from .common import AsJson, CommandError, show

CHANNEL = "demo"
START_SECONDS = 30.0
STOP_SECONDS = 10.0
TIMEOUT_SECONDS = 3.0  # seconds after which a message is taken for lost
WIDTH = 13  # of a column


class DemoPeers(NamedTuple):
    """Two clients of each protocol: one speaks, the other listens."""

    speakers: dict[str, Any]  # the clients of `gateway.demo_clients`, by what their protocol is called for people
    listeners: dict[str, Any]


@dataclass
class Matrix:
    """After how many milliseconds each listener received each speaker's message; None if it did not."""

    title: str
    cells: dict[tuple[str, str], float | None] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def arrived(self) -> int:
        """How many messages arrived."""
        return sum(cell is not None for cell in self.cells.values())

    def rows(self) -> list[dict[str, Any]]:
        """Return the cells for programs."""
        return [{"from": said, "to": heard, "milliseconds": ms} for (said, heard), ms in self.cells.items()]

    def __str__(self) -> str:
        names = list(dict.fromkeys(said_by for said_by, _ in self.cells))
        lines = [self.title, " " * WIDTH + "".join(name.rjust(WIDTH) for name in names)]
        for said_by in names:
            cells = (_drawn(self.cells[said_by, heard_by]).rjust(WIDTH) for heard_by in names)
            lines.append(said_by.ljust(WIDTH) + "".join(cells))
        return "\n".join(lines + self.faults) + "\n"


def _drawn(cell: float | None) -> str:
    return "✗" if cell is None else f"✓ {cell:3.0f} ms"


def demo(as_json: AsJson = False) -> None:
    """Let every protocol talk to every other one.

    Starts a gateway of its own with peers of every protocol, and prints which messages arrived. Needs nothing and
    leaves nothing behind: free ports, a temporary directory. Exits with 0 only if everything arrived everywhere.

    \b
    Example:
      trellis demo
    """
    with tempfile.TemporaryDirectory(prefix="trellis-demo-") as folder:
        broadcasts, directs = asyncio.run(_run(Path(folder)))
    summary = (
        f"{broadcasts.arrived} of {len(broadcasts.cells)} broadcasts and "
        f"{directs.arrived} of {len(directs.cells)} direct messages arrived."
    )
    found = {"broadcasts": broadcasts.rows(), "directs": directs.rows()}
    show(found, as_json, f"{broadcasts}\n{directs}\n{summary}")
    arrived, said = broadcasts.arrived + directs.arrived, len(broadcasts.cells) + len(directs.cells)
    if arrived < said:
        raise CommandError(f"{said - arrived} of {said} did not arrive")


async def _run(folder: Path) -> tuple[Matrix, Matrix]:
    async with gateway(folder) as ready, AsyncExitStack() as stack:
        peers = await connect(ready, ready, stack)
        for listener in peers.listeners.values():
            await listener.subscribe(CHANNEL)
        await peers.speakers["Sprout"].community(CHANNEL)  # asked for once, and not in the figures
        return await _broadcasts(peers), await _directs(peers)


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """Run a gateway in a process of its own, with default settings and free ports; yields its ready line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")}
    flags = ("--port", "0", "--sprout-port", "0", "--data", str(folder / "data"))
    command = (sys.executable, "-m", "gateway", "serve", *flags)
    with (folder / "log").open("w+") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment
        )
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
            if not line:
                log.seek(0)
                raise CommandError(f"the gateway did not start:\n{log.read().strip()}")
            yield json.loads(line)
        finally:
            await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


async def connect(speak: dict[str, Any], listen: dict[str, Any], stack: AsyncExitStack) -> DemoPeers:
    """Connect speakers and listeners to the gateways with these ready lines, for as long as *stack* is open."""
    from .arbor_author import ArborAuthor

    authors = [await asyncio.to_thread(ArborAuthor, name) for name in ("speaker", "listener")]
    parts: list[dict[str, Any]] = [
        {
            "topic relay": RelayClient(ready["http"]),
            "Sprout": SproutClient(ready["http"], ready["sprout"], author),
            "Streamr": StreamrClient(ready["http"]),
            "REST": RestClient(ready["http"]),
        }
        for author, ready in zip(authors, (speak, listen), strict=True)
    ]
    for part in parts:
        for client in part.values():
            await stack.enter_async_context(client)
    return DemoPeers(*parts)


async def _broadcasts(peers: DemoPeers) -> Matrix:
    matrix = Matrix("Broadcasts: from the row's protocol to the column's")
    for said_by, speaker in peers.speakers.items():
        content = {"content": f"hello from {said_by}"}
        await _exchange(
            matrix, said_by, peers.listeners, speaker.publish(CHANNEL, content), ReceivedMessage(CHANNEL, content)
        )
    return matrix


async def _directs(peers: DemoPeers) -> Matrix:
    matrix = Matrix("Direct messages: from the row's protocol to one peer of the column's")
    found = await peers.speakers["REST"].program.peers(CHANNEL)
    numbers = {peer.protocol: peer.number for peer in found}
    try:
        await peers.listeners["Streamr"].subscribe(f"{CHANNEL}/@{numbers['streamr']}")
    except ValueError as fault:  # direct messages to it may still arrive
        matrix.faults.append(f"Streamr has no inbox: {fault}")
    for said_by, speaker in peers.speakers.items():
        exchanges = []
        for heard_by, listener in peers.listeners.items():
            content = {"content": f"{said_by} to {heard_by}"}
            said = speaker.direct(CHANNEL, numbers.get(listener.protocol, 0), content)
            exchanges.append(
                _exchange(matrix, said_by, {heard_by: listener}, said, ReceivedMessage(CHANNEL, content, True))
            )
        await asyncio.gather(*exchanges)
    return matrix


async def _exchange(
    matrix: Matrix, said_by: str, listeners: dict[str, Any], said: Coroutine[Any, Any, None], what: ReceivedMessage
) -> None:
    """Await *said*, and enter who received *what* into the *matrix*."""
    begin = perf_counter()
    waiting = [asyncio.create_task(arrival(listener, what, TIMEOUT_SECONDS)) for listener in listeners.values()]
    (fault,) = await asyncio.gather(asyncio.wait_for(said, TIMEOUT_SECONDS), return_exceptions=True)
    if fault is not None:
        matrix.faults.append(f"{said_by} to {', '.join(listeners)}: {fault or type(fault).__name__}")
    for heard_by, moment in zip(listeners, await asyncio.gather(*waiting), strict=True):
        matrix.cells[said_by, heard_by] = None if moment is None else (moment - begin) * 1000


async def arrival(listener: Any, what: ReceivedMessage, seconds: float) -> float | None:
    """When *listener* receives *what*, in seconds of `perf_counter`; None if that takes more than *seconds*."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await listener.received.get() != what:
                pass
            return perf_counter()
    return None
