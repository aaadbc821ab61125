"""The how-to pages for operators: each block of code runs here, or says why it does not."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from adapters import ADAPTERS
from gateway.cli import app
from gateway.config import load
from tests.server import Server

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "how-to"
PAGES = ("back-up-and-restore.md", "monitor.md", "behind-a-proxy.md")
BLOCK = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code; *how* is what the comment above it says."""

    how: str
    language: str
    code: str


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall((FOLDER / page).read_text())]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_or_says_why_not(page: str) -> None:
    found = blocks(page)
    assert found
    assert (FOLDER / page).read_text().count("\n```") == 2 * len(found)
    for block in found:
        assert re.fullmatch(r"run(: toml|: file \S+)?|not run: \S.*", block.how), block.code


@pytest.mark.parametrize("page", PAGES)
def test_settings_can_be_read_and_files_are_shown_as_they_are(page: str, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page)):
        if block.how == "run: toml":
            file = tmp_path / f"{number}.toml"
            file.write_text(block.code)
            load(ADAPTERS, file)
        elif block.how.startswith("run: file "):
            text = (ROOT / block.how.removeprefix("run: file ")).read_text()
            assert all(line in text.splitlines() for line in block.code.splitlines())


@pytest.mark.parametrize("page", PAGES)
def test_commands_do_what_the_page_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another in one folder, beside a running gateway, with its address in the place of the usual one."""
    monkeypatch.chdir(tmp_path)
    commands = [block.code for block in blocks(page) if block.how == "run" and block.language == "sh"]
    if not commands:
        return
    assert CliRunner().invoke(app, ["dev-cert", "--folder", str(tmp_path / "certs")]).exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "trellis.toml").write_text(f'data = "{tmp_path}/data"\nport = {port}\n')
    with Server(tmp_path / "data", "--port", str(port)) as server:
        for code in commands:
            *lines, last = code.replace("127.0.0.1:8080", server.http).splitlines()
            serves = last.startswith("trellis serve")
            run("\n".join(lines if serves else [*lines, last]), tmp_path)
            if serves:
                serve(last, tmp_path)


def environment() -> dict[str, str]:
    """What the page's reader has: the command on the path, and free ports."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "TRELLIS_SPROUT__PORT": "0"}


def run(code: str, folder: Path) -> None:
    """Run *code*; lines that are nothing but our command in this process, which is quicker."""
    for ours, lines in groupby(code.splitlines(), lambda line: re.fullmatch(r"trellis [\w ./=-]+", line) is not None):
        if not ours:
            shell("\n".join(lines), folder)
            continue
        for line in lines:
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exception is None, f"{line}\n{done.output}{done.exception}"


def shell(code: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"


def serve(line: str, folder: Path) -> None:
    """Start the gateway that *line* starts, and stop it once it is ready."""
    gateway = subprocess.Popen(
        line.split(), cwd=folder, env=environment() | {"TRELLIS_PORT": "0"}, stdout=subprocess.PIPE, text=True
    )
    timer = threading.Timer(30, gateway.kill)
    timer.start()
    assert gateway.stdout is not None
    assert '"ready"' in gateway.stdout.readline(), line
    timer.cancel()
    gateway.terminate()
    assert gateway.wait(20) == 0
    gateway.stdout.close()
