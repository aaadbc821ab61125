"""Runs the blocks of code of a page of documentation, as the comment above each of them says.

| comment | the block |
|---|---|
| `run` | is run by bash, in a folder of its own beside a running gateway |
| `run: shows` | the same; the next block `shows` some of what it prints, in order |
| `run: terminal NAME` | is started, and goes on until the page ends |
| `terminal NAME shows` | is printed by that one, in order, after what earlier blocks showed of it |
| `file NAME` | is saved as that file |
| `run: toml` | is a configuration that can be loaded |
| `run: file PATH` | is part of that file of the repository |
| `tested: PATH` | is run by that test, which names the page |
| `not run: WHY` | is not run |
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from adapters import ADAPTERS
from gateway.cli import app
from gateway.settings.config import load

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HOW = re.compile(
    r"run(: toml|: shows|: file \S+|: terminal \w+)?|shows|terminal \w+ shows|file \S+|tested: \S+|not run: \S.*"
)
EXPORT = re.compile(r"export (\w+)=\$\((.+)\)\n")  # for the blocks that follow, as in the reader's terminal
PATIENCE = 60.0  # seconds until a terminal has to show something


class Block(NamedTuple):
    """A block of code; *how* is what the comment above it says."""

    how: str
    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of *page*."""
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


class PageTerminal:
    """A command that runs while the page is read; `shown` is what it has printed, which is read from `place` on."""

    def __init__(self, command: str, folder: Path) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=environment(),
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.shown, self.place = "", 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while text := os.read(self._process.stdout.fileno(), 1 << 16):
            self.shown += text.decode()

    def shows(self, line: str) -> None:
        """Wait until it has printed *line*, after what it showed before."""
        end = time.monotonic() + PATIENCE
        while (found := self.shown.find(line, self.place)) < 0:
            assert time.monotonic() < end, f"{line}\nis not in\n{self.shown[self.place :]}\nafter\n{self.shown}"
            time.sleep(0.02)
        self.place = found + len(line)

    def close(self) -> None:
        """End it with everything that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        self._reader.join(10)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


class PageRunner:
    """Does in *folder* what a page says; *addresses* replaces those that the page has by those that are free here."""

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        self._folder = folder
        self._addresses = addresses
        self._terminals: dict[str, PageTerminal] = {}
        self._printed = ""
        self._before: dict[str, str | None] = {}  # what was in the environment where the page exports something

    def read(self, page: Path, look: Callable[[], object] = bool) -> None:
        """Do everything that *page* says, and *look* at what came of it before its terminals are closed."""
        try:
            for block in blocks(page):
                self.do(block)
            look()
        finally:
            for terminal in self._terminals.values():
                terminal.close()
            for name, value in self._before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def _here(self, code: str) -> str:
        for there, here in self._addresses.items():
            code = code.replace(there, here)
        return code.replace(".venv/bin/", "")

    def do(self, block: Block) -> None:
        """Do what *block* says, as its comment tells."""
        code = self._here(block.code)
        match block.how.split():
            case ["run:", "terminal", name]:
                self._terminals[name] = PageTerminal(code, self._folder)
            case ["terminal", name, "shows"]:
                for line in code.splitlines():
                    self._terminals[name].shows(line)
            case ["file", name]:
                (self._folder / name).write_text(code)
            case ["run"] | ["run:", "shows"] if block.language == "sh":
                self._printed = self._run(code)
            case ["shows"]:
                for line in code.splitlines():
                    before, found, self._printed = self._printed.partition(line)
                    assert found, f"{line}\nis not in\n{before}"
            case ["run:", "toml"]:
                file = self._folder / "example.toml"
                file.write_text(code)
                load(ADAPTERS, file)
            case ["run:", "file", path]:
                lines = (ROOT / path).read_text().splitlines()
                assert all(line in lines for line in code.splitlines())

    def _run(self, code: str) -> str:
        if exported := EXPORT.fullmatch(code):
            name, command = exported.groups()
            self._before.setdefault(name, os.environ.get(name))
            os.environ[name] = run(command, self._folder).strip()
            return ""
        *lines, last = code.splitlines()
        if not re.match(r"trellis serve", last):
            return run(code, self._folder)
        printed = run("\n".join(lines), self._folder)
        serve(last, self._folder)
        return printed


def environment() -> dict[str, str]:
    """What the page's reader has: the command on the path, and free ports."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    node = "--experimental-websocket"  # which Node 22 has without being asked
    return os.environ | {"PATH": path, "TRELLIS_SPROUT__PORT": "0", "PYTHONPATH": str(ROOT), "NODE_OPTIONS": node}


def run(code: str, folder: Path) -> str:
    """Run *code*, and return what it prints; lines that are our command alone in this process, which is quicker."""
    printed = ""
    for ours, lines in groupby(code.splitlines(), lambda line: re.fullmatch(r"trellis [\w :./=-]+", line) is not None):
        if not ours:
            printed += shell("\n".join(lines), folder)
            continue
        for line in lines:
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exception is None, f"{line}\n{done.output}{done.exception}"
            printed += done.stdout
    return printed


def shell(code: str, folder: Path) -> str:
    """Run *code* by bash; a command that fails ends it."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
    return done.stdout


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
