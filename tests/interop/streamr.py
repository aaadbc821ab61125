"""Genuine Streamr clients for tests: many of them in one Node process, each with events of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from tests.npm import NODE, WAIT
from tests.server import Server

# An RSA key that a genuine program made: to make one takes a client seconds.
VECTOR = json.loads((Path(__file__).parents[1] / "vectors" / "streamr" / "rsa.json").read_text())
PAIR = {"publicKey": VECTOR["publicKey"], "privateKey": VECTOR["privateKey"]}
STRICT = {"verifySignatures": "always"}
ALL = ("2.2.7", "3.2.1", "4.1.6", "5.1.0")
UTF16 = ALL[:2]  # those that count what they sign in UTF-16 units
ENDS = frozenset({"error", "disconnected"})  # events that fail a test unless it waits for them


class GenuineClient:
    """One client. `events` are those that it reported, in order."""

    def __init__(self, pool: ClientPool, name: str, version: str) -> None:
        self.pool, self.name, self.version = pool, name, version
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.expected: set[str] = set()  # errors that were reported: version 5 reports them once more

    def do(self, verb: str, **fields: Any) -> None:
        """Give it a command."""
        self.pool.write({"client": self.name, "do": verb, **fields})

    async def next_event(self, event: str, wait: float = WAIT) -> Any:
        """The next *event*; an end or an error before it fails the test."""
        while True:
            found = await asyncio.wait_for(self.events.get(), wait)
            if found["event"] == "error" and found["message"] in self.expected:
                continue
            assert found["event"] not in ENDS - {event}, (self.version, found)
            if found["event"] == event:
                return found

    async def done(self, verb: str, event: str, **fields: Any) -> Any:
        """Give it a command, and wait for the *event* that ends it."""
        self.do(verb, **fields)
        return await self.next_event(event)

    async def subscribe(self, stream: str, partition: int = 0) -> None:
        """Subscribe to a stream partition."""
        await self.done("subscribe", "subscribed", stream=stream, partition=partition)

    async def publish(self, stream: str, content: Any, **fields: Any) -> None:
        """Publish a message, and wait until the client has sent it."""
        await self.done("publish", "published", stream=stream, content=content, **fields)

    async def expect_messages(self, *contents: Any) -> list[Any]:
        """The next messages, which must have these *contents* and signatures."""
        found = [await self.next_event("message") for _ in contents]
        assert [message["content"] for message in found] == list(contents), self.version
        assert all(message["signed"] for message in found)
        return found

    async def resend_contents(self, stream: str, resend: dict[str, Any], partition: int = 0) -> list[Any]:
        """The contents of a resend; *resend* is in the client's own terms."""
        return [message["content"] for message in await self.resend_messages(stream, resend, partition)]

    async def resend_messages(self, stream: str, resend: dict[str, Any], partition: int = 0) -> list[Any]:
        """The messages of a resend."""
        self.do("resend", stream=stream, partition=partition, resend=resend)
        messages = []
        while (found := await asyncio.wait_for(self.events.get(), WAIT))["event"] != "resent":
            assert found["event"] == "message", (self.version, found)
            assert found["resent"]
            messages.append(found)
        assert found["count"] == len(messages)
        return messages


class ClientPool:
    """Many clients in one Node process. `open` makes a client of a version."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._clients: dict[str, GenuineClient] = {}
        self._names = count()

    async def open(
        self, server: Server, version: str, key: int = 0, options: dict[str, Any] | None = None
    ) -> GenuineClient:
        """A connected client; *key* 0 is one without a login."""
        client = GenuineClient(self, f"{version} {next(self._names)}", version)
        self._clients[client.name] = client
        secret = f"0x{key:064x}" if key else ""
        where = {"url": f"ws://{server.http}/api/v1/ws", "restUrl": f"http://{server.http}/api/v1"}
        options = {"keyExchange": PAIR, **(STRICT if options is None else options)}
        await client.done("open", "ready", version=version, key=secret, options=options, **where)
        return client

    async def each(self, server: Server, key: int, options: dict[str, Any] | None = None) -> list[GenuineClient]:
        """A client of each version; their keys begin with *key*."""
        opening = (self.open(server, version, number, options) for number, version in enumerate(ALL, key))
        return list(await asyncio.gather(*opening))

    def write(self, command: dict[str, Any]) -> None:
        """Give the process a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def read(self) -> None:
        """Sort events to clients, as long as there are any."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event = json.loads(line)
            for client in self._clients.values() if event["client"] is None else [self._clients[event["client"]]]:
                client.events.put_nowait(event)


@asynccontextmanager
async def clients() -> AsyncIterator[ClientPool]:
    """A process for genuine clients."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "node", "streamr.cjs", cwd=NODE, stdin=pipe, stdout=pipe, limit=1 << 22
    )
    pool = ClientPool(process)
    reading = asyncio.create_task(pool.read())
    try:
        yield pool
    finally:
        with suppress(ProcessLookupError):
            process.kill()  # a client that makes an RSA key would take seconds to end by itself
        await process.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
