"""Runs of the fault harness for a cluster: whatever happens to it under load, every promise holds."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.commands import cluster_remove
from tests.faults.cluster.plan import FAULTS, NEWCOMER, QUICK, plan
from tests.faults.cluster.proxy import FaultProxy
from tests.faults.cluster.run import play
from tests.faults.harness.fork_server import ForkServer
from tests.faults.runs import fork_server

__all__ = ["fork_server"]

ROUNDS = 10  # of each long run
SEEDS = range(int(os.environ.get("TRELLIS_SOAK", "0")) // ROUNDS)


def check(seed: int, fork_server: ForkServer, place: Path, *, quick: bool) -> None:
    outcome = asyncio.run(play(seed, len(QUICK) if quick else ROUNDS, fork_server, place, quick=quick))
    assert outcome.accepted
    assert outcome.delivered
    replay = f"python -m tests.faults.cluster --seed {seed}{f' --quick --rounds {len(QUICK)}' if quick else ''}"
    assert not outcome.violations, "\n".join([str(outcome), *outcome.violations, f"play it again: {replay}"])


def test_every_promise_holds(tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_remove, "LISTEN_SECONDS", 0.1)  # the newcomer is killed before it is removed
    check(0, fork_server, tmp_path, quick=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_for_long(tmp_path: Path, fork_server: ForkServer, seed: int) -> None:
    check(seed, fork_server, tmp_path, quick=False)


def test_a_seed_determines_the_plan() -> None:
    assert [plan(seed) for seed in range(50)] == [plan(seed) for seed in range(50)]
    assert plan(7).chance("clients").random() == plan(7).chance("clients").random()
    assert {kind for seed in range(20) for kind in plan(seed).faults} == set(FAULTS)
    quick = plan(0, len(QUICK), quick=True).faults
    assert sorted(quick) == sorted(kind for each in QUICK for kind in each)
    assert quick.count("newcomer") == 2, f"{NEWCOMER} comes, and is removed"


class EchoProtocol(asyncio.Protocol):
    """Answers with what it is told."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def _through_a_proxy() -> None:
    server = await asyncio.get_running_loop().create_server(EchoProtocol, "127.0.0.1", 0)
    proxy = FaultProxy(server.sockets[0].getsockname()[1])
    await proxy.start()
    reader, first = await asyncio.open_connection("127.0.0.1", proxy.port)
    first.write(b"one")
    assert await reader.readexactly(3) == b"one"

    proxy.hang()
    first.write(b"two")
    late = asyncio.create_task(asyncio.open_connection("127.0.0.1", proxy.port))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(answer := asyncio.create_task(reader.readexactly(3))), 0.05)
    proxy.heal()
    assert await answer == b"two"
    late_reader, late_writer = await late
    late_writer.write(b"late")
    assert await late_reader.readexactly(4) == b"late"

    proxy.cut()
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    proxy.heal()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"again")
    assert await reader.readexactly(5) == b"again"
    await proxy.stop()
    for each in (first, late_writer, writer):
        each.close()
        with suppress(ConnectionError):
            await each.wait_closed()
    server.close()


def test_a_proxy_stalls_and_cuts_connections() -> None:
    asyncio.run(_through_a_proxy())
