"""`trellis cluster demo`: three NATS servers and three gateways, some of which are killed while all protocols talk."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import typer

from gateway.demo_clients import ReceivedMessage
from gateway.storage.layout import first_seqs, paths

from .cluster_parts import DemoMember, NatsServers
from .cluster_traffic import Traffic
from .common import AsJson, CommandError, show
from .demo import CHANNEL, DemoPeers, Matrix, arrival, connect

NAMES = ("one", "two", "three")
STREAM = "main"  # as `cluster.name` has it
PATIENCE_SECONDS = 45.0  # after which a message is taken for lost; NATS servers elect a leader in four to nine seconds
REPEAT_SECONDS = 2.0  # after which a message that nobody confirmed is sent again
REFUSED_SECONDS = 0.2  # between a refusal and the next attempt


class Found(NamedTuple):
    """What the demo showed: matrices, and a sentence for each thing that is not as it should be."""

    matrices: list[Matrix]
    accepted: int
    faults: list[str]


def demo(
    as_json: AsJson = False,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Whether to kill a server and a gateway.")] = True,
) -> None:
    """Let every protocol talk to every other one across the gateways of a cluster, and kill parts of it.

    Starts three NATS servers, which keep three replicas of the stream, and three gateways, with peers of every
    protocol. While they and three programs publish, it kills the server that leads the stream, and a gateway; then it
    starts both again. It prints which messages arrived, and checks that every accepted one is found at each gateway,
    was heard once by each listener, and that the logs are equal. Takes about a minute, needs the program nats-server,
    and leaves nothing behind. Exits with 0 only if nothing is missing.

    \b
    Example:
      trellis cluster demo
    """
    with tempfile.TemporaryDirectory(prefix="trellis-cluster-demo-") as folder:
        found = asyncio.run(_run(Path(folder), kill=kill))
    said, arrived = (sum(count) for count in zip(*((len(m.cells), m.arrived) for m in found.matrices), strict=True))
    summary = f"{arrived} of {said} messages arrived."
    if kill:
        summary += (
            f" {found.accepted:,} messages were accepted meanwhile, and {len(found.faults) or 'no'} faults found."
        )
    value = {"matrices": {m.title: m.rows() for m in found.matrices}, "accepted": found.accepted}
    show(value | {"faults": found.faults}, as_json, "\n".join([*map(str, found.matrices), summary]))
    if found.faults or arrived < said:
        raise CommandError(
            "; ".join([*found.faults, *([f"{said - arrived} did not arrive"] if arrived < said else [])])
        )


@asynccontextmanager
async def _cluster(folder: Path, names: Sequence[str]) -> AsyncIterator[tuple[NatsServers, dict[str, DemoMember]]]:
    """Run three NATS servers, and gateways with these *names*."""
    servers = NatsServers(folder, NAMES)
    members = {name: DemoMember(folder, name, servers.urls) for name in names}
    first, *others = members.values()
    try:
        for server in servers.servers.values():
            await server.start()
        await first.start()
        for member in others:
            member.copy_keys(first)
        await asyncio.gather(*(member.start() for member in others))
        yield servers, members
    finally:
        await asyncio.gather(*(member.process.stop() for member in members.values()))
        await asyncio.gather(*(server.stop() for server in servers.servers.values()))


async def _run(folder: Path, *, kill: bool) -> Found:
    matrices: list[Matrix] = []
    traffic = Traffic()
    async with _cluster(folder, NAMES if kill else NAMES[:2]) as (servers, members), AsyncExitStack() as stack:
        peers = await _peers(members["one"], members["two"], stack)
        known: set[int] = set()
        matrices.append(await _broadcasts("Broadcasts from gateway one to gateway two", peers))
        matrices.append(await _directs("Direct messages from gateway one to gateway two", peers, known))
        if kill:
            await traffic.begin(list(members.values()), stack)
            matrices += await _disturbed(servers, members, peers, known, stack)
            await traffic.end()
            await traffic.check(list(members.values()))
    faults = traffic.faults + differences({name: log_of(member.data) for name, member in members.items()})
    return Found(matrices, len(traffic.accepted), faults)


async def _disturbed(
    servers: NatsServers, members: dict[str, DemoMember], peers: DemoPeers, known: set[int], stack: AsyncExitStack
) -> list[Matrix]:
    """Kill the server that leads the stream and gateway three, and start both again; what arrives meanwhile."""
    three, leader = members["three"], await servers.leader(STREAM)
    await asyncio.gather(servers.servers[leader].kill(), three.process.kill())
    title = f"Broadcasts, once NATS server {leader}, which led the stream, and gateway three were killed"
    killed = await _broadcasts(title, peers)
    await servers.servers[leader].start()
    await three.start()
    peers = await _peers(three, members["one"], stack)
    again = await _broadcasts("Broadcasts from gateway three, which was started again, to gateway one", peers)
    return [killed, again, await _directs("Direct messages from gateway three to gateway one", peers, known)]


async def _peers(speak: DemoMember, listen: DemoMember, stack: AsyncExitStack) -> DemoPeers:
    peers = await connect(speak.ready, listen.ready, stack)
    for listener in peers.listeners.values():
        await listener.subscribe(CHANNEL)
    await peers.speakers["Sprout"].community(CHANNEL)
    return peers


async def _broadcasts(title: str, peers: DemoPeers) -> Matrix:
    matrix = Matrix(title)
    for said_by, speaker in peers.speakers.items():
        content = {"content": f"{title}: {said_by}"}
        say = partial(speaker.publish, CHANNEL, content)
        await _exchange(matrix, said_by, say, ReceivedMessage(CHANNEL, content), peers.listeners)
    return matrix


async def _directs(title: str, peers: DemoPeers, known: set[int]) -> Matrix:
    """Let every speaker tell something to each listener alone; peers with *known* numbers are others."""
    matrix = Matrix(title)
    numbers = await _numbers(peers, known)
    await peers.listeners["Streamr"].subscribe(f"{CHANNEL}/@{numbers['streamr']}")
    known.update(numbers.values())
    for said_by, speaker in peers.speakers.items():
        for heard_by, listener in peers.listeners.items():
            content = {"content": f"{title}: {said_by} to {heard_by}"}
            say = partial(speaker.direct, CHANNEL, numbers[listener.protocol], content)
            await _exchange(matrix, said_by, say, ReceivedMessage(CHANNEL, content, True), {heard_by: listener})
    return matrix


async def _numbers(peers: DemoPeers, known: set[int]) -> dict[str, int]:
    """The numbers of the listeners by protocol, once the gateway of the speakers knows them."""
    wanted = {listener.protocol for listener in peers.listeners.values()}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await peers.speakers["REST"].program.peers(CHANNEL)
            numbers = {peer.protocol: peer.number for peer in found if peer.number not in known}
            if wanted <= numbers.keys():
                return numbers
            await asyncio.sleep(0.1)


async def _exchange(
    matrix: Matrix,
    said_by: str,
    say: Callable[[], Awaitable[None]],
    what: ReceivedMessage,
    listeners: dict[str, Any],
) -> None:
    """Call *say*, again if it is refused or nobody hears it, and enter who heard *what* into the *matrix*."""
    begin = perf_counter()
    waiting = {
        heard_by: asyncio.create_task(arrival(listener, what, PATIENCE_SECONDS))
        for heard_by, listener in listeners.items()
    }
    fault = None
    while not all(task.done() for task in waiting.values()):
        try:
            await say()
        except Exception as error:  # each protocol has its own words for a cluster that does not answer yet
            fault = error
            await asyncio.sleep(REFUSED_SECONDS)
        else:
            await asyncio.wait(waiting.values(), timeout=REPEAT_SECONDS)
    for heard_by, task in waiting.items():
        moment = task.result()
        matrix.cells[said_by, heard_by] = None if moment is None else (moment - begin) * 1000
        if moment is None and fault is not None:
            matrix.faults.append(f"{said_by} to {heard_by}: {fault}")


def log_of(data: Path) -> bytes:
    """The whole log below *data*, of a gateway that has stopped."""
    folder = data / "log"
    files = [next(filter(Path.exists, paths(folder, first))) for first in first_seqs(folder)]
    return b"".join(path.read_bytes() for path in files)


def differences(logs: dict[str, bytes]) -> list[str]:
    """Which of *logs* is no beginning of the longest."""
    longest = max(logs.values(), key=len)
    return [f"the log of gateway {name} differs" for name, log in logs.items() if not longest.startswith(log)]
