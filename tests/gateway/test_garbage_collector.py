"""Ended connections are freed at once, because the cyclic garbage collector runs seldom (`gateway.service`)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.attacks.client_frames import STREAMR, frame, websocket
from tests.attacks.target import Target
from tests.attacks.unread import community_of, fill
from tests.attacks.wire import NARROW, Raw
from tests.server import Server

CONNECTIONS = 10
ALL = "/api/v1/streams/c/data/partitions/0/from?fromTimestamp=0"
# The collector's own list of garbage lacks what the finalizers of generators free, so this counts before and after.
LOOK = """
import collections, gc, json, signal, sys
def count():
    found = collections.Counter(type(each).__qualname__ for each in gc.get_objects())
    held = {id(each): len(each) for one in gc.get_objects() for each in gc.get_referents(one) if type(each) is bytes}
    found["bytes"] = sum(held.values())
    return found
def look(*_):
    before = count()
    gc.collect()
    before.subtract(count())
    print("garbage", json.dumps(before), file=sys.stderr, flush=True)
signal.signal(signal.SIGUSR1, look)
"""
KEY = "A" * 22 + "=="
UPGRADE = f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
BODY = "Content-Length: 100000\r\n\r\n" + "x" * 100_000
ASKED = (
    "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /v1/channels?limit=x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /v1/channels/c/messages HTTP/1.1\r\nHost: localhost\r\n" + BODY,
    "POST /api/v1/streams/s/data HTTP/1.1\r\nHost: localhost\r\n" + BODY,
    f"GET /relay HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n",
    f"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n",
)


@contextmanager
def looked_at(folder: Path) -> Iterator[tuple[Server, Callable[[], dict[str, int]]]]:
    """A gateway, and what tells of the garbage that its collector finds: how many objects of each type, and `bytes`."""
    (folder / "sitecustomize.py").write_text(LOOK)
    paths = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    with Server(folder / "data", env={"PYTHONPATH": paths}, fresh=True) as server:

        def look() -> dict[str, int]:
            time.sleep(0.2)  # what has ended has ended for the gateway as well
            os.kill(server.pid, signal.SIGUSR1)
            deadline = time.monotonic() + 10
            while (told := re.search(r"garbage (.*)", server.log)) is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            found: dict[str, int] = json.loads(told[1])
            return found

        yield server, look


def ask(server: Server, text: str) -> None:
    """Make a request, and hang up once an answer begins."""
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as peer:
        peer.sendall(text.encode())
        assert peer.recv(1 << 12).startswith(b"HTTP/1.1 ")


def test_connections_that_ended_are_freed_at_once(tmp_path: Path) -> None:
    with looked_at(tmp_path) as (server, look):
        for text in ASKED * CONNECTIONS:
            ask(server, text)
        garbage = look()
    kinds = (
        "Http",
        "FastWebSocket",
        "ServerProtocol",
        "RequestResponseCycle",
        "Request",
        "Problem",
        "traceback",
        "frame",
        "TCPTransport",
    )
    assert {kind: garbage[kind] for kind in kinds if garbage.get(kind, 0) >= CONNECTIONS} == {}


@pytest.mark.parametrize("path", [ALL, "/v1/channels/c/events"])
def test_abandoned_answers_leave_no_garbage(tmp_path: Path, path: str) -> None:
    """anyio keeps a cancelled task in a cycle (`gateway.http.streaming`)."""
    with looked_at(tmp_path) as (server, look):
        with httpx.Client(base_url=f"http://{server.http}") as http:
            line = b'"' + b"x" * 60_000 + b'"\n'
            http.post("/v1/channels/c/messages", content=line * 100, headers={"Content-Type": "application/x-ndjson"})
        for _ in range(CONNECTIONS):
            ask(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 0\r\n\r\n")
        garbage = look()
    left = {
        kind: garbage[kind] for kind in ("frame", "Task", "Http", "generator") if garbage.get(kind, 0) >= CONNECTIONS
    }
    assert left == {}
    assert garbage["bytes"] < CONNECTIONS * 10_000


def test_long_answers_to_peers_that_vanished_leave_no_messages(tmp_path: Path) -> None:
    with looked_at(tmp_path) as (server, look):
        http, sprout = (int(address.rpartition(":")[2]) for address in (server.http, server.sprout))
        target = Target(http, sprout)
        fill(target, "pages")
        community = community_of(target, "pages")
        for _ in range(CONNECTIONS):
            resend = websocket(target, STREAMR, window=NARROW)
            resend.send(frame('[2,11,"r","pages",0,1000,null]'))
            nodes = Raw(target.sprout, greeting=f"leaves_of 1 {community} 1024\n".encode(), window=NARROW)
            for peer in (resend, nodes):
                peer.receive_until(b"x", most=1)
                peer.socket.close()
        garbage = look()
    assert garbage["bytes"] < CONNECTIONS * 10_000
