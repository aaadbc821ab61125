"""The console in a real browser: each page says nothing on the browser's console, and hostile names stay text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.server import Server

CHROMIUM = shutil.which("chromium")
HOSTILE = "<img src=x onerror=alert(1)>"
GRANTS = {"anonymous": ["*:*", "admin:*"]}
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr"),
    "--virtual-time-budget=3000",
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="this machine has no chromium")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = {"TRELLIS_AUTH__GRANTS": json.dumps(GRANTS)}
    with (
        Server(tmp_path_factory.mktemp("console"), env=env) as server,
        httpx.Client(base_url=f"http://{server.http}", timeout=10) as http,
    ):
        channel = f"/v1/channels/{quote(HOSTILE, safe='')}"
        http.put(f"{channel}/trace").raise_for_status()
        for content in (HOSTILE, {"text": HOSTILE}, {HOSTILE: [HOSTILE]}):
            http.post(f"{channel}/messages", json=content).raise_for_status()
        http.post("/v1/keys", json={"name": HOSTILE}).raise_for_status()
        yield server


@pytest.mark.parametrize(
    ("page", "shows"),
    [
        ("", "Who hears whom"),
        ("channels", escape(HOSTILE)),
        (f"channels/{quote(HOSTILE, safe='')}", escape(HOSTILE)),
        (f"trace/{quote(HOSTILE, safe='')}", "Traced messages"),
        ("keys", escape(HOSTILE)),
        ("limits", "Refusals and limits"),
    ],
)
def test_a_page_is_shown_without_an_error_and_runs_nothing(
    server: Server, tmp_path: Path, page: str, shows: str
) -> None:
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path}", "--dump-dom", f"http://{server.http}/console/#/{page}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert shows in done.stdout
    assert re.findall(r"<img[^>]*>", done.stdout) == ['<img src="trellis.svg" alt="" width="28" height="28">']
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
