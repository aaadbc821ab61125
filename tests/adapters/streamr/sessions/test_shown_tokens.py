"""A connection ends with any token that it has shown, and checking that costs next to nothing."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.streamr.model.login import TOKEN_LIFE, Logins
from adapters.streamr.sessions.shown_tokens import MAX_TOKENS, ShownTokens


def shown(broker: Any, *tokens: str) -> ShownTokens:
    parts = broker.adapter.parts
    found = ShownTokens(parts.trust, parts.context.logins)
    for token in tokens:
        found.add(token, parts.trust.user_of_token(token))
    return found


def test_session_tokens_are_compared_only_after_a_logout_or_at_their_end(
    broker: Any, alice: Any, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second took 215 us for `MAX_TOKENS` of them: two seconds for 10,000 connections."""
    compared: list[str] = []
    for name in ("holds", "address"):
        call = getattr(Logins, name)

        def counted(*arguments: Any, name: str = name, call: Any = call) -> Any:
            compared.append(name)
            return call(*arguments)

        monkeypatch.setattr(Logins, name, counted)
    tokens = [broker.token(alice) for _ in range(MAX_TOKENS - 1)]
    found, other, now = shown(broker, *tokens, broker.token(bob)), broker.token(bob), broker.clock()
    compared.clear()
    for _ in range(10):
        assert not found.any_ended(now)
    assert not compared
    logins: Logins = broker.adapter.logins
    logins.log_out(other, "192.0.2.1", now)
    for _ in range(10):
        assert not found.any_ended(now)
    assert compared == ["holds"] * MAX_TOKENS
    assert found.any_ended(now + TOKEN_LIFE + 1)


def test_a_logout_and_the_end_of_a_token_end_the_connection(broker: Any, alice: Any, bob: Any) -> None:
    now, tokens = broker.clock(), (broker.token(alice), broker.token(bob))
    found, late = shown(broker, *tokens), shown(broker, tokens[0])
    broker.adapter.logins.log_out(tokens[1], "192.0.2.1", now)
    assert found.any_ended(now)
    assert not late.any_ended(now)
    assert late.any_ended(now + TOKEN_LIFE + 1)


def test_a_key_that_is_removed_ends_the_connection(broker: Any, alice: Any) -> None:
    parts = broker.adapter.parts
    key = "sent as a session token"
    found = shown(broker, broker.token(alice))
    found.add(key, parts.trust.authenticate((), broker.open().principal))
    assert found.any_ended(broker.clock()), "there is no such key"
