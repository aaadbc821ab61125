"""docs/how-to/upgrade.md upgrades the log, the index, the keys and the configuration of version 0.2.0.

`tests/vectors/gateway/version-0.2.0.tar.xz` was made by that version (commit 9afaf23): peers of all four protocols
talked in three channels, then the gateway was killed, so its index may be behind its log. `told.json` has its answers.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.pages import ROOT, PageRunner, blocks
from tests.ports import reserved_port
from tests.server import Server

PAGE = ROOT / "docs" / "how-to" / "upgrade.md"
WRITTEN = ROOT / "tests" / "vectors" / "gateway" / "version-0.2.0.tar.xz"


def test_upgrading_from_0_2_0_works_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the page, in its order; in the place of `systemctl restart` the new version is started."""
    with tarfile.open(WRITTEN) as packed:
        packed.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    config, port = tmp_path / "trellis.toml", reserved_port()
    config.write_text(config.read_text().replace("8080", str(port)))
    told = json.loads((tmp_path / "told.json").read_text())
    reader, server = PageRunner(tmp_path, {}), None
    try:
        for block in blocks(PAGE):
            if "systemctl restart" in block.code:
                server = Server(tmp_path / "trellis-data", "--config", str(config), "--port", str(port))
            else:
                reader.do(block)
        assert server is not None
        compare(server, told)
        assert CliRunner().invoke(app, ["identity", "show", "--data", "trellis-data"]).output == told["identity"]
    finally:
        if server is not None:
            server.stop()
    with closing(sqlite3.connect(tmp_path / "trellis-data" / "index.sqlite")) as index:
        views = index.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall()
    assert ("messages",) in views, "the index was made again; that of 0.2.0 has no such view"
    with Server(tmp_path / "before", "--config", str(config)) as restored:
        compare(restored, told)


def compare(server: Server, told: Any) -> None:
    """Compare what *server* says with what the old version *told*; what is said next follows on that."""
    key = {"Authorization": f"Bearer {told['key']}"}
    with httpx.Client(base_url=f"http://{server.http}", headers=key, timeout=30) as http:
        for name, messages in told["messages"].items():
            path = f"/v1/channels/{quote(name, safe='')}"
            shown = http.get(f"{path}/messages", params={"limit": 100}).json()["messages"]
            assert [{field: new[field] for field in old} for new, old in zip(shown, messages, strict=True)] == messages
            assert http.get(path).json()["addresses"] == told["channels"][name]["addresses"]
        streamr = http.get("/api/v1/streams/lobby/data/partitions/0/last", params={"count": 500}).json()
        assert streamr == told["streamr"], "with the same signatures"
        answer = (
            http.post("/v1/channels/lobby/messages", json={"content": "after the upgrade"}).raise_for_status().json()
        )
        assert answer["sequence"] > max(each["sequence"] for shown in told["messages"].values() for each in shown)
        found = http.get("/v1/channels/lobby/messages", params={"from": answer["timestamp"]}).json()["messages"]
        assert [each["id"] for each in found] == [answer["id"]]
