from __future__ import annotations

import stat
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.authorization import VERBS, Access, ApiKey, KeyFile, Right, bearer_token, digest
from gateway.core.principal import Principal

ANONYMOUS = Principal("topic_relay:anonymous")


def holder(access: Access, secret: str) -> Principal:
    """Who shows this key."""
    found = access.authenticate("rest", secret)
    assert found is not None
    return found


def test_without_keys_and_grants_all_but_administration_is_allowed() -> None:
    access = Access()
    assert not access.enabled
    assert access.allowed(ANONYMOUS, "publish", "lobby")
    assert not access.allowed(ANONYMOUS, "admin", "lobby")
    assert not access.allowed(ANONYMOUS, "admin", "")
    assert not access.allowed(ANONYMOUS, "publish", "gateway/stats")


def test_a_key_is_kept_as_its_hash_and_found_by_its_secret(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys" / "api-keys.json")
    secret = file.add("alice")
    assert secret not in file.path.read_text()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    access = Access(file.load())
    assert access.enabled
    (key,) = file.load()
    assert access.authenticate("rest", secret, "2001:db8::1") == Principal("key:alice", "2001:db8::/64", key.id)
    assert access.authenticate("rest", "trellis_wrong") is None
    assert access.authenticate("rest", None) == Principal("rest:anonymous")


def test_a_key_name_is_unique_and_free_again_when_removed(tmp_path: Path) -> None:
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
    assert Right.parse(right).covers(verb, channel) is expected
    access = Access([ApiKey("k", digest("s"), (right,))])
    assert access.allowed(holder(access, "s"), verb, channel) is expected
    assert not access.allowed(ANONYMOUS, verb, channel), "who has no right has none"


@pytest.mark.parametrize("text", ["", "publish", "publish:", "shout:x", ":x", "!", "!!publish:x"])
def test_an_invalid_right_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="VERB:PATTERN"):
        Right.parse(text)


@pytest.mark.parametrize("pattern", ["a/@b", "a\nb", "\ud800", "x" * 256, "*" + "[ab]" * 256])
def test_a_pattern_that_matches_no_channel_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="matches no channel"):
        Right.parse(f"publish:{pattern}")


@pytest.mark.parametrize("pattern", ["x" * 255, "*" * 300, "[ab]" * 255, "a*b", "["])
def test_a_pattern_that_matches_some_channel_is_accepted(pattern: str) -> None:
    assert str(Right.parse(f"!publish:{pattern}")) == f"!publish:{pattern}"


def test_only_administrators_publish_on_the_gateways_channels() -> None:
    access = Access([ApiKey("a", digest("a"), ("admin:*",)), ApiKey("b", digest("b"))])
    assert access.allowed(holder(access, "a"), "publish", "gateway/stats")
    assert not access.allowed(holder(access, "b"), "publish", "gateway/stats")
    assert access.allowed(holder(access, "b"), "subscribe", "gateway/stats")


def test_grants_give_rights_to_principals_without_a_key() -> None:
    access = Access(grants={"sprout:anonymous": ("subscribe:*",)})
    assert access.enabled
    assert access.allowed(Principal("sprout:anonymous"), "subscribe", "x")
    assert not access.allowed(Principal("sprout:anonymous"), "publish", "x")


@pytest.mark.parametrize(
    ("header", "token"), [(None, None), ("Bearer x", "x"), ("bearer  x ", "x"), ("Basic x", None), ("Bearer", None)]
)
def test_the_token_of_a_header(header: str | None, token: str | None) -> None:
    assert bearer_token(header) == token


def test_an_authenticated_principal_has_the_rights_of_anonymous_ones() -> None:
    access = Access(grants={"streamr:anonymous": ("subscribe:news",), "streamr:0xa": ("publish:news",)})
    alice, other = Principal("streamr:0xa"), Principal("streamr:0xb")
    assert access.allowed(alice, "publish", "news")
    assert access.allowed(alice, "subscribe", "news")
    assert access.allowed(other, "subscribe", "news")
    assert access.has_any_right(other)
    assert not access.allowed(other, "publish", "news")
    assert not access.allowed(Principal("sprout:anonymous"), "subscribe", "news")


def test_a_removed_key_has_no_rights_even_if_a_key_is_called_anonymous() -> None:
    access = Access([ApiKey("anonymous", digest("a")), ApiKey("k", digest("s"))])
    k = holder(access, "s")
    access.set_keys([ApiKey("anonymous", digest("a"))])
    assert not access.has_any_right(k)
    assert access.key_has_ended(k)


def test_a_new_key_of_the_same_name_gives_no_rights_to_the_removed_one(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "api-keys.json")
    access = Access()
    first = file.add("alice")
    access.set_keys(file.load())
    connected = holder(access, first)
    assert access.allowed(connected, "publish", "lobby")
    file.remove("alice")
    second = file.add("alice")
    access.set_keys(file.load())
    assert not access.allowed(connected, "publish", "lobby")
    assert not access.has_any_right(connected)
    assert access.allowed(holder(access, second), "publish", "lobby")
    assert holder(access, second).name == connected.name, "others know both by one name"


def test_a_key_name_without_its_secret_has_no_rights() -> None:
    access = Access([ApiKey("k", digest("s"))], grants={"key:k": ("*:*",), "key:anonymous": ("*:*",)})
    assert not access.allowed(Principal("key:k"), "publish", "lobby")


def test_a_lone_surrogate_is_an_invalid_key() -> None:
    assert Access([ApiKey("k", digest("s"))]).authenticate("rest", "trellis_\ud800") is None


def test_a_check_that_fails_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access([ApiKey("k", digest("s"))])
    k = holder(access, "s")

    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("gateway.access.authorization.first_match", fail)
    assert access.allowed(k, "publish", "lobby") is False


def test_an_expired_key_has_no_rights() -> None:
    now = [1_000]
    access = Access([ApiKey("k", digest("s"), expires=2_000)], clock=lambda: now[0])
    k = holder(access, "s")
    changes: list[int] = []
    access.on_change.append(lambda: changes.append(now[0]))
    now[0] = 1_999
    access.tick()
    assert access.allowed(k, "publish", "lobby")
    assert changes == []
    now[0] = 2_000
    assert access.authenticate("rest", "s") is None, "at once, before anything ticks"
    access.tick()
    assert not access.allowed(k, "publish", "lobby")
    assert access.key_has_ended(k)
    assert changes == [2_000]
    assert access.enabled, "it never lets everybody in"


def test_authentication_stays_enabled_when_all_keys_have_expired() -> None:
    access = Access([ApiKey("k", digest("s"), expires=1)])
    assert access.enabled
    assert not access.allowed(ANONYMOUS, "publish", "lobby")


def test_a_denial_wins_over_the_grants_of_its_list() -> None:
    access = Access([ApiKey("k", digest("s"), ("*:*", "!publish:secret/*"))])
    k = holder(access, "s")
    assert access.allowed(k, "publish", "lobby")
    assert not access.allowed(k, "publish", "secret/x")
    assert access.allowed(k, "subscribe", "secret/x")
    assert not access.allowed(k, "publish", ""), "who may not everywhere may not where all channels are meant"
    assert access.has_any_right(k)


def test_own_grants_come_before_anonymous_ones_and_given_rights_last() -> None:
    access = Access(
        grants={
            "streamr:anonymous": ("subscribe:*", "!*:secret/*"),
            "streamr:0xa": ("subscribe:secret/a",),
            "streamr:0xb": ("!*:*",),
            "anonymous": ("history:*", "subscribe:secret/*"),
        }
    )
    access.set_given_rights("streamr:anonymous", [Right("publish", "secret/a"), Right("publish", "open")])
    a, b, c = (Principal(f"streamr:0x{x}") for x in "abc")
    assert access.allowed(a, "subscribe", "secret/a")
    assert not access.allowed(a, "subscribe", "secret/b")
    assert not access.allowed(b, "subscribe", "lobby"), "one user is kept out"
    assert access.allowed(c, "subscribe", "lobby")
    assert access.allowed(c, "publish", "open")
    assert not access.allowed(c, "publish", "secret/a"), "what the operator took, users cannot give"
    assert access.allowed(Principal("rest:anonymous"), "subscribe", "secret/a"), "whatever the protocol"
    assert access.principals_with("subscribe", ["secret/a"]) == ["streamr:0xa", "anonymous"]


def test_names_that_peers_choose_do_not_fill_memory() -> None:
    access = Access(grants={"streamr:anonymous": ("subscribe:*",)})
    for n in range(100):
        assert access.allowed(Principal(f"streamr:{n}{'x' * 100_000}"), "subscribe", "lobby")
    assert access._rights_of.cache_info().currsize == 0


@given(
    rights=st.lists(
        st.builds(
            Right,
            st.sampled_from([*VERBS, "*"]),
            st.text("ab*?[]!/", min_size=1, max_size=5),
            st.booleans(),
        ),
        max_size=6,
    ),
    verb=st.sampled_from(VERBS),
    channel=st.text("ab/[", max_size=4),
)
def test_a_list_of_rights_follows_from_its_members(rights: list[Right], verb: str, channel: str) -> None:
    """Against the definition in words, with `fnmatch` asked each time."""

    def covers(right: Right) -> bool:
        meant = right.verb == verb or (right.verb == "*" and (verb != "admin" or right.denies))
        return meant and (fnmatchcase(channel, right.pattern) or (right.denies and channel == ""))

    taken = any(covers(right) for right in rights if right.denies)
    given = any(covers(right) for right in rights if not right.denies)
    access = Access([ApiKey("k", digest("s"), tuple(map(str, rights)))])
    access.enabled = True
    assert access.allowed(holder(access, "s"), verb, channel) == (given and not taken)


def test_given_rights_can_be_revoked_and_do_not_enable_authentication() -> None:
    access = Access()
    access.set_given_rights("streamr:0xa", [Right("publish", "s")])
    assert not access.enabled
    access.set_keys([ApiKey("k", digest("s"))])
    alice = Principal("streamr:0xa")
    assert access.allowed(alice, "publish", "s")
    assert not access.allowed(alice, "publish", "t")
    access.set_given_rights("streamr:0xa", [])
    assert not access.allowed(alice, "publish", "s")
