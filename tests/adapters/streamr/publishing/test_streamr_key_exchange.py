"""Only its user may subscribe to a key-exchange stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.access.authorization import ApiKey, digest


def subscribe(broker: Any, session: Any, address: str, token: str | None = None) -> str:
    """The code of the error, empty without one."""
    stream = f"SYSTEM/keyexchange/{address}"
    (answer,) = broker.ask(session, [2, 9, "r", stream, 0, token])
    return "" if answer[:2] == [2, 2] else str(answer[4])


@pytest.fixture
def guarded(make_broker: Callable[..., Any], alice: Any, bob: Any) -> Any:
    rights = ("subscribe:s", "publish:s")
    keys = (ApiKey("robot", digest("trellis_robot"), ("*:*",)),)
    return make_broker(grants={f"streamr:{who.address}": rights for who in (alice, bob)}, keys=keys)


def test_a_user_subscribes_only_to_its_own_key_exchange_stream(guarded: Any, alice: Any, bob: Any) -> None:
    session = guarded.open()
    assert subscribe(guarded, session, alice.address) == "PERMISSION_DENIED"
    assert subscribe(guarded, session, bob.address, guarded.token(alice)) == "PERMISSION_DENIED"
    assert subscribe(guarded, session, alice.address, guarded.token(alice)) == ""
    assert subscribe(guarded, session, alice.address.upper().replace("0X", "0x")) == "", "now it is known who this is"
    row = alice.message(f"SYSTEM/keyexchange/{bob.address}", ["r"], guarded.clock(), kind=28)
    assert guarded.ask(guarded.open(), [2, 8, "r", row, None]) == []
    assert guarded.frames(session) == []


def test_a_key_rotation_on_the_key_exchange_reaches_only_version_32(broker: Any, alice: Any, bob: Any) -> None:
    old = {"controlLayerVersion": "1", "messageLayerVersion": "31"}
    listeners, token = [broker.open(), broker.open(old)], broker.token(bob)
    for session in listeners:
        stream = f"SYSTEM/keyexchange/{bob.address}"
        session.receive_data(json.dumps([session.control, 9, *["r"][: session.control - 1], stream, 0, token]).encode())
        assert broker.frames(session)[0][1] == 2
    row = alice.message(stream, "00" * 20, broker.clock(), kind=32, encryption=2, group_key="k1")
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    assert [broker.frames(session) for session in listeners] == [[[2, 0, "", row]], []]


def test_an_api_key_cannot_subscribe_to_a_key_exchange_stream(guarded: Any, alice: Any) -> None:
    session = guarded.open()
    assert subscribe(guarded, session, alice.address, "trellis_robot") == "PERMISSION_DENIED"


def test_a_user_without_rights_cannot_subscribe_to_its_key_exchange(
    make_broker: Callable[..., Any], alice: Any, bob: Any
) -> None:
    guarded = make_broker(grants={f"streamr:{alice.address}": ("subscribe:s",)})
    assert subscribe(guarded, guarded.open(), bob.address, guarded.token(bob)) == "PERMISSION_DENIED"


def test_a_token_is_needed_without_authentication_too(broker: Any, alice: Any, bob: Any) -> None:
    """Nobody who logged in has to share what is sent to him with those who only say his name."""
    session = broker.open()
    assert subscribe(broker, session, alice.address) == "PERMISSION_DENIED"
    assert subscribe(broker, session, bob.address, broker.token(alice)) == "PERMISSION_DENIED"
    assert subscribe(broker, session, alice.address) == ""
    assert subscribe(broker, session, bob.address) == "PERMISSION_DENIED"
    assert subscribe(broker, session, bob.address, broker.token(bob)) == "", "a node may carry several users"
