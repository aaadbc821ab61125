"""Changes of shared API keys take effect at all gateways, also at those that were away."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.keyfile import KEYS_FILE, ApiKey, KeyFile, text_of
from gateway.access.shared_keys import SharedKeys, merged_keys


class SharedKeysValue:
    """The value that all share."""

    def __init__(self) -> None:
        self.version, self.data = 0, b""

    def put(self, data: bytes, version: int) -> None:
        if version == self.version:
            self.version, self.data = self.version + 1, data


class KeyFileMember:
    """A gateway with its key file."""

    def __init__(self, folder: Path, value: SharedKeysValue) -> None:
        self.value, self.file, self.reloads = value, KeyFile(folder / KEYS_FILE), 0
        self.shared = SharedKeys(folder, value.put, self.reload)

    def reload(self) -> None:
        self.reloads += 1
        self.shared.merge()

    def exchange(self) -> None:
        """Get the value, as often as it takes."""
        for _ in range(3):
            self.shared.receive(self.value.version, self.value.data)

    def names(self) -> list[str]:
        return sorted(key.name for key in self.file.load())


@pytest.fixture
def members(tmp_path: Path) -> list[KeyFileMember]:
    value = SharedKeysValue()
    return [KeyFileMember(tmp_path / name, value) for name in "ab"]


def test_keys_made_at_two_gateways_at_once_count_at_both(members: list[KeyFileMember]) -> None:
    one, other = members
    one.file.add("ann")
    other.file.add("ben")
    for member in (one, other, one):
        member.exchange()
    assert one.names() == other.names() == ["ann", "ben"]
    assert one.file.load() == other.file.load()
    reloads = one.reloads
    one.exchange()
    assert one.reloads == reloads, "nothing changed"


def test_a_key_that_was_removed_or_rotated_while_a_gateway_was_away_is_gone_there(members: list[KeyFileMember]) -> None:
    one, other = members
    one.file.add("ann")
    secret = one.file.add("ben")
    for member in members:
        member.exchange()
    one.file.remove("ann")
    one.file.rotate("ben", 0)
    other.file.add("carl")  # meanwhile, by the command
    for member in (one, other, one):
        member.exchange()
    assert one.file.load() == other.file.load()
    assert sorted(set(other.names())) == ["ben", "carl"]
    assert secret.encode() not in other.value.data, "secrets are never shared, their digests are"


def test_a_broken_value_changes_nothing(members: list[KeyFileMember]) -> None:
    one = members[0]
    one.file.add("ann")
    one.exchange()
    key = one.file.load()[0]
    for data in (b"", b"{}", b"[1]", b"\xff", b'[{"name":"x"}]', text_of([key, key]), b"[" * 100_000):
        one.shared.receive(7, data)
    assert one.shared.refused == 7
    assert one.names() == ["ann"]
    one.exchange()
    assert one.names() == ["ann"]


def test_a_stream_that_was_lost_removes_no_key(members: list[KeyFileMember]) -> None:
    one = members[0]
    one.file.add("ann")
    one.exchange()
    one.value.version, one.value.data = 0, b""
    one.exchange()
    assert one.names() == ["ann"]
    assert b"ann" in one.value.data


def test_the_stricter_of_two_changes_of_a_key_wins() -> None:
    was = ApiKey("ann", "0" * 64)
    soon, late = (ApiKey("ann", "0" * 64, expires=at) for at in (5, 9))
    assert merged_keys([was], [late], [soon]) == merged_keys([was], [soon], [late]) == [soon]
    assert merged_keys([was], [], [late]) == merged_keys([was], [late], []) == []
    assert merged_keys([was], [was], [soon]) == [soon]
    assert merged_keys([], [was], []) == [was], "the first gateway's own"
