"""A client generated from /openapi.json publishes, reads history and receives events, with types."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx

from tests.npm import NODE, require_clients

PROGRAM = NODE / "generated_client.mts"
STRICT = ["--strict", "--noUncheckedIndexedAccess", "--target", "es2022", "--module", "nodenext", "--skipLibCheck"]
SECONDS = 60


def node(folder: Path, *command: str) -> str:
    """Run one of the programs of npm in *folder*; what it prints."""
    done = subprocess.run(["node", *command], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_generated_client_publishes_reads_and_listens(local: Any, tmp_path: Path) -> None:
    modules = require_clients() / "node_modules"
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "openapi.json").write_bytes(httpx.get(f"{local.url}/openapi.json").content)
    node(tmp_path, str(modules / "openapi-typescript/bin/cli.js"), "openapi.json", "--output", "schema.d.ts")
    node(tmp_path, str(modules / "typescript/bin/tsc"), *STRICT, "--lib", "es2022,dom,dom.iterable", PROGRAM.name)
    told = json.loads(node(tmp_path, PROGRAM.with_suffix(".mjs").name, local.url))
    assert (told["id"], told["content"], told["next"]) == (told["found"], {"text": "hello"}, None)
    assert told["isKnown"]
    assert f'"id":"{told["id"]}"' in told["heard"]
