"""Members compare their logs and identify the damaged one."""

from __future__ import annotations

from functools import partial

import pytest

from gateway.cluster import log_comparison
from gateway.cluster.log_comparison import BLOCK, BlockDigest, LogComparison, digest_of, records_of


class TellingMembers:
    """Members that tell each other what their heartbeats would."""

    def __init__(self, names: str) -> None:
        self.logs = {name: LogComparison(partial(self._others, name)) for name in names}

    def _others(self, name: str) -> list[str]:
        return [each for each in self.logs if each != name]

    def read(self, name: str, block: int, digest: str = "good", *, is_whole: bool = True) -> None:
        self.logs[name].read(BlockDigest(block, digest, is_whole))

    def beat(self) -> dict[str, int]:
        """A second passes; who finds which block of its own log damaged."""
        for name, log in self.logs.items():
            for other, theirs in self.logs.items():
                if other != name:
                    theirs.hear(name, *log.told)
        return {name: block for name, log in self.logs.items() if (block := log.find_damage())}

    def beats(self) -> dict[str, int]:
        """As many seconds as members need to agree."""
        for _ in range(6):
            found = self.beat()
        return found


def test_equal_logs_are_the_same_up_to_the_newest_block() -> None:
    members = TellingMembers("abc")
    for block in (1, 2):
        for name in "abc":
            members.read(name, block)
        assert members.beats() == {}
    assert members.logs["a"].same == {"b": 2, "c": 2}
    assert not any(log.differing for log in members.logs.values())
    members.read("a", 1)  # again, as each is read in rounds
    assert members.beats() == {}
    assert members.logs["b"].same == {"a": 2, "c": 2}
    assert members.logs["a"].newest.block == 2


def test_a_digest_that_comes_before_its_block_was_read_is_compared_later() -> None:
    members = TellingMembers("ab")
    members.read("a", 1, "other")
    members.beat()
    members.read("b", 1)
    assert members.logs["b"].differing == {"a": 1}


@pytest.mark.parametrize("names", ["abc", "abcd", "abcde"])
def test_the_minority_is_damaged(names: str) -> None:
    members = TellingMembers(names)
    for name in names:
        members.read(name, 7, "bad" if name == "b" else "good")
        members.read(name, 8)  # which is told at first
    for name in names:
        members.read(name, 7, "bad" if name == "b" else "good")
    members.beat()
    for name in names:
        members.read(name, 8)  # as the round goes on
    assert members.beats() == {"b": 7}
    assert members.logs["a"].differing == {"b": 7}
    assert members.logs["b"].differing.keys() == set(names) - {"b"}


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_the_member_that_lacks_a_line_is_the_damaged_one(names: str) -> None:
    members = TellingMembers(names)
    for name in names:
        members.read(name, 3, "bad" if name == "a" else "good", is_whole=name != "a")
    assert members.beats() == {"a": 3}


def test_a_damaged_member_announces_its_damage_before_it_ends() -> None:
    members = TellingMembers("ab")
    for name in "ab":
        members.read(name, 3, "bad" if name == "a" else "good", is_whole=name != "a")
        members.read(name, 4)
    members.logs["a"].hear("b", 3, "good")
    while not members.beat():
        pass
    assert members.logs["b"].differing == {"a": 3}


def test_neither_of_two_whole_logs_that_differ_is_called_damaged() -> None:
    members = TellingMembers("ab")
    members.read("a", 1, "one")
    members.read("b", 1, "another")
    assert members.beats() == {}
    assert members.logs["a"].differing == {"b": 1}
    assert members.logs["b"].differing == {"a": 1}
    members.read("a", 1, "another")  # it was repaired
    assert members.beats() == {}
    assert not members.logs["a"].differing
    assert not members.logs["b"].differing


def test_a_member_that_is_gone_has_no_vote() -> None:
    members = TellingMembers("abc")
    for name in "abc":
        members.read(name, 1, "bad" if name == "a" else "good")
    members.beat()
    del members.logs["b"], members.logs["c"]
    assert members.beats() == {}
    assert not members.logs["a"].differing


def test_blocks_that_retention_took_are_not_compared() -> None:
    members = TellingMembers("ab")
    members.read("a", 1, "one")
    members.logs["a"].forget(records_of(1)[0] + 1)
    members.read("b", 1, "another")
    assert members.beats() == {}
    assert not members.logs["a"].differing


def test_a_difference_that_retention_took_is_forgotten() -> None:
    members = TellingMembers("ab")
    members.read("a", 1, "one")
    members.read("b", 1, "another")
    assert members.beats() == {}
    assert members.logs["a"].differing
    for log in members.logs.values():
        log.forget(records_of(2)[0])
    assert members.beats() == {}
    assert not members.logs["a"].differing


def test_a_digest_records_whether_its_block_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert records_of(3) == (2 * BLOCK + 1, 3 * BLOCK)
    monkeypatch.setattr(log_comparison, "BLOCK", 2)
    whole, other = digest_of(1, [b"one\n", b"two\n"]), digest_of(1, [b"one\n", b"too\n"])
    assert whole.is_whole
    assert whole.digest != other.digest
    assert not digest_of(1, [b"one\n"]).is_whole
