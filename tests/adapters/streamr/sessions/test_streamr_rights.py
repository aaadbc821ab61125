"""Tokens, keys and signatures identify a connection and decide its rights."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from itertools import product
from typing import Any

import pytest

from adapters.streamr.crypto.signing import checksum
from adapters.streamr.sessions import base_session
from gateway.access.authorization import ApiKey, digest
from tests.adapters.streamr.sessions.answers import FAILED, contents, error

# Who is who


def test_a_session_token_identifies_the_connection(broker: Any, alice: Any, bob: Any) -> None:
    session = broker.open()
    broker.ask(session, [2, 9, "r", "s", 0, broker.token(alice)])
    assert session.who.identity == alice.address
    broker.ask(session, [2, 8, "r", bob.message("s", 1, broker.clock()), broker.token(bob)])
    assert session.link, "who shows the tokens of two users is neither of them"
    assert session.who == session.peer


def test_the_session_tokens_of_a_connection_are_bounded(
    broker: Any, alice: Any, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_session, "MAX_TOKENS", 1)
    session, token = broker.open(), broker.token(alice)
    for _ in range(2):
        assert broker.ask(session, [2, 9, "r", "s", 0, token])[0][1] == 2
    answer = broker.ask(session, [2, 9, "r", "s", 0, broker.token(bob)])
    text = "Subscribe request failed: not more than 1 session tokens and keys on one connection"
    assert error(answer) == (text, FAILED)
    assert session.who.identity == alice.address


def test_publishing_for_another_author_does_not_rebind_the_connection(
    broker: Any, alice: Any, bob: Any, unsigned: Any
) -> None:
    session, token = broker.open(), broker.token(alice)
    broker.ask(session, [2, 8, "r", bob.message("s", 1, broker.clock()), token])
    broker.ask(session, [2, 8, "r", bob.message("s", 2, broker.clock(), 1), None])
    assert session.who.identity == alice.address
    keyed = broker.open(name="key:machine")
    broker.bus.bind(keyed, broker.bus.peers.identity("rest", "machine"))  # as the door does
    broker.ask(keyed, [2, 8, "r", bob.message("s", 3, broker.clock(), 2), None])
    assert keyed.who.identity == "machine"
    row = unsigned("s", 4, broker.clock(), publisher="machine")
    assert error(broker.ask(keyed, [2, 8, "r", row, None]))[1] == FAILED


def test_parents_are_found_by_any_id(broker: Any, alice: Any, unsigned: Any) -> None:
    session, now = broker.open(), broker.clock()
    first = broker.say("s", 1)
    row = alice.message("s", {"inReplyTo": first.id}, now)
    broker.ask(session, [2, 8, "r", row, None])
    native = json.dumps(row[1], separators=(",", ":"))
    broker.ask(session, [2, 8, "r", unsigned("s", {"inReplyTo": native}, now), None])
    broker.ask(session, [2, 8, "r", unsigned("s", {"inReplyTo": "unknown"}, now), None])
    _, second, third, fourth = broker.logged("s")
    assert (second.parent, third.parent, fourth.parent) == (first.id, second.id, None)


# Permissions


@pytest.fixture
def guarded(make_broker: Callable[..., Any], alice: Any, bob: Any) -> Any:
    return make_broker(
        grants={
            f"streamr:{alice.address}": ("subscribe:s", "publish:s", "direct:s"),
            f"streamr:{bob.address}": ("subscribe:s",),
            "streamr:anonymous": ("subscribe:open",),
        },
        keys=(ApiKey("machine", digest("trellis_machine"), ("*:s",)),),
    )


def test_the_verb_that_is_asked_is_the_one_that_is_checked(guarded: Any, bob: Any, unsigned: Any) -> None:
    token, session = guarded.token(bob), guarded.open()
    row = unsigned("s", 1, guarded.clock())
    denied = ("You are not allowed to write to stream s", "PERMISSION_DENIED")
    assert error(guarded.ask(session, [2, 8, "r", row, token])) == denied
    assert guarded.ask(session, [2, 9, "r", "s", 0, token]) == [[2, 2, "r", "s", 0]]
    assert error(guarded.ask(session, [2, 8, "r", row, token])) == denied
    assert error(guarded.ask(guarded.open(), [2, 9, "r", "s", 0, None])) == (
        "You are not allowed to subscribe to stream s",
        "PERMISSION_DENIED",
    )
    assert guarded.ask(guarded.open(), [2, 9, "r", "open", 0, None])[0][1] == 2


def test_clients_of_3_x_may_subscribe_to_the_stream_of_their_own_address(
    guarded: Any, alice: Any, bob: Any, unsigned: Any
) -> None:
    """They do so by themselves, and hang up where that is refused; nothing is ever said there."""
    session, token = guarded.open(), guarded.token(alice)
    for stream in (alice.address, alice.address.upper().replace("X", "x")):
        assert guarded.ask(session, [2, 9, "r", stream, 0, token]) == [[2, 2, "r", stream, 0]]
    for stream, secret in ((bob.address, token), (alice.address, guarded.token(bob)), (alice.address, None)):
        refused = guarded.ask(guarded.open(), [2, 9, "r", stream, 0, secret])
        assert error(refused)[1] == "PERMISSION_DENIED"
    row = unsigned(alice.address, 1, guarded.clock())
    assert error(guarded.ask(session, [2, 8, "r", row, token]))[1] == "PERMISSION_DENIED"
    assert not guarded.bus.listener_count(alice.address)
    assert guarded.ask(session, [2, 10, "r", alice.address, 0]) == [[2, 3, "r", alice.address, 0]]
    assert error(guarded.ask(session, [2, 10, "r", alice.address, 0]))


def test_an_unknown_token_and_a_missing_right_get_different_errors(guarded: Any, unsigned: Any) -> None:
    session = guarded.open()
    assert error(guarded.ask(session, [2, 9, "r", "s", 0, "made up"])) == (
        "Authentication failed while trying to subscribe to stream s",
        "AUTHENTICATION_FAILED",
    )
    row = unsigned("s", 1, guarded.clock())
    assert error(guarded.ask(session, [2, 8, "r", row, "made up"])) == (
        "Authentication failed while trying to publish to stream s",
        "AUTHENTICATION_FAILED",
    )


def test_a_key_exchange_requires_a_right_on_some_stream(make_broker: Any, alice: Any, bob: Any) -> None:
    broker = make_broker(grants={f"streamr:{alice.address}": ("subscribe:s",)})
    stream = f"SYSTEM/keyexchange/{alice.address}"
    listen, session = [2, 9, "r", stream, 0, None], broker.open()
    assert error(broker.ask(session, listen))[1] == "PERMISSION_DENIED"
    for publisher, answers in ((bob, 1), (alice, 0)):
        row = publisher.message(stream, "[]", broker.clock(), kind=28)
        assert len(broker.ask(session, [2, 8, "r", row, None])) == answers
    assert broker.ask(session, [*listen[:-1], broker.token(alice)]) == [[2, 2, "r", stream, 0]]


def test_a_subscription_needs_the_right_of_the_requesting_user(guarded: Any, bob: Any) -> None:
    session = guarded.open()
    guarded.ask(session, [2, 9, "r", "s", 0, guarded.token(bob)])
    guarded.ask(session, [2, 9, "r", "open", 0, None])
    assert session.subscription_principal("s").name == f"streamr:{bob.address}"
    assert session.subscription_principal("open").name == "streamr:anonymous"


def test_without_authentication_an_unknown_token_is_ignored(broker: Any) -> None:
    assert broker.ask(broker.open(), [2, 9, "r", "s", 0, "from before a restart"])[0][1] == 2


def test_a_signed_message_needs_no_token(guarded: Any, alice: Any, bob: Any) -> None:
    toy, session, now = guarded.toy("s"), guarded.open(), guarded.clock()
    assert guarded.ask(session, [2, 8, "r", alice.message("s", 1, now), None]) == []
    text, code = error(guarded.ask(session, [2, 8, "r", bob.message("s", 2, now), None]))
    assert text.startswith(f"Publish request failed: {bob.address} is not a publisher on stream s. Message: [32,")
    assert code == FAILED
    assert contents(toy) == [b"1"]


def test_an_api_key_is_accepted_as_a_session_token(guarded: Any, bob: Any, unsigned: Any) -> None:
    toy, now = guarded.toy("s"), guarded.clock()
    assert guarded.ask(guarded.open(), [2, 8, "r", unsigned("s", 1, now), "trellis_machine"]) == []
    s1 = [1, 8, unsigned("s", 2, now), "trellis_machine", None]
    assert guarded.ask(guarded.open(), s1) == []
    assert guarded.ask(guarded.open(), [2, 8, "r", bob.message("s", 3, now), "trellis_machine"]) == []
    assert contents(toy) == [b"1", b"2", b"3"]


KEYED: dict[str, Callable[[Any], list[Any]]] = {
    "v2": lambda row: [2, 8, "r", row, "trellis_machine"],
    "S1": lambda row: [1, 8, row, "trellis_machine", None],
}


@pytest.mark.parametrize("way", [*KEYED, "url"])
def test_an_api_key_in_any_place_identifies_the_connection(guarded: Any, unsigned: Any, way: str) -> None:
    number = guarded.bus.peers.identity("rest", "machine", "machine").number
    session = guarded.open({})
    if way == "url":  # as `gateway.listeners.admission` does
        session.principal = guarded.access.principal_of("trellis_machine")
        guarded.bus.bind(session, guarded.bus.peers.with_number(number))
    said = KEYED.get(way, lambda row: [2, 8, "r", row, None])
    assert guarded.ask(session, said(unsigned("s", 1, guarded.clock()))) == []
    *_, heard = guarded.core.index.unapplied("s")  # the name of the key is not in the log
    assert (heard.sender.number, heard.sender.identity, heard.sender.name) == (number, "machine", "machine")
    assert heard.sender.connection_protocol == "streamr"
    assert guarded.bus.sessions_of(number) == [session]
    assert guarded.ask(session, KEYED["v2"](unsigned("s", 2, guarded.clock(), 1))) == []
    assert (session.who.number, session.link, session.address) == (number, False, None)


def derived(username: str) -> str:
    """The publisher that genuine clients without a private key make of their username."""
    return "0x" + sha256(username.encode()).hexdigest()


def test_a_username_names_its_user_after_every_kind_of_login(guarded: Any, alice: Any, unsigned: Any) -> None:
    token, by_url = guarded.token(alice), guarded.open()
    by_url.principal = guarded.access.principal_of("trellis_machine")
    machine = guarded.bus.peers.identity("rest", "machine", "machine")
    guarded.bus.bind(by_url, machine)
    author = guarded.bus.peers.identity("streamr", alice.address)
    shown = guarded.open()
    cases = [
        (guarded.open(), "machine", "trellis_machine", machine),
        (guarded.open(), checksum(alice.address), token, author),
        (by_url, "machine", None, machine),
        (shown, "machine", "trellis_machine", machine),
        (shown, checksum(alice.address), token, author),  # from here on it is a link, and each frame is its user's
        (shown, "machine", "trellis_machine", machine),
    ]
    for number, (session, username, secret, sender) in enumerate(cases):
        publisher = derived(username) if number % 2 else derived(username).upper().replace("X", "x")
        row = unsigned("s", number, guarded.clock(), number, publisher=publisher)
        assert guarded.ask(session, [2, 8, "r", row, secret]) == [], number
        *_, said = guarded.logged("s")
        assert (said.sender.number, said.sender.identity) == (sender.number, sender.identity)
        assert said.native["streamr"][4] == derived(username)
    assert shown.link


@pytest.mark.parametrize("at_once", [False, True])
def test_the_username_of_another_user_is_refused(
    guarded: Any, alice: Any, bob: Any, unsigned: Any, at_once: bool
) -> None:
    guarded.access.set_grants({"anonymous": ("*:*",)})
    names = {"machine": "trellis_machine", checksum(alice.address): guarded.token(alice), "anonymous": None, "": None}
    tokens = [*names.values(), guarded.token(bob), None]
    for number, (username, token) in enumerate(product(names, tokens)):
        if token is not None and names[username] == token:
            continue
        rows = [unsigned("s", n, guarded.clock(), n, publisher=derived(username)) for n in (number, number + 1)]
        frames = [json.dumps([2, 8, "r", row, token], separators=(",", ":")).encode() for row in rows]
        session = guarded.open()
        if at_once:
            session.receive_all(frames)
            answers = guarded.frames(session)
        else:
            answers = [answer for frame in frames for answer in guarded.ask(session, frame)]
        assert [error([answer])[1] for answer in answers] == [FAILED] * 2, (username, token)
        assert "can name no publisher but its own connection's user" in answers[0][3]
    assert guarded.logged("s") == []


def test_a_username_ends_with_the_login(guarded: Any, unsigned: Any) -> None:
    session, now = guarded.open(), guarded.clock()
    guarded.access.set_grants({"anonymous": ("*:*",)})
    frame = [2, 8, "r", unsigned("s", 1, now, publisher=derived("machine")), "trellis_machine"]
    guarded.access.set_keys([])
    assert error(guarded.ask(session, frame))[1] == "AUTHENTICATION_FAILED"
    assert error(guarded.ask(session, [*frame[:-1], None]))[1] == FAILED


def test_a_connection_ends_with_the_key_that_it_showed(guarded: Any) -> None:
    sessions = [guarded.open() for _ in range(2)]
    for session, token in zip(sessions, ("trellis_machine", None), strict=True):
        guarded.ask(session, [2, 9, "r", "open", 0, token])
    guarded.access.used_key_ids.clear()
    guarded.bus.tick()
    assert [session.closing for session in sessions] == [None, None]
    assert len(guarded.access.used_key_ids) == 1, "a key of a connection that is open is in use"
    guarded.access.set_keys([])
    guarded.bus.tick()
    assert [session.closing and session.closing.code for session in sessions] == [1008, None]


def test_a_connection_with_a_key_and_anothers_token_becomes_a_link(guarded: Any, alice: Any, unsigned: Any) -> None:
    session, now = guarded.open(), guarded.clock()
    for number, token in enumerate(("trellis_machine", guarded.token(alice))):
        assert guarded.ask(session, [2, 8, "r", unsigned("s", number, now, number), token]) == []
    assert session.link
    first, second = (message.sender for message in guarded.logged("s"))
    assert (first.identity, second.identity) == ("machine", None)


def test_too_many_requests_are_refused(broker: Any, unsigned: Any) -> None:
    broker.bus.throttle = lambda _principal, _peer, _channel: 1.5
    expected = "request failed: too many requests, try again in 1.5 s"
    assert error(broker.ask(broker.open(), [2, 9, "r", "s", 0, None])) == (f"Subscribe {expected}", FAILED)
    row = unsigned("s", 1, broker.clock())
    assert error(broker.ask(broker.open(), [2, 8, "r", row, None])) == (f"Publish {expected}", FAILED)


def test_messages_wait_while_the_log_is_congested(broker: Any, unsigned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = broker.open()
    monkeypatch.setattr(broker.core.log, "congested", True)
    assert broker.ask(session, [2, 8, "r", unsigned("s", 1, broker.clock()), None]) == []
    assert not session.ask_to_read()
    monkeypatch.setattr(broker.core.log, "congested", False)
    toy = broker.toy("s")
    broker.bus.resume_waiting()
    assert contents(toy) == [b"1"]
