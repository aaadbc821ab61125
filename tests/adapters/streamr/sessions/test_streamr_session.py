"""What control frames do on the bus: one connection at a time, without an event loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.streamr import forms
from adapters.streamr.crypto.signing import checksum
from adapters.streamr.publishing import conversion
from adapters.streamr.sessions import base_session
from adapters.streamr.wire.codec import encode_broadcast
from gateway.access.auth import ApiKey, digest
from gateway.adapter import ConnectionRequest, Refusal
from gateway.core.message import Message
from gateway.core.principal import Principal

FAILED = "REQUEST_FAILED"


def error(answers: list[Any]) -> tuple[str, str]:
    """The text and the code of the one answer, an ErrorResponse."""
    ((version, kind, _request, text, code),) = answers
    assert (version, kind) == (2, 7)
    return text, code


def contents(toy: Any) -> list[bytes]:
    """What a toy heard said since the last time."""
    return [heard for heard in toy.take() if isinstance(heard, bytes)]


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
def test_unsupported_versions_are_refused_in_the_references_words(
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


def test_the_first_frame_that_publishes_tells_the_message_version(broker: Any) -> None:
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
def test_an_integer_is_one_however_it_is_written(broker: Any, number: str) -> None:
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


def test_partitions_are_channels_of_their_own(make_broker: Callable[..., Any]) -> None:
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
def test_what_can_be_no_channel_is_not_found(broker: Any, name: str) -> None:
    assert error(broker.ask(broker.open(), [2, 9, "r", name, 0, None])) == (f"Stream {name} not found.", "NOT_FOUND")
    row = [32, [name, 0, broker.clock(), 0, "", ""], None, 27, 0, 0, None, "1", None, 0, None]
    assert error(broker.ask(broker.open(), [2, 8, "r", row, None])) == (f"Stream {name} not found.", "NOT_FOUND")


def test_only_configured_channels_exist_where_that_is_the_setting(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(create=False)
    broker.core.channels.configure("made")
    session = broker.open()
    assert broker.ask(session, [2, 9, "r", "made", 0, None]) == [[2, 2, "r", "made", 0]]
    assert error(broker.ask(session, [2, 9, "r", "nope", 0, None])) == ("Stream nope not found.", "NOT_FOUND")


# Publishing


def test_a_signed_message_reaches_all_protocols_and_its_publisher_unchanged(broker: Any, alice: Any) -> None:
    toy, reader, writer = broker.toy("s"), broker.listener("s"), broker.listener("s")
    row = alice.message("s", '{"n": 1.10}', broker.clock())
    assert broker.ask(writer, [2, 8, "r", row, None]) == [[2, 0, "", row]]
    assert broker.frames(reader) == [[2, 0, "", row]]
    assert contents(toy) == [b'{"n": 1.10}']
    (logged,) = broker.logged("s")
    assert logged.native == {"streamr": row[1]}
    assert json.loads(logged.wire) == row
    assert (logged.sender.protocol, logged.sender.identity) == ("streamr", alice.address)


def test_versions_are_converted_and_the_content_never_is(broker: Any, alice: Any) -> None:
    old = broker.listener("s", controlLayerVersion="1", messageLayerVersion="30")
    row = alice.message("s", '{"b" : 1,\n "a":[1.0,1E2]}', broker.clock())
    broker.ask(broker.open(), [2, 8, "r", row, None])
    (frame,) = broker.frames(old)
    assert frame == [1, 0, [30, row[1], None, 27, row[7], 2, row[10]]]


def test_each_pair_of_versions_is_written_once_for_all_who_want_it(
    broker: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def encode(control: int, row: bytes) -> bytes:
        written.append(control)
        return encode_broadcast(control, row)

    for module in (forms, conversion):
        monkeypatch.setattr(module, "encode_broadcast", encode)
    pairs = [(control, version) for control in (1, 2) for version in (30, 31, 32)]
    readers = [
        (*pair, broker.listener("s", controlLayerVersion=str(pair[0]), messageLayerVersion=str(pair[1])))
        for pair in pairs * 3
    ]
    row = alice.message("s", {"n": 1}, broker.clock())
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    for control, version, reader in readers:
        ((told, kind, *_, shown),) = broker.frames(reader)
        assert (told, kind, shown[0]) == (control, 0, version)
    assert len(written) == len(pairs), "the frame as it came is one of them"
    broker.say("s", {"from": "elsewhere"})
    for control, version, reader in readers:
        ((told, kind, *_, shown),) = broker.frames(reader)
        assert (told, kind, shown[0]) == (control, 0, version)
    assert len(written) == 2 * len(pairs)


def test_content_with_line_breaks_is_one_line_on_the_bus(broker: Any, unsigned: Any) -> None:
    toy = broker.toy("s")
    broker.ask(broker.open(), [2, 8, "r", unsigned("s", '{\n"a":\r\n1}', broker.clock()), None])
    assert contents(toy) == [b'{ "a":  1}']


def test_half_characters_become_escapes(broker: Any) -> None:
    toy = broker.toy("s")
    frame = f'[2,8,"r",[32,["s",0,{broker.clock()},0,"",""],null,27,0,0,null,"\\"\\ud800\\"",null,0,null],null]'
    assert broker.ask(broker.open(), frame.encode()) == []
    assert contents(toy) == [b'"\\ud800"']
    broken = frame.replace('0,"",""]', '1,"","\\ud800"]').encode()
    assert error(broker.ask(broker.open(), broken))[1] == FAILED


def test_the_name_of_a_chain_is_bounded(broker: Any, unsigned: Any) -> None:
    session, now = broker.open(), broker.clock()
    assert broker.ask(session, [2, 8, "r", unsigned("s", 1, now, chain="c" * 255), None]) == []
    text, _ = error(broker.ask(session, [2, 8, "r", unsigned("s", 1, now, chain="c" * 256), None]))
    assert "msgChainId has at most 255" in text
    assert len(text) < 1200


@pytest.mark.parametrize("publisher", ["checksum", "lower"])
def test_the_spelling_of_an_address_is_nothing_new(broker: Any, alice: Any, publisher: str) -> None:
    spelt = alice.address.upper().replace("0X", "0x") if publisher == "checksum" else alice.address
    toy, session = broker.toy("s"), broker.open()
    broker.ask(session, [2, 8, "r", alice.message("s", 1, broker.clock(), publisher=spelt), None])
    broker.ask(session, [2, 8, "r", alice.message("s", 1, broker.clock()), None])
    assert contents(toy) == [b"1"]


def test_a_signature_must_be_the_publishers(broker: Any, alice: Any, bob: Any) -> None:
    toy, session = broker.toy("s"), broker.open()
    forgeries: list[Callable[[Any], None]] = [
        lambda row: row[1].__setitem__(4, bob.address),
        lambda row: row[1].__setitem__(0, "other"),
        lambda row: row.__setitem__(2, [1, 0]),
        lambda row: row.__setitem__(7, '{"n":2}'),
        lambda row: row.__setitem__(9, 1),
        lambda row: row.__setitem__(10, None),
        lambda row: row.__setitem__(10, "0x00"),
    ]
    for forge in forgeries:
        row = alice.message("s", {"n": 1}, broker.clock())
        forge(row)
        text, code = error(broker.ask(session, [2, 8, "r", row, None]))
        assert text.startswith("Publish request failed: Signature validation failed for message: [32,")
        assert code == FAILED
    assert contents(toy) == []
    assert session.identity is None


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "in a run"])
def test_forged_signatures_are_held_against_who_brings_them(
    broker: Any, alice: Any, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    session, offences = broker.open(), list[int]()
    broker.ask(session, [2, 8, "r", alice.message("s", 0, broker.clock()), None])  # from here on runs are taken
    monkeypatch.setattr(session, "record_malformed", lambda: offences.append(1))
    rows = [alice.message("s", n, broker.clock(), n) for n in range(1, 9)]
    for row in rows[::2]:
        row[10] = row[10][:-4] + "0000"
    frames = [json.dumps([2, 8, "r", row, None], separators=(",", ":")).encode() for row in rows]
    for some in [frames] if at_once else [[frame] for frame in frames]:
        session.receive_all(some)
    assert len(session.data_to_send()) == len(offences) == 4
    broker.ask(session, [2, 8, "r", alice.message("s", 1, broker.clock() + 10**9), None])
    assert len(offences) == 4, "what is merely refused is not"


@pytest.mark.parametrize("length", ["bytes", "units"])
def test_both_lengths_of_the_ethereum_prefix_are_good(broker: Any, alice: Any, length: str) -> None:
    content = '{"tree":"\U0001f333 é"}'
    row = alice.message("s", content, broker.clock())
    text = f"s0{broker.clock()}0{alice.address}chain{content}"
    row[10] = alice.sign(text, len(text.encode("utf-16-le")) // 2 if length == "units" else None)
    toy = broker.toy("s")
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    assert contents(toy) == [content.encode()]


@pytest.mark.parametrize("partition", ["", "0"])
def test_both_payloads_of_legacy_signatures_are_good(broker: Any, alice: Any, partition: str) -> None:
    row = alice.message("s", "1", broker.clock())
    row[9:] = [1, alice.sign(f"s{partition}{broker.clock()}{alice.address}1")]
    toy = broker.toy("s")
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    assert contents(toy) == [b"1"]


@pytest.mark.parametrize("content", ["nope", "{", "NaN", "1 2", "[" * 300 + "]" * 300, '{"a":01}'])
def test_content_is_json_or_encrypted(broker: Any, unsigned: Any, content: str) -> None:
    text, code = error(broker.ask(broker.open(), [2, 8, "r", unsigned("s", content, broker.clock()), None]))
    assert text.startswith("Publish request failed: Invalid JSON in stream s: ")
    assert code == FAILED


def test_encrypted_content_passes_in_an_envelope(broker: Any, alice: Any) -> None:
    toy, reader = broker.toy("s"), broker.listener("s")
    row = alice.message("s", "abcdef", broker.clock(), encryption=2, group_key="k1")
    broker.ask(broker.open(), [2, 8, "r", row, None])
    assert [json.loads(content) for content in contents(toy)] == [
        {"encrypted": {"groupKeyId": "k1", "content": "abcdef"}}
    ]
    assert broker.frames(reader) == [[2, 0, "", row]]


def test_a_new_group_key_is_not_shown_to_versions_that_cannot_carry_it(broker: Any, unsigned: Any) -> None:
    new, old = broker.listener("s"), broker.listener("s", controlLayerVersion="2", messageLayerVersion="31")
    row = unsigned("s", "abcdef", broker.clock())
    row[5], row[6], row[8] = 2, "k1", '["k2","00"]'
    broker.ask(broker.open(), [2, 8, "r", row, None])
    assert broker.frames(new) == [[2, 0, "", row]]
    assert broker.frames(old) == []


def test_rotations_of_s2_are_for_readers_of_version_32_alone(broker: Any, alice: Any) -> None:
    new, old = broker.listener("s"), broker.listener("s", controlLayerVersion="1", messageLayerVersion="31")
    row = alice.message("s", "abcdef", broker.clock(), kind=32, encryption=2, group_key="k1")
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    assert broker.frames(new) == [[2, 0, "", row]]
    assert broker.frames(old) == []


def test_timestamps_are_not_far_in_the_future(broker: Any, alice: Any) -> None:
    session, now = broker.open(), broker.clock()
    assert broker.ask(session, [2, 8, "r", alice.message("s", 1, now + 300_000), None]) == []
    assert error(broker.ask(session, [2, 8, "r", alice.message("s", 2, now + 300_001), None])) == (
        "Failed publish to stream s, reason: future timestamps are not allowed, max allowed +300000 ms",
        "FUTURE_TIMESTAMP",
    )


def test_what_comes_late_is_shown_on_its_own_protocol_only(broker: Any, alice: Any) -> None:
    toy, reader = broker.toy("s"), broker.listener("s")
    broker.ask(broker.open(), [2, 8, "r", alice.message("s", 1, broker.clock() - 600_001), None])
    broker.ask(broker.open(), [2, 8, "r", alice.message("s", 2, broker.clock() - 600_000), None])
    assert [frame[3][7] for frame in broker.frames(reader)] == ["1", "2"]
    assert contents(toy) == [b"2"]


def test_only_group_key_messages_belong_to_the_key_exchange(broker: Any, alice: Any) -> None:
    for kind in range(28, 32):
        text, _ = error(broker.ask(broker.open(), [2, 8, "r", alice.message("s", [], broker.clock(), kind=kind), None]))
        assert f"{kind} can only occur on stream ids of form SYSTEM/keyexchange/{{address}}" in text


def test_unsigned_messages_name_nobody_or_the_connections_own_address(broker: Any, alice: Any, unsigned: Any) -> None:
    toy, session, now = broker.toy("s"), broker.open(), broker.clock()
    assert broker.ask(session, [2, 8, "r", unsigned("s", 1, now), None]) == []
    row = unsigned("s", 2, now, publisher=alice.address)
    text, code = error(broker.ask(session, [2, 8, "r", row, None]))
    assert text.startswith("Publish request failed: An unsigned message can name no publisher but")
    assert code == FAILED
    assert broker.ask(session, [2, 8, "r", row, broker.token(alice)]) == []
    assert contents(toy) == [b"1", b"2"]
    senders = [message.sender for message in broker.logged("s")]
    assert senders[0] == session.peer
    assert senders[1].identity == alice.address


# Duplicates


def test_a_repeated_message_goes_nowhere_and_is_no_error(broker: Any, alice: Any, unsigned: Any) -> None:
    toy, session = broker.toy("s"), broker.open()
    for row in (alice.message("s", 1, broker.clock()), unsigned("s", 2, broker.clock())):
        for _ in range(3):
            assert broker.ask(session, [2, 8, "r", row, None]) == []
    assert contents(toy) == [b"1", b"2"]


def test_a_signed_id_belongs_to_one_content(broker: Any, alice: Any, unsigned: Any) -> None:
    toy, session, now = broker.toy("s"), broker.open(), broker.clock()
    broker.ask(session, [2, 8, "r", alice.message("s", 1, now), None])
    text, code = error(broker.ask(session, [2, 8, "r", alice.message("s", 2, now), None]))
    assert text.startswith("Publish request failed: The id of this message belongs to one with other content")
    assert code == FAILED
    for content in (3, 4):
        assert broker.ask(session, [2, 8, "r", unsigned("s", content, now), None]) == []
    assert contents(toy) == [b"1", b"3", b"4"]


def test_what_was_signed_is_not_cut_into_other_fields(broker: Any, alice: Any) -> None:
    """A signature covers its fields without anything between them: `[..., 12, 34]` signs for `[..., 123, 4]`."""
    toy, thief, at = broker.toy("s"), broker.open(), broker.clock() + 3
    first = alice.message("s", 1, at, 12)
    second = alice.message("s", 2, at, 13, chain="c", prev=[at - 5, 0])
    for row in (first, second):
        broker.ask(broker.open(), [2, 8, "r", row, None])
    first[1][2:4] = at // 10, int(f"{at % 10}12")
    second[1][5], second[2] = f"c{at - 5}0", None
    for forged in (first, second):
        assert broker.ask(thief, [2, 8, "r", forged, None]) == []
    assert contents(toy) == [b"1", b"2"]
    assert thief.identity is None


def test_duplicates_are_known_after_a_restart(make_broker: Callable[..., Any], alice: Any, unsigned: Any) -> None:
    first = make_broker()
    rows = [alice.message("s", 1, first.clock()), unsigned("s", 2, first.clock())]
    for row in rows:
        first.ask(first.open(), [2, 8, "r", row, None])
    first.core.settle()
    second = make_broker()
    toy = second.toy("s")
    for row in rows:
        assert second.ask(second.open(), [2, 8, "r", row, None]) == []
    text, _ = error(second.ask(second.open(), [2, 8, "r", alice.message("s", 3, first.clock()), None]))
    assert "belongs to one with other content" in text
    assert contents(toy) == []


# Who is who


def test_a_session_token_tells_who_a_connection_is(broker: Any, alice: Any, bob: Any) -> None:
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


def test_who_comes_with_a_token_or_a_key_is_not_taken_for_whom_it_publishes(
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


def test_an_unknown_token_is_told_apart_from_a_missing_right(guarded: Any, unsigned: Any) -> None:
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


def test_a_key_exchange_is_for_those_who_may_do_something_here(make_broker: Any, alice: Any, bob: Any) -> None:
    broker = make_broker(grants={f"streamr:{alice.address}": ("subscribe:s",)})
    stream = f"SYSTEM/keyexchange/{alice.address}"
    listen, session = [2, 9, "r", stream, 0, None], broker.open()
    assert error(broker.ask(session, listen))[1] == "PERMISSION_DENIED"
    for publisher, answers in ((bob, 1), (alice, 0)):
        row = publisher.message(stream, "[]", broker.clock(), kind=28)
        assert len(broker.ask(session, [2, 8, "r", row, None])) == answers
    assert broker.ask(session, [*listen[:-1], broker.token(alice)]) == [[2, 2, "r", stream, 0]]


def test_who_asked_is_whose_right_a_subscription_needs(guarded: Any, bob: Any) -> None:
    session = guarded.open()
    guarded.ask(session, [2, 9, "r", "s", 0, guarded.token(bob)])
    guarded.ask(session, [2, 9, "r", "open", 0, None])
    assert session.subscription_principal("s").name == f"streamr:{bob.address}"
    assert session.subscription_principal("open").name == "streamr:anonymous"


def test_with_authentication_off_an_unknown_token_is_nothing(broker: Any) -> None:
    assert broker.ask(broker.open(), [2, 9, "r", "s", 0, "from before a restart"])[0][1] == 2


def test_a_signature_is_as_good_as_a_token(guarded: Any, alice: Any, bob: Any) -> None:
    toy, session, now = guarded.toy("s"), guarded.open(), guarded.clock()
    assert guarded.ask(session, [2, 8, "r", alice.message("s", 1, now), None]) == []
    text, code = error(guarded.ask(session, [2, 8, "r", bob.message("s", 2, now), None]))
    assert text.startswith(f"Publish request failed: {bob.address} is not a publisher on stream s. Message: [32,")
    assert code == FAILED
    assert contents(toy) == [b"1"]


def test_an_api_key_of_the_gateway_is_as_good_as_a_token(guarded: Any, bob: Any, unsigned: Any) -> None:
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
def test_whichever_way_a_key_comes_it_says_who_the_connection_is(guarded: Any, unsigned: Any, way: str) -> None:
    number = guarded.bus.peers.identity("rest", "machine", "machine").number
    session = guarded.open({})
    if way == "url":  # as `gateway.admission` does
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


def test_a_username_stands_for_its_user_however_they_logged_in(guarded: Any, alice: Any, unsigned: Any) -> None:
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
def test_a_username_stands_for_nobody_else(guarded: Any, alice: Any, bob: Any, unsigned: Any, at_once: bool) -> None:
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


def test_with_a_key_and_another_users_token_a_connection_is_nobodys(guarded: Any, alice: Any, unsigned: Any) -> None:
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


def test_nothing_is_taken_while_the_disk_cannot(broker: Any, unsigned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = broker.open()
    monkeypatch.setattr(broker.core.log, "congested", True)
    assert broker.ask(session, [2, 8, "r", unsigned("s", 1, broker.clock()), None]) == []
    assert not session.ask_to_read()
    monkeypatch.setattr(broker.core.log, "congested", False)
    toy = broker.toy("s")
    broker.bus.resume_waiting()
    assert contents(toy) == [b"1"]


# Whatever else comes


def test_requests_that_are_not_served_are_refused(broker: Any, unsigned: Any) -> None:
    session = broker.open()
    for frame in ([2, 2, "r", "s", 0], [2, 7, "r", "no", "CODE"], [2, 0, "r", unsigned("s", 1, 1)]):
        assert broker.ask(session, frame) == [[2, 7, "r", f"Unknown request type: {frame[1]}", "INVALID_REQUEST"]]


def test_the_request_id_is_in_the_error_whenever_it_can_be_read(broker: Any) -> None:
    session = broker.open()
    for frame in ([2, 9, "id", "", 0, None], [2, 99, "id"], b'[2,9,"id",', [2, 8, "id", [77], None]):
        assert broker.ask(session, frame)[0][2] == "id"


def test_whoever_leaves_hears_nothing_more(broker: Any, alice: Any) -> None:
    session = broker.listener("s")
    broker.ask(session, [2, 9, "r", f"SYSTEM/keyexchange/{alice.address}", 0, None])
    session.receive_eof()
    assert broker.bus.listener_count("s") == 0
    assert broker.adapter.parts.key_exchange._listeners == {}


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_frame_whatever_raises(broker: Any, data: st.DataObject) -> None:
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
def test_nothing_that_is_not_as_it_was_signed_reaches_the_bus(
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
