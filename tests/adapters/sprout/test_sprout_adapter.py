"""The Sprout adapter has settings, channel names and index tables of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.sprout import SproutAdapter
from adapters.sprout.settings import SproutSettings
from adapters.sprout.store import recent, store
from gateway.adapter import Listener
from gateway.settings import config
from gateway.storage.index_queries import SEQ_OF_ID

MINUTE = 60_000


def id_of(node: str) -> str:
    return node.split(" ")[0]


def test_it_listens_on_two_ports(place: Any) -> None:
    assert place.adapter.listeners() == [Listener("sprout", 7777), Listener("sprout_tls", 7778, tls=True)]
    assert place.adapter.describe("x") == {"community": "x"}


def test_an_invalid_setting_is_named_in_the_error() -> None:
    assert SproutSettings() == SproutSettings(port=7777, tls_port=7778, direct="deliver", enabled=True)
    with pytest.raises(ValidationError):
        SproutSettings(port=70_000)
    with pytest.raises(config.BadConfiguration, match=r"sprout\.direct"):
        config.load([SproutAdapter], flags={"sprout.direct": "perhaps"})


# Names


def channel_of(place: Any, node: str) -> str:
    name: str = place.bus.channels.channel("sprout", id_of(node))
    return name


def test_communities_of_one_name_are_channels_of_different_names(
    place: Any, alice: Any, bob: Any, announce: Any
) -> None:
    line = place.connect()
    first, second = alice.community("lobby"), bob.community("lobby")
    announce(line, alice.identity, bob.identity, first, second)
    digest = id_of(second).removeprefix("SHA512_B32__")
    assert [channel_of(place, first), channel_of(place, second)] == ["lobby", f"lobby~{digest[:6]}"]


def test_a_channel_that_exists_keeps_its_name_and_its_community(place: Any, alice: Any, announce: Any) -> None:
    place.bus.channels.register("lobby")  # its community is being made
    community = alice.community("lobby")
    announce(place.connect(), alice.identity, community)
    assert channel_of(place, community).startswith("lobby~")
    assert place.bus.channels.address("sprout", "lobby") is not None


@pytest.mark.parametrize("name", ["", "a\tb", "x" * 256, "inbox/@1", "gateway/own"])
def test_a_community_with_an_invalid_channel_name_gets_a_default_name(
    place: Any, alice: Any, announce: Any, name: str
) -> None:
    community = alice.community(name)
    announce(place.connect(), alice.identity, community)
    digest = id_of(community).removeprefix("SHA512_B32__")
    assert channel_of(place, community) == f"community~{digest[:6]}"


def test_subscribers_receive_replies_of_a_community_that_arrives(place: Any, alice: Any, announce: Any) -> None:
    toy, community = place.toy(), alice.community("lobby")
    place.bus.subscribe(toy, "lobby")
    announce(place.connect(), alice.identity, community, alice.reply(community, "hi"))
    assert len(toy.heard) == 1


def test_communities_create_no_channel_if_channels_are_only_configured(
    make_place: Callable[..., Any], alice: Any, announce: Any
) -> None:
    place = make_place(channels={"create": "configured", "names": ["lobby"]})
    place.settle()
    line = place.connect()
    assert "status 77 0" in announce(line, alice.identity)
    assert "status 77 1" in announce(line, alice.community("new"))
    assert place.bus.channels.registered() == ["lobby"]
    assert line.send("list 1 1 9\n").startswith("response 1 1\n"), "the minted one"


def test_a_channel_from_before_gets_its_community_at_the_start(make_place: Callable[..., Any]) -> None:
    place = make_place(sprout={"enabled": True}, channels={"names": ["lobby"]})
    place.settle()
    community = place.bus.channels.address("sprout", "lobby")
    assert community is not None
    again = make_place()
    again.settle()
    assert again.bus.channels.address("sprout", "lobby") == community


# What is logged is found, in the tables or not yet


QUESTIONS = ("list 1 0 9", "list 2 1 9", "list 3 2 9", "leaves_of 4 {community} 9", "leaves_of 5 {reply} 9",
             "ancestry 6 {below} 9", "query 7 1\n{below}")  # fmt: skip


def answers(place: Any, **ids: str) -> list[str]:
    return [place.connect().send(question.format(**ids) + "\n") for question in QUESTIONS]


def test_nodes_are_found_before_and_after_they_are_indexed(
    make_place: Callable[..., Any], place: Any, alice: Any
) -> None:
    community = alice.community("lobby")
    reply = alice.reply(community, "one")
    below = alice.reply(reply, "two")
    line = place.connect()
    line.session.receive_data(f"announce 0 4\n{alice.identity}\n{community}\n{reply}\n{below}\n".encode())
    ids = {"community": id_of(community), "reply": id_of(reply), "below": id_of(below)}
    before = answers(place, **ids)
    assert [answer.partition("\n")[0] for answer in before] == [
        "response 1 2",
        "response 2 1",
        "response 3 2",
        "response 4 3",
        "response 5 2",
        "response 6 2",
        "response 7 1",
    ]
    place.index()
    place.store.prune()
    unindexed = place.store._unindexed
    assert not any((*unindexed._tables.values(), unindexed._ids))
    assert answers(place, **ids) == before
    assert answers(make_place(), **ids) == before


def test_partly_indexed_nodes_are_found_in_order(place: Any, alice: Any, announce: Any) -> None:
    community = alice.community("lobby")
    replies = [alice.reply(community, str(n)) for n in range(6)]
    thread = [alice.reply(replies[0], "deep")]
    announce(place.connect(), alice.identity, community, *replies[:3], thread[0])
    place.index()
    thread += [alice.reply(thread[0], "deeper"), alice.reply(replies[0], "beside")]
    announce(place.connect(), *replies[3:], *thread[1:])
    place.store.prune()
    spots = place.store.in_channel("lobby", 4)
    assert [spot.created for spot in spots] == sorted((spot.created for spot in spots), reverse=True)
    assert len(spots) == 4
    seqs = [place.adapter.parts.nodes.info(id_of(node)).seq for node in thread]
    assert [where.seq for where in place.store.thread("lobby", [id_of(replies[0])], 1)] == seqs[::-1]
    reply, first = (place.adapter.parts.nodes.info(id_of(node)) for node in (replies[0], thread[0]))
    assert [where.seq for where in place.store.descendants("lobby", reply.key) if where] == seqs[::-1]
    assert [where.seq for where in place.store.descendants("lobby", first.key) if where] == seqs[1:2]


def test_only_a_node_that_may_be_older_is_looked_up(
    make_place: Callable[..., Any], alice: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    community = alice.community("lobby")
    old = alice.reply(community, "old", created=alice.now - 5)
    announce(make_place().connect(), alice.identity, community, old)
    place = make_place()
    assert place.store.lookup(id_of(old), alice.now - 5) is not None
    new = alice.reply(community, "new", created=alice.now + 100)
    monkeypatch.setattr(place.store, "seq", lambda _id: pytest.fail("it cannot be there"))
    assert place.store.lookup(id_of(new), alice.now + 100) is None


def test_recent_nodes_are_recognised_regardless_of_their_date(
    place: Any, alice: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "MAX_RECENT", 4)
    community = alice.community("lobby")
    future = alice.reply(community, "from the future", created=place.clock.now + MINUTE)
    late = [alice.reply(community, str(n), created=place.clock.now - n * MINUTE) for n in range(8)]
    line = place.connect()
    announce(line, alice.identity, community, future, *late)
    place.store.prune()
    assert all(place.store.seq(id_of(node)) is not None for node in (future, *late)), "none is in the tables yet"
    place.index()
    place.store.prune()
    assert len(place.store._recent._nodes) == 4
    last = place.gateway.log.next_seq
    assert announce(line, future, *late) == "status 77 0\n"
    assert place.gateway.log.next_seq == last, "nothing is taken twice"


# Every question is answered by an index

STATEMENTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "by seq": (store.BY_SEQ, (1,)),
    "by key": (store.BY_KEY, ("k",)),
    "by id": (SEQ_OF_ID, ("i",)),
    "form": (store.FORM, (1,)),
    "minted": (store.MINTED, ("w",)),
    "list": (store.NEWEST["type"], (1, 2, 3, 4)),
    "list replies": (store.NEWEST["all messages"], (2, 3, 4)),
    "leaves_of a community": (store.NEWEST["messages"], ("c", 2, 3, 4)),
    "its conversations": (store.NEWEST["channel"], ("c", 2, 3, 4)),
    "leaves_of a conversation": (store.NEWEST["root"], ("k", 2, 3, 4)),
    "leaves_of a reply": (store.CHILDREN, ("k", 2, 3)),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_question_scans_a_table_or_sorts(place: Any, name: str) -> None:
    sql, values = STATEMENTS[name]
    with sqlite3.connect(place.gateway.settings.data / "index.sqlite") as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    tables = [step for step in plan if any(name in step for name in ("sprout_", "child", "ids", "records"))]
    assert tables
    assert all(step.startswith("SEARCH") for step in tables)
    assert not [step for step in plan if "TEMP B-TREE" in step]


# What retention takes


def test_retired_messages_leave_the_tables(make_place: Callable[..., Any], alice: Any, announce: Any) -> None:
    place = make_place()
    community, line = alice.community("lobby"), place.connect()
    old = alice.reply(community, "old")
    thread = [old, alice.reply(old, "older"), alice.reply(old, "oldest")]
    toy = place.toy()
    line.send(f"subscribe 1 {id_of(community)}\n")
    announce(line, alice.identity, community, *thread)
    toy.say("from elsewhere")
    place.index()
    end = place.gateway.log.next_seq
    new = alice.reply(community, "new")
    announce(line, new)
    place.index()
    tables = ("sprout_replies", "sprout_forms", "sprout_nodes")
    before = [rows_of(place, table) for table in tables]
    assert (len(before[0]), len(before[1])) == (2, 1)
    place.gateway.index.submit(lambda: place.gateway.index.prune(end))
    place.index()
    place.store.prune()
    after = [rows_of(place, table) for table in tables]
    assert after == [[], [], before[2]], "facts stay"
    heard = place.connect().send(f"leaves_of 2 {id_of(community)} 9\nlist 3 2 9\n").splitlines()
    conversation = [line for line in heard if line.startswith("SHA512") and line not in (community, new)]
    assert heard == ["response 2 3", conversation[0], community, new, "response 3 2", new, conversation[0]]


def rows_of(place: Any, table: str) -> list[Any]:
    rows: list[Any] = place.gateway.index.rows(f"SELECT * FROM {table} LIMIT 99")
    return rows
