"""`trellis check-config`, `verify`, `export` and `import`: a configuration and a log, without a gateway."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
import typer
from pydantic import BaseModel, SecretStr

from adapters import ADAPTERS
from gateway.cli import app
from gateway.commands.arbor_author import ArborAuthor
from gateway.commands.log_commands import toml_lines
from gateway.core.message import Message
from gateway.demo_clients import SproutClient
from gateway.settings.config import load
from gateway.storage.record import decode, encode
from tests.gateway.commands.program import process, trellis
from tests.server import Server

# Configuration


def test_check_config_prints_a_configuration_that_can_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "trellis.toml"
    file.write_text(
        '[auth.grants]\n"sprout:anonymous" = ["subscribe:*"]\n[channels]\nnames = ["news", "weather/berlin"]\n'
    )
    done = trellis("check-config", "--config", str(file), TRELLIS_SPROUT__PORT="7000")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# ok\n")
    assert "sprout.port = 7000\n" in done.stdout
    again = tmp_path / "again.toml"
    again.write_text(done.stdout)
    assert trellis("check-config", "--config", str(again)).stdout == done.stdout
    assert json.loads(trellis("check-config", "--config", str(again), "--json").stdout)["sprout"]["port"] == 7000


def test_check_config_names_every_fault_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / "trellis.toml"
    file.write_text('port = "x"\nnonsense = 1\n[channels]\ncreate = "never"\n')
    done = trellis("check-config", "--config", str(file), TRELLIS_SPROUT__PORT="many", TRELLIS_NO_SUCH="1")
    assert (done.returncode, done.stdout) == (2, "")
    for key in ("port", "nonsense", "channels.create", "sprout.port", "TRELLIS_NO_SUCH"):
        assert f"configuration: {key}: " in done.stderr
    assert trellis("check-config", "--config", str(tmp_path / "none")).returncode == 2


def test_secrets_are_stars() -> None:
    class Section(BaseModel):
        password: SecretStr = SecretStr("hunter2")
        unset: int | None = None

    assert list(toml_lines({"section": Section().model_dump(mode="json")})) == [
        'section.password = "**********"',
        "# section.unset =",
    ]


def test_serve_accepts_variables_of_other_commands() -> None:
    done = trellis("check-config", TRELLIS_URL="http://127.0.0.1:1", TRELLIS_KEY="x")
    assert done.returncode == 0
    assert "TRELLIS" not in done.stdout


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("name", ["log", "index.sqlite"])
def test_unusable_data_is_reported_in_one_line(tmp_path: Path, loop: str, name: str) -> None:
    (tmp_path / name).mkdir() if name == "index.sqlite" else (tmp_path / name).touch()
    done = process("serve", "--port", "0", "--sprout-port", "0", "--data", str(tmp_path), "--loop", loop)
    assert (done.returncode, done.stdout) == (1, ""), "it is not ready, and does not say so"
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"trellis: {tmp_path} cannot be used: ")


# The log


def test_a_log_is_verified_exported_and_imported(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        for n in range(5):
            trellis("publish", "lobby", str(n), TRELLIS_URL=server.http)
        assert trellis("verify", "--data", str(server.data)).returncode == 0, "while the gateway runs"
        busy = trellis("import", __file__, "--data", str(server.data))
        assert busy.returncode == 1
        assert "in use by another gateway" in busy.stderr
    verified = trellis("verify", "--data", str(server.data))
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout.endswith("faults: 0\n")
    assert json.loads(trellis("verify", "--json", "--data", str(server.data)).stdout)["faults"] == []
    file, copy = tmp_path / "export.jsonl", str(tmp_path / "copy")
    assert trellis("export", "--data", str(server.data), "-o", str(file)).returncode == 0
    assert trellis("import", str(file), "--data", copy).returncode == 0
    assert process("export", "--data", copy).stdout == file.read_text()
    part = trellis("export", "--data", copy, "--after", "2", "--until", "4").stdout
    assert [json.loads(line)["seq"] for line in part.splitlines()] == [3, 4]
    repeated = trellis("import", str(file), "--data", copy)
    assert repeated.stdout.startswith("0 records imported")
    with Server(Path(copy), "--adopt") as server:
        messages = httpx.get(f"http://{server.http}/v1/channels/lobby/messages").json()["messages"]
    assert [message["content"] for message in messages] == [0, 1, 2, 3, 4]


def test_the_warehouse_has_one_default() -> None:
    """The setting, the command and `make pipeline` have the same, so `GET /v1/stats` finds what is written."""
    default = str(load(ADAPTERS).warehouse)
    (option,) = (each for each in typer.main.get_command(app).commands["pipeline"].params if each.name == "warehouse")  # type: ignore[attr-defined]
    assert (option.default, option.envvar) == (default, "TRELLIS_WAREHOUSE")
    root = Path(__file__).parents[3]
    recipe = re.search(r"^pipeline: .*\n\t(.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert "--warehouse" not in recipe[1]
    assert f"/{default}/" in (root / ".gitignore").read_text().splitlines()


def test_verify_checks_the_signatures_of_peers(tmp_path: Path) -> None:
    async def say(server: Server) -> None:
        async with SproutClient(server.http, server.sprout, ArborAuthor("ada")) as ada:
            await ada.publish("signed", {"content": "genuine"})

    with Server(tmp_path / "data") as server:
        asyncio.run(say(server))
    data = ("--data", str(server.data))
    assert trellis("verify", *data).stdout.endswith("faults: 0\n")
    (segment,) = (server.data / "log").glob("*.jsonl")
    entries = [decode(line) for line in segment.read_bytes().splitlines(keepends=True)]
    (message,) = (entry for entry in entries if isinstance(entry, Message))
    assert message.wire is not None
    message.wire = message.wire[:-3] + (b"AAA" if message.wire[-3:] != b"AAA" else b"BBB")
    segment.write_bytes(b"".join(map(encode, entries)))
    done = trellis("verify", *data)
    assert done.returncode == 1
    assert "not the node of that id" in done.stderr


def test_a_damaged_log_is_a_failure(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        trellis("publish", "lobby", "precious", TRELLIS_URL=server.http)
    (segment,) = (server.data / "log").glob("*.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b"precious", b"PRECIOUS"))
    for command in ("verify", "export"):
        done = trellis(command, "--data", str(server.data))
        assert done.returncode == 1
        assert f"{segment.name}, byte " in done.stderr
        assert "PRECIOUS" not in done.stdout
        assert ("nothing was changed" in done.stderr) == (command == "verify")
    nothing = trellis("verify", "--data", str(tmp_path / "nothing"))
    assert (nothing.returncode, nothing.stdout) == (1, "")


def test_a_file_that_no_gateway_wrote_is_refused_in_a_few_lines(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("hello\n" * 24)
    done = trellis("import", str(tmp_path / "foreign"), "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "trellis: nothing was imported: none of the 24 lines is a record that `trellis export` wrote (the first: torn: "
        "no checksum at its end)"
    ]
