"""Unusable secret files fail the start with one sentence, and secrets appear nowhere else."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gateway.access.authorization import KeyFile, SecretFileError, digest, read_secret, write_secret
from gateway.cli import app
from tests.server import Server

SECONDS = 30
LOCKED = 6 + 2 + 256 + 2 + 3  # bytes of the public part of a key of 2,048 bits


def damaged(key: bytes) -> bytes:
    return key[:400] + bytes((key[400] ^ 1,)) + key[401:]


def locked(key: bytes) -> bytes:
    """The usage octet behind the public part (RFC 4880, section 5.5.3) says that it is encrypted."""
    at = 3 + LOCKED  # the packet's header has three bytes
    assert key[at] == 0
    return key[:at] + b"\xfe" + key[at + 1 :]


# fmt: off
FAULTS: dict[str, tuple[str, Callable[[bytes], bytes], int, str]] = {
    "damaged":     ("sprout.privkey", damaged,                0o600, "holds a secret key that is damaged; restore it"),
    "cut off":     ("sprout.privkey", lambda key: key[:100],  0o600, "holds a packet that is cut off; restore it"),
    "empty":       ("sprout.privkey", lambda _key: b"",       0o600, "holds not a secret key; restore it"),
    "passphrase":  ("sprout.privkey", locked,                 0o600, "a secret key that is locked by a passphrase"),
    "readable":    ("sprout.privkey", lambda key: key,        0o644, "chmod 600"),
    "no JSON":     ("gateway.json",   lambda _text: b"{",     0o600, "does not say which gateway this is"),
    "nothing":     ("gateway.json",   lambda _text: b"[]",    0o600, "does not say which gateway this is"),
    "open secret": ("gateway.json",   lambda text: text,      0o640, "chmod 600"),
}
# fmt: on


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a gateway that has run."""
    data = tmp_path_factory.mktemp("data")
    with Server(data):
        pass
    return {path.name: path.read_bytes() for path in (data / "keys").iterdir()}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_gateway_with_unusable_secrets_reports_it_and_exits(
    fault: str, secrets: dict[str, bytes], tmp_path: Path
) -> None:
    name, spoil, mode, sentence = FAULTS[fault]
    for file, content in secrets.items():
        write_secret(tmp_path / "keys" / file, spoil(content) if file == name else content)
    (tmp_path / "keys" / name).chmod(mode)
    command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--sprout-port", "0", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith(f"trellis: {tmp_path / 'keys' / name}")
    assert sentence in line


def test_only_files_private_to_the_owner_are_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"psst")
    path.chmod(0o400)
    assert read_secret(path) == b"psst"
    path.chmod(0o604)
    with pytest.raises(SecretFileError, match="chmod 600"):
        read_secret(path)
    with pytest.raises(SecretFileError, match="No such file"):
        read_secret(tmp_path / "none")


# What is secret is told nowhere

WRONG = "trellis_" + "W" * 43  # a key that somebody mistyped is nobody's business either
PATHS = ("/v1/channels", "/v1/nothing", "/v1/channels/lobby/messages?limit=x", "/api/v1/streams/none", "/v1/stats")


def use_everywhere(server: Server, key: str) -> list[str]:
    """Show *key* in every way there is, well and badly; what the gateway answered."""
    told = []
    for path in PATHS:
        url = f"http://{server.http}{path}"
        told.append(httpx.get(url, headers={"Authorization": f"Bearer {key}"}).text)
        told.append(httpx.get(url, headers={"Authorization": f"Basic {key}"}).text)
        told.append(httpx.get(f"{url}{'&' if '?' in path else '?'}key={key}").text)
    httpx.post(f"http://{server.http}/api/v1/login/apikey", json={"apiKey": key})  # whose answer is the key, by design
    with httpx.stream("GET", f"http://{server.http}/v1/channels/lobby/events?key={key}") as events:
        told.append(next(events.iter_text()))
    for path in ("/relay", "/api/v1/ws", "/network", "/tracker", "/nowhere"):
        with suppress(InvalidStatus), connect(f"ws://{server.http}{path}?key={key}") as ws:
            ws.send(b"\xff".decode("latin-1") + "{")
            with suppress(TimeoutError):
                told.append(str(ws.recv(timeout=0.5)))
    host, port = server.http.rsplit(":", 1)
    lines = (f"GET /v1/channels?key={key} HTTP/9", f"GET /\x00 HTTP/1.1\r\nAuthorization {key}")
    for broken in (f"{line}\r\n\r\n" for line in lines):
        with socket.create_connection((host, int(port)), timeout=10) as wire:
            wire.sendall(broken.encode())
            with suppress(OSError):
                told.append(wire.recv(4096).decode("latin-1"))
    return told


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def used(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The data of a gateway that was shown a good and a wrong key; the good one; all that was ever told."""
    data = tmp_path_factory.mktemp("data")
    key = KeyFile(data / "keys" / "api-keys.json").add("ada", ("*:*", "admin:*"))
    with Server(data, "--loop", request.param, "--log-format", "json") as server:
        told = [*use_everywhere(server, key), *use_everywhere(server, WRONG)]
        server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + SECONDS
        while "reloaded" not in server.log:
            assert time.monotonic() < end
            time.sleep(0.05)
        paths = ("/metrics", "/asyncapi.json", "/openapi.json", "/readyz", "/v1/log", "/v1/stats")
        shown = {"Authorization": f"Bearer {key}"}
        told += [httpx.get(f"http://{server.http}{path}", headers=shown).text for path in paths]
    flags = ["--data", str(data)]
    commands = (["key", "list"], ["explain", "key:ada", "publish", "lobby"], ["check-config"], ["key", "add", "ada"])
    told += [CliRunner().invoke(app, [*command, *flags]).output for command in commands]
    return data, key, "\n".join([*told, server.log])


def test_keys_are_in_no_answer_no_log_and_no_command(used: tuple[Path, str, str]) -> None:
    _, key, told = used
    assert "reloaded" in told
    assert "trellis_messages_total" in told
    for secret in (key, digest(key), WRONG, digest(WRONG)):
        at = told.find(secret)
        assert at < 0, told[max(0, at - 200) : at + 200]


def test_keys_are_in_no_file_and_their_digests_in_one(used: tuple[Path, str, str]) -> None:
    data, key, _ = used
    files = [path for path in data.rglob("*") if path.is_file()]
    assert not [path for path in files if key.encode() in path.read_bytes()]
    assert [path.name for path in files if digest(key).encode() in path.read_bytes()] == ["api-keys.json"]


def test_everything_in_the_key_folder_is_private_to_the_owner(used: tuple[Path, str, str]) -> None:
    data, _, _ = used
    assert stat.S_IMODE((data / "keys").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (data / "keys").rglob("*")}
    assert {"api-keys.json", "gateway.json", "last-used.json"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


def test_a_secret_and_its_name_are_on_disk_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename is lost in a power failure unless its directory is synced, and so is a new directory."""
    done = list[tuple[str, str]]()
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor: int) -> None:
        done.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def noted_rename(self: Path, target: Path) -> Path:
        done.append(("rename", str(target)))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    path = tmp_path / "keys/secret"
    write_secret(path, b"x")
    renamed = [("fsync", f"{path.parent}/.secret.new"), ("rename", f"{path}"), ("fsync", f"{path.parent}")]
    assert done == [*renamed, ("fsync", f"{tmp_path}")]
    done.clear()
    write_secret(path, b"y")
    assert done == renamed
