"""Control frames take effect on the bus: one connection at a time, without an event loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.adapter import ConnectionRequest, Refusal
from gateway.core.message import Message
from gateway.core.principal import Principal
from tests.adapters.streamr.sessions.answers import FAILED, contents, error

# Connecting


OUTDATED = "Are you using an outdated library?"


@pytest.mark.parametrize(
    ("control", "message", "text"),
    [
        ("3", "32", "Unsupported version: 3, message: Supported ControlLayer versions: [1,2]."),
        ("abc", "32", "Unsupported version: NaN, message: Supported ControlLayer versions: [1,2]."),
        ("2", "29", "Unsupported version: 29, message: Supported MessageLayer versions: [30,31,32]."),
    ],
)
def test_unsupported_versions_are_refused_with_the_text_of_the_reference(
    broker: Any, control: str, message: str, text: str
) -> None:
    query = {"controlLayerVersion": control, "messageLayerVersion": message}
    refused = broker.adapter.accept(ConnectionRequest(Principal("streamr:anonymous"), "/api/v1/ws", query))
    assert refused == Refusal(400, f"{text} {OUTDATED}")


@pytest.mark.parametrize(
    ("first", "heard"),
    [
        ([2, 9, "r", "s", 0, None], (2, 32)),
        ([1, 9, "s", 0, "key", None], (1, 30)),
        ([1, 9, "s", 0, None], (1, 30)),
    ],
)
def test_versions_that_are_not_asked_for_are_those_of_the_first_frame(broker: Any, first: Any, heard: Any) -> None:
    session = broker.open({})
    assert broker.ask(session, first)[0][0] == heard[0]
    broker.say("s", 1)
    (frame,) = broker.frames(session)
    assert (frame[0], frame[-1][0]) == heard


def test_the_first_publish_frame_sets_the_message_version(broker: Any) -> None:
    session = broker.open({"controlLayerVersion": "1"})
    row = [31, ["s", 0, broker.clock(), 0, "", ""], None, 27, 0, "1", 0, None]
    assert broker.ask(session, [1, 8, row, None]) == []
    assert broker.ask(session, [1, 9, "s", 0, None]) == [[1, 2, "s", 0]]
    broker.say("s", 1)
    assert {frame[2][0] for frame in broker.frames(session)} == {31}


def test_a_broken_first_frame_is_answered_in_the_version_it_seems_to_have(broker: Any) -> None:
    assert broker.ask(broker.open({}), b"[1,99]")[0][:2] == [1, 7]
    assert broker.ask(broker.open({}), b"{nope")[0][:2] == [2, 7]


# Subscribing


@pytest.mark.parametrize("number", ["{}.0", "{}e0"])
def test_integers_are_accepted_in_every_json_notation(broker: Any, number: str) -> None:
    """As in JavaScript, where 2.0 is 2."""
    two, nine, eight, version = (number.format(value) for value in (2, 9, 8, 32))
    reader, toy = broker.open({}), broker.toy("s")
    assert broker.ask(reader, f'[{two},{nine},"r","s",0.0,null]'.encode()) == [[2, 2, "r", "s", 0]]
    row = f'[{version},["s",0,{broker.clock()},0,"",""],null,27,0,0,null,"1",null,0,null]'
    assert broker.ask(broker.open({}), f'[{two},{eight},"r",{row},null]'.encode()) == []
    assert contents(toy) == [b"1"]
    assert [frame[3][7] for frame in broker.frames(reader)] == ["1"]
    assert broker.ask(broker.open(), [2.5, 9, "r", "s", 0, None])[0][3].startswith("Unsupported version: 2.5, message:")
    assert broker.ask(broker.open(), [2, 9.5, "r", "s", 0, None])[0][3].startswith("Unsupported type: 9.5, message:")


def test_one_delivery_for_each_message_however_often_subscribed(broker: Any) -> None:
    session = broker.open()
    for request in ("a", "b", "c"):
        assert broker.ask(session, [2, 9, request, "s", 0, None]) == [[2, 2, request, "s", 0]]
    broker.say("s", {"n": 1})
    assert len(broker.frames(session)) == 1
    assert broker.ask(session, [2, 10, "d", "s", 0]) == [[2, 3, "d", "s", 0]]
    broker.say("s", {"n": 2})
    assert broker.frames(session) == []
    assert error(broker.ask(session, [2, 10, "e", "s", 0])) == (
        "Not subscribed to stream s partition 0!",
        "INVALID_REQUEST",
    )


def test_each_partition_is_a_separate_channel(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(streams={"wide": 3})
    sessions = [broker.listener("wide", partition) for partition in range(3)]
    broker.say("wide#2", "two")
    broker.say("wide", "zero")
    heard = [[frame[3][1][1] for frame in broker.frames(session)] for session in sessions]
    assert heard == [[0], [], [2]]
    assert error(broker.ask(broker.open(), [2, 9, "r", "wide", 3, None])) == (
        "Subscribe request failed: Partition 3 is out of range (0..2)",
        FAILED,
    )


@pytest.mark.parametrize("name", ["tab\there", "x" * 256, "a/@b"])
def test_an_invalid_channel_name_is_not_found(broker: Any, name: str) -> None:
    assert error(broker.ask(broker.open(), [2, 9, "r", name, 0, None])) == (f"Stream {name} not found.", "NOT_FOUND")
    row = [32, [name, 0, broker.clock(), 0, "", ""], None, 27, 0, 0, None, "1", None, 0, None]
    assert error(broker.ask(broker.open(), [2, 8, "r", row, None])) == (f"Stream {name} not found.", "NOT_FOUND")


def test_only_configured_channels_exist_if_creation_is_off(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(create=False)
    broker.core.channels.configure("made")
    session = broker.open()
    assert broker.ask(session, [2, 9, "r", "made", 0, None]) == [[2, 2, "r", "made", 0]]
    assert error(broker.ask(session, [2, 9, "r", "nope", 0, None])) == ("Stream nope not found.", "NOT_FOUND")


# Whatever else comes


def test_requests_that_are_not_served_are_refused(broker: Any, unsigned: Any) -> None:
    session = broker.open()
    for frame in ([2, 2, "r", "s", 0], [2, 7, "r", "no", "CODE"], [2, 0, "r", unsigned("s", 1, 1)]):
        assert broker.ask(session, frame) == [[2, 7, "r", f"Unknown request type: {frame[1]}", "INVALID_REQUEST"]]


def test_the_request_id_is_in_the_error_whenever_it_can_be_read(broker: Any) -> None:
    session = broker.open()
    for frame in ([2, 9, "id", "", 0, None], [2, 99, "id"], b'[2,9,"id",', [2, 8, "id", [77], None]):
        assert broker.ask(session, frame)[0][2] == "id"


def test_a_session_that_ended_receives_nothing(broker: Any, alice: Any) -> None:
    session = broker.listener("s")
    broker.ask(session, [2, 9, "r", f"SYSTEM/keyexchange/{alice.address}", 0, None])
    session.receive_eof()
    assert broker.bus.listener_count("s") == 0
    assert broker.adapter.parts.key_exchange._listeners == {}


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_frame_raises_an_exception(broker: Any, data: st.DataObject) -> None:
    atoms = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    atoms |= st.sampled_from(["s", "s/@0", "SYSTEM/keyexchange/0x" + "a" * 40, "gateway/x", broker.clock()])
    rows = st.tuples(
        st.sampled_from([30, 31, 32, 33]),
        st.lists(atoms, min_size=5, max_size=6) | atoms,
        atoms,
        st.integers(26, 33),
        *[atoms] * 7,
    ).map(list)
    frames = st.tuples(st.sampled_from([1, 2, 3]), st.integers(-1, 14), *[atoms | rows] * 5).map(list)
    refs = st.lists(st.none() | st.integers(0, 9) | st.integers(), min_size=1, max_size=2)
    where = (st.just("r"), st.just("s"), st.just(0))
    resends = st.tuples(st.just(2), st.integers(11, 13), *where, *[atoms | refs] * 5).map(list)
    session = broker.open({})
    for _ in range(3):
        answers = broker.ask(session, data.draw(frames | resends))
        assert len([frame for frame in answers if frame[1] in (5, 6, 7)]) <= 1
    broker.ask(session, data.draw(st.binary(max_size=64)))
    assert session.closing is None
    session.receive_eof()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_altered_signed_messages_never_reach_the_bus(
    broker: Any, alice: Any, recovered: Callable[..., str], data: st.DataObject
) -> None:
    broker.clock.now += 1
    toy, at = broker.toy("s"), broker.clock()
    row = alice.message("s", '{"n":12}', at, 7, prev=data.draw(st.sampled_from([None, [at - 1, 3]])))
    changed = json.loads(json.dumps(row))
    place = data.draw(st.sampled_from([changed, changed[1], changed[2] or changed]))
    index = data.draw(st.integers(0, len(place) - 1))
    others: list[Any] = [None, 0, 1, 2, at, "", "1", "s", '{"n":1}', [at - 1, 4], "0x" + "1" * 130]
    if isinstance(place[index], str) and place[index] and data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(place[index]) - 1))
        place[index] = place[index][:cut] + data.draw(st.sampled_from("01bcz")) + place[index][cut + 1 :]
    else:
        place[index] = data.draw(st.sampled_from(others))
    answers = broker.ask(broker.open(), [2, 8, "r", changed, None])
    for message in [m for m in broker.core.index.unapplied("s") if m.timestamp == at and m.native["streamr"][3] == 7]:
        said = json.loads(message.wire)
        assert answers == []
        assert recovered(said) == alice.address, "signed, and as it was signed"
    toy.receive_eof()


def test_form_keys_outlive_the_message(broker: Any, alice: Any) -> None:
    """What is read back from the log has the same form as what was heard live."""
    reader = broker.listener("s")
    broker.ask(broker.open(), [2, 8, "r", alice.message("s", 1, broker.clock()), None])
    broker.say("s", {"n": "é"})
    live = broker.frames(reader)
    broker.core.settle()
    history = broker.core.index.history("s")
    assert all(isinstance(message, Message) and not message.forms for message in history)
    again = [broker.adapter.form(message, "streamr/2/32") for message in history]
    assert [json.loads(form[2 if form[1] < 126 else 4 :]) for form in again] == live
