"""The gateway requests keys from publishers, and bridges decrypted messages as plain text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.streamr.crypto import ciphers, decrypt
from tests.adapters.streamr.crypto.encrypted import LONG, Writer, aes, heard, ignored, pass_time, rsa, undecrypted

pytestmark = pytest.mark.usefixtures("_quick")

PEER = "0x" + "c" * 40


# Reading


def test_encrypted_messages_are_bridged_as_plain_text_and_unchanged_on_streamr(reading: Any, alice: Any) -> None:
    toy, reader, writer = reading.toy("s"), reading.listener("s"), Writer(reading, alice)
    rows = [writer.row({"n": 1, "é": "🌳"}), writer.row([2]), writer.row("three")]
    for row in rows:
        assert writer.publish(row) == []
    ((who, request),) = writer.requests()
    assert heard(toy) == []
    assert request[1:] == ["s", request[2], ["k1"]]
    assert who == reading.adapter.parts.participant.address
    writer.answer(who, request)
    assert heard(toy) == [{"n": 1, "é": "🌳"}, [2], "three"]
    assert reading.frames(reader) == [[2, 0, "", row] for row in rows]
    logged = reading.logged("s")
    assert [json.loads(message.content) for message in logged] == [{"n": 1, "é": "🌳"}, [2], "three"]
    assert [json.loads(message.wire) for message in logged] == rows
    assert undecrypted(reading) == ignored(reading) == 0


def test_messages_with_a_known_key_neither_wait_nor_cause_requests(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    writer.give()
    writer.publish(writer.row(2))
    assert heard(toy) == [1, 2]
    assert writer.requests() == []


def test_other_streams_and_plain_messages_are_not_decrypted(reading: Any, alice: Any) -> None:
    toys, writer = [reading.toy("t"), reading.toy("s")], Writer(reading, alice)
    row = alice.message("t", "abcd", reading.clock(), encryption=2, group_key="k1")
    writer.publish(row)
    writer.publish(alice.message("s", {"plain": 1}, reading.clock()))
    assert heard(toys[0]) == [{"encrypted": {"groupKeyId": "k1", "content": "abcd"}}]
    assert heard(toys[1]) == [{"plain": 1}]
    assert writer.requests() == []


def test_publishers_and_partitions_do_not_wait_for_each_other(reading: Any, alice: Any, bob: Any) -> None:
    toy, other = reading.toy("s"), reading.toy("s#1")
    writers = [Writer(reading, alice), Writer(reading, bob)]
    writers[0].publish(writers[0].row("alice waits"))
    writers[1].publish(writers[1].row("bob waits"))
    writers[0].publish(writers[0].row("on partition 1", partition=1))
    writers[1].give()
    assert heard(toy) == ["bob waits"]
    assert heard(other) == []
    writers[0].give()
    assert (heard(toy), heard(other)) == (["alice waits"], ["on partition 1"])


def test_an_encrypted_answer_is_an_answer(reading: Any, alice: Any) -> None:
    first = reading.say("s", {"n": 1})
    writer = Writer(reading, alice)
    writer.publish(writer.row({"inReplyTo": first.id}))
    writer.give()
    (_, answer) = reading.logged("s")
    assert answer.parent == first.id


def test_a_copy_of_a_waiting_message_is_ignored(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    row = writer.row(1)
    for _ in range(3):
        assert writer.publish(row) == []
    writer.give()
    assert writer.publish(row) == []
    assert heard(toy) == [1]


# New keys


def test_a_key_that_comes_with_a_message_is_used(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    row = writer.row(1)
    row[8] = json.dumps(["k2", aes(writer.keys["k2"], writer.keys["k1"])])
    row[10] = alice.sign(f"s0{row[1][2]}{row[1][3]}{alice.address}chain{row[7]}{row[8]}")
    assert writer.publish(row) == []
    writer.give()
    writer.publish(writer.row(2, "k2"))
    assert heard(toy) == [1, 2]
    assert writer.requests() == []


def test_another_key_is_asked_for(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    writer.give()
    writer.publish(writer.row(2, "k2"))
    writer.publish(writer.row(3))
    assert heard(toy) == [1]
    writer.give()
    assert heard(toy) == [2, 3]


@pytest.mark.parametrize("form", ["announce", "reset", "whole"])
def test_unrequested_keys_are_accepted_from_publishers(reading: Any, alice: Any, form: str) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    ((reader, request),) = writer.requests()
    writer.answer(reader, request)
    sealed = rsa(writer.keys["k2"], request[2])
    key: Any = ["s", [["k2", sealed]]] if form == "announce" else ["s", "k2", sealed]
    if form == "whole":  # S2: all of it is encrypted, and the key in it is not once more
        key = "".join(("0" * 0, rsa(json.dumps(["s", "k", "1"]).encode(), request[2])))
    writer.tell(reader, key, kind=30)
    writer.publish(writer.row(2, "k2"))
    if form == "whole":  # 1,024 bits have no room for a key in JSON: what was in it is no key
        assert ignored(reading) == 1
        writer.give()
    assert writer.requests() == []
    assert heard(toy) == [1, 2]


def test_a_response_and_a_reset_that_are_rsa_as_a_whole_are_read(
    reading: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ciphers, "RSA_BITS", 2048)
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1))
    ((reader, request),) = writer.requests()
    response = [request[0], "s", [["k1", writer.keys["k1"].hex()]]]
    writer.tell(reader, rsa(json.dumps(response).encode(), request[2]))
    assert heard(toy) == [1]
    writer.publish(writer.row(2, "k2"))
    ((reader, request),) = writer.requests()
    reset = ["s", "k2", writer.keys["k2"].hex()]
    writer.tell(reader, rsa(json.dumps(reset).encode(), request[2]), kind=30)
    assert heard(toy) == [2]


def test_a_key_rotation_reaches_only_readers_and_its_key_is_used(reading: Any, alice: Any) -> None:
    toy, reader, writer = reading.toy("s"), reading.listener("s"), Writer(reading, alice)
    elsewhere = reading.listener("s", 1)
    writer.publish(writer.row(1))
    writer.give()
    reading.frames(reader)
    rotation = writer.row(["k2", writer.keys["k2"].hex()], kind=32)
    assert writer.publish(rotation) == []
    assert reading.frames(reader) == [[2, 0, "", rotation]]
    assert reading.frames(elsewhere) == []
    writer.publish(writer.row(2, "k2"))
    assert heard(toy) == [1, 2]
    assert len(reading.logged("s")) == 2, "a rotation is not logged"
    for broken in (writer.row(5, kind=32), writer.row(["k3", "00"], kind=32), writer.row(1, "k9", b"9" * 32, kind=32)):
        assert writer.publish(broken) == []


@pytest.mark.parametrize("fault", ["unsigned", "forged"])
def test_a_rotation_is_signed(reading: Any, alice: Any, fault: str) -> None:
    reader, writer = reading.listener("s"), Writer(reading, alice)
    row = writer.row(["k2", "00"], kind=32)
    row[9:] = [0, None] if fault == "unsigned" else [2, "0x" + "11" * 65]
    assert writer.publish(row)[0][1] == 7
    assert reading.frames(reader) == []


def test_keys_without_names_are_asked_for_and_changed_as_in_version_31(reading: Any, alice: Any) -> None:
    toy, writer = reading.toy("s"), Writer(reading, alice)
    writer.publish(writer.row(1, None))
    ((reader, request),) = writer.requests()
    assert request.keys() == {"requestId", "streamId", "publicKey"}
    answer = {"requestId": request["requestId"], "streamId": "s"}
    keys = [{"groupKey": rsa(writer.keys["k1"], request["publicKey"]), "start": 5}]
    writer.tell(reader, {**answer, "keys": keys}, encryption=0)
    assert heard(toy) == [1]
    row = writer.row(writer.keys["k2"] + b"2", None, encryption=3)
    row = [31, *row[1:4], 3, row[7], *row[9:]]
    assert writer.publish(row) == []
    writer.publish(writer.row(3, None, writer.keys["k2"]))
    assert heard(toy) == [2, 3]
    assert writer.requests() == []
    pass_time(reading, decrypt.FAILURE_MEMORY)
    writer.publish(writer.row(LONG, None, b"4" * 32))
    assert len(writer.requests()) == 1, "there may be a newer key"
