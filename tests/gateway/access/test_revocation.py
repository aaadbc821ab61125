"""Removing or expiring a key ends its connections, and a new key of the same name restores no rights."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from gateway.access.authorization import Access, ApiKey, KeyFile, Right, digest
from gateway.access.keyfile import now_ms
from gateway.access.revocation import KEY_ENDED, POLICY, RIGHT_ENDED, SLICE, Revocation
from gateway.core.principal import Principal
from gateway.core.session import Session
from tests.server import Server
from tests.still import Posted
from tests.waiting import until

SECONDS = 20.0  # a gateway notices within two; machines are busy
SUBSCRIBE = '{"type":2,"topic":"lobby"}'


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def keys(data: Path) -> KeyFile:
    file = KeyFile(data / "keys" / "api-keys.json")
    file.add("steady")
    return file


@pytest.fixture(scope="module")
def server(data: Path, keys: KeyFile) -> Iterator[Server]:  # noqa: ARG001  # there is a key when it starts
    with Server(data) as running:
        yield running


@pytest.fixture
def key(keys: KeyFile, server: Server) -> Iterator[str]:
    """A key called `victim` that the gateway knows."""
    yield added(keys, server)
    keys.remove("victim")


def added(keys: KeyFile, server: Server, **options: Any) -> str:
    secret = keys.add("victim", ("*:*", "admin:*"), **options)
    until(lambda: status(server, secret) == 200)
    return secret


def status(server: Server, key: str) -> int:
    found = httpx.get(f"http://{server.http}/v1/channels", headers={"Authorization": f"Bearer {key}"})
    return found.status_code


def dial(server: Server, key: str, path: str = "/relay") -> ClientConnection:
    return connect(f"ws://{server.http}{path}?key={key}")


def end_of(socket: ClientConnection) -> tuple[int, str]:
    """How *socket* is closed; what it is told before is passed over."""
    with pytest.raises(ConnectionClosed) as closed:
        deque(iter(partial(socket.recv, timeout=SECONDS), None))
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


@pytest.mark.parametrize("path", ["/relay", "/api/v1/ws", "/network", "/tracker"])
@pytest.mark.parametrize("again", [False, True], ids=["removed", "made again"])
def test_connections_of_a_removed_key_are_closed(
    server: Server, keys: KeyFile, key: str, path: str, again: bool
) -> None:
    with dial(server, key, path) as socket:
        keys.remove("victim")
        if again:
            keys.add("victim", ("*:*",))
        assert end_of(socket) == (POLICY, KEY_ENDED)


def test_an_idle_listener_is_closed_too(server: Server, keys: KeyFile, key: str) -> None:
    with dial(server, key) as socket:
        socket.send(SUBSCRIBE)
        assert json.loads(socket.recv(timeout=SECONDS))
        keys.remove("victim")
        assert end_of(socket)[0] == POLICY


def test_a_stream_of_events_ends(server: Server, keys: KeyFile, key: str) -> None:
    url = f"http://{server.http}/v1/channels/lobby/events?key={key}"
    with httpx.stream("GET", url, timeout=SECONDS) as response:
        lines = response.iter_lines()
        assert "event: welcome" in [next(lines) for _ in range(2)]  # after its id
        keys.remove("victim")
        assert f": {KEY_ENDED}" in list(lines)


def test_an_upload_under_way_loses_its_rights(server: Server, keys: KeyFile, key: str) -> None:
    told: list[Any] = []
    host, port = server.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as wire:
        head = (
            "POST /v1/channels/lobby/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/x-ndjson\r\n\r\n"
        )
        wire.sendall(head.encode())
        answer = wire.makefile("rb")

        def say() -> Any:
            wire.sendall(b'4\r\n"a"\n\r\n')
            while True:
                if (line := answer.readline()).startswith(b"{"):
                    return json.loads(line)
                assert line, "the answer ended"

        assert "sequence" in say()
        keys.remove("victim")
        keys.add("victim", ("*:*",))
        end = time.monotonic() + SECONDS
        while "sequence" in (found := say()):
            assert time.monotonic() < end, "lines are still taken"
            time.sleep(0.1)
        told.append(found)
    assert told[0]["status"] == 403


def test_an_expiring_key_closes_its_connections(server: Server, keys: KeyFile) -> None:
    secret = added(keys, server, expires=now_ms() + 4_000)
    try:
        with dial(server, secret) as socket:
            assert end_of(socket) == (POLICY, KEY_ENDED)
        assert status(server, secret) == 401
    finally:
        keys.remove("victim")


def test_a_rotated_key_ends_its_old_connections_and_not_the_new_ones(server: Server, keys: KeyFile, key: str) -> None:
    with dial(server, key) as old:
        secret = keys.rotate("victim", 3_000)
        until(lambda: status(server, secret) == 200)
        with dial(server, secret) as new:
            assert end_of(old) == (POLICY, KEY_ENDED)
            new.send(SUBSCRIBE)
            assert json.loads(new.recv(timeout=SECONDS))


def test_reading_the_log_ends_when_the_right_is_revoked(server: Server, keys: KeyFile, key: str) -> None:
    """Who reads the log slowly reads it for hours: the right is asked for again at each piece."""
    big = json.dumps("x" * 900_000).encode()
    for _ in range(24):
        headers = {"Authorization": f"Bearer {key}"}
        found = httpx.post(f"http://{server.http}/v1/channels/big/messages", content=big, headers=headers, timeout=60)
        assert found.status_code == 201
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.http.rsplit(":", 1)
        wire.settimeout(SECONDS)
        wire.connect((host, int(port)))
        wire.sendall(f"GET /v1/log HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        assert wire.recv(1000).startswith(b"HTTP/1.1 200")
        keys.remove("victim")
        until(lambda: status(server, key) == 401)
        read = 0
        while data := wire.recv(1 << 20):
            read += len(data)
            end = data[-5:]
        assert read < 20_000_000
        assert end != b"0\r\n\r\n", "half an answer must not look whole"


# Without a server


class ToyListener(Session):
    protocol = "toy"

    def handle(self, data: bytes) -> None: ...

    def deliver(self, message: Any) -> None: ...


def test_a_listener_whose_given_right_is_revoked_is_closed(core: Any) -> None:
    access, posted = Access([ApiKey("k", digest("s"))]), Posted()
    core.bus.allowed = access.allowed
    Revocation(access, core.bus, posted.put)
    alice, bob = (ToyListener(core.bus, Principal(f"toy:{name}")) for name in ("alice", "bob"))
    for name in ("toy:alice", "toy:bob"):
        access.set_given_rights(name, [Right("subscribe", "lobby")])
    for session in (alice, bob):
        core.bus.subscribe(session, "lobby")
    posted.drain()
    assert alice.closing is None
    access.set_given_rights("toy:alice", [])
    posted.drain()
    assert alice.closing == (POLICY, RIGHT_ENDED)
    assert bob.closing is None


def test_checking_many_connections_takes_turns_and_misses_none(core: Any) -> None:
    access, posted = Access([ApiKey("k", digest("s"))]), Posted()
    Revocation(access, core.bus, posted.put)
    principal = access.authenticate("toy", "s")
    assert principal is not None
    sessions = [ToyListener(core.bus, principal) for _ in range(2 * SLICE)]
    access.set_keys([])
    turns = 0
    while not posted.empty():
        posted.get_nowait()()
        turns += 1
        if turns == 1:
            assert sessions[-1].closing is None
            access.set_keys([])  # once more, while it is under way
    assert all(session.closing == (POLICY, KEY_ENDED) for session in sessions)
    assert 2 < turns < 10


def test_a_principal_that_lost_nothing_stays_connected() -> None:
    access = Access([ApiKey("k", digest("s"))])
    calls: list[None] = []
    access.on_change.append(lambda: calls.append(None))
    access.set_given_rights("toy:a", [Right("subscribe", "x")])
    access.set_given_rights("toy:a", [Right("subscribe", "x")])
    assert len(calls) == 1


def test_concurrent_commands_find_one_gateway(server: Server, keys: KeyFile) -> None:
    """Keys that are added while the gateway reads the file are all known in the end."""
    secrets: list[str] = []
    threads = [threading.Thread(target=lambda n=n: secrets.append(keys.add(f"many{n}"))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: all(status(server, secret) == 200 for secret in secrets))
