"""Streams: their descriptions, the rules for their messages, and permissions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters import ADAPTERS
from adapters.streamr import StreamrAdapter
from adapters.streamr.model import streams
from adapters.streamr.model.streams import InvalidDescription
from gateway.access.authorization import ApiKey, digest
from gateway.core.principal import Principal
from gateway.settings.config import BadConfiguration, load

STRICT = {"strict": {"require_signed_data": True}, "secret": {"require_encrypted_data": True}, "wide": 5}


def configured(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "trellis.toml"
    file.write_text(text)
    return load(ADAPTERS, file).section(StreamrAdapter)


def test_a_stream_is_configured_by_its_number_of_partitions_or_by_a_table(tmp_path: Path) -> None:
    found = configured(tmp_path, '[streamr.streams]\nwide = 5\n"my/s" = {require_signed_data = true, public = true}')
    assert found.streams["wide"].partitions == 5
    assert found.streams["my/s"].require_signed_data
    assert found.streams["my/s"].public
    assert found.streams["my/s"].partitions is None


@pytest.mark.parametrize("said", ["wide = 0", "wide = 101", "wide = true", 'wide = "5"', "wide = {colour = 1}"])
def test_an_invalid_description_is_reported_with_its_stream(tmp_path: Path, said: str) -> None:
    with pytest.raises(BadConfiguration, match=r"streamr\.streams\.wide"):
        configured(tmp_path, f"[streamr.streams]\n{said}")


def test_messages_that_break_the_rules_of_their_stream_are_refused(make_broker: Callable[..., Any], alice: Any) -> None:
    broker = make_broker(streams=STRICT)
    session, now = broker.open(), broker.clock()
    unsigned = [32, ["strict", 0, now, 0, "", ""], None, 27, 0, 0, None, "{}", None, 0, None]
    refused = broker.ask(session, [2, 8, "r", unsigned, None])[0]
    assert refused[1:3] == [7, "r"]
    assert "Stream data is required to be signed. Message: [32," in refused[3]
    assert broker.ask(session, [2, 8, "r", alice.message("strict", 1, now), None]) == []
    plain = broker.ask(session, [2, 8, "r", alice.message("secret", 1, now), None])[0]
    assert "Non-public streams require data to be encrypted. Message: [32," in plain[3]
    hidden = alice.message("secret", "ab" * 20, now, encryption=2, group_key="k")
    assert broker.ask(session, [2, 8, "r", hidden, None]) == []
    assert broker.ask(session, [2, 8, "r", alice.message("wide", 1, now, partition=4), None]) == []
    assert broker.ask(session, [2, 8, "r", alice.message("wide", 1, now, partition=5), None])[0][1] == 7


def test_foreign_messages_on_an_encrypted_stream_are_encrypted(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(streams=STRICT)
    listener = broker.listener("secret")
    assert broker.say("secret", 1).undelivered == ()
    ((*_, row),) = broker.frames(listener)
    assert (row[5], len(row[7])) == (2, 34)


def test_descriptions_and_permissions_survive_a_restart(make_broker: Callable[..., Any], alice: Any) -> None:
    broker = make_broker(partitions=2)
    known = broker.adapter.streams
    known.describe("s", {"partitions": 3, "requireSignedData": True, "description": "mine", "id": "x", "name": None})
    known.describe("s", {"config": {"fields": [{"name": "n", "type": "number"}]}})
    permission = known.grant("s", "stream_subscribe", alice.address)
    assert known.grant("s", "stream_subscribe", alice.address) == permission, "once more changes nothing"
    known.describe("gone", {"partitions": 7})
    known.forget("gone")
    shown = known.shown("s")
    broker.core.settle()
    after = make_broker(partitions=2).adapter.streams
    assert after.shown("s") == shown
    assert shown["partitions"] == 3
    assert shown["description"] == "mine"
    assert shown["config"]["fields"] == [{"name": "n", "type": "number"}]
    assert after.permissions("s") == (permission,)
    assert after.rules("gone").partitions == 2
    assert after.revoke("s", permission.id)
    assert not after.revoke("s", permission.id)


def test_added_partitions_are_available_at_once(broker: Any) -> None:
    listener = broker.listener("s")
    assert broker.say("s#1", 1).undelivered == ("streamr",)
    broker.adapter.streams.describe("s", {"partitions": 2})
    assert broker.say("s#1", 1).undelivered == ()
    assert broker.ask(listener, [2, 9, "r", "s", 1, None])[0][1] == 2


def test_a_permission_is_a_right_until_it_is_revoked(make_broker: Callable[..., Any], alice: Any, bob: Any) -> None:
    broker = make_broker(keys=(ApiKey("k", digest("trellis_k")),), streams={"open": {"public": True}})
    known = broker.adapter.streams
    known.describe("a*b", {"partitions": 2})
    given = known.grant("a*b", "stream_publish", alice.address)
    everybody = known.grant("a*b", "stream_subscribe", None)

    def may(publisher: Any, verb: str, channel: str) -> bool:
        return bool(broker.access.allowed(Principal(f"streamr:{publisher.address}"), verb, channel))

    assert may(alice, "publish", "a*b")
    assert may(alice, "publish", "a*b#1")
    assert not may(alice, "publish", "axb"), "a star in the name is a star"
    assert not may(bob, "publish", "a*b")
    assert may(bob, "subscribe", "a*b")
    assert may(bob, "history", "open")
    assert not may(bob, "publish", "open")
    assert known.revoke("a*b", given.id)
    assert known.revoke("a*b", everybody.id)
    assert not may(alice, "publish", "a*b")
    assert not may(bob, "subscribe", "a*b")


@pytest.mark.parametrize(
    "fields",
    [
        {"partitions": 0},
        {"partitions": 101},
        {"partitions": "3"},
        {"requireSignedData": 1},
        {"name": "x" * 256},
        {"description": 7},
        {"config": []},
        {"storageDays": -1},
        {"config": {"fields": ["x" * streams.MAX_DESCRIPTION]}},
        {"description": "\ud800"},
    ],
)
def test_invalid_descriptions_are_refused(broker: Any, fields: dict[str, Any]) -> None:
    before = broker.adapter.streams.shown("s")
    with pytest.raises(InvalidDescription):
        broker.adapter.streams.describe("s", fields)
    assert broker.adapter.streams.shown("s") == before


def test_configured_streams_cannot_be_changed(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(streams=STRICT)
    with pytest.raises(InvalidDescription, match="configuration"):
        broker.adapter.streams.describe("wide", {"partitions": 6})
    with pytest.raises(InvalidDescription, match="configuration"):
        broker.adapter.streams.grant("wide", "stream_publish", None)


def test_descriptions_and_permissions_are_bounded(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_DESCRIBED", 2)
    monkeypatch.setattr(streams, "MAX_PERMISSIONS", 1)
    known = broker.adapter.streams
    for name in ("a", "b"):
        known.describe(name, {"partitions": 2})
    with pytest.raises(InvalidDescription, match="keeps at most 2"):
        known.describe("c", {"partitions": 2})
    known.grant("a", "stream_get", None)
    with pytest.raises(InvalidDescription, match="at most 1"):
        known.grant("a", "stream_publish", None)
    known.forget("b")
    known.describe("c", {"partitions": 2})
