"""The service configures its process before it serves."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from gateway.shells.turns import TURN

RUN = """
import sys
from adapters import ADAPTERS
from gateway.settings.settings import settings_model
from gateway.service import CannotStart, run
try:
    run(settings_model(ADAPTERS)(data=sys.argv[1], port=sys.argv[2]))
except CannotStart:
    print(sys.getswitchinterval())
"""


def test_a_thread_that_waits_for_the_interpreter_gets_it_within_a_turn_of_the_loop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-c", RUN, str(tmp_path), str(taken.getsockname()[1])]
        seconds = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert 0 < float(seconds) < TURN
