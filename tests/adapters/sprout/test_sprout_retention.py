"""Retention removes and keeps whole forests, and removed nodes may return."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.sprout import SproutAdapter
from gateway.core.message import LATE_AFTER
from gateway.storage import compaction
from gateway.storage import index as index_module
from gateway.storage.archive import verify
from gateway.storage.layout import Layout
from gateway.storage.log import SealPolicy
from gateway.storage.retention import RetentionLimits

DAY = 86_400_000


def short_log(make_place: Callable[..., Any]) -> Any:
    """A gateway whose log keeps as little as it can, with a segment for each batch."""
    place = make_place()
    place.gateway.retention.limits = RetentionLimits(bytes=1)
    place.gateway.log._writer._sealing = SealPolicy(bytes=1)
    return place


def id_of(line: str) -> str:
    return line.split(" ")[0]


def retire(place: Any) -> None:
    """Retire what is old, and compact what is left."""
    keeping = place.gateway.retention
    keeping._min_facts_bytes = 1
    keeping.tick()
    place.until(lambda: not keeping._busy and not keeping.compacting)
    place.index()
    place.adapter.tick(place.clock())


def log(place: Any) -> Path:
    path: Path = place.gateway.settings.data / "log"
    return path


def nodes(place: Any) -> set[str]:
    """The ids of the entities in the tables."""
    return {row[0] for row in place.gateway.index.rows("SELECT key FROM sprout_nodes")}


def tables(place: Any) -> list[Any]:
    names = ("sprout_nodes", "sprout_minted", "ids", "aliases", "channels", "peers")
    return [place.gateway.index.rows(f"SELECT * FROM {name} ORDER BY 1") for name in names]


def check(place: Any) -> None:
    """The log is what it says it is, and the tables are what is made of it."""
    assert verify(log(place), SproutAdapter.signature_check()).faults == []
    before = tables(place)
    place.gateway.index.rebuild()
    place.posted.drain()
    assert tables(place) == before


@pytest.fixture
def short(make_place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(index_module, "GATHER_SECONDS", 0)
    monkeypatch.setattr(compaction, "GRACE_SECONDS", 0)
    return short_log(make_place)


def test_a_forest_is_removed_with_its_replies_and_returns(short: Any, alice: Any, announce: Any) -> None:
    line = short.connect()
    community = alice.community("old")
    first = alice.reply(community, "first")
    announce(line, alice.identity, community, first)
    line.close()
    short.bus.channels.close("old")
    short.toy().say("elsewhere", "other")
    short.index()
    assert {id_of(alice.identity), id_of(community)} <= nodes(short)
    short.clock.now += 2 * DAY
    short.toy().say("today", "other")
    short.index()
    retire(short)
    assert Layout.read(log(short)).front is not None
    assert not {id_of(alice.identity), id_of(community)} & nodes(short)
    assert "old" not in {name for name, _, _ in short.gateway.index.channels()}
    check(short)

    line = short.connect()
    alice.now = short.clock()
    second = alice.reply(community, "second")
    told = announce(line, alice.identity, community, first, second)
    assert "status" in told
    short.index()
    said = [message.content for message in short.gateway.index.history("old")]
    assert said == [b'{"content":"second"}'], "what was said before is not said again"
    assert {id_of(alice.identity), id_of(community)} <= nodes(short)
    check(short)


def test_messages_of_an_author_with_a_slow_clock_are_accepted(short: Any, alice: Any, announce: Any) -> None:
    line = short.connect()
    community = alice.community("lobby")
    announce(line, alice.identity, community)
    short.clock.now += DAY
    short.toy().say("today", "other")
    short.index()
    short.toy().say("more", "other")
    short.index()
    retire(short)
    alice.now = short.clock() - LATE_AFTER // 2
    announce(line, alice.identity, community, alice.reply(community, "late"))
    short.index()
    said = [message.content for message in short.gateway.index.history("lobby")]
    assert said == [b'{"content":"late"}']


def test_ancestors_of_a_kept_reply_are_kept(short: Any, alice: Any, bob: Any, announce: Any) -> None:
    line = short.connect()
    community = alice.community("lasting")
    first = alice.reply(community, "first")
    announce(line, alice.identity, community, first)
    announce(line, bob.identity)
    line.close()
    short.index()
    short.clock.now += 2 * DAY
    alice.now = short.clock()
    line = short.connect()
    announce(line, alice.reply(first, "second"))
    line.close()
    short.index()
    retire(short)
    assert {id_of(alice.identity), id_of(community)} <= nodes(short)
    assert id_of(bob.identity) not in nodes(short), "nothing is signed by bob"
    assert len(short.gateway.index.history("lasting")) == 1
    check(short)
    line = short.connect()
    heard = line.ask(f"query 1 2\n{id_of(alice.identity)}\n{id_of(community)}\n")
    assert alice.identity in heard
    assert community in heard


def test_minted_nodes_are_minted_again_with_the_same_bytes(short: Any, make_place: Callable[..., Any]) -> None:
    """The conversation of a day and an identity that nobody needs go; the gateway's own identity and community stay."""
    short.bus.channels.register("lobby")
    short.settle()
    toy = short.toy()
    toy.say("hello")
    community = short.bus.channels.address("sprout", "lobby")
    line = short.connect()
    line.send(f"subscribe 0 {community}\n")
    toy.say("again")
    short.index()
    minted = dict(short.gateway.index.rows("SELECT what, id FROM sprout_minted"))
    assert {what.split(" ")[0] for what in minted} == {"gateway", "peer", "day"}
    line.close()
    toy.receive_eof()
    short.clock.now += 2 * DAY
    short.toy().say("today", "other")
    short.index()
    retire(short)
    left = dict(short.gateway.index.rows("SELECT what, id FROM sprout_minted"))
    assert left.items() <= minted.items()
    assert {what.split(" ")[0] for what in left} == {"gateway"}
    assert community in nodes(short)
    check(short)
    again = short_log(make_place)
    assert again.adapter.mint.id == minted["gateway"]
    day = next(what for what in minted if what.startswith("day"))
    assert not again.adapter.mint.conversation("lobby", day).id, "it is being made"
    again.index()
    assert again.adapter.mint.conversation("lobby", day).id == minted[day]
