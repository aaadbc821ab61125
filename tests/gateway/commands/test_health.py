"""`trellis healthcheck`: ready or not, with and without TLS."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.commands import health
from gateway.commands.common import CommandError
from tests.server import Server

PATIENCE = 60.0  # seconds


def check(*arguments: str, **env: str) -> str:
    result = CliRunner().invoke(app, ["healthcheck", *arguments], env=env)
    if result.exception is not None:
        raise result.exception
    return result.output.strip()


def test_a_gateway_with_tls_is_ready_or_not(tmp_path: Path) -> None:
    assert (
        CliRunner().invoke(app, ["dev-cert", "--name", "elsewhere.example", "--folder", str(tmp_path)]).exit_code == 0
    )
    files = {"TRELLIS_TLS_CERT": str(tmp_path / "cert.pem"), "TRELLIS_TLS_KEY": str(tmp_path / "key.pem")}
    with Server(tmp_path / "data", env=files | {"TRELLIS_SPROUT__TLS_PORT": "0"}) as server:
        port = server.http.rpartition(":")[2]
        assert check(TRELLIS_PORT=port, TRELLIS_HOST="0.0.0.0", **files) == "ready"
        assert check("--alive", "--port", port, **files) == "alive"
    with pytest.raises(CommandError, match=r"no gateway answers at .*: Connection refused; is it running"):
        check(TRELLIS_PORT=port, **files)


@pytest.mark.parametrize(
    ("head", "part", "says"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "no gateway answers"),
        (b"HTTP/1.0 404 Not Found\r\n\r\n", b" ", "is this a Trellis gateway"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 60000\r\n\r\n" + b"[" * 60_000, b"", "is this a Trellis gateway"),
    ],
)
def test_an_endless_answer_fails_the_check_in_time(
    head: bytes, part: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is up when the answer has begun."""
    pause, begun, waited = threading.Event(), threading.Event(), list[float]()

    class Timer(threading.Timer):
        def __init__(self, interval: float, function: Any, args: Any) -> None:
            super().__init__(interval, function, args)
            waited.append(interval)

        def run(self) -> None:
            assert begun.wait(PATIENCE)
            self.function(*self.args)

    monkeypatch.setattr(health, "threading", SimpleNamespace(Timer=Timer))

    def serve(listener: socket.socket) -> None:
        stream, _ = listener.accept()
        with stream, suppress(OSError):
            stream.recv(1 << 12)
            stream.sendall(head)
            for each in repeat(part):
                stream.sendall(each)
                begun.set()
                if pause.wait(0.01):
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        port = str(listener.getsockname()[1])
        try:
            with pytest.raises(CommandError, match=says):
                check("--port", port, "--seconds", str(PATIENCE))
        finally:
            pause.set()
            thread.join()
    assert waited == [PATIENCE]
