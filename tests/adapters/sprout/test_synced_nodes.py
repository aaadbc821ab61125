"""Signed nodes that another gateway hands over are taken in short steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from adapters.sprout.announced.intake import Intake
from gateway.core.principal import Principal

CALLER = Principal("rest:anonymous")


def test_no_step_checks_more_than_one_node(place: Any, alice: Any, bob: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 identities whose keys take as long to check as any held the loop for 150 ms."""
    checked = 0
    take_run = Intake.take_run

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal checked
        checked += 1
        return take_run(*arguments, **options)

    monkeypatch.setattr(Intake, "take_run", counting)
    community = alice.community("lobby")
    wire = partial(lambda node: node.split(" ")[1].encode())
    needs = [wire(alice.identity), wire(community), wire(bob.identity)]
    reply = alice.reply(community, "hi")
    steps = place.adapter.take_over(wire(reply), needs, "lobby", CALLER, place.connect().session.who)
    totals = [checked for _ in steps]
    assert totals == [0, 0, 0, 0, 1, 2], "each is decoded in a step, then each is checked; the reply comes at the end"
    assert checked == len(needs) + 1
    place.settle()
    assert reply in place.connect().ask(f"query 1 1\n{reply.split(' ')[0]}\n")
