"""Members of a cluster must agree on their settings, and a member that differs is refused."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from gateway.cluster import common_settings
from gateway.cluster.common_settings import Agreement, stated
from gateway.cluster.roster import MAX_MEMBERS
from gateway.cluster.signals import MAX_TEXT, PROTOCOL, Heartbeat, Signal, Terms, decode_signal, encode_signal
from tests.gateway.cluster.test_cluster import Cluster, metrics, told
from tests.server import Server
from tests.waiting import until


class Members:
    """Members that hear each other; `refused` has why one cannot be a member."""

    def __init__(self) -> None:
        self.all: dict[str, Agreement] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.refused: dict[str, str] = {}
        self.said = 0

    def add(self, member: str, **settings: object) -> Agreement:
        """A member that starts, and asks the others."""
        self.settings[member] = {name: stated(value) for name, value in settings.items()}
        self.all[member] = Agreement(
            *(member, f"1.{len(self.all)}", lambda: self.settings[member]),
            *(lambda signal, to: self.tell(member, signal, to), lambda reason: self.refuse(member, reason)),
        )
        self.all[member].refresh()
        self.all[member].ask()
        return self.all[member]

    def refuse(self, member: str, reason: str) -> None:
        self.refused.setdefault(member, reason)

    def tell(self, origin: str, signal: Signal, to: str) -> None:
        heard = decode_signal(encode_signal(signal))
        self.said += 1
        assert isinstance(heard, Terms)
        for name, member in self.all.items():
            if name != origin and to in ("", name):
                member.take(heard)

    def beat(self) -> None:
        """All send a heartbeat."""
        for origin, its in self.all.items():
            for name, member in self.all.items():
                if name != origin:
                    member.take_heartbeat(Heartbeat(origin, "1", 1, 1, speaks=PROTOCOL, oldest=1, terms=its.digest))


def test_a_member_with_another_setting_is_refused_with_its_name_and_both_values() -> None:
    members = Members()
    members.add("berlin@1", create="open", limit=5)
    members.add("paris@2", create="open", limit=5)
    members.add("oslo@3", create="configured", limit=5)
    assert list(members.refused) == ["oslo@3"], "the others go on"
    text = members.refused["oslo@3"]
    assert (
        'differs from the member berlin: create is "configured" here and "open" there. Remedy: make them equal' in text
    )
    assert members.all["berlin@1"].differences == {"oslo@3": ["create"]}
    members.all["berlin@1"].gone("oslo@3")
    assert members.all["berlin@1"].differences == {}


def test_secrets_are_not_shown_and_long_values_are_shortened() -> None:
    members = Members()
    files = {"keys/sprout.privkey": "abc", "pins": {"x" * 300: 1}, "b": 2, "c": 3}
    members.add("one@1", **files)
    members.add("two@2", **{"keys/sprout.privkey": "def", "pins": {"x" * 300: 2}, "b": 3, "c": 4})
    text = members.refused["two@2"]
    assert "keys/sprout.privkey is another file" in text
    assert "abc" not in text
    assert "and 1 more" in text
    assert len(stated({"x" * 5_000: 1})) < MAX_TEXT
    assert stated({"a": 1, "b": 2}) == stated({"b": 2, "a": 1})


def test_members_continue_after_a_change_of_settings_and_report_it() -> None:
    members = Members()
    one, two = members.add("one@1", rate=5), members.add("two@2", rate=5)
    members.settings["two@2"] = {"rate": stated(9)}
    two.refresh()
    members.beat()
    assert one.differences == {"two@2": ["rate"]}
    assert two.differences == {"one@1": ["rate"]}
    said = members.said
    members.beat()
    assert members.said == said, "they compare once"
    members.settings["one@1"] = {"rate": stated(9)}
    one.refresh()
    members.beat()
    assert (one.differences, two.differences, members.refused) == ({}, {}, {})


def test_members_with_different_settings_continue_after_an_outage() -> None:
    """They take each other for gone, and their settings may be about to be changed at all."""
    members = Members()
    one, two = members.add("one@1", rate=5), members.add("two@2", rate=5)
    members.settings["two@2"] = {"rate": stated(9)}
    two.refresh()
    one.gone("two@2")
    two.gone("one@1")
    members.beat()
    assert (one.differences, two.differences) == ({"two@2": ["rate"]}, {"one@1": ["rate"]})
    assert members.refused == {}


def test_a_member_unanswered_at_its_start_is_refused_at_the_next_heartbeat() -> None:
    members = Members()
    members.add("one@1", rate=5)
    members.add("two@2", rate=6)
    members.refused.clear()
    members.beat()
    assert list(members.refused) == []  # they have compared already
    members.all["two@2"].gone("one@1")
    members.beat()
    assert list(members.refused) == ["two@2"]


class FormerAlive(msgspec.Struct, tag_field="signal", tag="alive"):
    """A heartbeat as the version before had it: protocol 1."""

    member: str
    version: str
    next_seq: int
    place: int
    acts: bool = False
    number: int = 0


def test_a_member_of_the_previous_version_is_compatible(monkeypatch: pytest.MonkeyPatch) -> None:
    former = decode_signal(msgspec.json.encode(FormerAlive("old@1", "0.2", 5, 2)))
    assert isinstance(former, Heartbeat)
    members = Members()
    mine = members.add("new@2", rate=5)
    said = members.said
    mine.take_heartbeat(former)
    assert (members.refused, members.said) == ({}, said), "it has no terms to be asked for"
    now = Heartbeat("new@2", "0.3", 5, 2, speaks=PROTOCOL, oldest=1, terms=mine.digest)
    assert msgspec.json.decode(encode_signal(now), type=FormerAlive).next_seq == 5
    monkeypatch.setattr(common_settings, "OLDEST", 2)
    mine.take_heartbeat(former)
    assert "protocol 1) do not understand each other: the member old is too old" in members.refused["new@2"]


def test_a_member_that_is_too_old_for_the_others_refuses_itself() -> None:
    members = Members()
    mine = members.add("old@2", rate=5)
    newer = Heartbeat("new@1", "9", 5, 2, speaks=PROTOCOL + 2, oldest=PROTOCOL + 1)
    mine.take_heartbeat(newer)
    assert "the member new (version 9, protocol 4) do not understand each other: this gateway is too old" in (
        members.refused.pop("old@2")
    )
    mine.take_heartbeat(Heartbeat("later@3", "9", 5, 2, speaks=PROTOCOL + 2, oldest=PROTOCOL + 1))
    assert members.refused == {}, "who comes later is refused, not who is there"
    mine.take_heartbeat(Heartbeat("next@1", "9", 5, 2, speaks=PROTOCOL + 1, oldest=PROTOCOL))
    assert members.refused == {}


def test_forged_terms_use_no_memory() -> None:
    members = Members()
    mine = members.add("one@1", rate=5)
    for number in range(MAX_MEMBERS + 5):
        mine.take(Terms(f"forged{number}@{number + 2}", "1", {"rate": "6"}))
    assert len(mine.differences) == MAX_MEMBERS


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def test_a_gateway_with_other_limits_or_keys_does_not_start(cluster: Cluster, tmp_path: Path) -> None:
    one, folder = cluster.start("one"), tmp_path / "two"
    shutil.copytree(tmp_path / "one" / "keys", folder / "keys")
    key = folder / "keys" / "sprout.privkey"
    key.rename(tmp_path / "key")
    others = {
        "TRELLIS_LIMITS__SUBSCRIPTIONS": "7",
        "TRELLIS_CHANNELS__PINS": '{"lobby": {"topic_relay": "hall"}}',
        "TRELLIS_STREAMR__PARTITIONS": "3",
    }
    with pytest.raises(RuntimeError) as refused:
        Server(folder, env=cluster.environment("two") | others)
    text = str(refused.value)
    assert "differs from the member one" in text
    assert """channels.pins is {"lobby":{"topic_relay":"hall"}} here and {} there""" in text, text
    assert "keys/sprout.privkey is another file" in text
    assert "limits.subscriptions is 7 here and" in text
    assert "and 1 more" in text
    assert one.process.poll() is None
    (tmp_path / "key").rename(key)
    config = tmp_path / "two.toml"
    config.write_text("")
    two = cluster.gateways["two"] = Server(folder, "--config", str(config), env=cluster.environment("two"))
    config.write_text("[limits]\nsubscriptions = 9")
    os.kill(two.pid, signal.SIGHUP)  # what a running gateway can change does not end it
    until(lambda: [each["differs"] for each in told(one)["members"]] == [[], ["limits.subscriptions"]])
    until(lambda: metrics(two)["differing_members"] == 1)

    def answers(gateway: Server) -> list[bool]:
        """Whether anybody may read, and publish, there."""
        url = f"http://{gateway.http}/v1/channels/lobby/messages"
        return [answer.status_code in (200, 201) for answer in (httpx.get(url), httpx.post(url, json="hello"))]

    until(lambda: answers(one) == [True, True])
    for rights, expected in (('["history:*"]', [True, False]), ("[]", [False, False])):
        config.write_text(f'[auth.grants]\n"rest:anonymous" = {rights}\n')
        os.kill(two.pid, signal.SIGHUP)  # what one grants, and takes back, counts on all
        until(lambda expected=expected: answers(one) == answers(two) == expected)  # type: ignore[misc]
