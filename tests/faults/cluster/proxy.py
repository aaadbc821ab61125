"""A way from one program to another, through a port of its own, which can be cut or made to hang."""

from __future__ import annotations

import asyncio

from tests.ports import reserved_port


class FaultProxy:
    """A port on 127.0.0.1 whose connections go on to the port *target*."""

    def __init__(self, target: int) -> None:
        self.port = reserved_port()
        self._target = target
        self._server: asyncio.Server | None = None
        self._ends: set[_End] = set()
        self._open = asyncio.Event()  # clear while nothing passes
        self._open.set()
        self._cut = False
        self._dials: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take connections."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _End(self, None), "127.0.0.1", self.port)

    async def stop(self) -> None:
        """End everything."""
        self.cut()
        if self._server is not None:
            self._server.close()
        for task in self._dials:
            task.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
        await asyncio.sleep(0)  # aborted connections are closed by calls that are due

    def cut(self) -> None:
        """Reset all connections, and each that comes."""
        self._cut = True
        for end in list(self._ends):
            end.abort()

    def hang(self) -> None:
        """Stop forwarding without closing any connection."""
        self._open.clear()
        for end in list(self._ends):
            end.pause()

    def heal(self) -> None:
        """Let everything pass again, also what came meanwhile."""
        self._cut = False
        self._open.set()
        for end in list(self._ends):
            end.resume()

    # What the connections call

    def joined(self, end: _End) -> None:
        """A connection came, or goes on to the target."""
        self._ends.add(end)
        if self._cut:
            end.abort()
        elif end.other is None:
            end.pause()
            task = asyncio.get_running_loop().create_task(self._dial(end))
            self._dials.add(task)
            task.add_done_callback(self._dials.discard)
        elif not self._open.is_set():
            end.pause()

    def left(self, end: _End) -> None:
        """A connection has ended."""
        self._ends.discard(end)

    async def _dial(self, end: _End) -> None:
        await self._open.wait()
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _End(self, end), "127.0.0.1", self._target)
        except OSError:
            end.abort()
        else:
            if self._open.is_set():
                end.resume()


class _End(asyncio.Protocol):
    """One end of a connection through *proxy*; *other* is the end that this one was dialled for."""

    def __init__(self, proxy: FaultProxy, other: _End | None) -> None:
        self._proxy = proxy
        self.other = other
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.other is not None:
            self.other.other = self
        self._proxy.joined(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._proxy.left(self)
        if self.other is not None:
            self.other.close()

    def pause(self) -> None:
        """Read nothing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again, unless there is nobody yet whom it is for."""
        if self._transport is not None and not self._transport.is_closing() and self.other is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """End it behind what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()
