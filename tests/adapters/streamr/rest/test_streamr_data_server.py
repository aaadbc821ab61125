"""The data API works on a real gateway: with long answers, on both loops, and across kill -9."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from gateway.system.machine import FREED, TRIM_SECONDS
from tests.server import Server

CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
MESSAGES, SIZE = 12_000, 2_000
GROWTH = 8 << 20  # bytes that a gateway may grow by while it answers with more than that


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("data"), "--loop", request.param) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
        yield client


def resident(server: Server) -> int:
    """The bytes of memory that the gateway has."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * 4096


def trellis(*arguments: object) -> None:
    """Run the `trellis` command."""
    subprocess.run([sys.executable, "-m", "gateway", *map(str, arguments)], check=True, timeout=60)


def fill(http: httpx.Client, stream: str, count: int, size: int) -> None:
    text = "x" * size
    lines = b"".join(b'{"n":%d,"text":"%b"}\n' % (number, text.encode()) for number in range(count))
    headers = {"Content-Type": "application/x-ndjson"}
    assert http.post(f"/v1/channels/{stream}/messages", content=lines, headers=headers).status_code == 200


def test_posted_messages_are_read_back_in_the_formats_of_the_broker(http: httpx.Client) -> None:
    for path in ("/api/v1/streams/my/data%20s/data", "/api/v1/streams/my%2Fdata%20s/data"):
        answer = http.post(path, content=b'{"a": 1.0}')
        assert (answer.status_code, answer.content) == (200, b"")
    found = http.get("/api/v1/streams/my%2Fdata%20s/data/partitions/0/last?count=2&format=raw")
    assert [json.loads(line)[7] for line in found.text.splitlines()] == ['{"a": 1.0}'] * 2
    assert http.get("/api/v1/streams/s/data/partitions/0/last?count=x").json() == {
        "error": 'Query parameter "count" not a number: x'
    }
    assert http.post("/api/v1/streams/s/data", content=b"x" * ((1 << 20) + 1)).status_code == 413


@pytest.mark.parametrize("path", ["/api/v1/streams/s/data", "/api/v1/streams", "/v1/channels/s/messages"])
def test_an_endless_body_is_cut_off(server: Server, path: str) -> None:
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as endless:
        endless.sendall(b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % path.encode())
        sent = 0
        with suppress(OSError):  # which one depends on how far the server got
            while sent < 1 << 30:
                endless.sendall(CHUNK)
                sent += len(CHUNK)
        assert sent < 1 << 26


def test_a_long_answer_takes_no_memory_and_delays_no_other_request(server: Server, http: httpx.Client) -> None:
    fill(http, "long", MESSAGES, SIZE)
    path = "/api/v1/streams/long/data/partitions/0/from?fromTimestamp=0&format=raw"
    assert len(http.get("/api/v1/streams/long/data/partitions/0/last?count=400").json()) == 400
    before = resident(server)
    with http.stream("GET", path) as answer, httpx.Client(base_url=f"http://{server.http}") as other:
        pieces = answer.iter_bytes(1 << 16)
        taken = len(next(pieces))
        assert other.get("/healthz").status_code == 200
        assert other.post("/api/v1/streams/other/data", content=b"1").status_code == 200
        assert resident(server) - before < GROWTH, "it is not read before the client takes it"
        taken += sum(len(piece) for piece in pieces)
    assert taken > MESSAGES * SIZE > FREED > GROWTH
    deadline = time.monotonic() + 4 * TRIM_SECONDS  # what is free goes back to the system once in `TRIM_SECONDS`
    while resident(server) - before >= FREED:  # less than that may stay
        assert time.monotonic() < deadline, "nor kept when it is over"
        time.sleep(0.1)


def test_an_unread_answer_does_not_delay_the_stop(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        with httpx.Client(base_url=f"http://{server.http}", timeout=60) as http:
            fill(http, "long", 5_000, SIZE)
        host, port = server.http.split(":")
        with socket.create_connection((host, int(port))) as idle:
            path = b"/api/v1/streams/long/data/partitions/0/from?fromTimestamp=0"
            idle.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            assert idle.recv(1 << 12).startswith(b"HTTP/1.1 200")
            assert server.stop() == 0


OPEN = {"TRELLIS_AUTH__GRANTS": '{"anonymous": ["*:*", "admin:*"]}'}


def test_stream_descriptions_survive_kill_9_and_are_exported(tmp_path: Path) -> None:
    body = {"id": "s", "partitions": 3, "requireSignedData": True, "description": "mine"}
    with Server(tmp_path / "data", env=OPEN) as server:
        made = httpx.post(f"http://{server.http}/api/v1/streams", json=body).json()
        changed = httpx.put(f"http://{server.http}/api/v1/streams/s", json={"description": "ours"}).json()
        assert changed == made | {"description": "ours"}
        server.kill()
    with Server(tmp_path / "data", env=OPEN) as server:
        assert httpx.get(f"http://{server.http}/api/v1/streams/s").json() == changed
        refused = httpx.post(f"http://{server.http}/api/v1/streams/s/data", content=b"1")
        assert refused.json()["error"].startswith("Stream data is required to be signed. Message: ")
    trellis("verify", "--data", tmp_path / "data")
    trellis("export", "--data", tmp_path / "data", "-o", tmp_path / "log.jsonl")
    with Server(tmp_path / "other") as server:  # a log with a past of its own
        httpx.post(f"http://{server.http}/api/v1/streams", json={"id": "theirs", "partitions": 2})
    for data in ("empty", "other"):
        trellis("import", "--data", tmp_path / data, tmp_path / "log.jsonl")
        with Server(tmp_path / data, "--adopt") as server:
            assert httpx.get(f"http://{server.http}/api/v1/streams/s").json() == changed
