"""The suite passes against a running gateway, repeatedly, with its usual limits and with keys."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from gateway.cli import app
from tests.server import Server

# A third of the start of such a run was the import of plugins that no test of the suite uses.
COMMAND = [sys.executable, "-m", "pytest", "tests/conformance", "-p", "no:cacheprovider"]
COMMAND += [part for name in ("schemathesis", "pytest_cov") for part in ("-p", f"no:{name}")]
SOME = "(test_direct or test_thread or test_presence) and rest"  # pairs of three kinds with REST in them
USUAL = {"TRELLIS_LIMITS__RATES": "on"}
SECONDS = 110


def passed(server: Server, *flags: str) -> int:
    """Run some of the suite against *server*; how many tests passed, and none failed."""
    options = ["-k", SOME, "--gateway", f"http://{server.http}", "--sprout", server.sprout]
    done = subprocess.run([*COMMAND, *options, *flags], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in server.log
    return sum(map(int, re.findall(r"(\d+) passed", done.stdout)))


def test_a_deployed_gateway_is_tested_as_often_as_one_likes(tmp_path: Path) -> None:
    with Server(tmp_path, env=USUAL) as server:
        first = passed(server, "-v")
        assert first == 3 * 7
        assert passed(server, "-v") == first


def test_a_deployed_gateway_with_keys_passes_with_three_keys(tmp_path: Path) -> None:
    keys = [added(tmp_path, name) for name in ("mouth", "ear", "witness")]
    grants = {"sprout:anonymous": ["subscribe:*", "publish:*", "direct:*", "history:*"]}
    with Server(tmp_path, env=USUAL | {"TRELLIS_AUTH__GRANTS": json.dumps(grants)}) as server:
        assert passed(server, "-v", *(part for key in keys for part in ("--key", key)))
        assert usage(server, "--key", keys[0]) == 4


def usage(server: Server, *flags: str) -> int:
    """The exit status of a run with *flags* that make no sense."""
    command = [*COMMAND, "--gateway", f"http://{server.http}", *flags]
    return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode


def added(data: Path, name: str) -> str:
    """A new API key called *name*."""
    done = CliRunner().invoke(app, ["key", "add", name, "--data", str(data)])
    assert done.exit_code == 0, done.output
    return done.stdout.split()[-1]
