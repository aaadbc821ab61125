"""The data API answers as the reference broker does, for every format and every kind of message."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from adapters.streamr.rest.data_api import NO_BODY, NO_END, NO_OFFSETS
from tests.adapters.streamr.rest.conftest import LAST, Caller, stored

ORACLE = json.loads((Path(__file__).parents[3] / "vectors" / "streamr" / "broker20-oracle.json").read_text())["rest"]
THEIRS = "0x2c7536E3605D9C16a7a3D7b1898e529396a65c23"  # the user of the oracle's token
NOW = 1_795_236_890_386  # the oracle's last message


# The reference


def test_the_genuine_brokers_answers_are_ours(make_broker: Any, make_caller: Any, alice: Any) -> None:
    """Every probe of the broker of May 2021, in its order: the status and the words of each answer."""
    broker = make_broker(
        create=False,
        streams={"signed": {"require_signed_data": True}},
        grants={f"streamr:{alice.address}": ("*:s", "*:signed", "*:nope")},
    )
    broker.clock.now = NOW
    for name in ("s", "signed", "denied"):
        broker.core.channels.configure(name)
    call, token = make_caller(broker), broker.token(alice)
    for case in ORACLE:
        broker.clock.now += 1
        headers = {name: text.replace("token-1", token) for name, text in case["headers"].items()}
        path = case["path"].replace(THEIRS, alice.address)
        answer = call(case["method"], path, headers=headers, content=case.get("body"))
        assert answer.status_code == case["status"], (case["name"], answer.text)
        if case["status"] != 200:
            assert comparable(answer.text) == comparable(case["response"]), case["name"]
        elif case["contentType"] is not None:
            assert answer.headers["content-type"].startswith(case["contentType"]), case["name"]
            if answer.headers["content-type"] == "application/json":
                theirs, _ = json.JSONDecoder().raw_decode(case["response"], 1)  # the vectors have no more of some
                assert shape(answer.json()[0]) == shape(theirs), case["name"]
        else:
            assert answer.text == case["response"], case["name"]


def comparable(text: str) -> str:
    """An error without what no two runs have in common: when it was, and what which parser says."""
    return re.sub(r"parsing was: .*", "parsing was:", re.sub(r"\d{13}", "T", str(json.loads(text)["error"])))


def shape(message: Any) -> Any:
    """What a message looks like: its members in their order, or as many elements."""
    found = json.loads(message) if isinstance(message, str) else message
    return list(found) if isinstance(found, dict) else (found[0], len(found))


# Saying


def test_a_posted_message_reaches_all_protocols_and_is_stored(call: Caller, broker: Any) -> None:
    listener, toy = broker.listener("s"), broker.toy("s")
    assert call("POST", "/streams/s/data", content='{"n": 1.0}').text == ""
    [told] = broker.frames(listener)
    assert told[3][1][:2] == ["s", 0]
    assert (told[3][1][4:], told[3][7], told[3][9:]) == (["", ""], '{"n": 1.0}', [0, None])
    assert toy.take() == [b'{"n": 1.0}']
    [kept] = stored(call)
    assert kept["content"] == {"n": 1.0}


def test_parameters_place_a_message(call: Caller, broker: Any) -> None:
    at = broker.clock()
    call("POST", f"/streams/s/data?ts={at}&seq=3&msgChainId=c", content="1")
    call("POST", f"/streams/s/data?ts={at}&seq=4&msgChainId=c&prev_ts={at}&prev_seq=3", content="2")
    call("POST", "/streams/s/data?ts=2020-01-01T00:00:00.5Z", content='"iso"')
    call("POST", "/streams/s/data?ts=2020-01-01", content='"day"')
    rows = [json.loads(text) for text in stored(call, "from?fromTimestamp=0&format=protocol")]
    assert [(row[1][2:4], row[2], row[7]) for row in rows] == [
        ([1_577_836_800_000, 0], None, '"day"'),
        ([1_577_836_800_500, 0], None, '"iso"'),
        ([at, 3], None, "1"),
        ([at, 4], [at, 3], "2"),
    ]


def test_posting_equal_content_several_times_stores_several_messages(call: Caller) -> None:
    for _ in range(3):
        call("POST", "/streams/s/data", content='{"on":true}')
    assert [(found["content"], found["sequenceNumber"]) for found in stored(call)] == [
        ({"on": True}, number) for number in range(3)
    ]


def test_a_key_chooses_the_partition(make_broker: Any, make_caller: Any) -> None:
    call = make_caller(make_broker(streams={"wide": 5}))
    for key in ("a", "b", "key-1"):
        call("POST", f"/streams/wide/data?pkey={key}", content=json.dumps(key))
    for partition, key in ((4, "a"), (1, "b"), (2, "key-1")):
        [found] = call("GET", f"/streams/wide/data/partitions/{partition}/last").json()
        assert (found["content"], found["streamPartition"]) == (key, partition)
    for number in range(40):
        call("POST", "/streams/wide/data", content=str(number))
    used = [bool(call("GET", f"/streams/wide/data/partitions/{p}/last?count=9").json()[1:]) for p in range(5)]
    assert sum(used) > 1, "without a key any partition will do"


def test_a_signed_message_needs_no_token_and_a_forged_one_is_refused(call: Caller, broker: Any, alice: Any) -> None:
    at = broker.clock()
    signature = alice.message("s", '{"a":1}', at)[10]
    query = f"ts={at}&address={alice.address}&msgChainId=chain&signatureType=2&signature={signature}"
    assert call("POST", f"/streams/s/data?{query}", content='{"a":1}').status_code == 200
    assert call("POST", f"/streams/s/data?{query}", content='{"a":1}').status_code == 200, "a copy goes nowhere"
    [found] = stored(call)
    assert (found["publisherId"], found["signature"]) == (alice.address, signature)
    forged = call("POST", f"/streams/s/data?{query}", content='{"a":2}')
    assert forged.status_code == 400
    assert forged.json()["error"].startswith("The id of this message belongs to one with other content")
    forged = call("POST", f"/streams/s/data?{query}&seq=1", content='{"a":1}')
    assert forged.json()["error"].startswith("Signature validation failed for message: [32,")


def test_an_unsigned_message_may_name_only_the_user_of_its_token(
    call: Caller, broker: Any, alice: Any, bob: Any
) -> None:
    path, token = f"/streams/s/data?address={alice.address}", broker.token(alice)
    assert call("POST", path, broker.token(bob), content="1").status_code == 400
    assert call("POST", path, content="1").status_code == 400
    assert call("POST", path, token, content="1").status_code == 200
    sender = broker.core.index.history("s")[0].sender
    assert sender.identity == alice.address


def test_senders_without_a_name_are_one_peer(call: Caller, broker: Any) -> None:
    for number in range(2):
        call("POST", "/streams/s/data", content=str(number))
    senders = {(m.sender.number, m.sender.identity) for m in broker.core.index.history("s")}
    assert len(senders) == 1


@pytest.mark.parametrize(
    ("query", "body", "status", "text"),
    [
        ("", b"", 400, NO_BODY),
        ("", b"  \n", 400, NO_BODY),
        ("", b"\xff", 400, NO_BODY),
        ("", b"{", 400, "Invalid JSON in stream s: {. Error while parsing was: "),
        ("", b"[" * 300 + b"]" * 300, 400, "Invalid JSON in stream s: ["),
        ("ts=zzz", b"1", 400, "Invalid timestamp: zzz"),
        ("ts=-5", b"1", 400, "Invalid timestamp: -5"),
        ("ts=1969-01-01", b"1", 400, "Invalid timestamp: 1969-01-01"),
        ("ts=" + "9" * 30, b"1", 400, "Invalid timestamp: 999"),
        ("seq=x", b"1", 400, "x is not a valid positive integer"),
        ("prev_ts=1.5", b"1", 400, "1.5 is not a valid positive integer"),
        ("prev_ts=1&prev_seq=", b"1", 400, " is not a valid positive integer"),
        ("ts=5&prev_ts=5", b"1", 400, "prevMessageRef cannot be identical to current."),
        ("signatureType=7", b"1", 400, "Unsupported signature type: 7"),
        ("msgChainId=" + "x" * 256, b"1", 400, "A msgChainId has at most 255 characters"),
        ("", b'"' + b"x" * (1 << 20) + b'"', 413, "more than 1,048,576 bytes"),
    ],
)
def test_invalid_publish_requests_are_refused(call: Caller, query: str, body: bytes, status: int, text: str) -> None:
    refused = call("POST", f"/streams/s/data?{query}", content=body)
    assert refused.status_code == status
    assert refused.json()["error"].startswith(text)
    assert stored(call) == []


@pytest.mark.parametrize("stream", ["s%2F%405", "SYSTEM%2Fkeyexchange%2F0x" + "a" * 40, "tab%09", "x" * 256])
def test_requests_with_an_invalid_stream_name_answer_404(call: Caller, stream: str) -> None:
    for method, path in (("POST", "data"), ("GET", "data/partitions/0/last"), ("GET", "metadata/partitions/0")):
        refused = call(method, f"/streams/{stream}/{path}", content="1")
        assert refused.status_code == 404
        assert re.fullmatch(r"Stream .* not found\.", refused.json()["error"], re.DOTALL)


# Reading


def test_every_kind_of_message_is_shown_in_every_format(call: Caller, broker: Any, alice: Any, recovered: Any) -> None:
    session, at = broker.open(), broker.clock()
    signed = alice.message("s", {"é": "\n"}, at, 1)
    secret = alice.message("s", "ab" * 20, at, 2, encryption=2, group_key="k")
    rotating = alice.message("s", "cd" * 20, at, 3, encryption=2, group_key="k")
    rotating[8] = '["k2","ef"]'
    rotating[10] = alice.sign(f"s0{at}3{alice.address}chain" + "cd" * 20 + rotating[8])
    for message in (signed, secret, rotating):
        assert broker.ask(session, [2, 8, "r", message, None]) == []
    broker.clock.now += 1
    broker.say("s", {"from": "elsewhere"})
    objects = stored(call)
    assert [found["content"] for found in objects] == [
        {"é": "\n"},
        "ab" * 20,
        "cd" * 20,
        {"from": "elsewhere"},
    ]
    assert [found["encryptionType"] for found in objects] == [0, 2, 2, 0]
    assert [found["groupKeyId"] for found in objects] == [None, "k", "k", None]
    rows = [json.loads(text) for text in stored(call, "from?fromTimestamp=0&format=protocol")]
    assert rows[:3] == [signed, secret, rotating]
    assert recovered(rows[3]) == rows[3][1][4] == objects[3]["publisherId"]
    answer = call("GET", "/streams/s/data/partitions/0/from?fromTimestamp=0&format=raw")
    assert answer.headers["content-type"].startswith("text/plain")
    assert [json.loads(line) for line in answer.text.split("\n")] == rows
    old = [json.loads(text) for text in stored(call, "from?fromTimestamp=0&format=protocol&version=31")]
    assert [row[1] for row in old] == [row[1] for row in (rows[0], rows[1], rows[3])], "31 has no word for a new key"
    assert {row[0] for row in old} == {31}


def test_raw_has_one_line_for_each_message_however_it_was_written(call: Caller, broker: Any, alice: Any) -> None:
    message = json.dumps(alice.message("s", 1, broker.clock()), indent=1)
    broker.ask(broker.open(), f'[2,8,"r",{message},null]'.encode())
    assert len(call("GET", f"{LAST}?format=raw").text.splitlines()) == 1


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("last", [8]),
        ("last?count=0", []),
        ("last?count=3", [6, 7, 8]),
        ("last?count=99", list(range(9))),
        ("from?fromTimestamp={0}", list(range(9))),
        ("from?fromTimestamp={1}", [3, 4, 5, 6, 7, 8]),
        ("from?fromTimestamp={1}&fromSequenceNumber=2", [5, 6, 7, 8]),
        ("from?fromTimestamp={0}&publisherId={alice}", [0, 2, 4, 6, 8]),
        ("from?fromTimestamp={0}&publisherId={ALICE}", [0, 2, 4, 6, 8]),
        ("from?fromTimestamp=9999999999999", []),
        ("range?fromTimestamp={0}&toTimestamp={1}", [0, 1, 2, 3, 4, 5]),
        ("range?fromTimestamp={0}&fromSequenceNumber=1&toTimestamp={1}&toSequenceNumber=1", [1, 2, 3, 4]),
        ("range?fromTimestamp={0}&toTimestamp={2}&publisherId={bob}&msgChainId=chain", [1, 3, 5, 7]),
        ("range?fromTimestamp={0}&toTimestamp={2}&publisherId={bob}&msgChainId=other", []),
        ("range?fromTimestamp={2}&toTimestamp={0}", []),
    ],
)
def test_queries_return_the_selected_messages(
    call: Caller, broker: Any, alice: Any, bob: Any, query: str, expected: list[int]
) -> None:
    session, times = broker.open(), [broker.clock() - 2, broker.clock() - 1, broker.clock()]
    for number in range(9):
        publisher = bob if number % 2 else alice
        message = publisher.message("s", number, times[number // 3], number % 3)
        assert broker.ask(session, [2, 8, "r", message, None]) == []
        if number == 4:
            broker.core.settle()  # some are in the tables, some are not
    upper = alice.address.upper().replace("0X", "0x")
    asked = query.format(*times, alice=alice.address, ALICE=upper, bob=bob.address)
    assert [found["content"] for found in stored(call, asked)] == expected


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("0/last?count=x", 'Query parameter "count" not a number: x'),
        ("0/last?count=-1", 'Query parameter "count" not a number: -1'),
        ("x/last", 'Path parameter "partition" not a number: x'),
        ("1/last", "Partition 1 is out of range (0..0)"),
        ("0/last?format=zzz", 'Query parameter "format" is invalid: zzz'),
        ("0/last?version=29", 'Query parameter "version" is invalid: 29'),
        ("0/last?version=x", 'Query parameter "version" not a number: x'),
        ("0/from", 'Query parameter "fromTimestamp" required.'),
        ("0/from?fromTimestamp=", 'Query parameter "fromTimestamp" not a number: '),
        ("0/from?fromTimestamp=1&fromSequenceNumber=x", 'Query parameter "fromSequenceNumber" not a number: x'),
        ("0/from?fromOffset=1", NO_OFFSETS),
        ("0/range?fromOffset=1&toOffset=2", NO_OFFSETS),
        ("0/range", 'Query parameter "fromTimestamp" required.'),
        ("0/range?fromTimestamp=1", NO_END),
        ("0/range?fromTimestamp=1&toTimestamp=²", 'Query parameter "toTimestamp" not a number: ²'),
        ("0/range?fromTimestamp=1&toTimestamp=2&msgChainId=x", 'Invalid combination of "publisherId" and "msgChainId"'),
    ],
)
def test_an_invalid_query_is_refused_with_its_parameter(call: Caller, query: str, text: str) -> None:
    refused = call("GET", f"/streams/s/data/partitions/{query}")
    assert refused.status_code == 400
    assert refused.json() == {"error": text}


def test_metadata_counts_messages_and_bytes(call: Caller, broker: Any) -> None:
    assert call("GET", "/streams/s/metadata/partitions/0").json() == {
        "totalBytes": 0,
        "totalMessages": 0,
        "firstMessage": 0,
        "lastMessage": 0,
    }
    first = broker.say("s", 1).time
    broker.clock.now += 5
    broker.say("s", 2)
    raw = call("GET", "/streams/s/data/partitions/0/from?fromTimestamp=0&format=raw").content
    assert call("GET", "/streams/s/metadata/partitions/0").json() == {
        "totalBytes": len(raw) - 1,
        "totalMessages": 2,
        "firstMessage": first,
        "lastMessage": first + 5,
    }
    assert call("GET", "/streams/s/storage/partitions/0").json() == {}
    assert call("GET", "/streams/s/storage/partitions/9").status_code == 400


def test_ids_come_encoded_or_with_bare_slashes(call: Caller) -> None:
    for path in ("/streams/my/stream/data", "/streams/my%2Fstream/data"):
        assert call("POST", path, content="1").status_code == 200
    assert len(stored(call, stream="my/stream")) == len(stored(call, stream="my%2Fstream")) == 2
