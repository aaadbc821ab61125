"""Challenges and session tokens."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.streamr import login
from adapters.streamr.login import LoginError, Logins

NOW = 1_763_700_000_000


def log_in(logins: Logins, publisher: Any, now: int = NOW) -> login.Token:
    challenge = logins.challenge(publisher.address, now)
    return logins.answer(challenge.id, challenge.text, publisher.sign(challenge.text), publisher.address, now)


def test_a_signed_challenge_is_worth_a_token(alice: Any) -> None:
    logins = Logins()
    token = log_in(logins, alice)
    assert logins.address(token.token, NOW) == alice.address
    assert token.expires == NOW + login.TOKEN_LIFE
    logins.end(token.token)
    assert logins.address(token.token, NOW) is None
    assert logins.address("", NOW) is None


def test_a_challenge_is_answered_by_its_address_once_and_in_time(alice: Any, bob: Any) -> None:
    logins = Logins()
    challenge = logins.challenge(alice.address, NOW)
    signature = alice.sign(challenge.text)
    wrong = [
        (challenge.id, challenge.text, bob.sign(challenge.text), alice.address, NOW),
        (challenge.id, challenge.text, bob.sign(challenge.text), bob.address, NOW),
        (challenge.id, challenge.text + " ", alice.sign(challenge.text + " "), alice.address, NOW),
        ("00" * 32, challenge.text, signature, alice.address, NOW),
        ("é", challenge.text, signature, alice.address, NOW),
        (challenge.id, challenge.text, "0x", alice.address, NOW),
        (challenge.id, challenge.text, signature, "", NOW),
        (challenge.id, challenge.text, signature, alice.address, challenge.expires + 1),
    ]
    for answer in wrong:
        with pytest.raises(LoginError):
            logins.answer(*answer)
    with pytest.raises(LoginError):
        Logins().answer(challenge.id, challenge.text, signature, alice.address, NOW)
    logins.answer(challenge.id, challenge.text, signature, alice.address.upper().replace("0X", "0x"), NOW)
    with pytest.raises(LoginError):
        logins.answer(challenge.id, challenge.text, signature, alice.address, NOW)


def test_answers_are_remembered_as_long_as_they_could_be_repeated(alice: Any) -> None:
    logins = Logins()
    for minute in range(20):
        log_in(logins, alice, NOW + minute * 60_000)
    assert len(logins._answered) <= login.CHALLENGE_LIFE // 60_000 + 1


def test_a_token_lives_as_long_as_it_is_used(alice: Any) -> None:
    logins = Logins()
    token = log_in(logins, alice).token
    for use in range(1, 4):
        assert logins.address(token, NOW + use * login.TOKEN_LIFE) == alice.address
    assert logins.address(token, NOW + 4 * login.TOKEN_LIFE + 1) is None


def test_tokens_are_bounded_and_the_used_ones_stay(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "MAX_TOKENS", 3)
    logins = Logins()
    tokens = [log_in(logins, alice).token for _ in range(3)]
    assert logins.address(tokens[0], NOW) is not None
    tokens.append(log_in(logins, alice).token)
    assert [logins.address(token, NOW) is not None for token in tokens] == [True, False, True, True]


def test_answered_challenges_are_bounded(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "MAX_ANSWERED", 3)
    logins = Logins()
    for _ in range(9):
        log_in(logins, alice)
    assert len(logins._answered) == 3
