"""All gateways of a cluster share their grants."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.shared_grants import GRANTS_FILE, Grants, SharedGrants, merged_grants

READ: Grants = {"streamr:anonymous": ("subscribe:news/*",)}
WRITE: Grants = {"rest:anonymous": ("publish:lobby",)}


class SharedGrantsValue:
    """The shared value."""

    def __init__(self) -> None:
        self.version, self.data = 0, b""

    def put(self, data: bytes, version: int) -> None:
        if version == self.version:
            self.version, self.data = version + 1, data


class GrantsMember:
    """A gateway; `now` are the grants that count there."""

    def __init__(self, folder: Path, value: SharedGrantsValue, configured: Grants) -> None:
        folder.mkdir(exist_ok=True)
        self.value, self.now = value, configured
        self.shared = SharedGrants(folder, configured, value.put, self._apply)
        self.look()

    def look(self) -> None:
        """Ask for the value until nothing changes."""
        for _ in range(3):
            self.shared.receive(self.value.version, self.value.data)

    def _apply(self, grants: Grants) -> None:
        self.now = grants


def test_a_change_on_one_member_counts_on_all(tmp_path: Path) -> None:
    value = SharedGrantsValue()
    one, two = (GrantsMember(tmp_path / name, value, READ) for name in ("one", "two"))
    one.shared.configure(READ | WRITE)
    assert one.now == READ | WRITE
    two.look()
    assert two.now == READ | WRITE
    two.shared.configure({})  # it takes back what it gave itself
    assert two.now == WRITE
    one.look()
    assert one.now == WRITE


def test_a_configuration_that_was_not_changed_takes_nothing_back(tmp_path: Path) -> None:
    value = SharedGrantsValue()
    one, two = (GrantsMember(tmp_path / name, value, READ) for name in ("one", "two"))
    one.shared.configure({})
    again = GrantsMember(tmp_path / "two", value, READ)
    assert again.now == {}, "its configuration is that of before"
    assert two.now == READ, "it has not asked yet"
    changed = GrantsMember(tmp_path / "two", value, READ | WRITE)
    assert changed.now == WRITE, "this was written into it while it did not run"
    one.look()
    assert one.now == WRITE


def test_a_newcomer_takes_those_of_the_cluster(tmp_path: Path) -> None:
    value = SharedGrantsValue()
    one = GrantsMember(tmp_path / "one", value, READ)
    newcomer = GrantsMember(tmp_path / "new", value, WRITE)
    assert newcomer.now == READ
    one.look()
    assert one.now == READ
    newcomer.shared.configure({})
    assert newcomer.now == READ


def test_a_gateway_that_is_cut_off_follows_its_own_configuration_at_once(tmp_path: Path) -> None:
    value = SharedGrantsValue()
    one, two = (GrantsMember(tmp_path / name, value, READ) for name in ("one", "two"))
    one.shared._put = lambda _data, _version: None
    one.shared.configure({})
    assert one.now == {}
    one.shared._put = value.put
    one.look()
    two.look()
    assert two.now == {}


def test_a_stream_that_was_lost_is_filled_from_the_configuration(tmp_path: Path) -> None:
    GrantsMember(tmp_path / "one", SharedGrantsValue(), READ)
    value = SharedGrantsValue()
    assert GrantsMember(tmp_path / "one", value, READ).now == READ
    assert msgspec.json.decode(value.data, type=Grants) == READ


@pytest.mark.parametrize("data", [b"", b"5", b"{", b'{"a": ["no right"]}', b'{"a": 5}'])
def test_a_malformed_value_changes_nothing(tmp_path: Path, data: bytes) -> None:
    member = GrantsMember(tmp_path / "one", SharedGrantsValue(), READ)
    member.shared.receive(7, data)
    assert (member.now, member.shared.refused) == (READ, 1)
    assert (tmp_path / "one" / GRANTS_FILE).exists()


GRANTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from([("publish:x",), ("subscribe:y",)]))


@given(GRANTS, GRANTS, GRANTS)
def test_a_merge_changes_only_the_changed_grants(was: Grants, here: Grants, shared: Grants) -> None:
    merged = merged_grants(was, here, shared)
    for name in "abc":
        expected = shared if was.get(name) == here.get(name) else here
        assert merged.get(name) == expected.get(name)
    assert merged_grants(here, here, merged) == merged
