"""The file of API keys keeps valid keys, refuses ambiguous ones, and survives concurrent commands."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.access.authorization import SecretFileError, digest
from gateway.access.keyfile import ApiKey, KeyFile, now_ms

HASH = digest("trellis_x")
HOUR = 3_600_000


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys" / "api-keys.json")


def write(file: KeyFile, rows: Any) -> None:
    file.path.parent.mkdir(exist_ok=True)
    file.path.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    file.path.chmod(0o600)


def test_an_older_file_is_read_and_its_keys_have_stable_ids(file: KeyFile) -> None:
    write(file, [{"name": "alice", "hash": HASH, "rights": ["publish:*"]}])
    (first,) = file.load()
    (again,) = file.load()
    assert first.id == again.id
    assert first.id not in HASH
    file.add("bob")
    alice, bob = file.load()
    assert alice == first
    assert json.loads(file.path.read_text())[0]["id"] == first.id
    assert bob.id != alice.id


# fmt: off
DAMAGES: dict[str, Any] = {
    "no JSON":       "{",
    "no list":       {"a": 1},
    "no name":       [{"hash": HASH, "rights": []}],
    "no digest":     [{"name": "a", "hash": "x", "rights": []}],
    "a number":      [{"name": "a", "hash": 1, "rights": []}],
    "no right":      [{"name": "a", "hash": HASH, "rights": ["shout:*"]}],
    "rights a text": [{"name": "a", "hash": HASH, "rights": "publish:*"}],
    "no id":         [{"name": "a", "hash": HASH, "rights": [], "id": "../x"}],
    "no end":        [{"name": "a", "hash": HASH, "rights": [], "expires": "soon"}],
    "end of time":   [{"name": "a", "hash": HASH, "rights": [], "expires": 10**18}],
    "twice":         [{"name": "a", "hash": HASH, "rights": []}] * 2,
}
# fmt: on


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_as_a_whole(file: KeyFile, damage: str) -> None:
    write(file, DAMAGES[damage])
    with pytest.raises(SecretFileError, match="not a key file"):
        file.load()


def test_a_file_that_others_can_read_is_refused(file: KeyFile) -> None:
    file.add("alice")
    file.path.chmod(0o640)
    with pytest.raises(SecretFileError, match="chmod 600"):
        file.load()


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb", "\x1b[31m", "rest", "\ud800"])
def test_ambiguous_key_names_are_refused(file: KeyFile, name: str) -> None:
    with pytest.raises(ValueError, match="key"):
        file.add(name)
    assert file.load() == []


def test_rights_that_grant_nothing_are_refused(file: KeyFile) -> None:
    for rights in ([], ["!publish:*"]):
        with pytest.raises(ValueError, match="grant nothing"):
            file.add("alice", rights)


def test_a_rotated_key_has_two_secrets_until_the_old_one_expires(file: KeyFile) -> None:
    old = file.add("alice", ["publish:a"], expires=now_ms() + 5 * HOUR)
    new = file.rotate("alice", HOUR)
    first, second = file.load()
    assert [first.hash, second.hash] == [digest(old), digest(new)]
    assert first.id != second.id
    assert first.rights == second.rights == ("publish:a",)
    assert first.expires is not None
    assert first.expires <= now_ms() + HOUR
    assert second.expires is not None
    assert second.expires > now_ms() + 4 * HOUR, "the end that it had"
    file.rotate("alice", 9 * HOUR)
    assert file.load()[0] == first, "an overlap prolongs nothing"
    assert file.remove("alice")
    assert file.load() == []


def test_rotating_without_an_overlap_ends_the_old_secret_at_once(file: KeyFile) -> None:
    file.add("alice")
    new = file.rotate("alice", 0)
    living = [key for key in file.load() if key.is_valid_at(now_ms())]
    assert [key.hash for key in living] == [digest(new)]


def test_a_name_whose_key_has_expired_is_free_again_and_cannot_be_rotated(file: KeyFile) -> None:
    file.add("alice", expires=now_ms() - 1)
    with pytest.raises(ValueError, match="no key"):
        file.rotate("alice", HOUR)
    new = file.add("alice")
    assert [key.hash for key in file.load()] == [digest(new)]


def test_everything_beside_the_keys_is_private_to_their_owner(file: KeyFile) -> None:
    left_behind = file.path.with_name(f".{file.path.name}.new")
    file.path.parent.mkdir(mode=0o700)
    left_behind.write_text("of a crash")
    left_behind.chmod(0o644)
    file.add("alice")
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.path.parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_concurrent_commands_lose_no_key(file: KeyFile) -> None:
    call = "import sys; from pathlib import Path; from gateway.access.keyfile import KeyFile\n" + (
        "for n in range(20): KeyFile(Path(sys.argv[1])).add(sys.argv[2] + str(n))"
    )
    commands = [[sys.executable, "-c", call, str(file.path), name] for name in "abc"]
    running = [subprocess.Popen(command) for command in commands]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(file.load()) == 60


def test_the_id_of_a_key_depends_only_on_its_digest() -> None:
    assert ApiKey("a", digest("x")).id != ApiKey("a", digest("y")).id
    assert ApiKey("a", digest("x")).id == ApiKey("b", digest("x")).id
