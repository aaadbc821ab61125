"""One matrix for both shells: whatever carries a session, its peer sees the same."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
import sniffio
import trio
import websockets.sync.client
from anyio.from_thread import BlockingPortal, start_blocking_portal
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fastapi import FastAPI, WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.core.bus import Bus
from gateway.core.channels import Channels
from gateway.core.errors import ProtocolError
from gateway.core.frames import text_frame
from gateway.core.message import Message, MessageIds, PendingForm
from gateway.core.outbox import LOW_WATER
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.shells import connection, fast, serve, tcp_server, uvicorn_websocket
from tests.gateway.shells.servers import Counts, Ledger, hypercorned, uvicorned

PATIENCE = 20  # seconds; long, so that a slow machine proves nothing
SMALL = 1 << 14  # a client's socket buffers, so that the kernel hides little of a peer that does not read
PIECE = 1 << 10


# A gateway with a protocol of one-line commands


class Toy(Session):
    protocol = "toy"
    framed = False

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, Principal("somebody"))
        self.rest = b""
        self.peak = 0  # bytes that waited to be written at most
        self.pulled = 0  # pieces of streams
        self.over = 0  # times that the end was reported

    def handle(self, data: bytes) -> None:
        *lines, self.rest = [data, b""] if self.framed else (self.rest + data).split(b"\n")
        for line in lines:
            if self.closing is not None:
                return
            verb, _, rest = line.partition(b" ")
            getattr(self, "do_" + verb.decode())(rest)
            self.peak = max(self.peak, self._size)

    def frame(self, payload: bytes) -> bytes:
        return text_frame(payload) if self.framed else payload + b"\n"

    def deliver(self, message: Message) -> None:
        self.put(message.form(f"toy/{self.framed}", lambda message, _: self.frame(message.content)))

    def receive_eof(self) -> None:
        self.over += 1
        super().receive_eof()

    def goodbye(self) -> None:
        self.send(self.frame(b"goodbye"))
        super().goodbye()

    # The commands

    def do_echo(self, rest: bytes) -> None:
        self.send(self.frame(rest))

    def do_join(self, channel: bytes) -> None:
        self.bus.subscribe(self, channel.decode())
        self.send(self.frame(b"joined"))

    def do_say(self, rest: bytes) -> None:
        channel, _, content = rest.partition(b" ")
        self.bus.publish(Message(channel.decode(), self.who, self.protocol, content), self)

    def do_size(self, rest: bytes) -> None:
        self.send(self.frame(b"x" * int(rest.split()[0])))

    def do_long(self, count: bytes) -> None:
        self.stream(map(self.piece, range(int(count))))

    def do_parts(self, count: bytes) -> None:
        self.put(Parts(int(count)))

    def piece(self, number: int) -> bytes:
        self.pulled += 1
        return self.frame(b"%d " % number + b"." * PIECE)

    def do_bye(self, rest: bytes) -> None:
        self.send(self.frame(rest))
        self.close(4000, "bye")

    def do_fail(self, rest: bytes) -> None:
        self.send(self.frame(rest))
        raise ProtocolError("as you wish " + "é" * 200)

    def do_jam(self, rest: bytes) -> None:
        assert isinstance(self.bus.ledger, Ledger)
        self.bus.ledger.congested = True
        self.send(self.frame(rest))


class Parts(PendingForm):
    """An answer in *count* lines, each made in a later turn of the loop."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count
        self.advance()

    @property
    def size(self) -> int:
        return super().size + 2 * self.left

    def advance(self) -> bool:
        if not self.left:
            return False
        self.done, self.data = False, None
        soon(self.make)
        return True

    def make(self) -> None:
        self.left -= 1
        self.fill(b"p\n")


def soon(call: Callable[[], None]) -> None:
    """Run *call* when others had their turn, on the loop that runs here."""
    if sniffio.current_async_library() == "asyncio":
        asyncio.get_running_loop().call_later(0.01, call)
    else:
        trio.lowlevel.current_trio_token().run_sync_soon(call)


class FramedToy(Toy):
    framed = True


# The shells


class Server:
    """A running shell, in a thread of its own."""

    def __init__(self, framed: bool) -> None:
        self.framed = framed
        self.counts = Counts()
        self.ledger = Ledger()
        nobody = lambda *_: None  # noqa: E731
        self.bus = Bus(
            self.ledger,
            Channels([], nobody),
            PeerRegistry(1, nobody, nobody, nobody, nobody),
            MessageIds(1),
            lambda: int(time.time() * 1000),
            self.counts,
        )
        self.sessions: list[Toy] = []
        self.port = 0
        self.portal: BlockingPortal
        self._channels = itertools.count()

    def accept(self, _address: str = "") -> Toy:
        self.sessions.append((FramedToy if self.framed else Toy)(self.bus))
        return self.sessions[-1]

    def channel(self) -> bytes:
        return b"channel-%d" % next(self._channels)

    def connect(self) -> Client:
        client: Client = (Framed if self.framed else Lines)(self.port)
        client.say(b"echo hello")
        assert client.hear() == b"hello"
        client.session = self.sessions[-1]
        return client

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.portal.call(function, *args)

    def eventually(self, condition: Callable[[], object]) -> None:
        """Wait until *condition* holds on the server's thread."""
        deadline = time.monotonic() + PATIENCE
        while not self.call(condition):
            assert time.monotonic() < deadline
            time.sleep(0.002)


Run = Callable[[Server], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def tcp(server: Server, listen: Any, tls: Any = None) -> AsyncIterator[int]:
    async with anyio.create_task_group() as tasks:
        async with AsyncExitStack() as stack:
            yield await listen(server.accept, "127.0.0.1", 0, tasks=tasks, stack=stack, tls=tls)
        tasks.cancel_scope.cancel()


def application(server: Server) -> FastAPI:
    app = FastAPI()

    @app.websocket("/")
    async def connect(websocket: WebSocket) -> None:
        session = server.accept()
        await websocket.accept()
        await serve.run_websocket(websocket, session)

    return app


def by_uvicorn(server: Server, ws: Any) -> AbstractAsyncContextManager[int]:
    return uvicorned(application(server), ws, ws_max_size=1 << 20)


def by_hypercorn(server: Server) -> AbstractAsyncContextManager[int]:
    return hypercorned(application(server))


ASYNCIO: dict[str, Any] = {"backend": "asyncio"}
UVLOOP: dict[str, Any] = {"backend": "asyncio", "backend_options": {"use_uvloop": True}}
TRIO: dict[str, Any] = {"backend": "trio"}

Shells = dict[str, tuple[dict[str, Any], Any]]

TCP: Shells = {
    "portable-tcp-asyncio": (ASYNCIO, partial(tcp, listen=tcp_server.listen)),
    "portable-tcp-trio": (TRIO, partial(tcp, listen=tcp_server.listen)),
    "fast-tcp-asyncio": (ASYNCIO, partial(tcp, listen=fast.listen)),
    "fast-tcp-uvloop": (UVLOOP, partial(tcp, listen=fast.listen)),
}
FAST_WEBSOCKET: Shells = {
    "fast-websocket-asyncio": (ASYNCIO, partial(by_uvicorn, ws=uvicorn_websocket.FastWebSocket)),
    "fast-websocket-uvloop": (UVLOOP, partial(by_uvicorn, ws=uvicorn_websocket.FastWebSocket)),
}
HYPERCORN: Shells = {"portable-websocket-hypercorn-trio": (TRIO, by_hypercorn)}
UVICORN: Shells = {"portable-websocket-uvicorn": (ASYNCIO, partial(by_uvicorn, ws=WebSocketsSansIOProtocol))}
WEBSOCKET: Shells = FAST_WEBSOCKET | UVICORN | HYPERCORN
SHELLS: Shells = TCP | WEBSOCKET


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """A farewell may take its time here; what LINGER_SECONDS itself does is tested where it is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "LINGER_SECONDS", PATIENCE)
        patch.setattr(tcp_server, "LINGER_SECONDS", PATIENCE)
        patch.setattr(connection, "LINGER_SECONDS", PATIENCE)
        yield


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No peer, whatever it does, leaves anything in the log."""
    caplog.set_level(logging.WARNING)
    yield
    assert [record.getMessage() for record in caplog.get_records("call")] == []


def run(backend: dict[str, Any], shell: Any, framed: bool) -> Iterator[Server]:
    server = Server(framed)
    with start_blocking_portal(**backend) as portal:
        server.portal = portal
        with portal.wrap_async_context_manager(shell(server)) as server.port:
            yield server


@pytest.fixture(params=SHELLS, scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    backend, shell = SHELLS[request.param]
    yield from run(backend, shell, request.param in WEBSOCKET)


def only(shells: Shells) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", shells, indirect=True, scope="module")


# The peers


class Client:
    """A peer on a raw socket. `hear` gives a payload, or a number once the server has closed."""

    session: Toy

    def __init__(self, port: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        # Segments that fit the window; else the kernel sends one at each tick of its persist timer, 200 ms.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        self.socket.settimeout(PATIENCE)
        if port is not None:
            self.connect(port)

    def connect(self, port: int) -> None:
        self.socket.connect(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def wrap(self, payload: bytes) -> bytes:
        raise NotImplementedError

    def hear(self) -> bytes | int:
        raise NotImplementedError

    def say(self, *payloads: bytes) -> None:
        self.socket.sendall(b"".join(map(self.wrap, payloads)))

    def reset(self) -> None:
        """Leave without a word: the server's next write or read fails."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.__exit__()


class Lines(Client):
    def wrap(self, payload: bytes) -> bytes:
        return payload + b"\n"

    def hear(self) -> bytes | int:
        line = self.file.readline()
        return line[:-1] if line else 0


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


class Framed(Client):
    def __init__(self, port: int, extra: bytes = b"") -> None:
        super().__init__(port)
        self.socket.sendall(HANDSHAKE + extra + b"\r\n")
        assert b" 101 " in self.file.readline()
        self.head = b"".join(iter(self.file.readline, b"\r\n"))
        self.pongs: list[bytes] = []

    def wrap(self, payload: bytes, first: int = 0x81) -> bytes:
        size = len(payload)
        if size < 126:
            head = struct.pack("!BB", first, 0x80 | size)
        else:
            head = struct.pack("!BBH", first, 0xFE, size) if size < 1 << 16 else struct.pack("!BBQ", first, 0xFF, size)
        return head + bytes(4) + payload  # a mask of zeros is a mask

    def hear(self) -> bytes | int:
        while head := self.file.read(2):
            size = head[1]
            if size > 125:
                size = int.from_bytes(self.file.read(2 if size == 126 else 8), "big")
            payload = self.file.read(size)
            if head[0] == 0x81:
                return payload
            if head[0] == 0x88:
                self.socket.sendall(self.wrap(payload, 0x88))
                assert self.file.read(1) == b""
                return int.from_bytes(payload[:2], "big")
            assert head[0] == 0x8A
            self.pongs.append(payload)
        return 0


def end(server: Server, code: int) -> int:
    return code if server.framed else 0


def hear_all(client: Client) -> tuple[list[bytes], int]:
    heard = []
    while isinstance(said := client.hear(), bytes):
        heard.append(said)
    return heard, said


# Order, and any cut


def test_replies_come_in_the_order_of_requests(server: Server) -> None:
    with server.connect() as client:
        client.say(*(b"echo %d" % i for i in range(2000)))
        assert [client.hear() for _ in range(2000)] == [b"%d" % i for i in range(2000)]


def test_requests_may_be_cut_anywhere(server: Server) -> None:
    with server.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"".join(client.wrap(b"echo %d" % i + b"!" * 120 * i) for i in range(3)):
            client.socket.sendall(bytes([byte]))
        assert [client.hear() for _ in range(3)] == [b"%d" % i + b"!" * 120 * i for i in range(3)]


def test_what_is_said_on_a_channel_is_heard_in_one_order(server: Server) -> None:
    channel = server.channel()
    with server.connect() as alice, server.connect() as bob, server.connect() as carol:
        for listener in bob, carol:
            listener.say(b"join " + channel)
            assert listener.hear() == b"joined"
        for i in range(300):
            alice.say(b"say %s a%d" % (channel, i))
            carol.say(b"say %s c%d" % (channel, i))
        heard = [bob.hear() for _ in range(600)]
        assert [x for x in heard if isinstance(x, bytes) and x[0:1] == b"a"] == [b"a%d" % i for i in range(300)]
        assert [x for x in heard if isinstance(x, bytes) and x[0:1] == b"c"] == [b"c%d" % i for i in range(300)]
        assert [carol.hear() for _ in range(300)] == [b"a%d" % i for i in range(300)]


@only(TCP | FAST_WEBSOCKET)
def test_nagle_does_not_wait_and_the_kernel_looks_after_the_dead(server: Server) -> None:
    with server.connect() as client, other_end(client.socket) as theirs:
        assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert theirs.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def other_end(mine: socket.socket) -> socket.socket:
    """The server's socket, which is one of this process."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found = socket.socket(fileno=os.dup(int(link.name)))
            with suppress(OSError):
                if found.getpeername() == mine.getsockname():
                    return found
            found.close()
    raise AssertionError("the server has no such connection")


# Back-pressure


def test_a_listener_that_does_not_read_is_closed_and_the_others_hear_everything(server: Server) -> None:
    channel, overflows = server.channel(), server.counts.overflows
    with server.connect() as speaker, server.connect() as deaf, server.connect() as listener:
        for client in deaf, listener:
            client.say(b"join " + channel)
            assert client.hear() == b"joined"
        said = []
        for i in range(2000):
            said.append(b"%d " % i + b"." * 16000)
            speaker.say(b"say %s %s" % (channel, said[i]))
            assert listener.hear() == said[i]
            if deaf.session.closing is not None:
                break
        assert server.counts.overflows == overflows + 1
        heard, code = hear_all(deaf)
        assert heard == said[: len(heard)]
        assert code == end(server, 1013)
        speaker.say(b"say %s more" % channel)
        assert listener.hear() == b"more"
        server.eventually(lambda: deaf.session.over == 1)


def test_a_requester_that_does_not_read_is_slowed_and_gets_every_answer(server: Server) -> None:
    request = b"size 10000 " + b"." * 1000
    with server.connect() as client:
        sent = write_until_stuck(client, client.wrap(request))
        assert client.session.closing is None
        assert client.session.peak < LOW_WATER + 400 * 10000  # what one read of the wire can ask for
        for _ in range(sent // len(client.wrap(request))):
            assert client.hear() == b"x" * 10000
        rest = client.wrap(request)[sent % len(client.wrap(request)) :]
        client.socket.sendall(rest + client.wrap(b"echo last"))
        assert [client.hear() for _ in range(2)] == [b"x" * 10000, b"last"]


def write_until_stuck(client: Client, data: bytes, most: int = 1 << 26) -> int:
    """Write *data* again and again until the server has not read for a while; the bytes written."""
    client.socket.settimeout(0.3)
    sent = 0
    many = data * (1 + (1 << 16) // len(data))
    try:
        while sent < most:
            sent += client.socket.send(many[sent % len(data) :])
    except TimeoutError:
        client.socket.settimeout(PATIENCE)
        return sent
    raise AssertionError("the server reads on and on")


def test_a_long_answer_is_pulled_as_it_is_read_and_holds_up_nobody(server: Server) -> None:
    count = 16_000
    with server.connect() as reader, server.connect() as other:
        reader.say(b"long %d" % count)
        assert reader.hear() == b"0 " + b"." * PIECE
        for i in range(100):
            other.say(b"echo %d" % i)
            assert other.hear() == b"%d" % i
        assert reader.session.pulled * PIECE < 10 << 20  # most of it in the kernel, which takes 4 MiB
        reader.say(b"echo between")
        heard = [reader.hear() for _ in range(count)]
        heard.remove(b"between")
        assert heard == [b"%d " % i + b"." * PIECE for i in range(1, count)]


@only(TCP | FAST_WEBSOCKET)
def test_who_reads_nothing_of_a_long_answer_is_cut(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in (serve, connection):
        monkeypatch.setattr(shell, "STALLED_SECONDS", 0.5)
    with server.connect() as deaf, server.connect() as slow:
        deaf.say(b"long 1000000")
        slow.say(b"long 1000000")
        before = server.counts.overflows
        while deaf.session.closing is None:
            for _ in range(100):
                slow.hear()
        server.eventually(lambda: deaf.session.closing is not None)
        assert server.counts.overflows == before + 1
        assert deaf.session.closing.code == 1013
        assert slow.session.closing is None, "who reads is not"


def test_a_reader_of_a_long_answer_may_leave(server: Server) -> None:
    with server.connect() as reader:
        reader.say(b"long 1000000")
        reader.hear()
        reader.reset()
        server.eventually(lambda: reader.session.over == 1)


def test_nothing_is_read_while_the_disk_does_not_keep_up(server: Server) -> None:
    with server.connect() as client:
        client.say(b"jam it")
        assert client.hear() == b"it"
        client.say(b"echo one", b"echo two")

        def room() -> None:
            server.ledger.congested = False
            server.bus.resume_waiting()

        server.call(room)
        assert [client.hear(), client.hear()] == [b"one", b"two"]


# The end


def test_a_farewell_arrives_although_the_peer_goes_on_talking(server: Server) -> None:
    with server.connect() as client:
        client.say(b"size 300000", b"bye now", *(b"echo unheard" for _ in range(3000)))
        assert hear_all(client) == ([b"x" * 300000, b"now"], end(server, 4000))
        server.eventually(lambda: client.session.over == 1)


def test_a_broken_protocol_ends_with_1002(server: Server) -> None:
    with server.connect() as client:
        client.say(b"fail sorry", b"echo unheard")
        assert hear_all(client) == ([b"sorry"], end(server, 1002))


def test_goodbye(server: Server) -> None:
    with server.connect() as client:
        server.call(client.session.goodbye)
        assert hear_all(client) == ([b"goodbye"], end(server, 1001))
        server.eventually(lambda: client.session.over == 1)


def test_half_a_message_at_the_end(server: Server) -> None:
    with server.connect() as client:
        client.socket.sendall(client.wrap(b"echo this") + client.wrap(b"echo that")[:-1])
        assert client.hear() == b"this"
        client.socket.shutdown(socket.SHUT_WR)
        assert client.hear() in (0, 1001, 1006)
        server.eventually(lambda: client.session.over == 1)


@pytest.mark.parametrize("after", [b"", b"size 100000", b"long 100000", b"say nobody hears"])
def test_a_peer_may_vanish_at_any_time(server: Server, after: bytes) -> None:
    with server.connect() as client:
        if after:
            client.say(*[after] * 20)
        client.reset()
        server.eventually(lambda: client.session.over == 1)
    with server.connect() as client:
        assert client.session not in server.sessions[:-1]


@only(HYPERCORN)
def test_a_peer_may_vanish_while_both_sides_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve.WebSocketWire, "unread_seconds", 0.05)
    with server.connect() as client:
        client.say(*[b"size 1000000"] * 40)  # hypercorn queues ten, the session is saturated by one
        server.eventually(lambda: client.session.saturated)
        time.sleep(0.2)
        client.reset()
        server.eventually(lambda: client.session.over == 1)


def test_a_peer_that_left_is_told_nothing(server: Server) -> None:
    channel = server.channel()
    with server.connect() as listener, server.connect() as speaker:
        listener.say(b"join " + channel)
        assert listener.hear() == b"joined"
        listener.reset()
        speaker.say(*(b"say %s %d" % (channel, i) for i in range(200)), b"echo done")
        assert speaker.hear() == b"done"
        server.eventually(lambda: not server.bus.listener_count(channel.decode()))


def test_a_farewell_is_not_waited_for_for_ever(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.connect() as client:
        client.say(b"long 1000000")
        client.hear()
        monkeypatch.setattr(serve, "LINGER_SECONDS", 0.1)
        monkeypatch.setattr(connection, "LINGER_SECONDS", 0.1)
        server.call(client.session.goodbye)
        server.eventually(lambda: client.session.over == 1)
        client.reset()  # hypercorn waits for it


@only(TCP | FAST_WEBSOCKET)
def test_a_peer_that_does_not_hang_up_is_cut(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.1)
    with server.connect() as client:
        client.say(b"bye now")
        assert client.hear() == b"now"
        assert isinstance(client.hear(), int)
        with suppress(ConnectionResetError, BrokenPipeError):
            while client.session:
                client.say(b"echo unheard")


@only(TCP)
def test_answers_still_come_after_a_half_close(server: Server) -> None:
    with server.connect() as client:
        client.say(*[b"size 100000"] * 20, b"long 200", b"echo last")
        client.socket.shutdown(socket.SHUT_WR)
        heard, _ = hear_all(client)
        assert heard.count(b"x" * 100000) == 20
        assert b"last" in heard
        assert len(heard) == 221


@only(TCP)
def test_so_does_one_that_is_still_being_made(server: Server) -> None:
    with server.connect() as client:
        client.say(b"parts 5", b"echo last")
        client.socket.shutdown(socket.SHUT_WR)
        assert hear_all(client)[0] == [b"p"] * 5 + [b"last"]


@only(TCP)
@pytest.mark.parametrize("garbage", [b"\x00" * 100_000, b"\xff\xfe\n"[:2], b""])
def test_bytes_that_are_no_message_end_quietly(server: Server, garbage: bytes) -> None:
    with server.connect() as client:
        client.socket.sendall(garbage)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.hear() == 0


# Listening


@pytest.mark.parametrize("name", TCP | FAST_WEBSOCKET)
def test_whoever_is_connected_hears_goodbye_when_the_gateway_stops(name: str) -> None:
    running = run(*SHELLS[name], name in WEBSOCKET)
    server = next(running)
    with server.connect() as alice, server.connect() as bob:
        stopping = threading.Thread(target=next, args=(running, None))
        stopping.start()
        assert hear_all(alice) == hear_all(bob) == ([b"goodbye"], end(server, 1001))
    stopping.join()


@pytest.mark.parametrize("name", ["portable-tcp-asyncio", "portable-tcp-trio"])
def test_a_listener_survives_that_there_are_no_descriptors_left(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with contextmanager(run)(*TCP[name], False) as server, Lines() as client:
        with no_descriptors():
            client.connect(server.port)
            deadline = time.monotonic() + PATIENCE
            while not caplog.records:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        client.say(b"echo alive")
        assert client.hear() == b"alive"
    assert {record.name for record in caplog.records} == {"gateway.shells.tcp_server"}
    caplog.clear()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Take what is left of them; the limit itself is lowered first, so that this is quick."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, limits[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for number in taken:
            os.close(number)


# TLS


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate with its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, today, today + timedelta(days=1))
    path = tmp_path_factory.mktemp("tls") / "identity.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    )
    return path


TLS: Shells = {
    "portable-asyncio": (ASYNCIO, tcp_server.listen),
    "portable-trio": (TRIO, tcp_server.listen),
    "fast-asyncio": (ASYNCIO, fast.listen),
    "fast-uvloop": (UVLOOP, fast.listen),
}


@pytest.fixture(params=TLS)
def secure(request: pytest.FixtureRequest, identity: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for shell in (serve, tcp_server, connection):
        monkeypatch.setattr(shell, "LINGER_SECONDS", 0.5)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity)
    backend, listen = TLS[request.param]
    listen = partial(listen, handshake_seconds=0.5, handshake_limit=HANDSHAKES)
    yield from run(backend, partial(tcp, listen=listen, tls=context), framed=False)
    assert HANDSHAKES.inside == 0


class Counting:
    """Counts the handshakes under way, and refuses more when it is full."""

    inside = 0
    full = False

    def enter(self, address: str) -> str | None:
        assert address == "127.0.0.1"
        if self.full:
            return "too many"
        self.inside += 1
        return None

    def leave(self, address: str) -> None:
        assert address == "127.0.0.1"
        self.inside -= 1


HANDSHAKES = Counting()


class Secure(Lines):
    def connect(self, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.socket.connect(("127.0.0.1", port))
        self.socket = context.wrap_socket(self.socket)
        self.file = self.socket.makefile("rb")


def test_tls_carries_a_session_to_its_end(secure: Server) -> None:
    with Secure(secure.port) as client:
        client.say(b"echo hello", b"size 300000", b"long 500")
        heard = [client.hear() for _ in range(502)]
        assert heard[:2] == [b"hello", b"x" * 300000]
        client.say(b"bye now")
        assert hear_all(client) == ([b"now"], 0)
        secure.eventually(lambda: secure.sessions[-1].over == 1)


def test_tls_peers_may_leave_as_they_like(secure: Server) -> None:
    for leave in Client.reset, Client.__exit__:
        client = Secure(secure.port)
        client.say(b"long 100000")
        client.hear()
        leave(client)
        secure.eventually(lambda: secure.sessions[-1].over == 1)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000])
def test_who_does_not_finish_the_tls_handshake_is_dropped(secure: Server, said: bytes) -> None:
    with Lines(secure.port) as client:
        client.socket.sendall(said)
        with suppress(ConnectionResetError):
            while client.socket.recv(4096):
                pass
    assert secure.sessions == []


def test_who_is_in_a_tls_handshake_is_counted(secure: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lines(secure.port), Lines(secure.port):
        secure.eventually(lambda: HANDSHAKES.inside == 2)
        secure.eventually(lambda: HANDSHAKES.inside == 0)
    monkeypatch.setattr(HANDSHAKES, "full", True)
    with Lines(secure.port) as client, suppress(ConnectionResetError):
        assert client.socket.recv(1) == b""
    assert secure.sessions == []


# WebSocket


@pytest.fixture
def peer(server: Server) -> Iterator[Framed]:
    with server.connect() as client:
        assert isinstance(client, Framed)
        yield client


@only(WEBSOCKET)
def test_the_websockets_library_is_understood(server: Server) -> None:
    with websockets.sync.client.connect(f"ws://127.0.0.1:{server.port}/", compression=None) as client:
        client.send("echo é")
        assert client.recv(PATIENCE) == "é"
        client.send(["ec", "ho ", "x" * 200_000, ""])
        assert client.recv(PATIENCE) == "x" * 200_000
        assert client.ping().wait(PATIENCE)
        client.send("bye now")
        assert client.recv(PATIENCE) == "now"
        with pytest.raises(websockets.ConnectionClosedError) as caught:
            client.recv(PATIENCE)
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4000, "bye")


@only(WEBSOCKET)
@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x0f\xa0so long"])
def test_a_close_is_answered(server: Server, peer: Framed, payload: bytes) -> None:
    peer.socket.sendall(peer.wrap(payload, 0x88))
    head = peer.file.read(2)
    assert head[0] == 0x88
    assert peer.file.read(head[1])[:2] == payload[:2]
    assert peer.file.read() == b""
    server.eventually(lambda: peer.session.over == 1)


@only(WEBSOCKET)
@pytest.mark.usefixtures("server")
def test_fragments_of_one_byte(peer: Framed) -> None:
    text = b"echo " + "é".encode() * 200
    pieces = [peer.wrap(text[i : i + 1], 0x00) for i in range(1, len(text))]
    peer.socket.sendall(peer.wrap(text[:1], 0x01) + b"".join(pieces) + peer.wrap(b"ping", 0x89) + peer.wrap(b"", 0x80))
    assert peer.hear() == "é".encode() * 200
    assert peer.pongs == [b"ping"]


@only(WEBSOCKET)
@pytest.mark.usefixtures("server")
def test_a_binary_message_is_taken_as_text(peer: Framed) -> None:
    peer.socket.sendall(peer.wrap(b"echo a\xffb", 0x82) + peer.wrap(b"echo c", 0x82))
    assert [peer.hear(), peer.hear()] == ["a\ufffdb".encode(), b"c"]


@only(FAST_WEBSOCKET | HYPERCORN)
def test_a_message_over_the_limit(server: Server, peer: Framed) -> None:
    peer.say(b"echo " + b"x" * ((1 << 20) - 5))
    assert peer.hear() == b"x" * ((1 << 20) - 5)
    peer.say(b"echo before")
    peer.socket.sendall(peer.wrap(b"echo " + b"x" * ((1 << 20) - 4)))
    assert hear_all(peer) == ([b"before"], 1009)
    server.eventually(lambda: peer.session.over == 1)


@only(FAST_WEBSOCKET)
@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\x81\x81\0\0\0\0\xff", 1007), (b"\x83\x80\0\0\0\0", 1002), (b"\x81\x00", 1002), (b"\x88\x81\0\0\0\0\0", 1002)],
)
def test_a_broken_frame_ends_with_its_code_after_what_came_before(
    server: Server, peer: Framed, data: bytes, code: int
) -> None:
    peer.socket.sendall(peer.wrap(b"echo before") + data)
    assert hear_all(peer) == ([b"before"], code)
    server.eventually(lambda: peer.session.over == 1)


@only(FAST_WEBSOCKET)
def test_nothing_is_compressed(server: Server) -> None:
    with Framed(server.port, b"Sec-WebSocket-Extensions: permessage-deflate\r\n") as client:
        assert b"extensions" not in client.head.lower()


@only(FAST_WEBSOCKET)
def test_who_pings_and_does_not_read_is_not_read(server: Server, peer: Framed) -> None:
    ping = peer.wrap(b"." * 125, 0x89)
    pongs, rest = divmod(write_until_stuck(peer, ping), len(ping))
    with server.connect() as other:
        other.say(b"echo alive")
        assert other.hear() == b"alive"
    answers = (b"\x8a\x7d" + b"." * 125) * (pongs + 1)
    rest_of_it = threading.Thread(target=peer.socket.sendall, args=(ping[rest:] + peer.wrap(b"echo done"),))
    rest_of_it.start()
    assert peer.file.read(len(answers)) == answers
    assert peer.hear() == b"done"
    rest_of_it.join()
