from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.auth import Access, Key, KeyFile, Right, bearer, digest
from gateway.session import Principal

ANYBODY = Principal("topic_relay:anonymous")


def test_without_keys_and_grants_everybody_may_everything_but_speak_as_the_gateway() -> None:
    access = Access()
    assert not access.enabled
    assert access.allowed(ANYBODY, "publish", "lobby")
    assert access.allowed(ANYBODY, "admin", "")
    assert not access.allowed(ANYBODY, "publish", "gateway/stats")


def test_a_key_is_kept_as_its_hash_and_found_by_its_secret(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys" / "api-keys.json")
    secret = file.add("alice")
    assert secret not in file.path.read_text()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    access = Access(file.load())
    assert access.enabled
    assert access.authenticate("rest", secret, "2001:db8::1") == Principal("key:alice", "2001:db8::/64")
    assert access.authenticate("rest", "trellis_wrong") is None
    assert access.authenticate("rest", None) == Principal("rest:anonymous")


def test_a_name_is_taken_once_and_free_again_when_removed(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "api-keys.json")
    file.add("alice")
    with pytest.raises(ValueError, match="already"):
        file.add("alice")
    assert file.remove("alice")
    assert not file.remove("alice")
    assert file.load() == []


@pytest.mark.parametrize(
    ("right", "verb", "channel", "expected"),
    [
        ("publish:lobby", "publish", "lobby", True),
        ("publish:lobby", "publish", "lobby2", False),
        ("publish:lobby", "subscribe", "lobby", False),
        ("*:news/*", "history", "news/today", True),
        ("*:news/*", "history", "news", False),
        ("*:*", "admin", "", False),
        ("admin:*", "admin", "", True),
    ],
)
def test_rights_cover_a_verb_and_a_pattern(right: str, verb: str, channel: str, expected: bool) -> None:
    assert Right.parse(right).allows(verb, channel) is expected
    access = Access([Key("k", digest("s"), (right,))])
    assert access.allowed(Principal("key:k"), verb, channel) is expected
    assert not access.allowed(ANYBODY, verb, channel), "who has no right has none"


@pytest.mark.parametrize("text", ["", "publish", "publish:", "shout:x", ":x"])
def test_a_right_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="VERB:PATTERN"):
        Right.parse(text)


def test_only_admins_speak_as_the_gateway() -> None:
    access = Access([Key("a", digest("a"), ("admin:*",)), Key("b", digest("b"))])
    assert access.allowed(Principal("key:a"), "publish", "gateway/stats")
    assert not access.allowed(Principal("key:b"), "publish", "gateway/stats")
    assert access.allowed(Principal("key:b"), "subscribe", "gateway/stats")


def test_grants_give_rights_to_those_without_a_key() -> None:
    access = Access(grants={"sprout:anonymous": ("subscribe:*",)})
    assert access.enabled
    assert access.allowed(Principal("sprout:anonymous"), "subscribe", "x")
    assert not access.allowed(Principal("sprout:anonymous"), "publish", "x")


@pytest.mark.parametrize(
    ("header", "token"), [(None, None), ("Bearer x", "x"), ("bearer  x ", "x"), ("Basic x", None), ("Bearer", None)]
)
def test_the_token_of_a_header(header: str | None, token: str | None) -> None:
    assert bearer(header) == token


def test_who_says_who_he_is_may_what_strangers_may() -> None:
    access = Access(grants={"streamr:anonymous": ("subscribe:news",), "streamr:0xa": ("publish:news",)})
    alice, other = Principal("streamr:0xa"), Principal("streamr:0xb")
    assert access.allowed(alice, "publish", "news")
    assert access.allowed(alice, "subscribe", "news")
    assert access.allowed(other, "subscribe", "news")
    assert access.known(other)
    assert not access.allowed(other, "publish", "news")
    assert not access.allowed(Principal("sprout:anonymous"), "subscribe", "news")


def test_a_removed_key_has_nothing_even_where_a_key_is_called_anonymous() -> None:
    access = Access([Key("anonymous", digest("a")), Key("k", digest("s"))])
    access.use([Key("anonymous", digest("a"))])
    assert not access.known(Principal("key:k"))


def test_rights_that_users_give_can_be_taken_back_and_switch_nothing_on() -> None:
    access = Access()
    access.give("streamr:0xa", [Right("publish", "s")])
    assert not access.enabled
    access.use([Key("k", digest("s"))])
    alice = Principal("streamr:0xa")
    assert access.allowed(alice, "publish", "s")
    assert not access.allowed(alice, "publish", "t")
    access.give("streamr:0xa", [])
    assert not access.allowed(alice, "publish", "s")
