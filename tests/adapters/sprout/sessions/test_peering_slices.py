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


class Looks:
    """Counts how often nodes are decoded and looked up: at `most` in one step, and `in_all`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = {"decode": 0, "seq": 0}
        self.most, self.in_all = dict(self.now), dict(self.now)
        known = Store.seq

        def count_decoded(raw: bytes) -> Any:
            self.now["decode"] += 1
            return decode(raw)

        def count_known(store: Store, id: str) -> int | None:
            self.now["seq"] += 1
            return known(store, id)

        monkeypatch.setattr(peering, "decode", count_decoded)
        monkeypatch.setattr(Store, "seq", count_known)

    def step(self, call: Callable[[], Any]) -> Any:
        self.now.update(decode=0, seq=0)
        result = call()
        for what, times in self.now.items():
            self.most[what] = max(self.most[what], times)
            self.in_all[what] += times
        return result


def test_an_answer_by_strangers_is_looked_through_in_slices(
    place: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look at 1,024 nodes took 19 to 35 ms, and there was one for every 32 of them."""
    community, posted, looks = alice.community("woods"), list[Callable[[], None]](), Looks(monkeypatch)
    line = dial(place)
    line.session.post = posted.append
    line.ask(response(0, community))
    line.ask(response(1, alice.identity))
    text = response(3, *strangers(alice.reply(community, "hello")))
    asked, answered = looks.step(partial(line.ask, text)), 4
    while posted or f" {answered} " in asked:
        if posted:
            looks.step(posted.pop(0))
            asked += line.read()
        else:
            asked += looks.step(partial(line.ask, response(answered)))
            answered += 1
    assert asked.count("ancestry ") >= MAX_NODES
    assert MAX_ANCESTRIES < SLICE
    assert looks.most["decode"] <= 2 * SLICE, "one slice more is entered"
    assert looks.most["seq"] <= 6 * SLICE
    assert looks.in_all["decode"] < 3 * MAX_NODES


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
