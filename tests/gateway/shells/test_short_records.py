"""A stream that hands over many short reads without waiting, as TLS does, leaves the loop to others."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway.shells.input_turns import SHORT_READS
from gateway.shells.portable_shell import StreamWire

READS = 100 * SHORT_READS


class Ready:
    """A stream whose bytes are there, one with each read, as `anyio.streams.tls.TLSStream` has those of records."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    async def receive(self, _most: int = 65536) -> bytes:
        for byte in self._bytes:
            return bytes((byte,))
        raise anyio.EndOfStream


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_others_have_turns_while_short_records_are_read(backend: str) -> None:
    """64 KiB of TLS records of one byte were handled in one step of 40 ms or more."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0)
            turns += 1

    async def read_all(stream: Any) -> None:
        wire = StreamWire(stream)
        for _ in range(READS):
            assert await wire.receive() == b"x"

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others)
            await anyio.sleep(0)
            await read_all(Ready(b"x" * READS))
            tasks.cancel_scope.cancel()

    anyio.run(scenario, backend=backend)
    assert turns >= READS // SHORT_READS - 1
