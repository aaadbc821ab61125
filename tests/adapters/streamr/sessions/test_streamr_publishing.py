"""Publishing by clients covers versions, signatures, content and duplicates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adapters.streamr import message_forms
from adapters.streamr.publishing import conversion
from adapters.streamr.wire.codec import encode_broadcast
from tests.adapters.streamr.sessions.answers import FAILED, contents, error

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


def test_each_pair_of_versions_is_encoded_once_for_all_subscribers(
    broker: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def encode(control: int, row: bytes) -> bytes:
        written.append(control)
        return encode_broadcast(control, row)

    for module in (message_forms, conversion):
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
def test_forged_signatures_count_as_malformed_input_of_their_connection(
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
def test_both_lengths_of_the_ethereum_prefix_are_accepted(broker: Any, alice: Any, length: str) -> None:
    content = '{"tree":"\U0001f333 é"}'
    row = alice.message("s", content, broker.clock())
    text = f"s0{broker.clock()}0{alice.address}chain{content}"
    row[10] = alice.sign(text, len(text.encode("utf-16-le")) // 2 if length == "units" else None)
    toy = broker.toy("s")
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    assert contents(toy) == [content.encode()]


@pytest.mark.parametrize("partition", ["", "0"])
def test_both_payloads_of_legacy_signatures_are_accepted(broker: Any, alice: Any, partition: str) -> None:
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


def test_key_rotations_of_s2_reach_only_readers_of_version_32(broker: Any, alice: Any) -> None:
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


def test_late_messages_are_delivered_only_on_streamr(broker: Any, alice: Any) -> None:
    toy, reader = broker.toy("s"), broker.listener("s")
    broker.ask(broker.open(), [2, 8, "r", alice.message("s", 1, broker.clock() - 600_001), None])
    broker.ask(broker.open(), [2, 8, "r", alice.message("s", 2, broker.clock() - 600_000), None])
    assert [frame[3][7] for frame in broker.frames(reader)] == ["1", "2"]
    assert contents(toy) == [b"2"]


def test_only_group_key_messages_belong_to_the_key_exchange(broker: Any, alice: Any) -> None:
    for kind in range(28, 32):
        text, _ = error(broker.ask(broker.open(), [2, 8, "r", alice.message("s", [], broker.clock(), kind=kind), None]))
        assert f"{kind} can only occur on stream ids of form SYSTEM/keyexchange/{{address}}" in text


def test_unsigned_messages_may_name_only_the_user_of_their_token(broker: Any, alice: Any, unsigned: Any) -> None:
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


def test_a_repeated_message_is_ignored_without_an_error(broker: Any, alice: Any, unsigned: Any) -> None:
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


def test_a_signed_text_split_into_other_fields_is_not_published(broker: Any, alice: Any) -> None:
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
