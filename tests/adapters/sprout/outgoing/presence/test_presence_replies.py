"""Replies on Arbor to nodes that announce presence."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.sprout.outgoing.presence import VALIDITY
from tests.adapters.sprout.outgoing.presence.conftest import ACTIVE, MINUTE, listen, settle, word
from tests.adapters.sprout.sessions.peering_lines import dial, response
from tests.adapters.sprout.store.test_lineage import load


@pytest.mark.parametrize("later", [0, VALIDITY, 24 * 60 * MINUTE])
@pytest.mark.parametrize("whose", ["the gateway's", "an author's"])
def test_a_reply_to_presence_replies_to_its_parent(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, watcher: Any, whose: str, later: int, make_place: Any
) -> None:
    """A client that does not know these words shows an empty message, and its user answers that."""
    line = listen(place, lobby)
    if whose == "an author's":
        announce(place.connect(), word(bob, lobby, ACTIVE | {"expiration/1": b"2026-11-21T05:56:00Z"}))
    settle(place)
    said = next(text for text in line.read().splitlines()[::-1] if text.startswith("SHA512"))
    place.clock.now += later
    alice.now = place.clock.now
    reply = alice.reply(said, "I thought that was a message")
    more = alice.reply(reply, "and on")
    verb, number, *of = announce(line, reply, more).split()
    assert (verb, of) == ("ancestry", [reply.split(" ")[0], "2"])
    assert line.ask(response(int(number), lobby, said)) == "status 77 0\n"
    first, second = watcher.heard
    assert first.content == b'{"content":"I thought that was a message"}'
    assert first.parent is None, "the community"
    assert second.parent == first.id
    place.index()
    place = make_place()
    assert load(place, lobby) == {text.split(" ")[0] for text in (said, reply, more)}


def test_a_reply_to_presence_below_a_message_replies_to_the_message(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, watcher: Any
) -> None:
    top, line = alice.reply(lobby, "top"), place.connect()
    announce(line, top)
    said = word(bob, top)
    reply = alice.reply(said, "hi")
    announce(line, said, reply)
    line.ask(f"response 0 3\n{lobby}\n{top}\n{said}\n")
    first, second = watcher.heard
    assert second.parent == first.id
    assert load(place, lobby) == {text.split(" ")[0] for text in (top, said, reply)}


def test_another_gateway_gets_the_reply_and_its_parent(
    place: Any, lobby: str, alice: Any, bob: Any, announce: Any, make_place: Any
) -> None:
    line, said = place.connect(), word(bob, lobby, ACTIVE | {"expiration/1": b"2026-11-21T05:56:00Z"})
    reply = alice.reply(said, "hi")
    announce(line, reply)
    line.ask(f"response 0 2\n{lobby}\n{said}\n")
    second = make_place("second")
    second.clock.now += VALIDITY
    other = dial(second)
    other.ask(response(0, lobby))
    other.ask(response(1, alice.identity))
    other.ask(response(3, said, reply))
    assert other.ask(response(4, bob.identity)) == f"ancestry 5 {reply.split(' ')[0]} 2\n"
    other.ask(response(5, lobby, said))
    assert load(second, lobby) == {text.split(" ")[0] for text in (said, reply)}
    assert other.session.report()["caughtUp"]
