"""A bad node affects no other node, whether an announce, a dialled relay or a grove brings it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.sprout.announced.horizon import RetentionHorizon
from adapters.sprout.announced.intake import FAULT
from adapters.sprout.announced.root_intake import RootIntake
from adapters.sprout.forest import forest
from adapters.sprout.hub.naming import DIGEST, channel_name
from adapters.sprout.hub.rights import LINK_PRINCIPAL
from adapters.sprout.sessions.peering import Peering
from adapters.sprout.wire import base64url
from gateway.core.principal import Principal
from tests.adapters.sprout.conftest import NOW

# When Alice's community called lobby has to be made for an id whose digest has two underscores.
NEAR, FAR = 853, 28


def id_of(line: str) -> str:
    return line.split(" ")[0]


def digest_of(line: str) -> str:
    return id_of(line).removeprefix("SHA512_B32__")


def community(author: Any, created: int) -> str:
    return str(author.line(forest.sign_community("lobby", author.id, author.key, NOW + created)))


def by_announce(place: Any, _folder: Path, *nodes: str) -> None:
    line = place.connect()
    assert line.ask("\n".join((f"announce 1 {len(nodes)}", *nodes, "version 2 0.0", ""))).count("status 1 0\n") == 1
    assert line.session.closing is None


def by_link(place: Any, _folder: Path, identity: str, *communities: str) -> None:
    line = type(place.connect())(place, place.adapter.open(Peering, Principal(LINK_PRINCIPAL)))
    line.ask("\n".join((f"response 0 {len(communities)}", *communities, "")))
    line.ask(f"response 1 1\n{identity}\n")
    assert line.session.closing is None
    assert line.session.report()["communities"]


def by_import(place: Any, folder: Path, *nodes: str) -> None:
    folder.mkdir()
    for node in nodes:
        (folder / id_of(node)).write_bytes(base64url.decode(node.split(" ")[1].encode()))
    place.adapter.files().read([folder], place.settle)


PATHS = [by_announce, by_link, by_import]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("created", [NEAR, FAR])
def test_a_community_with_a_taken_name_gets_a_digest_suffix(
    created: int, path: Callable[..., None], place: Any, alice: Any, tmp_path: Path
) -> None:
    place.bus.channels.register("lobby")
    place.settle()
    node = community(alice, created)
    assert "__" in digest_of(node)
    path(place, tmp_path / "grove", alice.identity, node)
    assert place.bus.channels.channel("sprout", id_of(node)) == f"lobby~{digest_of(node)[:DIGEST]}"


@pytest.mark.parametrize("path", PATHS)
def test_a_node_that_triggers_a_fault_is_refused_alone(
    path: Callable[..., None], place: Any, alice: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, better = (alice.community(name) for name in ("good", "bad", "better"))
    taken = RootIntake._take_community

    def faulty(self: RootIntake, line: Any, node: forest.Community, session: Any) -> int:
        if node.name.text == "bad":
            raise ZeroDivisionError
        return taken(self, line, node, session)

    monkeypatch.setattr(RootIntake, "_take_community", faulty)
    path(place, tmp_path / "grove", alice.identity, good, bad, better)
    assert [place.bus.channels.exists(name) for name in ("good", "bad", "better")] == [True, False, True]
    assert place.gateway.metrics.counts["faults"]["node",] == 1


def test_a_fault_in_a_burst_refuses_one_node(place: Any, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lobby = alice.community("lobby")
    replies = [alice.reply(lobby, text) for text in ("one", "two", "three")]
    by_announce(place, Path(), alice.identity, lobby)
    retired = RetentionHorizon.is_retired

    def faulty(self: RetentionHorizon, node: forest.Node, now: int) -> bool:
        if isinstance(node, forest.Reply) and node.content.text == "two":
            raise ZeroDivisionError
        return retired(self, node, now)

    monkeypatch.setattr(RetentionHorizon, "is_retired", faulty)
    line = place.connect()
    heard = line.ask("".join(f"announce {id} 1\n{reply}\n" for id, reply in enumerate(replies)))
    assert sorted(heard.splitlines()) == ["status 0 0", "status 1 1", "status 2 0"]
    counts = place.gateway.metrics.counts
    assert (counts["faults"]["node",], counts["refused"]["sprout", FAULT]) == (1, 1)


def test_a_name_taken_in_every_length_is_refused(place: Any, alice: Any) -> None:
    node = community(alice, FAR)
    for name in ("lobby", *(f"lobby~{digest_of(node)[:size]}" for size in range(DIGEST, 44))):
        place.bus.channels.register(name)
    place.settle()
    line = place.connect()
    assert line.ask(f"announce 1 2\n{alice.identity}\n{node}\n") == "status 1 0\n"
    assert place.gateway.metrics.counts["refused"]["sprout", "UnknownChannel"] == 1
    assert place.store.seq(id_of(node)) is None


def test_ten_thousand_ids_make_as_many_names(place: Any) -> None:
    """Whatever stands in them: one in forty has two underscores or more."""
    place.bus.channels.register("lobby")
    place.settle()
    chance = random.Random(1)
    ids = [f"SHA512_B32__{base64url.encode(chance.randbytes(32)).decode()}" for _ in range(10_000)]
    assert sum("__" in id.partition("__")[2] for id in ids) > 50
    for id in ids:
        name = channel_name(id, "lobby", place.bus.channels)
        assert name == f"lobby~{id.removeprefix('SHA512_B32__')[:DIGEST]}"
