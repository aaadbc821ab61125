"""HTTP connections are kept alive for further requests, and refusals arrive although the body is unfinished.

With genuine clients: Node's `fetch` and its `http.Agent`, Python's urllib.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.http import persistent
from tests.npm import require_node
from tests.server import Server

PATIENCE = 20.0  # seconds
LIMIT = 1 << 20  # bytes of one message (`gateway.http.media.MAX_CONTENT`)
HANDSHAKE, KEPT = 0.5, 1.2  # seconds
LONG = 3 * PATIENCE  # nothing waits as long as this
IDLE = 0.05  # seconds; a connection that is idle for less does not give way
LOOPS = ("asyncio", "trio")
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Gateways with the times that every gateway has."""
    with ExitStack() as stack:
        yield {loop: stack.enter_context(Server(tmp_path_factory.mktemp(loop), "--loop", loop)) for loop in LOOPS}


@pytest.fixture(params=LOOPS)
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    return servers[request.param]


def limited(handshake: float, kept: float, **more: float) -> dict[str, str]:
    """The limits of a gateway, in its environment."""
    limits = {"handshake_seconds": handshake, "keep_alive_seconds": kept} | more
    return {f"TRELLIS_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}


@pytest.fixture(scope="module", params=LOOPS)
def brief(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that keeps connections for a moment."""
    env = limited(HANDSHAKE, KEPT)
    with Server(tmp_path_factory.mktemp("brief"), "--loop", request.param, env=env) as running:
        yield running


@pytest.fixture(scope="module", params=LOOPS)
def hurried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that waits only for a moment until a request is whole."""
    env = limited(HANDSHAKE, LONG)
    with Server(tmp_path_factory.mktemp("hurried"), "--loop", request.param, env=env) as running:
        yield running


@pytest.fixture(scope="module", params=LOOPS)
def narrow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that takes few connections."""
    env, constants = (
        limited(LONG, LONG, connections_per_address=8),
        {"gateway.listeners.admission.PROTECTED_SHARE": IDLE / LONG},
    )
    with Server(tmp_path_factory.mktemp("narrow"), "--loop", request.param, env=env, constants=constants) as running:
        yield running


def connect(server: Server) -> socket.socket:
    host, port = server.http.split(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def used(server: Server) -> socket.socket:
    """A connection on which a request was answered; where the machine was too slow for the first, another one."""
    while True:
        peer = connect(server)
        with suppress(ConnectionError):
            peer.sendall(GET)
            if peer.recv(65536):
                return peer
        peer.close()


def answer(peer: socket.socket) -> bytes:
    """The head of an answer and its body."""
    with suppress(ConnectionError):
        data = b""
        while b"\r\n\r\n" not in data:
            data += peer.recv(65536) or pytest.fail(f"the gateway hung up after {data!r}")
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(body) < length:
            body += peer.recv(65536) or pytest.fail("the gateway hung up in the middle of an answer")
        return head + b"\r\n\r\n" + body
    pytest.fail("the gateway reset the connection")


def ended(peer: socket.socket) -> bool:
    """Whether the gateway ends the connection, perhaps with a refusal, before the patience of *peer* does."""
    try:
        with suppress(ConnectionError):
            while peer.recv(4096):
                pass
    except TimeoutError:
        return False
    return True


def node(script: str, *arguments: str) -> Any:
    """What *script* prints, as JSON; it is a module of Node's."""
    command = [require_node(), "--input-type=module", "-e", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Kept for a next request


def test_a_used_connection_is_kept_alive_and_announces_its_timeout(server: Server) -> None:
    with connect(server) as peer:
        for _ in range(2):
            peer.sendall(GET)
            head = answer(peer).lower()
            assert b"\r\nkeep-alive: timeout=65\r\n" in head
            assert b"connection: close" not in head
        peer.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        head = answer(peer).lower()
        assert b"\r\nconnection: close" in head
        assert b"keep-alive" not in head
        assert ended(peer)


AGENT = """
import http from "node:http"
const agent = new http.Agent({keepAlive: true, maxSockets: 1})
const [, url, pause, count] = process.argv
const ask = () => new Promise((done, failed) => {
  const request = http.get(url, {agent}, response => {
    response.resume()
    response.on("end", () => done({reused: request.reusedSocket, kept: response.headers["keep-alive"]}))
  })
  request.on("error", error => failed(error.message))
})
const told = []
for (let n = 0; n < count; n++) {
  if (n) await new Promise(done => setTimeout(done, pause))
  told.push(await ask().catch(error => error))
}
console.log(JSON.stringify(told))
process.exit(0)
"""


def test_nodes_agent_reuses_a_connection_after_more_than_five_seconds(servers: dict[str, Server]) -> None:
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(node, AGENT, f"http://{server.http}/healthz", "5200", "2") for server in servers.values()]
    for each in asked:
        assert each.result() == [{"reused": reused, "kept": "timeout=65"} for reused in (False, True)]


def test_nodes_agent_never_meets_a_connection_that_has_just_ended(brief: Server) -> None:
    """It leaves a second between the time that it is told and its next request: here there is none left."""
    told = node(AGENT, f"http://{brief.http}/healthz", str(int(KEPT * 1000) - 1), "3")
    assert told == [{"reused": False, "kept": "timeout=1"}] * 3


@pytest.mark.parametrize("said", [b"", b"GET / HT", GET[:-2]], ids=["nothing", "half a line", "half a head"])
def test_a_connection_without_a_complete_request_is_dropped_early(hurried: Server, said: bytes) -> None:
    began = time.monotonic()
    with connect(hurried) as peer:
        peer.sendall(said)
        assert ended(peer), "long before one that was used"
        assert time.monotonic() - began > HANDSHAKE - 0.1


@pytest.mark.parametrize("said", [b"GET / HT", b"\r\n"], ids=["half a line", "a blank line"])
def test_a_connection_with_an_unfinished_second_request_is_dropped_early(hurried: Server, said: bytes) -> None:
    with used(hurried) as peer:
        peer.sendall(said)
        assert ended(peer)


def test_a_used_connection_may_be_idle_for_longer(brief: Server) -> None:
    with used(brief) as peer:
        time.sleep(KEPT / 2)
        began = time.monotonic()
        with suppress(ConnectionError):
            peer.sendall(GET)
        if peer.recv(65536):  # otherwise the machine was too slow
            assert ended(peer)
            assert time.monotonic() - began > KEPT - 0.1, "the time begins with the last answer"


def test_idle_connections_are_closed_in_favour_of_new_requests(narrow: Server) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(narrow)) for _ in range(8)]
        for peer in idle:
            for _ in range(3):  # the one before is idle for certain before this one is for good
                peer.sendall(GET)
                answer(peer)
        time.sleep(2 * IDLE)
        for _ in range(3):
            peer = stack.enter_context(connect(narrow))
            peer.sendall(GET)
            assert answer(peer).startswith(b"HTTP/1.1 200")
        for peer in idle[:3]:
            assert ended(peer), "it was idle for longest"
        for peer in idle[3:]:
            peer.sendall(GET)
            assert answer(peer).startswith(b"HTTP/1.1 200")


def test_connections_with_an_answer_in_progress_are_not_closed(narrow: Server) -> None:
    with ExitStack() as stack:
        lines = b"POST /v1/channels/lobby/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        talkers: list[socket.socket] = []
        while len(talkers) < 8:  # as soon as those of the test before have gone
            peer = stack.enter_context(connect(narrow))
            peer.sendall(lines + b'Content-Type: application/x-ndjson\r\n\r\n5\r\n"hi"\n\r\n')
            with suppress(ConnectionError):  # one that is refused may be reset, with its refusal unread
                if peer.recv(4096).startswith(b"HTTP/1.1 200"):
                    talkers.append(peer)
        for _ in range(3):
            assert post(f"http://{narrow.http}{ROUTES[0]}", bytes(100_000))[0] == 503
        for peer in talkers:
            peer.settimeout(0.01)
            assert not ended(peer)


@pytest.mark.parametrize("loop", LOOPS)
def test_idle_connections_leave_descriptors_to_others(tmp_path: Path, loop: str) -> None:
    env = {"TRELLIS_LIMITS__KEEP_ALIVE_SECONDS": "1.6"}
    with Server(tmp_path, "--loop", loop, descriptors=280, env=env) as server, ExitStack() as stack:
        for _ in range(200):
            peer = stack.enter_context(connect(server))
            peer.sendall(GET)
            assert answer(peer).startswith(b"HTTP/1.1 200")
        time.sleep(0.15)
        host, port = server.sprout.split(":")
        for _ in range(30):
            peer = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE))
            peer.sendall(b"version 1 0.0\n")
            assert peer.recv(4096).startswith(b"status 1 0")


# Answers that arrive


FETCH = """
const [, url, size, how] = process.argv
async function* pieces() { for (let n = 0; n < size; n += 65536) yield new Uint8Array(65536).fill(32) }
const told = []
for (let n = 0; n < 4; n++) {
  const body = how === "chunked" ? ReadableStream.from(pieces()) : new Uint8Array(+size).fill(32)
  try {
    const response = await fetch(url, {method: "POST", body, duplex: "half"})
    told.push([response.status, (await response.json()).status])
  } catch (error) { told.push(String(error.cause ?? error)) }
}
console.log(JSON.stringify(told))
"""
ROUTES = ["/v1/channels/lobby/messages", "/v1/channels/lobby/peers/7/messages"]


@pytest.mark.parametrize("size", [LIMIT + 1, 8 * LIMIT])
@pytest.mark.parametrize("how", ["whole", "chunked"])
def test_nodes_fetch_receives_413_for_an_oversized_body(server: Server, size: int, how: str) -> None:
    assert node(FETCH, f"http://{server.http}{ROUTES[0]}", str(size), how) == [[413, 413]] * 4


def post(url: str, body: Any, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("path", ROUTES)
def test_urllib_receives_413_for_an_oversized_body(server: Server, path: str) -> None:
    for size in (LIMIT + 1, 8 * LIMIT, 16 * LIMIT):
        status, told = post(f"http://{server.http}{path}", bytes(size))
        assert (status, json.loads(told)["status"]) == (413, 413)
    pieces = (bytes(1 << 16) for _ in range(64))
    assert post(f"http://{server.http}{path}", pieces)[0] == 413


def test_urllib_receives_413_for_an_oversized_streamr_body(server: Server) -> None:
    status, told = post(f"http://{server.http}/api/v1/streams/s/data", bytes(8 * LIMIT))
    assert status == 413
    assert json.loads(told)


def test_urllib_receives_401_before_its_body_is_read(server: Server) -> None:
    status, _ = post(f"http://{server.http}{ROUTES[0]}", bytes(8 * LIMIT), Authorization="Bearer trellis_no_such_key")
    assert status == 401


@pytest.mark.parametrize(("seconds", "most"), [(0.3, 1 << 30), (PATIENCE, 1 << 20)])
def test_discarding_an_unfinished_body_is_bounded(
    make_local: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    monkeypatch.setattr(persistent, "DISCARD_SECONDS", seconds)
    monkeypatch.setattr(persistent, "MAX_DISCARDED", most)
    with socket.create_connection(("127.0.0.1", make_local().port), PATIENCE) as peer:
        peer.sendall(b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n" % ROUTES[0].encode())
        with suppress(ConnectionError):  # where the machine is slow, it has hung up already
            peer.sendall(bytes(2 << 20))
        assert answer(peer).startswith(b"HTTP/1.1 413")
        assert ended(peer)


def test_an_oversized_head_is_answered_with_an_error(server: Server) -> None:
    status, _ = post(f"http://{server.http}{ROUTES[0]}", b"1", **{"X-Long": "x" * 300_000})
    assert status in (400, 431)
