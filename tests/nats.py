"""Servers of NATS with JetStream, as a cluster uses them: the genuine program, on 127.0.0.1."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.ports import reserved_port
from tests.waiting import until

PROGRAM = Path(sys.executable).parent / "nats-server"
CONFIGURATION = """
server_name: {name}
listen: 127.0.0.1:{port}
max_payload: 8MB
jetstream {{ store_dir: "{folder}", sync_interval: always }}
"""


class NatsServer:
    """One server, with its files in *folder*. It keeps its port when it is started again.

    *more* is added to its configuration.
    """

    def __init__(self, folder: Path, name: str = "one", more: str = "", *, start: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        self._configuration = folder / "nats.conf"
        self.port = reserved_port()
        text = CONFIGURATION.format(name=name, port=self.port, folder=folder)
        self._configuration.write_text(text + more)
        if start:
            self.start()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it takes connections."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([PROGRAM, "--config", self._configuration], stdout=log, stderr=log)
        until(self._answers)

    def kill(self) -> None:
        """End it as a loss of power does, but for what the kernel has."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()

    def _answers(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False
