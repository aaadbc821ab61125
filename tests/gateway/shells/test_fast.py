"""What is special to the fast shell: its place inside uvicorn, its limits before a handshake, its one flush a turn."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import uvicorn
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI, WebSocket
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from gateway.core.buckets import TokenBuckets
from gateway.core.budget import Budget
from gateway.core.bus import Bus
from gateway.core.channels import Channels
from gateway.core.frames import text_frame
from gateway.core.message import Message, MessageIds
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal
from gateway.core.read_pacer import PENALTY_BURST, PenalizableSession, ReadPacer
from gateway.core.session import Session
from gateway.proxies import TrustedProxies
from gateway.shells import fast, serve, uvicorn_http, uvicorn_websocket
from gateway.shells.flusher import MAX_TURNS, MAX_WAIT, flusher_of
from gateway.shells.turns import CHEAP_SECONDS, FIRST_PORTION, LONG_TURN, turns_of
from tests.gateway.shells.servers import Counts, Ledger, uvicorned

PATIENCE = 20  # seconds
BRIEF = 0.3  # seconds, where a test is about a limit

HANDSHAKE = (
    b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


def new_bus() -> Bus:
    nobody: Any = lambda *_: None  # noqa: E731
    channels, peers = Channels([], nobody), PeerRegistry(1, nobody, nobody, nobody, nobody)
    return Bus(Ledger(), channels, peers, MessageIds(1), lambda: 1, Counts())


class Echo(Session):
    """Says everything back, and to the room."""

    protocol = "echo"
    ended = 0

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, Principal("somebody"))
        bus.subscribe(self, "room")

    def handle(self, data: bytes) -> None:
        self.send(text_frame(data))

    def deliver(self, message: Message) -> None:
        self.put(text_frame(message.content))

    def receive_eof(self) -> None:
        self.ended += 1
        super().receive_eof()

    def say(self, content: bytes) -> None:
        self.bus.publish(Message("room", self.who, self.protocol, content), self)


# A server with routes of every kind


class Http(uvicorn_http.FastHttp):
    head_seconds = PATIENCE
    stalled_seconds = PATIENCE


class Service:
    def __init__(self) -> None:
        self.bus = new_bus()
        self.sessions: list[Echo] = []
        self.gate = asyncio.Event()
        self.app = FastAPI()
        self.app.add_api_websocket_route("/session", self.session)
        self.app.add_api_websocket_route("/hesitant", self.hesitant)
        self.app.add_api_websocket_route("/late", self.late)
        self.app.add_api_websocket_route("/plain", self.plain)
        self.app.add_api_websocket_route("/refused", self.refused)
        self.app.add_route("/length", self.length, methods=["POST"])
        self.app.add_route("/slow", self.slow)
        self.app.add_route("/long", self.long)

    def new_session(self) -> Echo:
        self.sessions.append(Echo(self.bus))
        return self.sessions[-1]

    async def session(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await serve.run_websocket(websocket, self.new_session())

    async def hesitant(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await asyncio.sleep(0.2)
        await serve.run_websocket(websocket, self.new_session())

    async def late(self, websocket: WebSocket) -> None:
        await asyncio.sleep(0.2)
        session = self.new_session()
        try:
            await websocket.accept()
            await serve.run_websocket(websocket, session)
        except OSError:
            session.receive_eof()

    async def plain(self, websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    async def refused(self, websocket: WebSocket) -> None:
        await websocket.send_denial_response(PlainTextResponse("no such key", 401))

    async def length(self, request: Request) -> PlainTextResponse:
        try:
            return PlainTextResponse(str(len(await request.body())))
        except ClientDisconnect:
            return PlainTextResponse("nobody hears it")

    async def long(self, request: Request) -> StreamingResponse:  # noqa: ARG002
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield bytes(1 << 20)

        return StreamingResponse(pieces())

    async def slow(self, request: Request) -> PlainTextResponse:  # noqa: ARG002
        await asyncio.sleep(BRIEF * 1.5)
        return PlainTextResponse("done")


def running(service: Service) -> AbstractAsyncContextManager[int]:
    return uvicorned(service.app, uvicorn_websocket.FastWebSocket, Http, ws_ping_interval=0.05, timeout_keep_alive=1000)


class Harness:
    def __init__(self, portal: Any, service: Service, port: int) -> None:
        self.call = portal.call
        self.service = service
        self.port = port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    @contextmanager
    def open(self, path: bytes, extra: bytes = b"", *, early: bytes = b"") -> Iterator[socket.socket]:
        with self.connect() as peer:
            peer.sendall(b"GET " + path + b" HTTP/1.1\r\n" + HANDSHAKE + extra + b"\r\n")
            if early:
                time.sleep(0.05)
                peer.sendall(early)
            yield peer

    def eventually(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.call(condition):
            assert time.monotonic() < deadline
            time.sleep(0.002)


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def server(request: pytest.FixtureRequest) -> Iterator[Harness]:
    options = {"use_uvloop": request.param == "uvloop"}
    with start_blocking_portal("asyncio", options) as portal:
        service = portal.call(Service)
        with portal.wrap_async_context_manager(running(service)) as port:
            yield Harness(portal, service, port)


@pytest.fixture(autouse=True)
def allowed(caplog: pytest.LogCaptureFixture) -> Iterator[set[str]]:
    """What a test allows to be in the log, which is nothing unless it says so."""
    caplog.set_level(logging.WARNING)
    messages: set[str] = set()
    yield messages
    assert {record.getMessage() for record in caplog.get_records("call")} <= messages


def text(payload: bytes) -> bytes:
    return bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload


def masked(payload: bytes) -> bytes:
    return bytes((0x81, 0x80 | len(payload), 0, 0, 0, 0)) + payload


def head(peer: socket.socket) -> bytes:
    """The head of the response, byte by byte so that nothing after it is taken."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += peer.recv(1) or pytest.fail(f"the server hung up after {data!r}")
    return data


def rest(peer: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    data = b""
    try:
        while piece := peer.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def take(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:  # MSG_WAITALL does not wait on a socket with a timeout
        more = peer.recv(count - len(data))
        assert more
        data += more
    return data


def hear(peer: socket.socket) -> bytes:
    """The next short message; uvicorn's own pings are passed over."""
    while True:
        first, size = take(peer, 2)
        payload = take(peer, size)
        if first == 0x81:
            return payload
        assert first == 0x89


# Inside uvicorn


def test_uvicorn_still_has_what_is_overridden() -> None:
    for name in "handle_connect", "data_received", "send", "receive", "run_asgi", "stop_keepalive", "shutdown":
        assert callable(getattr(WebSocketsSansIOProtocol, name))
    for name in "connection_made", "connection_lost", "data_received", "on_message_begin", "on_headers_complete":
        assert callable(getattr(HttpToolsProtocol, name))
    assert callable(HttpToolsProtocol.send_400_response)


def test_an_idle_peer_owns_no_task(server: Harness) -> None:
    async def tasks() -> int:
        return len(asyncio.all_tasks())

    before = server.call(tasks)
    with server.open(b"/session") as one, server.open(b"/session") as two:
        for peer in one, two:
            head(peer)
            peer.sendall(text(b"hello"))
            assert take(peer, 7) == text_frame(b"hello")
        assert server.call(tasks) == before


def test_a_session_outlives_its_route_and_is_not_pinged(server: Harness) -> None:
    with server.open(b"/session") as peer:
        head(peer)
        time.sleep(0.2)  # several ping intervals of the configuration
        peer.sendall(text(b"still here"))
        assert take(peer, 12) == text_frame(b"still here")


def test_other_routes_have_a_websocket_as_ever(server: Harness) -> None:
    with server.open(b"/plain") as peer:
        head(peer)
        for i in range(3):
            peer.sendall(text(b"%d" % i))
            assert hear(peer) == b"%d" % i


def test_a_refusal_is_an_http_response(server: Harness) -> None:
    with server.open(b"/refused") as peer:
        assert b" 401 " in head(peer)
        assert rest(peer) == b"no such key"


def test_what_comes_before_the_session_does_is_kept_for_it(server: Harness) -> None:
    with server.open(b"/hesitant") as peer:
        head(peer)
        peer.sendall(text(b"a") + text(b"b")[:-1])
        time.sleep(0.05)
        peer.sendall(b"b")
        assert [hear(peer), hear(peer)] == [b"a", b"b"]


@pytest.mark.parametrize("path", [b"/hesitant", b"/late"])
def test_a_session_for_a_peer_that_left_meanwhile_ends(server: Harness, path: bytes) -> None:
    count = len(server.service.sessions)
    with server.open(path) as peer:
        time.sleep(0.05)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.eventually(lambda: [session.ended for session in server.service.sessions[count:]] == [1])


def test_who_talks_before_the_handshake_is_answered_is_cut(server: Harness) -> None:
    with server.open(b"/late", early=text(b"hello")) as peer:
        assert rest(peer) == b""


@pytest.mark.parametrize(
    ("extra", "answer"),
    [
        (b"X: " + b"x" * 9000 + b"\r\n", b"HTTP/1.1 431"),
        (b"".join(b"X%d: x\r\n" % i for i in range(200)), b"HTTP/1.1 431"),
        (b"Sec-WebSocket-Version: 1\r\n", b"HTTP/1.1 400"),
        (b"Content-Length: 1\r\n", b""),
    ],
)
def test_a_handshake_that_is_none_does_not_leave_the_connection_open(
    server: Harness, extra: bytes, answer: bytes
) -> None:
    with server.open(b"/session", extra) as peer:
        assert rest(peer)[:12] == answer


# Limits before the handshake


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has to be whole, and an answer to be read, in a moment."""
    monkeypatch.setattr(Http, "head_seconds", BRIEF)
    monkeypatch.setattr(Http, "stalled_seconds", BRIEF)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_who_does_not_finish_a_request_is_dropped(server: Harness, said: bytes) -> None:
    with server.connect() as peer:
        peer.sendall(said)
        assert rest(peer) == b""


@pytest.mark.usefixtures("brief")
def test_so_is_who_does_not_finish_another(server: Harness) -> None:
    with server.connect() as peer:
        peer.sendall(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\nGET /again")
        assert rest(peer).startswith(b"HTTP/1.1 404")


@pytest.mark.usefixtures("brief")
def test_an_answer_may_take_longer_than_a_request(server: Harness) -> None:
    with server.connect() as peer:
        peer.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
        for _ in range(2):
            assert head(peer).startswith(b"HTTP/1.1 200")
            assert take(peer, 4) == b"done"


@pytest.mark.parametrize(
    "fields", [b"X: " + b"x" * (1 << 20), b"".join(b"X%d: %s\r\n" % (i, b"x" * 1000) for i in range(70))]
)
def test_the_head_of_a_request_is_bounded(server: Harness, allowed: set[str], fields: bytes) -> None:
    allowed.add("Invalid HTTP request received.")
    with server.connect() as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with suppress(ConnectionResetError, BrokenPipeError):
            peer.sendall(fields + b"\r\n\r\n")
        assert rest(peer)[:12] in (b"HTTP/1.1 400", b"")  # a reset may be faster


def test_nothing_is_written_behind_the_last_answer(server: Harness, allowed: set[str]) -> None:
    allowed.add("Invalid HTTP request received.")
    with server.connect() as peer:
        fields = b"Host: localhost\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n"
        peer.sendall(b"POST /length HTTP/1.1\r\n" + fields + b"\r\nno chunk\r\n")
        assert rest(peer)[:12] == b"HTTP/1.1 400"


def test_a_body_is_no_head(server: Harness) -> None:
    body = b"x" * 300_000
    request = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n" + body
    with server.connect() as peer:
        peer.sendall(request + request[:40])
        assert head(peer).startswith(b"HTTP/1.1 200")
        assert take(peer, 6) == b"300000"
        peer.sendall(request[40:])
        assert head(peer).startswith(b"HTTP/1.1 200")
        assert take(peer, 6) == b"300000"


@pytest.mark.slow
def test_pipelined_requests_are_answered_in_order_and_parsed_a_few_at_a_time(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [0]
    parse = Http._parse_slice

    def counting(self: Http, data: bytes) -> None:
        parse(self, data)
        waiting.append(len(self.pipeline))

    monkeypatch.setattr(Http, "_parse_slice", counting)
    bodies = [b"x" * (size % 700) for size in range(3000)]
    request = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
    said = b"".join(request % (len(body), body) for body in bodies)
    with server.connect() as peer:
        sender = threading.Thread(target=peer.sendall, args=(said,))
        sender.start()
        for body in bodies:
            assert head(peer).startswith(b"HTTP/1.1 200")
            assert take(peer, len(str(len(body)))) == b"%d" % len(body)
        sender.join()
    assert max(waiting) <= uvicorn_http.MAX_PIPELINE + uvicorn_http.HEAD_SLICE // 40


def test_what_a_client_sends_before_it_was_answered_is_not_read(server: Harness) -> None:
    with server.connect() as peer:
        peer.settimeout(1)
        sent = 0
        with suppress(TimeoutError):
            while sent < 1 << 26:
                sent += peer.send(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert sent < 1 << 25, "the sockets take some megabytes"


@pytest.mark.usefixtures("brief")
def test_a_client_that_reads_nothing_of_an_answer_is_cut(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[tuple[str, int] | None] = []

    def connection_lost(self: Http, error: Exception | None) -> None:
        lost.append(self.client)
        uvicorn_http.FastHttp.connection_lost(self, error)

    monkeypatch.setattr(Http, "connection_lost", connection_lost)
    with server.connect() as peer:
        peer.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.eventually(lambda: peer.getsockname() in lost)
        left = 0
        with suppress(ConnectionError):
            while data := peer.recv(1 << 20):
                left += len(data)
        assert left < 1 << 28, "what the sockets held"


@pytest.mark.usefixtures("brief")
def test_a_client_that_hangs_up_while_pipelined_requests_are_answered_is_no_fault(
    server: Harness, caplog: pytest.LogCaptureFixture, allowed: set[str]
) -> None:
    with server.connect() as peer:
        peer.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
        peer.recv(1 << 20)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(2 * BRIEF)
    allowed.add("socket.send() raised exception.")  # what asyncio's own loop says of it
    assert "Exception in ASGI application" not in caplog.text


def test_what_was_put_off_is_parsed_before_more_is_read(sock: socket.socket, allowed: set[str]) -> None:
    """Also while the body of a request is asked for: megabytes were copied for each small request."""
    asked = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        nonlocal asked
        await receive()
        asked += 1
        await asyncio.sleep(60)

    async def check() -> None:
        http, transport = await http_connection(app, sock)
        http.data_received(b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx" * 50)
        for _ in range(5):
            await asyncio.sleep(0)
        found = asked, transport.paused
        http.connection_lost(None)
        assert found == (1, True)

    asyncio.run(check())
    allowed.add("Exception in ASGI application\n")  # it was cancelled


def test_requests_on_busy_connections_have_a_turn_each_and_others_do_not_wait(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch, allowed: set[str]
) -> None:
    for module in ("turns", "steps", "uvicorn_http"):
        monkeypatch.setattr(f"gateway.shells.{module}.perf_counter", lambda: 100.0)
    started: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        started.append(scope["path"])
        await asyncio.sleep(60)

    async def check() -> None:
        many = [await http_connection(app, sock) for _ in range(10)]
        for number, (http, _) in enumerate(many):
            http._load.add(0.01 * (number > 0), 100.0, 0.01 * (number > 0))
        for number, (http, _) in reversed(list(enumerate(many))):
            http.data_received(b"GET /%d HTTP/1.1\r\n\r\n" % number)
        await asyncio.sleep(0)
        assert started == ["/0"], "who asks for little is answered at once"
        while len(started) < len(many):
            before = len(started)
            for _ in range(3):  # at most: it gives way, it is started, it begins
                await asyncio.sleep(0)
            assert before < len(started) <= before + 3
        assert started == [f"/{number}" for number in (0, *range(9, 0, -1))]

    asyncio.run(check())
    allowed.add("Exception in ASGI application\n")  # they were cancelled


def test_a_request_that_is_over_a_limit_or_malformed_is_held_against_its_connection(sock: socket.socket) -> None:
    statuses = iter((200, 404, 429, *[200] * 10))
    started = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        nonlocal started
        started += 1
        await send({"type": "http.response.start", "status": next(statuses), "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def check() -> None:
        http, _ = await http_connection(app, sock)
        now = 100.0
        read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: now), lambda: now)
        http.gateway = type("Gateway", (), {"bus": type("Bus", (), {"read_pacer": read_pacer})})  # type: ignore[assignment]
        for blamed in (False, False, True):
            http.data_received(b"GET / HTTP/1.1\r\n\r\n")
            for _ in range(3):
                await asyncio.sleep(0)
            assert read_pacer.is_penalized(http) == blamed
        read_pacer.charge_loop_time(http, PENALTY_BURST + 0.001)
        http.data_received(b"GET / HTTP/1.1\r\n\r\n")
        for _ in range(5):
            await asyncio.sleep(0)
        assert started == 3, "what it took is to be paid first"
        now += 1.0
        while started < 4:
            await asyncio.sleep(0.001)

    asyncio.run(check())


class Somewhere(Echo):
    """One whose connection counts for a network."""

    @property
    def network(self) -> str:
        return "192.0.2.1"


def test_who_comes_again_is_not_read_before_it_has_paid(sock: socket.socket) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        started.append(scope["path"])

    started = list[str]()
    let_in = SimpleNamespace(enter=lambda _: None, mark_busy=lambda _: None, leave=lambda _: None)

    async def check() -> None:
        bus = new_bus()
        bus.read_pacer = read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 100.0), lambda: 100.0)
        for _ in range(2):
            bad = Somewhere(bus)
            bad.record_malformed()
            read_pacer.charge_loop_time(bad, PENALTY_BURST + 0.005)
            read_pacer.connection_closed(bad)
        transport = Recorder(sock)
        fast.WebSocketProtocol(asyncio.get_running_loop(), set(), 1 << 20).start(transport, Somewhere(bus))
        assert transport.paused

        http, _ = await http_connection(app, sock)
        http.gateway = SimpleNamespace(admission=let_in, budget=read_pacer.budget, bus=bus, proxies=TrustedProxies(()))  # type: ignore[assignment]
        transport = Recorder(sock)
        transport._extra["peername"] = ("192.0.2.1", 1)  # type: ignore[attr-defined]
        http.connection_made(transport)
        http.data_received(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.01)
        assert not started
        assert transport.paused

    asyncio.run(check())


@pytest.mark.parametrize("use_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_what_it_sends_meanwhile_is_not_read_either(use_uvloop: bool) -> None:
    async def check() -> None:
        bus, sessions = new_bus(), list[Somewhere]()
        bus.read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 100.0), lambda: 100.0)
        bad = Somewhere(bus)
        bad.record_malformed()
        bus.read_pacer.charge_loop_time(bad, PENALTY_BURST + 1.0)
        bus.read_pacer.connection_closed(bad)

        def accept(address: str) -> Session:  # noqa: ARG001
            sessions.append(Somewhere(bus))
            return sessions[-1]

        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            port = await fast.listen(accept, "127.0.0.1", 0, tasks=tasks, stack=stack)
            async with await anyio.connect_tcp("127.0.0.1", port) as peer:
                with anyio.move_on_after(0.5):  # its own buffers and the kernel's take some MiB
                    while True:
                        await peer.send(bytes(1 << 16))
            assert bus.read_pacer.budget.held < 1 << 16

    anyio.run(check, backend="asyncio", backend_options={"use_uvloop": use_uvloop})


async def http_connection(app: Any, sock: socket.socket) -> tuple[Http, Recorder]:
    config = uvicorn.Config(app, http=Http, lifespan="off", log_config=None)
    config.load()
    http, transport = Http(config, ServerState(), {}), Recorder(sock)
    http.connection_made(transport)
    return http, transport


# One flush a turn


class Recorder(asyncio.Transport):
    """A transport that is the list of what was written to it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.written: list[bytes] = []
        self.aborted = self.paused = False

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The peer is told that nothing follows."""

    def is_closing(self) -> bool:
        return self.aborted

    def close(self) -> None:
        """Everything is written."""

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True


Peer = tuple[fast.WebSocketProtocol, Recorder, Echo]


class Crowd(Echo):
    """What is said is gathered in the bus's batch, as protocols with many listeners do it."""

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Any], origins: Sequence[Any]) -> int:
        return cls.fan_out([text_frame(message.content) for message in run], sessions, origins)


async def connections(count: int, sock: socket.socket, kind: type[Echo] = Echo) -> list[Peer]:
    loop, bus, found = asyncio.get_running_loop(), new_bus(), list[Peer]()
    for _ in range(count):
        connection, transport, session = fast.WebSocketProtocol(loop, set(), 1 << 20), Recorder(sock), kind(bus)
        connection.start(transport, session)
        found.append((connection, transport, session))
    await asyncio.sleep(0)
    return found


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        yield sock


def test_all_that_is_said_in_a_turn_of_the_loop_is_one_write_for_each_peer(sock: socket.socket) -> None:
    async def check() -> None:
        peers = await connections(5, sock)
        for i in range(20):
            peers[0][2].say(b"%d" % i)
        assert [transport.written for _, transport, _ in peers] == [[]] * 5
        await asyncio.sleep(0)
        expected = b"".join(text_frame(b"%d" % i) for i in range(20))
        assert [transport.written for _, transport, _ in peers] == [[], *[[expected]] * 4]

    asyncio.run(check())


def test_a_bug_in_one_session_ends_that_one_alone(
    sock: socket.socket, caplog: pytest.LogCaptureFixture, allowed: set[str]
) -> None:
    async def check() -> None:
        peers = await connections(4, sock)
        peers[2][2].all_to_send = lambda: 1 // 0  # type: ignore[method-assign, assignment, return-value]
        peers[0][2].say(b"x")
        await asyncio.sleep(0)
        assert [transport.aborted for _, transport, _ in peers] == [False, False, True, False]
        assert [transport.written for _, transport, _ in peers] == [[], [text_frame(b"x")], [], [text_frame(b"x")]]

    asyncio.run(check())
    allowed.add("a connection failed; the others go on")
    assert set(caplog.messages) == allowed


class Work:
    """A clock that goes on only while something is worked at, however busy the machine is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in ("connection", "turns"):
            monkeypatch.setattr(f"gateway.shells.{module}.perf_counter", lambda: self.now)

    def take(self, seconds: float) -> None:
        """Work so long."""
        self.now += seconds


def test_a_connection_with_much_input_leaves_turns_of_the_loop_to_others(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)

    class Slow(Echo):
        def handle(self, data: bytes) -> None:
            work.take(0.0005 * (data == b"x"))
            super().handle(data)

    async def check() -> None:
        (one, _, _), (_, heard, _), (other, transport, _) = await connections(3, sock, Slow)
        one.data_received(masked(b"x") * 3000)
        count = 0
        while one._unhandled is not None:
            before = len(transport.written)
            other.data_received(masked(b"y"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(transport.written) > before, "answered at once"
            count += 1
        assert count > 20
        assert heard.written == []

    asyncio.run(check())


def test_long_reads_that_come_together_do_not_share_one_turn(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connections there are, and though none of them was busy before."""
    handled, work = list[bytes](), Work(monkeypatch)

    class Slow(Echo):
        def handle(self, data: bytes) -> None:
            work.take(2 * LONG_TURN)
            handled.append(data)

    async def check() -> None:
        long = b"\x81\xfe" + (2 * FIRST_PORTION).to_bytes(2) + bytes(4) + b"y" * 2 * FIRST_PORTION
        many = await connections(20, sock, Slow)
        small, _, _ = many.pop()
        for connection, _, _ in many:
            connection.data_received(masked(b"x") + long)
        assert len(handled) == 1, "the others wait: this turn is over"
        small.data_received(masked(b"z"))
        assert handled[-1] == b"z", "who says little does not"
        while any(connection._unhandled is not None for connection, _, _ in many):
            before = len(handled)
            await asyncio.sleep(0)
            assert len(handled) <= before + 1
        assert len(handled) == 1 + 2 * len(many)

    asyncio.run(check())


def test_a_flush_waits_for_more_only_as_long_as_nobody_notices(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("gateway.shells.flusher.perf_counter", lambda: now)

    async def turns(seconds: float) -> int:
        """How many turns of the loop, so long each, a flush waits while somebody says something in each."""
        nonlocal now
        ((one, heard, session),) = await connections(1, sock)
        flusher = flusher_of(asyncio.get_running_loop())
        session.put(text_frame(b"1"))
        session.put(text_frame(b"2"))
        one.wake()
        await asyncio.sleep(0)  # two wait for one peer: from now on flushes gather
        heard.written.clear()
        session.put(text_frame(b"3"))
        one.wake()
        waited = 0
        while not heard.written:
            flusher.arrivals += 1
            now += seconds
            waited += 1
            await asyncio.sleep(0)
        return waited

    assert 10 < asyncio.run(turns(0.0)) <= MAX_TURNS + 2
    assert asyncio.run(turns(MAX_WAIT)) <= 2


@pytest.mark.parametrize("tail", [b"", bytes((0x88, 0x80, 0, 0, 0, 0))], ids=["open", "closed"])
def test_all_of_much_input_is_handled_in_order(sock: socket.socket, tail: bytes) -> None:
    handled, follows = list[bytes](), list[bool]()

    class Taking(Echo):
        def handle(self, data: bytes) -> None:
            handled.append(data)
            follows.append(self.more_follows)

    async def check() -> None:
        ((connection, transport, session),) = await connections(1, sock, Taking)
        said = [b"%d" % i * 20 for i in range(5000)]
        connection.data_received(b"".join(map(masked, said)) + tail)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert handled == said
        assert follows == sorted(follows, reverse=True), "and the session knows when more follows"
        assert follows[0]
        assert not session.more_follows
        assert not transport.paused
        assert session.ended == bool(tail)

    asyncio.run(check())


def test_a_paced_connection_is_not_read_and_loses_nothing(sock: socket.socket) -> None:
    class Patient(ReadPacer):
        def record_read(self, session: PenalizableSession, size: int, seconds: float = 0.0) -> float:  # noqa: ARG002
            return 0.01

    async def check() -> None:
        ((connection, transport, session),) = await connections(1, sock)
        session.bus.read_pacer = Patient(None, time.monotonic)
        connection.data_received(masked(b"x") * 10_000)
        assert transport.paused
        while connection._unhandled is not None or transport.paused:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert b"".join(transport.written) == text_frame(b"x") * 10_000

    asyncio.run(check())


def test_what_a_transport_hands_over_during_a_pause_counts_for_the_budget(sock: socket.socket) -> None:
    async def check() -> None:
        ((connection, _, session),) = await connections(1, sock)
        session.bus.read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 1.0), lambda: 1.0, Budget(1 << 20))
        session.bus.read_pacer.budget.enter(connection)
        connection._unhandled = deque()
        for _ in range(40):
            connection.data_received(bytes(1 << 16))
            await asyncio.sleep(0)
        assert connection.held_size < 1 << 20
        assert session.closing is not None

    asyncio.run(check())


def test_who_misbehaved_waits_for_its_turn_and_pays_while_others_talk(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[float] = []
    work, cost = Work(monkeypatch), CHEAP_SECONDS / 2

    class Costly(Echo):
        def handle(self, data: bytes) -> None:
            work.take(cost)
            super().handle(data)

    class Charging(ReadPacer):
        def record_read(self, session: PenalizableSession, size: int, seconds: float = 0.0) -> float:
            charged.append(seconds)
            return super().record_read(session, size, seconds)

    async def check() -> None:
        (bad, _, session), (good, heard, _) = await connections(2, sock, Costly)
        session.bus.read_pacer = Charging(TokenBuckets(1e9, 1e9, lambda: 1.0), lambda: 1.0)
        session.record_malformed()
        bad.data_received(masked(b"alone"))
        assert charged == [0.0]
        good.data_received(masked(b"x"))
        bad.data_received(masked(b"not alone"))
        assert charged[1:] == [0.0, pytest.approx(cost)]
        turns_of(asyncio.get_running_loop()).spend(LONG_TURN)
        bad.data_received(masked(b"x"))
        assert bad._unhandled is not None
        good.data_received(masked(b"y"))
        await asyncio.sleep(0)
        assert b"".join(heard.written) == text_frame(b"x") + text_frame(b"y")

    asyncio.run(check())


def test_a_reader_that_overflows_while_others_are_flushed_holds_up_nobody(sock: socket.socket) -> None:
    """The batch is spilled by the first look at an outbox: then the slow reader is closed, and so woken."""

    async def check() -> None:
        (_, _, speaker), (_, first, _), (slow, _, slow_session), (_, last, _) = await connections(4, sock, Crowd)
        slow.pause_writing()
        for turn in range(1, 40):
            speaker.say(bytes(60_000))
            await asyncio.sleep(0)
            assert [len(first.written), len(last.written)] == [turn, turn]
        assert slow_session.closing is not None
        assert slow_session.closing.code == 1013

    asyncio.run(check())


def test_a_peer_that_hangs_up_just_before_the_end_of_its_session_is_no_fault() -> None:
    async def check() -> None:
        loop, house, session = asyncio.get_running_loop(), set[Any](), Echo(new_bus())
        server = await loop.create_server(lambda: fast.TcpProtocol(lambda _: session, loop, house), "127.0.0.1", 0)
        async with server:
            peer = socket.create_connection(server.sockets[0].getsockname())
            while not house:
                await asyncio.sleep(0)
            (connection,) = house
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()  # a reset, which nobody has read yet
            session.close(1000, "over")
            connection.flush()
            assert connection.transport.is_closing()
            while house:
                await asyncio.sleep(0)
        assert session.ended == 1

    asyncio.run(check())


def test_a_session_that_cannot_even_be_counted_ends_alone(
    sock: socket.socket, caplog: pytest.LogCaptureFixture, allowed: set[str]
) -> None:
    class Uncountable(Echo):
        @property
        def waiting(self) -> int:
            raise ZeroDivisionError

    async def check() -> None:
        peers = await connections(3, sock)
        peers[1][2].__class__ = Uncountable
        for turn in range(1, 3):
            peers[0][2].say(b"x")
            await asyncio.sleep(0)
            assert [transport.aborted for _, transport, _ in peers] == [False, True, False]
            assert len(peers[2][1].written) == turn

    asyncio.run(check())
    allowed.add("a connection failed; the others go on")
    assert set(caplog.messages) == allowed


def test_nothing_is_taken_from_a_session_while_its_peer_does_not_read(sock: socket.socket) -> None:
    async def check() -> None:
        (_, _, speaker), (connection, transport, session) = await connections(2, sock)
        connection.pause_writing()
        speaker.say(b"x")
        await asyncio.sleep(0)
        assert transport.written == []
        assert session.has_more
        connection.resume_writing()
        await asyncio.sleep(0)
        assert transport.written == [text_frame(b"x")]

    asyncio.run(check())


def test_a_long_answer_leaves_room_for_others_between_its_pieces(sock: socket.socket) -> None:
    async def check() -> None:
        (_, first, reader), (_, second, other) = await connections(2, sock)
        reader.stream(iter([bytes(1 << 16)] * 3))
        for i in range(1, 4):
            other.send(b"%d" % i)
            await asyncio.sleep(0)
            assert [len(first.written), len(second.written)] == [i, i]

    asyncio.run(check())
