"""Files of secrets that are of no use: the gateway says so in one sentence and does not start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.auth import BadSecret, read_secret, write_secret
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
def test_a_gateway_whose_secrets_are_of_no_use_says_so_and_ends(
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


def test_only_what_the_owner_alone_may_read_is_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"psst")
    path.chmod(0o400)
    assert read_secret(path) == b"psst"
    path.chmod(0o604)
    with pytest.raises(BadSecret, match="chmod 600"):
        read_secret(path)
    with pytest.raises(BadSecret, match="No such file"):
        read_secret(tmp_path / "none")
