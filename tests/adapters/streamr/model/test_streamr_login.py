"""Challenges give session tokens, and logouts revoke them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.streamr.crypto import background_file
from adapters.streamr.crypto.background_file import BackgroundFile
from adapters.streamr.model import login, logouts
from adapters.streamr.model.login import LoginError, Logins
from adapters.streamr.model.logouts import Logouts, read_logouts
from adapters.streamr.rest.routes import PendingWrite
from gateway.access.authorization import SecretFileError, write_secret

NOW = 1_763_700_000_000
SECRET = b"s" * 32


def make(secret: bytes = SECRET, known: Logouts | None = None) -> Logins:
    return Logins(secret, Logouts([]) if known is None else known)


def log_in(logins: Logins, publisher: Any, now: int = NOW) -> login.SessionToken:
    challenge = logins.challenge(publisher.address, now)
    return logins.log_in(challenge.id, challenge.text, publisher.sign(challenge.text), publisher.address, now)


def test_a_signed_challenge_gives_a_token(alice: Any) -> None:
    logins = make()
    token = log_in(logins, alice)
    assert logins.address(token.token, NOW) == alice.address
    assert token.expires == NOW + login.TOKEN_LIFE
    assert logins.address(token.token, token.expires) == alice.address
    assert logins.address(token.token, token.expires + 1) is None
    logins.log_out(token.token, "192.0.2.1", NOW)
    assert logins.address(token.token, NOW) is None


def test_a_token_is_valid_after_a_restart_and_only_with_its_secret(alice: Any) -> None:
    token = log_in(make(), alice).token
    assert make().address(token, NOW) == alice.address
    assert make(b"t" * 32).address(token, NOW) is None


@pytest.mark.parametrize("wrong", ["", "A" * 64, "é" * 64, "!" * 64, "\ud800" * 64, "A" * 1_000_000])
def test_an_invalid_token_has_no_address(wrong: str) -> None:
    logins = make()
    assert logins.address(wrong, NOW) is None
    logins.log_out(wrong, "192.0.2.1", NOW)


def test_no_character_of_a_token_can_be_another_one(alice: Any) -> None:
    logins = make()
    token = log_in(logins, alice).token
    for place in range(len(token)):
        other = "A" if token[place] != "A" else "B"
        assert logins.address(token[:place] + other + token[place + 1 :], NOW) is None


def test_a_challenge_is_answered_by_its_address_and_in_time(alice: Any, bob: Any) -> None:
    logins = make()
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
            logins.log_in(*answer)
    with pytest.raises(LoginError):
        make(b"t" * 32).log_in(challenge.id, challenge.text, signature, alice.address, NOW)
    logins.log_in(challenge.id, challenge.text, signature, alice.address.upper().replace("0X", "0x"), NOW)


def test_a_repeated_challenge_response_gives_no_new_token(alice: Any) -> None:
    logins = make()
    challenge = logins.challenge(alice.address, NOW)
    answer = (challenge.id, challenge.text, alice.sign(challenge.text), alice.address)
    token = logins.log_in(*answer, NOW)
    assert logins.log_in(*answer, NOW + 1_000) == token, "it does not live longer"
    logins.log_out(token.token, "192.0.2.1", NOW)
    with pytest.raises(LoginError):
        logins.log_in(*answer, NOW)


def test_logins_of_one_network_do_not_displace_those_of_others(
    alice: Any, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither many logins, nor many logouts, from one place."""
    monkeypatch.setattr(logouts, "MAX_LOGOUTS", 100)
    known = Logouts([])
    logins = make(known=known)
    kept, over = log_in(logins, bob).token, log_in(logins, bob, NOW + 1).token
    logins.log_out(over, "192.0.2.2", NOW)
    for number in range(300):
        logins.log_out(log_in(logins, alice, NOW + number).token, "192.0.2.1", NOW)
    assert len(known) == 100
    assert logins.address(kept, NOW) == bob.address
    assert logins.address(over, NOW) is None


def test_expired_logouts_are_evicted_first(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logouts, "MAX_LOGOUTS", 2)
    known = Logouts([])
    logins = make(known=known)
    tokens = [log_in(logins, alice, NOW + day * 86_400_000).token for day in range(8)]
    for day, token in enumerate(tokens):
        logins.log_out(token, "192.0.2.1", NOW + day * 86_400_000)
    now = NOW + 8 * 86_400_000
    logins.log_out(tokens[0], "192.0.2.1", now)
    assert len(known) == 2, "one that is over anyway is not remembered"
    assert logins.address(tokens[7], now) is None


def test_logouts_are_known_after_a_restart(make_broker: Any, alice: Any) -> None:
    first = make_broker()
    over, kept = first.token(alice), first.token(alice)
    written = list[bool]()
    first.adapter.logins.log_out(over, "192.0.2.1", first.clock(), written.append)
    assert written == []
    first.core.drain()
    first.adapter.logins.log_out("no token", "192.0.2.1", first.clock(), written.append)
    assert written == [True, True]
    second = make_broker()
    assert second.adapter.logins.address(over, second.clock()) is None
    assert second.adapter.logins.address(kept, second.clock()) == alice.address


def test_a_logout_that_could_not_be_written_is_written_later(
    make_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = call()
        except OSError:
            result = None
        done(result)  # as `gateway.worker.Worker` does

    path, known = tmp_path / "logouts.json", Logouts([])
    file = BackgroundFile(path, known.data, work)
    known.on_change = file.save
    with monkeypatch.context() as patch:
        patch.setattr(background_file, "write_secret", lambda _path, _data: os.stat("/nowhere"))
        known.add(b"\1" * 32, "192.0.2.1", 2_000, 1_000)
        file.tick()
    assert read_logouts(path) == []
    file.tick()
    assert len(read_logouts(path)) == 1
    path.unlink()
    file.tick()
    assert not path.exists(), "what is written is not written again"

    ticked = list[BackgroundFile]()

    def tick(file: BackgroundFile) -> None:
        ticked.append(file)

    monkeypatch.setattr(BackgroundFile, "tick", tick)
    broker = make_broker()
    broker.adapter.tick(broker.clock())
    assert len(ticked) == 3, "logouts, cursors and group keys"


def test_waiters_are_notified_by_the_first_write_with_their_change(tmp_path: Path) -> None:
    writes, outcomes = list[tuple[Callable[[], Any], Callable[[Any], None]]](), list[tuple[str, bool]]()
    file = BackgroundFile(tmp_path / "secret", lambda: b"x", lambda *write: writes.append(write))

    def wait(name: str) -> None:
        file.when_written(lambda written: outcomes.append((name, written)))

    def finish(result: bool | None) -> None:
        writes.pop()[1](result)

    wait("nothing to write")
    file.save()
    wait("first")
    file.save()
    wait("second")
    assert outcomes == [("nothing to write", True)]
    finish(True)
    assert outcomes[1:] == [("first", True)], "the second change needs another write"
    finish(None)
    assert outcomes[2:] == [("second", False)]
    wait("tried again")
    file.tick()
    finish(True)
    assert outcomes[3:] == [("tried again", True)]


def test_a_logout_is_answered_once_it_is_on_disk(
    broker: Any, make_caller: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, on_disk = make_caller(broker), list[bool]()
    monkeypatch.setattr(background_file, "write_secret", lambda *_: on_disk.append(True))
    wait = PendingWrite.wait

    async def noting(write: PendingWrite) -> None:
        await wait(write)
        assert on_disk

    monkeypatch.setattr(PendingWrite, "wait", noting)
    assert call("POST", "/logout", broker.token(alice)).status_code == 204
    assert on_disk == [True]
    assert call("POST", "/logout", "no token").status_code == 204
    broker.adapter.logouts.when_written = lambda done: done(False)
    assert call("POST", "/logout", broker.token(alice)).status_code == 503


def test_an_invalid_logout_file_fails_the_start(tmp_path: Path) -> None:
    path = tmp_path / logouts.LOGOUTS_FILE
    assert read_logouts(path) == []
    write_secret(path, b'{"ended": [["zz", 1]]}')
    with pytest.raises(SecretFileError, match="holds no logouts"):
        read_logouts(path)


# What lives by a token


def test_a_connection_ends_with_its_token(broker: Any, alice: Any) -> None:
    session, other, token = broker.open(), broker.listener("s"), broker.token(alice)
    assert broker.ask(session, [2, 9, "r", "s", 0, token])[0][1] == 2
    broker.bus.tick()
    assert session.closing is None
    broker.clock.now += login.TOKEN_LIFE + 1
    broker.bus.tick()
    assert session.closing is not None
    assert session.closing.code == 1008
    assert other.closing is None


def test_a_connection_ends_when_its_user_logs_out(broker: Any, make_caller: Any, alice: Any) -> None:
    sessions, token = [broker.open() for _ in range(3)], broker.token(alice)
    exchange = f"SYSTEM/keyexchange/{alice.address}"
    for session, stream in zip(sessions, ("s", exchange, f"s/@{alice.address}"), strict=True):
        assert broker.ask(session, [2, 9, "r", stream, 0, token])[0][1] == 2
    assert make_caller(broker)("POST", "/logout", token).status_code == 204
    broker.bus.tick()
    assert [session.closing is not None for session in sessions] == [True] * 3


def test_a_connection_with_a_token_as_api_key_ends_with_its_logout(broker: Any, alice: Any) -> None:
    session, token = broker.open({"controlLayerVersion": "1", "messageLayerVersion": "30"}), broker.token(alice)
    assert broker.ask(session, [1, 9, "s", 0, token, None]) == [[1, 2, "s", 0]]
    assert session.who.identity == alice.address
    broker.adapter.logins.log_out(token, "192.0.2.1", broker.clock())
    broker.bus.tick()
    assert session.closing is not None
