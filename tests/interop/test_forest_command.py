"""The `forest` command of forest-go and the gateway accept each other's key files and nodes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.arbor import require_arbor
from tests.server import Server

SECONDS = 60


@pytest.fixture(scope="module")
def forest_program() -> Path:
    return require_arbor("git.sr.ht/~whereswaldon/forest-go/cmd/forest")


class Forest:
    """The command, in a directory; it prints the id of what it makes, and its errors with exit code 0."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder

    def run(self, *arguments: str) -> str:
        command = [str(self._program), *arguments]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=SECONDS, check=True)
        assert done.stderr == ""
        return done.stdout.strip()


def trellis(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_forest_signs_with_a_key_of_ours(forest_program: Path, tmp_path: Path) -> None:
    folder, forest = tmp_path / "grove", Forest(forest_program, tmp_path / "grove")
    folder.mkdir()
    trellis("identity", "new", "ada", "--folder", str(folder))
    (ada,) = [path.name for path in folder.iterdir() if path.name.startswith("SHA512")]
    assert json.loads(forest.run("show", ada))["Name"] == "UTF-8_B3ada"
    community = forest.run("create", "community", "-name", "theirs", "-as", ada, "-key", "ada.privkey")
    reply = forest.run("create", "reply", "-to", community, "-as", ada, "-key", "ada.privkey", "-content", "hello")
    assert len({ada, community, reply}) == 3
    assert "3 nodes imported, 0 known already, faults: 0" in trellis(
        "import", "--grove", str(folder), "--data", str(tmp_path / "data")
    )


def test_a_key_of_forest_serves_as_gateway_key(forest_program: Path, tmp_path: Path) -> None:
    folder, forest, data = tmp_path / "grove", Forest(forest_program, tmp_path / "grove"), tmp_path / "data"
    folder.mkdir()
    bob = forest.run("create", "identity", "-name", "bob", "-key", "bob.privkey")
    (data / "keys").mkdir(parents=True)
    shutil.copy2(folder / "bob.privkey", data / "keys/sprout.privkey")
    with Server(data) as server:
        assert server.stop() == 0
    shown = dict(line.split(maxsplit=1) for line in trellis("identity", "show", "--data", str(data)).splitlines())
    out = tmp_path / "out"
    trellis("export", "--grove", str(out), "--data", str(data))
    (own,) = [path.name for path in out.iterdir()]
    assert own == shown["identity"]
    known, made = (
        json.loads(Forest(forest_program, place).run("show", id)) for place, id in ((folder, bob), (out, own))
    )
    assert known["PublicKey"] == made["PublicKey"]
