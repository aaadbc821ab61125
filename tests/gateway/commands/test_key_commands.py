"""`trellis key`, `identity` and `community`: keys and identities, from the command line."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from gateway import cli
from gateway.access.authorization import KeyFile
from gateway.access.secretfile import SecretFileError
from gateway.backup.errors import BackupError
from gateway.cli import app
from gateway.core.errors import OperatorError
from gateway.service import CannotStart
from gateway.system.data_lock import DataDirectoryInUse
from tests.gateway.commands.program import SECONDS, Run, process, trellis
from tests.server import Server
from tests.waiting import until

# Keys


def test_keys_are_added_listed_and_removed(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    added = trellis("key", "add", "ada", *data)
    assert added.returncode == 0
    assert added.stdout.startswith("trellis_")
    assert "from now on every request needs a key" in added.stderr
    more = trellis("key", "add", "bob", "--allow", "subscribe:news/*", "--allow", "history:*", *data)
    assert more.stdout != added.stdout
    listed = trellis("key", "list", *data).stdout
    name, _, *rest = listed.splitlines()[2].split()
    assert [name, *rest] == ["bob", "never", "never", "subscribe:news/*", "history:*"]
    assert added.stdout.strip() not in listed
    shown = json.loads(trellis("key", "list", "--json", *data).stdout)
    assert [(row["name"], row["lastUsed"], row["rights"]) for row in shown][1:] == [("bob", None, rest[2:])]
    assert stat.S_IMODE((tmp_path / "data/keys/api-keys.json").stat().st_mode) == 0o600
    again = trellis("key", "add", "ada", *data)
    assert (again.returncode, again.stdout) == (1, "")
    assert trellis("key", "remove", "ada", *data).returncode == 0
    gone = trellis("key", "remove", "ada", *data)
    assert gone.returncode == 1
    assert "no key called 'ada'" in gone.stderr


def test_a_key_is_limited_in_time_and_rights_and_rotated(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    first = trellis("key", "add", "ada", "--expires", "30d", "--admin", "--deny", "publish:secret/*", *data).stdout
    second = trellis("key", "rotate", "ada", "--overlap", "7d", *data)
    assert second.stdout.startswith("trellis_")
    assert second.stdout != first
    _, old, new = trellis("key", "list", *data).stdout.splitlines()
    for line in (old, new):
        assert line.endswith("subscribe:* publish:* direct:* history:* admin:* !publish:secret/*")
        assert "never" in line, "last used"
    days = [datetime.fromisoformat(line.split()[2]) - datetime.now() for line in (old, new)]
    assert 6 <= days[0].days <= 7
    assert 28 <= days[1].days <= 30
    for wrong in ("soon", "1", "-1h", "0x1d", "999999999d"):
        assert trellis("key", "add", "bob", "--expires", wrong, *data).returncode == 2
    assert trellis("key", "add", "bob", "--expires", "2w", *data).returncode == 0
    assert trellis("key", "rotate", "nobody", *data).returncode == 1


def test_the_list_shows_the_last_use_of_a_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = KeyFile(data / "keys/api-keys.json").add("ada")
    with Server(data) as server:
        assert trellis("channels", "--key", key, TRELLIS_URL=f"http://{server.http}").returncode == 0
    _, line = trellis("key", "list", "--data", str(data)).stdout.splitlines()
    used = datetime.fromisoformat(line.split()[3])
    assert abs((datetime.now(UTC).replace(tzinfo=None) - used).days) <= 1
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (data / "keys").iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_a_running_gateway_notices_keys(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        here = {"TRELLIS_URL": f"http://{server.http}"}
        assert trellis("publish", "lobby", "hi", **here).returncode == 0
        key = trellis("key", "add", "ada", "--data", str(server.data)).stdout.strip()
        until(lambda: trellis("publish", "lobby", "hi", **here).returncode == 1)
        refused = trellis("publish", "lobby", "hi", **here)
        assert "401: " in refused.stderr
        assert "--key or TRELLIS_KEY" in refused.stderr
        partly = trellis("status", **here)
        assert partly.returncode == 0
        assert ": ready\n" in partly.stdout
        assert "without a key; give a key with --key or TRELLIS_KEY" in partly.stdout
        assert "up  " in trellis("status", "--key", key, **here).stdout
        assert process("publish", "lobby", "hi", **here, TRELLIS_KEY=key).returncode == 0
        assert trellis("publish", "lobby", "hi", "--key", key, **here).returncode == 0
        trellis("key", "remove", "ada", "--data", str(server.data))
        until(lambda: trellis("channels", "--key", key, **here).returncode == 1)
        assert trellis("publish", "lobby", "hi", **here).returncode == 1, "no key does not mean no lock"
        (server.data / "keys/api-keys.json").write_text("[{]")
        until(lambda: "the key file cannot be read" in server.log)
        assert trellis("publish", "lobby", "hi", **here).returncode == 1
        assert key not in server.log


def test_removing_a_key_closes_its_connections(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        data = ("--data", str(server.data))
        kept, lost = (trellis("key", "add", name, *data).stdout.strip() for name in ("kept", "lost"))
        url = f"ws://{server.http}/relay?key="
        until(lambda: "read again" in server.log)
        with connect(url + kept) as one, connect(url + lost) as other:
            for socket in (one, other):
                socket.send('{"type":2,"topic":"lobby"}')
                assert "error" not in json.loads(socket.recv(SECONDS))
            trellis("key", "remove", "lost", *data)
            with pytest.raises(ConnectionClosedError, match="1008"):
                list(other)
            one.send('{"type":1,"topic":"still here"}')
            while "still here" not in str(one.recv(SECONDS)):
                pass


# Identities and communities


def test_identities_and_communities(run: Run, server: Server, tmp_path: Path) -> None:
    shown = fields(run("identity", "show", "--data", str(server.data)).stdout)
    made = fields(run("community", "new", "a community").stdout)
    assert fields(run("community", "show", "a community").stdout) == made
    assert json.loads(run("community", "show", "a community", "--json").stdout) == made
    assert json.loads(run("identity", "show", "--json", "--data", str(server.data)).stdout) == shown
    entities = [
        record
        for path in sorted((server.data / "log").glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
        if (record := json.loads(line))["kind"] == "entity"
    ]
    natives = {record["native"]["sprout"] for record in entities}
    assert {shown["identity"], made["community"]} <= natives
    assert shown["name"] == f"Trellis {shown['gateway']}"
    assert run("community", "show", "no such").returncode == 1
    assert trellis("identity", "show", "--data", str(tmp_path)).returncode == 1


def fields(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(" ") for line in text.splitlines())}


def test_a_new_identity_is_a_key_and_a_node(tmp_path: Path) -> None:
    done = trellis("identity", "new", "ada", "--folder", str(tmp_path))
    assert done.returncode == 0
    assert stat.S_IMODE((tmp_path / "ada.privkey").stat().st_mode) == 0o600
    assert (tmp_path / done.stdout.strip()).is_file()
    again = trellis("identity", "new", "ada", "--folder", str(tmp_path))
    assert (again.returncode, again.stdout) == (1, "")
    assert trellis("identity", "new", "a/b", "--folder", str(tmp_path)).returncode == 2


@pytest.mark.parametrize("name", ["", "two\nlines", "ü" * 129, "half a character \udcff"])
def test_an_identity_that_relays_would_refuse_is_not_made(name: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["identity", "new", name, "--folder", str(tmp_path)]).exit_code == 2
    assert not [*tmp_path.iterdir()]


def test_an_identity_whose_files_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, folder in (("ada", "file"), ("x" * 256, ".")):
        done = CliRunner().invoke(app, ["identity", "new", name, "--folder", str(tmp_path / folder)])
        assert isinstance(done.exception, OperatorError)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", [CannotStart, DataDirectoryInUse, SecretFileError, BackupError])
def test_an_error_for_operators_ends_a_command_with_its_text(
    kind: type[OperatorError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise kind("why it failed")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err == "trellis: why it failed\n"
