"""Each block of code in the documentation runs here, or states where it runs, or why it does not."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.arbor import require_arbor
from tests.forests import write_forest
from tests.npm import require_clients, require_node
from tests.pages import HOW, PATIENCE, ROOT, PageRunner, blocks
from tests.ports import reserved_port
from tests.server import Server

GENERATED = {"docs/reference/commands.md"}  # blocks are what the program prints: tests/test_docs.py compares them
ALL = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
ELSEWHERE = {  # pages that another test reads from beginning to end
    "docs/how-to/data-pipeline.md": "tests/pipeline/test_gateway.py",
    "docs/how-to/upgrade.md": "tests/test_upgrade.py",
}
PAGES = [page for page in ALL if blocks(page) and str(page.relative_to(ROOT)) not in GENERATED]
RELAY = "127.0.0.1:7117"  # the reader's Arbor relay
OTHER = "8090"  # the port of a gateway that the page itself starts


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


READ = [
    page
    for page in PAGES
    if name_of(page) not in ELSEWHERE
    and not all(block.how.startswith(("tested:", "not run:")) for block in blocks(page))
]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_code_block_runs_or_gives_a_reason(page: Path) -> None:
    found = blocks(page)
    assert page.read_text().count("\n```") == 2 * len(found)
    for block in found:
        assert HOW.fullmatch(block.how), block.code
        if block.how.startswith("tested: "):
            assert page.name in (ROOT / block.how.removeprefix("tested: ")).read_text()
    if (test := ELSEWHERE.get(name_of(page))) is not None:
        assert f'"{page.name}"' in (ROOT / test).read_text()


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_the_commands_of_a_page_work_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a running gateway of its own, with its addresses in the place of the usual ones."""
    monkeypatch.chdir(tmp_path)
    if not any(block.how.startswith("run") and block.language == "sh" for block in blocks(page)):
        PageRunner(tmp_path, {}).read(page)
        return
    text = page.read_text()
    if "\nnode " in text:
        require_node()
    if version := re.search(r"npm install .*streamr-client@(\S+)", text):
        use_streamr_client(version[1], tmp_path)
    assert CliRunner().invoke(app, ["dev-cert", "--folder", str(tmp_path / "certs")]).exit_code == 0
    port, other = reserved_port(), reserved_port()
    (tmp_path / "trellis.toml").write_text(f'data = "{tmp_path}/trellis-data"\nport = {port}\n')
    with (
        relay(tmp_path) if RELAY in text else nullcontext((RELAY, bool)) as (address, look),
        Server(tmp_path / "trellis-data", "--port", str(port)) as server,
    ):
        here = {"127.0.0.1:8080": server.http, "127.0.0.1:7777": server.sprout, RELAY: address, OTHER: str(other)}
        PageRunner(tmp_path, here).read(page, look)


def use_streamr_client(version: str, folder: Path) -> None:
    """Make the genuine client what npm would have installed in *folder*."""
    modules = require_clients() / "node_modules"
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "streamr-client").symlink_to(modules / f"streamr-client-{version}")


@contextmanager
def relay(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Run a genuine Arbor relay beside a grove in *folder*: its address, and what waits until it has heard the page."""
    write_forest(folder / "grove", "big", 20)
    command = [str(require_arbor()), "relay"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        lines = process.stdout
        assert lines is not None

        def hears() -> None:
            timer = threading.Timer(PATIENCE, process.kill)
            timer.start()
            assert any('"hello, Arbor"' in line for line in lines)
            timer.cancel()

        try:
            yield json.loads(lines.readline())["tls"], hears
        finally:
            process.kill()
