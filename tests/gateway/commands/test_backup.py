"""`trellis backup` of a gateway under load and `trellis restore` reproduce the gateway on another machine."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.access.keyfile import KeyFile
from gateway.backup import age
from gateway.cli import app
from gateway.commands.arbor_author import ArborAuthor
from gateway.core.errors import OperatorError
from gateway.demo_clients import RelayClient, RestClient, SproutClient, StreamrClient
from gateway.storage.index_file import META_VALUE
from tests.server import Server

CHANNELS = ("lobby", "news/today")
OPEN = {
    "TRELLIS_AUTH__GRANTS": '{"anonymous": ["*:*"]}',
    "TRELLIS_LOG__SEGMENT_BYTES": "2000000",
}  # all of it stands in the open one
Made = tuple[Path, str, dict[str, Any], list[str], bytes, str]
ROUNDS = 8  # of messages on every protocol before the backup begins; the load goes on while it is made


def trellis(*arguments: str | Path, stdin: str = "") -> str:
    """Run the command in this process; its output. Raises `OperatorError` if it fails."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
    if result.exception is not None:
        raise result.exception
    return result.output


async def process(*arguments: str | Path) -> tuple[int, str, str]:
    """Run the command in a process of its own, while others go on."""
    command = [sys.executable, "-m", "gateway", *map(str, arguments)]
    done = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await done.communicate()
    return done.returncode or 0, out.decode(), error.decode()


class BackupTraffic:
    """Peers of all four protocols that talk until they are told to stop; what REST acknowledged."""

    def __init__(self, server: Server, key: str) -> None:
        self.acknowledged: list[str] = []
        self.rounds = 0
        self._server = server
        self._key = key
        self._stopping = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        http, sprout = self._server.http, self._server.sprout
        peers = RelayClient(http), SproutClient(http, sprout, ArborAuthor("ada")), StreamrClient(http)
        async with peers[0], peers[1], peers[2], RestClient(http, self._key) as rest:
            tasks = [asyncio.create_task(self._talk(peer)) for peer in peers]
            tasks.append(asyncio.create_task(self._post(rest)))
            yield
            self._stopping = True
            await asyncio.gather(*tasks)

    async def _talk(self, peer: Any) -> None:
        number = 0
        while not self._stopping:
            await peer.publish(CHANNELS[number % 2], {"from": peer.protocol, "number": number})
            number += 1
            await asyncio.sleep(0.01)

    async def _post(self, rest: RestClient) -> None:
        while not self._stopping:
            channel = CHANNELS[self.rounds % 2]
            answer = await rest.client.post(f"/v1/channels/{channel.replace('/', '%2F')}/messages", json=self.rounds)
            self.acknowledged.append(answer.json()["id"])
            self.rounds += 1


def state(server: Server, key: str, last: int) -> dict[str, Any]:
    """What REST tells of a gateway, up to the sequence *last*."""
    found: dict[str, Any] = {}
    with httpx.Client(base_url=f"http://{server.http}", headers={"Authorization": f"Bearer {key}"}) as http:
        for channel in CHANNELS:
            path = f"/v1/channels/{channel.replace('/', '%2F')}"
            found[path] = http.get(path).json()["addresses"]
            messages: list[Any] = []
            page: str | None = f"{path}/messages?limit=256"
            while page:
                answer = http.get(page).json()
                messages += [one for one in answer["messages"] if one["sequence"] <= last]
                page = answer["next"]
            found[f"{path}/messages"] = messages
            for number in {one["sender"]["peer"] for one in messages}:
                found[f"peer {number}"] = http.get(f"/v1/peers/{number}").json()
        found["streams"] = http.get("/api/v1/streams/lobby").json()
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A backup of a loaded gateway; its key, its state, what was acknowledged before, its log, its identity."""
    folder = tmp_path_factory.mktemp("backup")
    data = folder / "data"
    key = KeyFile(data / "keys" / "api-keys.json").add("ada", ("*:*", "admin:*"))
    trellis("dev-cert", "--folder", folder / "certs")
    tls = ("--tls-cert", folder / "certs/cert.pem", "--tls-key", folder / "certs/key.pem")
    with Server(data, env=OPEN) as server:
        load = BackupTraffic(server, key)
        before: list[str] = []

        async def scenario() -> tuple[int, str, str]:
            async with load.running():
                while load.rounds < ROUNDS:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(trellis, "backup", folder / "with-index", "--data", data, "--index")
                before[:] = load.acknowledged
                return await process("backup", folder / "backup", "--data", data, *tls)

        code, out, error = asyncio.run(scenario())
        assert (code, error) == (0, ""), error
        last = int(out.split("records up to ")[1].split(",")[0])
        assert len(load.acknowledged) > len(before), "the load went on"
        told = state(server, key, last)
    trellis("export", "--data", data, "--until", str(last), "-o", folder / "export")
    log = (folder / "export").read_bytes()
    return folder / "backup", key, told, before, log, trellis("identity", "show", "--data", data)


def test_a_restore_reproduces_the_gateway(made: Made, tmp_path: Path) -> None:
    backup, key, told, before, log, identity = made
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    data = tmp_path / "machine" / "data"
    trellis("restore", backup, "--data", data)
    trellis("export", "--data", data, "-o", tmp_path / "export")
    assert (tmp_path / "export").read_bytes() == log, "byte for byte"
    assert all(id.encode() in log for id in before), "everything that was acknowledged before it began"
    assert {json.loads(line).get("protocol") for line in log.splitlines()} >= {
        "rest",
        "sprout",
        "streamr",
        "topic_relay",
    }
    assert trellis("identity", "show", "--data", data) == identity
    certs = backup.parent / "certs"
    assert [(data / "tls" / name).read_bytes() for name in ("cert.pem", "key.pem")] == [
        (certs / name).read_bytes() for name in ("cert.pem", "key.pem")
    ]
    assert not [path for path in data.rglob("*") if path.stat().st_mode & 0o077]
    with Server(data, env=OPEN) as server:
        last = json.loads(log.splitlines()[-1])["seq"]
        assert state(server, key, last) == told
        refused = httpx.get(f"http://{server.http}/v1/log", headers={"Authorization": "Bearer other"})
        assert refused.status_code == 401, "its keys are its own"


def test_a_backup_is_encrypted_on_request_and_has_the_index_by_choice(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(age.EncryptedWriter.__init__, "__defaults__", (10,))  # scrypt takes a second otherwise
    secret = tmp_path / "passphrase"
    secret.touch(0o600)
    secret.write_text("correct horse\n")
    stopped = made[0].parent / "data"
    trellis("backup", tmp_path / "sealed", "--data", stopped, "--index", "--passphrase-file", secret)
    sealed = (tmp_path / "sealed").read_bytes()
    assert sealed.startswith(age.MAGIC)
    assert b"gateway.json" not in sealed
    for backup, stdin in ((tmp_path / "sealed", "correct horse\n"), (made[0].with_name("with-index"), "")):
        copy = tmp_path / f"of-{backup.name}"
        trellis("restore", backup, "--data", copy, stdin=stdin)
        with closing(sqlite3.connect(copy / "index.sqlite")) as index:
            assert index.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            ((applied,),) = index.execute(META_VALUE, ("applied",))
        log = trellis("export", "--data", copy).splitlines()
        assert 0 < applied <= json.loads(log[-2])["seq"], "it is not ahead of the log"
    with pytest.raises(OperatorError, match="the passphrase is wrong"):
        trellis("restore", tmp_path / "sealed", "--data", tmp_path / "none", stdin="battery staple\n")
    assert not (tmp_path / "none").exists()


def test_a_passphrase_is_never_an_argument_and_its_file_is_secret(tmp_path: Path) -> None:
    for command in ("backup", "restore"):
        shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [command, "--help"]).output
        assert "--passphrase " not in shown
    file = tmp_path / "passphrase"
    file.write_text("psst\n")
    file.chmod(0o644)
    with pytest.raises(OperatorError, match="chmod 600"):
        trellis("backup", tmp_path / "backup", "--data", tmp_path, "--passphrase-file", file)


def test_a_failed_backup_reports_its_reason_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="no gateway has run with"):
        trellis("backup", tmp_path / "backup", "--data", tmp_path / "none")
    (tmp_path / "there").touch()
    with pytest.raises(OperatorError, match="exists already"):
        trellis("backup", tmp_path / "there", "--data", tmp_path / "none")
    with pytest.raises(OperatorError, match="No such file"):
        trellis("restore", tmp_path / "missing", "--data", tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]
    assert os.environ.get("TRELLIS_PASSPHRASE") is None


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    KeyFile(tmp_path / "data/keys/api-keys.json").add("ada")
    with pytest.raises(OperatorError, match=r"nowhere is not a directory; make it"):
        trellis("backup", tmp_path / "nowhere/monday.trellis", "--data", tmp_path / "data")
