"""What a relay that was dialled answers is looked through a little in each turn of the loop, and once."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from adapters.sprout.forest.forest import decode, encode, node_id
from adapters.sprout.sessions import peering
from adapters.sprout.sessions.peering import MAX_ANCESTRIES, SLICE
from adapters.sprout.store import store
from adapters.sprout.store.store import Store
from adapters.sprout.wire import base64url
from adapters.sprout.wire.codec import MAX_NODES
from tests.adapters.sprout.sessions.peering_lines import dial, response


def strangers(line: str) -> list[str]:
    """Replies like that on *line*, as many as an answer may have, each by an author and to a parent of its own."""
    raw = base64url.decode(line.split(" ")[1].encode())
    node = decode(raw)
    assert raw == encode(node)

    def stranger() -> str:
        changed = raw
        for id in (node.parent, node.author):
            changed = changed.replace(base64url.decode(id.partition("__")[2].encode()), secrets.token_bytes(32))
        return f"{node_id(changed)} {base64url.encode(changed).decode()}"

    return [stranger() for _ in range(MAX_NODES)]


def test_an_answer_by_strangers_is_looked_through_in_slices(
    place: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look at 1,024 nodes took 19 to 35 ms, and there was one for every 32 of them."""
    community, posted, looks = alice.community("woods"), list[Callable[[], None]](), dict.fromkeys(("decode", "seq"), 0)
    line = dial(place)
    line.session.post = posted.append
    line.ask(response(0, community))
    line.ask(response(1, alice.identity))
    decoded, known = decode, Store.seq

    def count_decoded(raw: bytes) -> Any:
        looks["decode"] += 1
        return decoded(raw)

    def count_known(store: Store, id: str) -> int | None:
        looks["seq"] += 1
        return known(store, id)

    monkeypatch.setattr(peering, "decode", count_decoded)
    monkeypatch.setattr(Store, "seq", count_known)
    most, in_all, asked = dict(looks), dict(looks), ""

    def step(call: Callable[[], Any]) -> None:
        nonlocal asked
        looks.update(decode=0, seq=0)
        asked += call() or line.read()
        for what, times in looks.items():
            most[what] = max(most[what], times)
            in_all[what] += times

    text = response(3, *strangers(alice.reply(community, "hello")))
    step(lambda: line.ask(text))
    answered = 4
    while posted or f" {answered} " in asked:
        if posted:
            step(posted.pop(0))
        else:
            step(partial(line.ask, response(answered)))
            answered += 1
    assert asked.count("ancestry ") >= MAX_NODES
    assert MAX_ANCESTRIES < SLICE
    assert most["decode"] <= 2 * SLICE, "one slice more is entered"
    assert most["seq"] <= 6 * SLICE
    assert in_all["decode"] < 3 * MAX_NODES


def test_communities_that_are_here_are_exchanged_a_page_at_a_time(
    place: Any, alice: Any, announce: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand of them took 120 ms at once, each time that the relay was dialled."""
    page = 8
    monkeypatch.setattr(peering, "PAGE", page)
    monkeypatch.setattr(store, "PAGE", page)
    communities = [alice.community(f"woods {n}") for n in range(3 * page + 1)]
    announce(place.connect(), alice.identity, *communities)
    place.index()
    place.store._unindexed.prune(place.gateway.index.level)  # which is done with the next node
    line, posted = dial(place), list[Callable[[], None]]()
    line.session.post = posted.append
    line.ask(response(0))
    known = [len(line.session._followed)]
    while posted:
        assert not line.session.report()["caughtUp"]
        posted.pop()()
        known.append(len(line.session._followed))
    assert known[-1] == len(communities)
    assert [later - earlier for earlier, later in pairwise([0, *known])] == [page] * 3 + [1]
