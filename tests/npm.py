"""The genuine clients from npm, installed when the first test needs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NODE = Path(__file__).parent / "interop" / "node"
SECONDS = 600


def require_clients() -> Path:
    """The folder with the clients in its node_modules; skips where they cannot be had, and fails in the gate."""
    if reason := _missing():
        if os.environ.get("TRELLIS_REQUIRE_INTEROP") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return NODE


def _missing() -> str:
    """Why the clients are not here, after an attempt to install them; empty if they are."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        return "there is no node with npm on this machine"
    if (NODE / "node_modules" / ".package-lock.json").is_file():
        return ""
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=SECONDS, check=False)
    return "" if done.returncode == 0 else f"npm ci failed: {done.stderr[-500:]}"
