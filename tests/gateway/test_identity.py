"""`serve` refuses a log that another gateway began, unless it is told to adopt it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from gateway import identity
from gateway.access.secretfile import read_secret
from gateway.cli import app
from gateway.core.errors import OperatorError
from gateway.storage.record import Fact, encode
from tests.server import Server


def write(data: Path, *kinds: tuple[str, str]) -> None:
    """A log of facts: a kind, and the gateway that it names."""
    (data / "log").mkdir(parents=True)
    facts = [
        Fact(kind, {"gateway": who, "version": "1", "minute": 0, "flows": []}, seq, 1_000)
        for seq, (kind, who) in enumerate(kinds, 1)
    ]
    (data / "log" / f"{1:020d}.jsonl").write_bytes(b"".join(map(encode, facts)))


def test_a_log_of_another_gateway_is_refused_until_it_is_adopted(
    tmp_path: Path, still_class: Callable[..., Any]
) -> None:
    still = still_class(tmp_path / "first")
    still.say(b'"hello"')
    still.stop()
    first = json.loads(read_secret(tmp_path / "first/keys/gateway.json"))["id"]
    run = CliRunner().invoke
    assert run(app, ["export", "--data", str(tmp_path / "first"), "-o", str(tmp_path / "log")]).exit_code == 0
    imported = run(app, ["import", str(tmp_path / "log"), "--data", str(tmp_path / "second")])
    assert "needs --adopt" in imported.output
    refused = run(app, ["serve", "--data", str(tmp_path / "second"), "--port", "0"])
    assert isinstance(refused.exception, OperatorError)
    assert re.search(rf"another gateway \({first}\) began the log.*--adopt", str(refused.exception))
    assert not (tmp_path / "second/keys/gateway.json").exists(), "nothing was made"
    with Server(tmp_path / "second", "--adopt") as server:
        (message,) = httpx.get(f"http://{server.http}/v1/channels/lobby/messages").json()["messages"]
        assert message["content"] == "hello"
    second = json.loads(read_secret(tmp_path / "second/keys/gateway.json"))
    assert second["id"] != first
    assert second["adopted"] == [first]
    assert identity.foreign_origin(tmp_path / "second") is None, "it is its own from now on"
    shutil.copy(tmp_path / "first/keys/gateway.json", tmp_path / "second/keys/gateway.json")
    assert identity.foreign_origin(tmp_path / "second") is None, "it was this one's in the first place"


def test_the_origin_of_a_log_is_found_in_any_record(tmp_path: Path) -> None:
    assert identity.foreign_origin(tmp_path) is None, "there is no log"
    write(tmp_path / "native", ("start", "aa"), ("start", "bb"))
    assert identity.foreign_origin(tmp_path / "native") == "aa"
    write(tmp_path / "part", ("counts", "xx"), ("start", "cc"))
    assert identity.foreign_origin(tmp_path / "part") == "cc"
    write(tmp_path / "silent", ("counts", "xx"))
    assert identity.foreign_origin(tmp_path / "silent") == identity.UNKNOWN
    identity.adopt(tmp_path / "silent", identity.UNKNOWN, "1")
    assert identity.foreign_origin(tmp_path / "silent") is None
    identity.adopt(tmp_path / "native", "aa", "1")
    own = identity.load_or_create(tmp_path / "native/keys", "1").gateway_id
    assert identity.foreign_origin(tmp_path / "native") is None
    write(tmp_path / "exchanged", ("start", "dd"))
    shutil.copytree(tmp_path / "native/keys", tmp_path / "exchanged/keys")
    assert identity.foreign_origin(tmp_path / "exchanged") == "dd", "an identity of another gateway is none"
    write(tmp_path / "own", ("start", own))
    shutil.copytree(tmp_path / "native/keys", tmp_path / "own/keys")
    assert identity.foreign_origin(tmp_path / "own") is None


def test_a_damaged_first_record_does_not_name_the_origin(tmp_path: Path) -> None:
    write(tmp_path, ("start", "aa"), ("start", "bb"))
    file = tmp_path / "log" / f"{1:020d}.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"aa"', b'"zz"', 1))  # its checksum is wrong now
    assert identity.foreign_origin(tmp_path) == "bb"
