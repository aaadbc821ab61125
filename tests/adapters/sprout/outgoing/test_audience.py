"""New communities are announced to every connection that may know of them, whenever it was opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adapters.sprout.store.tables import COMMUNITY


def test_a_connection_opened_during_signing_receives_the_new_community(place: Any) -> None:
    place.toy().say("before there is a community", "new")
    line = place.connect()
    assert line.send(f"list 1 {COMMUNITY} 256\n") == "response 1 0\n"
    heard = line.ask("version 2 0.0\n")
    community = place.bus.channels.address("sprout", "new")
    assert community is not None
    assert community in heard


def test_a_community_is_announced_once_to_each_connection(place: Any) -> None:
    line = place.connect()
    line.ask("version 1 0.0\n")
    place.toy().say("before there is a community", "new")
    heard = line.ask("version 2 0.0\n")
    assert heard.count(place.bus.channels.address("sprout", "new")) == 1


def test_a_community_is_announced_only_to_permitted_connections(make_place: Callable[..., Any]) -> None:
    place = make_place(auth={"grants": {"anonymous": ["*:public"], "toy:anonymous": ["*:*"]}})
    line = place.connect()
    line.ask("version 1 0.0\n")
    place.toy().say("a secret", "secret")
    place.toy().say("no secret", "public")
    heard = line.ask("version 2 0.0\n")
    assert place.bus.channels.address("sprout", "public") in heard
    assert place.bus.channels.address("sprout", "secret") not in heard
