"""A real process survives a lack of file descriptors, and drops silent peers on every TLS port."""

from __future__ import annotations

import json
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from gateway.system import machine
from tests.server import Server
from tests.waiting import until

PATIENCE = 30  # seconds


def get(http: str, path: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(f"http://{http}{path}", timeout=PATIENCE) as answer:
        return answer.status, answer.read()


def reached(http: str, path: str) -> bytes:
    """What is there, nothing while no more connections are let in."""
    try:
        return get(http, path)[1]
    except urllib.error.HTTPError:
        return b""


def publish(http: str, content: object) -> int:
    body = json.dumps(content).encode()
    headers = {"Content-Type": "application/json"}  # urllib calls it a form otherwise
    request = urllib.request.Request(f"http://{http}/v1/channels/lobby/messages", body, headers, method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return int(answer.status)


def ended(peer: socket.socket) -> bool:
    """Whether the gateway closes the connection before patience ends."""
    peer.settimeout(PATIENCE)
    with suppress(ConnectionError):
        while peer.recv(4096):
            pass
    return True


def count_ended(peers: list[socket.socket], least: int) -> int:
    """How many connections the gateway has closed: *least*, and those for which that takes no longer."""
    count, end = 0, time.monotonic() + PATIENCE
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer, selectors.EVENT_READ)
        while ((ready := selector.select(0.5)) or count < least) and time.monotonic() < end:
            for key, _ in ready:
                with suppress(ConnectionError):
                    if key.fileobj.recv(4096):  # type: ignore[union-attr]  # they are sockets
                        continue
                selector.unregister(key.fileobj)
                count += 1
    return count


def test_connections_are_admitted_up_to_the_descriptor_limit(tmp_path: Path) -> None:
    command = f"ulimit -n 200; exec {sys.executable} -m gateway serve --data {tmp_path} --port 0 --sprout-port 0"
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert [publish(ready["http"], number) for number in range(60)] == [201] * 60
        with ExitStack() as stack:
            host, port = ready["sprout"].split(":")
            peers = [stack.enter_context(socket.create_connection((host, int(port)), PATIENCE)) for _ in range(300)]
            refused = count_ended(peers, least=300 - 160)
            assert 300 - 160 <= refused < 300, "some are let in, and descriptors are left"
            for peer in peers[:20]:
                peer.close()
            until(lambda: reached(ready["http"], "/healthz"))
            status, body = get(ready["http"], "/v1/channels/lobby/messages?limit=60")
            assert status == 200
            assert len(json.loads(body)["messages"]) == 60
            assert publish(ready["http"], "still") == 201
    finally:
        process.terminate()
        process.wait(PATIENCE)
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_process_without_descriptors_logs_no_traceback(tmp_path: Path, loop: str) -> None:
    command = [sys.executable, "-m", "gateway", "serve", "--loop", loop, "--port", "0", "--sprout-port", "0"]
    said = tmp_path / "stderr"
    with said.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--data", str(tmp_path / "data")], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        used = max(int(each.name) for each in Path(f"/proc/{process.pid}/fd").iterdir()) + 1
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used, hard))
        with ExitStack() as stack:
            for name in ("http", "sprout") * 4:
                host, port = ready[name].split(":")
                stack.enter_context(socket.create_connection((host, int(port)), PATIENCE))
            end = time.monotonic() + (PATIENCE if loop == "trio" else 0.5)  # uvloop says nothing
            while said.read_text().count("Too many open files") < 2 * (loop == "trio") and time.monotonic() < end:
                time.sleep(0.02)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert publish(ready["http"], "again") == 201
    finally:
        process.terminate()
        process.wait(PATIENCE)
        if process.stdout is not None:
            process.stdout.close()
    told = said.read_text()
    assert "Traceback" not in told
    if loop == "trio":
        assert "trying again: [Errno 24] Too many open files; raise the limit" in told
        assert "accept returned EMFILE (Too many open files)" in told


def test_silent_peers_are_dropped_on_every_tls_port(tmp_path: Path) -> None:
    certificates = tmp_path / "certs"
    subprocess.run([sys.executable, "-m", "gateway", "dev-cert", "--folder", str(certificates)], check=True)
    flags = ["--tls-cert", str(certificates / "cert.pem"), "--tls-key", str(certificates / "key.pem")]
    env = {"TRELLIS_LIMITS__HANDSHAKE_SECONDS": "1", "TRELLIS_SPROUT__TLS_PORT": "0"}
    with Server(tmp_path / "data", *flags, env=env) as server, ExitStack() as stack:
        addresses = [server.http, server.ready["sprout_tls"]]
        for address in addresses:
            host, port = address.split(":")
            peers = [stack.enter_context(socket.create_connection((host, int(port)), PATIENCE)) for _ in range(20)]
            for peer in peers[::2]:
                peer.sendall(b"\x16\x03\x01\x02")
            assert all(ended(peer) for peer in peers)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_connection_reset_before_it_was_accepted_takes_no_place(tmp_path: Path, loop: str) -> None:
    """Nobody knows where such a connection is from: counted in, it was never counted out, nor freed."""
    env = {"TRELLIS_LIMITS__CONNECTIONS": "20"}
    with Server(tmp_path / "data", "--loop", loop, env=env) as server:
        server.process.send_signal(signal.SIGSTOP)
        for address in (server.http, server.sprout) * 30:
            host, port = address.split(":")
            with socket.create_connection((host, int(port)), PATIENCE) as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.process.send_signal(signal.SIGCONT)
        end = time.monotonic() + PATIENCE
        while not (found := reached(server.http, "/v1/stats")):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert json.loads(found)["protocols"].get("sprout", {}).get("connections", 0) == 0
        assert "Traceback" not in server.log


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may_be() -> None:
    program = "from gateway.system import machine; print(machine.raise_descriptors(), machine.connections())"
    command = f"ulimit -Sn 100; ulimit -Hn 1000; exec {sys.executable} -c '{program}'"
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert found == "1000 750\n"
    assert 0 < machine.connections() < machine.descriptors()


def test_the_memory_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine.memory()
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "CGROUPS", (limit,))
    limit.write_text("max\n")
    assert machine.memory() >= whole
    limit.write_text("4096000\n")
    assert machine.memory() == 4096000
