"""Lines are parsed into rows as by the standard library's JSON and by the gateway's reader."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import pytest

from gateway.core.message import Message, Peer
from gateway.storage.record import BadRecord, decode
from pipeline.schemas import MESSAGES
from pipeline.sources.fast_decoder import Row, decode_fast
from pipeline.sources.records import BATCH_ROWS, batch, decode_row, parse_lines
from tests.pipeline.generate import GATEWAY, NASTY, START, lines, message, talk

NAMES = MESSAGES.schema.fieldNames()
PLAIN = (
    "channel",
    "id",
    "protocol",
    "peer",
    "sender",
    "sender_protocol",
    "parent",
    "ids",
    "key",
    "undelivered",
    "wire",
)


def sealed(body: bytes) -> bytes:
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def by_hand(line: bytes) -> dict[str, Any]:
    """The row of a good line, by the standard library."""
    text = line.decode()
    record = json.loads(text, parse_float=finite)
    row: dict[str, Any] = dict.fromkeys(NAMES) | {name: record[name] for name in ("seq", "time", "kind", "crc")}
    row |= {"gateway_id": GATEWAY, "day": datetime.fromtimestamp(record["time"] // 1000, UTC).date()}
    if record["kind"] != "message":
        return row | {"protocol": record.get("protocol"), "fact": f"{text[: text.rindex(',', 0, -1)]}}}"}
    start = text.index(',"content":') + len(',"content":')
    inner = len(text[start:]) - len(text[start:].lstrip())
    _, end = json.JSONDecoder().raw_decode(text, start + inner)
    row |= {name: record.get(name) for name in PLAIN} | {"timestamp": record.get("timestamp", record["time"])}
    row["content"] = text[start : text.index(',"', end)]
    for name in ("native", "refs"):
        row[name] = None if record.get(name) is None else json.dumps(record[name], separators=(",", ":"))
    return row


def same(row: Row, expected: dict[str, Any]) -> None:
    assert plain(row) == {**expected, **{name: value_of(expected[name]) for name in ("native", "refs")}}


def plain(row: Row) -> dict[str, Any]:
    """*row* with texts as texts, and of `native` and `refs` the value, whoever wrote its text."""
    found = dict(zip(NAMES, row, strict=True))
    if isinstance(found["content"], bytes):
        found["content"] = found["content"].decode()
    return found | {name: value_of(found[name]) for name in ("native", "refs")}


def value_of(text: str | bytes | None) -> Any:
    return None if text is None else [json.loads(text, parse_float=finite)]


def finite(digits: str) -> float | None:
    return float(digits) if abs(float(digits)) < 1e999 else None


def test_rows_are_those_of_the_standard_library() -> None:
    said = lines([*talk(600, seed=4), *(message(601 + i, START, text) for i, text in enumerate(NASTY))])
    assert {json.loads(line)["kind"] for line in said} > {"message"}
    for line in said:
        same(decode_row(line, GATEWAY), by_hand(line))
        if row := decode_fast(line, GATEWAY):
            same(row, by_hand(line))
        else:
            assert b'"kind":"message"' not in line or b"\\ud800" in line, "what the gateway says is usual"


@pytest.mark.parametrize(
    "content", ["[1e400,-0,1E+2,0.10]", "123456789012345678901234567890", '{ "a" :\t1 , "b":[ ] }']
)
def test_no_digit_and_no_space_of_a_content_changes(content: str) -> None:
    line = lines([message(5, START, content.encode(), refs={"toy": [1 << 60, 1e22]}, wire="ü\U0001f600".encode())])[0]
    found = dict(zip(NAMES, decode_row(line, GATEWAY), strict=True))
    assert (found["content"], found["wire"]) == (content, "ü\U0001f600")
    assert json.loads(found["refs"]) == {"toy": [1 << 60, 1e22]}


def spoiled(dice: random.Random, line: bytes) -> bytes:
    """*line* with something wrong: its bytes, its checksum, or what is said under a good checksum."""
    at, body = dice.randrange(1, len(line) - 20), line[:-19]
    cuts = (
        line[:at] + b"\n",
        line[:at] + bytes([line[at] ^ 1 << dice.randrange(7)]) + line[at + 1 :],
        sealed(body[:at]),
        sealed(body[:at] + b"\xff" + body[at:]),
        sealed(body[:at] + dice.choice((b'"', b"\\", b"{", b",", b" ", b"0", b"\\ud800")) + body[at:]),
        sealed(body + b',"x":' + dice.choice((b"[" * 300 + b"]" * 300, b"NaN", b"1e999", b"9" * 5000, b'"\\udc00"'))),
        sealed(body.replace(b'"peer":', dice.choice((b'"peer":"x', b'"peer":null,"p":', b'"peer":1.5,"p":')), 1)),
        line[:-1],
        b"\n",
        b"Nov 21 12:00:00 host kernel: hello\n",
    )
    return dice.choice(cuts)


@pytest.mark.parametrize("seed", range(4))
def test_parse_lines_accepts_only_the_records_of_the_gateway(seed: int) -> None:
    """And its row says what the gateway reads in it, whatever happened to the line."""
    dice = random.Random(seed)
    verdicts = {"row": 0, "reject": 0, "unfit": 0}
    for line in lines(talk(1500, seed)):
        told = spoiled(dice, line) if dice.random() < 0.8 else line
        (taken,) = parse_lines([(7, told)], "file", GATEWAY, 1, 1 << 62)
        try:
            entry = decode(told) if told.endswith(b"\n") else None
        except BadRecord:
            entry = None
        if taken.records.num_rows:
            assert entry is not None
            assert not taken.rejects
            compare(taken.records.to_pylist()[0], entry, told)
            verdicts["row"] += 1
        else:
            ((file, number, reason, raw),) = taken.rejects
            assert (file, number) == ("file", 7)
            assert reason.partition(":")[0] in ("torn", "checksum", "foreign", "corrupt")
            assert told.startswith(raw[:20].encode()) or b"\xff" in told or b"\0" in told
            verdicts["reject" if entry is None else "unfit"] += 1
    assert verdicts["row"] > 100 < verdicts["reject"]
    assert verdicts["unfit"] < 150, "a type that no column holds, or a head that is not the gateway's"


def compare(row: dict[str, Any], entry: Any, line: bytes) -> None:
    assert (row["seq"], row["time"], row["crc"]) == (
        entry.seq,
        entry.time,
        json.loads(line[line.rindex(b'"crc"') + 6 : -2]),
    )
    if not isinstance(entry, Message):
        assert (row["kind"], row["protocol"] or "") == (entry.kind, half(entry.protocol))
        return
    assert row["content"] == entry.content.decode()
    assert row["wire"] == (None if entry.wire is None else entry.wire.decode("utf-8", "replace"))
    assert (row["channel"], row["id"], row["key"]) == tuple(map(half, (entry.channel, entry.id, entry.key)))
    assert (row["peer"], row["timestamp"]) == (entry.sender.number, entry.timestamp)
    assert (row["sender"], row["parent"]) == (half(entry.sender.identity), half(entry.parent))


def half(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode()


# Ways in which a line is no usual one, though its checksum agrees.
ODD = {
    b'"peer":': (b'1.0,"p":', b'true,"p":', b'1e2,"p":', b'-0,"p":', b"9%d," % 10**20, b"9223372036854775808,"),
    b'"content":': (b" ", b'1 ,"x":', b'1,"content":', b'{"content":2},"content":', b'"\xff","c":', b"", b'NaN,"c":'),
    b'"kind":': (b'"peer","kind":', b'"message","kind":', b" ", b'null,"k":'),
    b'{"seq":': (b" ", b'9,"seq":', b"0", b"1e0,", b"-"),
    b"{": (b" ", b'"time":1,', b'"x":{"a":1,"content":2},', b'"x":1,', b'"native":{"content":1},'),
    b'"channel":': (b'"{,\\"content\\":","channel":', b'5,"c":', b'"\xff","c":', b'"\0","c":', b'"\\q","c":'),
}
# fmt: off
BEHIND = (
    b'"native":null', b'"native":[1]', b'"native":"x"', b'"native":{"a":1e999}', b'"native":{ "a" : [1.50] }',
    b'"timestamp":null', b'"timestamp":7', b'"timestamp":9223372036854775808', b'"timestamp":9223372036854775807',
    b'"ids":null', b'"ids":[null]', b'"ids":[]', b'"ids":"x"', b'"sender":5', b'"sender":null', b'"sender":"s"',
    *(b'"refs":' + b"[" * depth + b"]" * depth for depth in (199, 200, 201, 300, 3000)),
    b'"content":1', b'"seq":2', b'"crc":"00000000"', b'"x":1', b'"refs":{"a":"\xff"}', b'"wire":"\xff"', b'"refs":null',
    b'"refs":"\\ud800"', b'"key":"\\ud800"', b'"refs":tru', b'"refs":01', b'"refs":', b'"refs', b'"refs":1,', b"",
)
# fmt: on


@pytest.mark.parametrize("seed", range(2))
def test_the_fast_decoder_agrees_with_the_general_one(seed: int) -> None:
    dice = random.Random(seed)
    taken = refused = 0
    for line in lines(talk(3000, seed)):
        told = odd(dice, line) if dice.random() < 0.7 else spoiled(dice, line)
        row = decode_fast(told, GATEWAY)
        if row is None:
            refused += 1
            continue
        taken += 1
        found, expected = plain(row), plain(decode_row(told, GATEWAY))
        if repeated(told):
            found["content"] = expected["content"]  # which is cut at the wrong place: nobody writes such a line
        assert found == expected, told
        batch([row])
    assert taken > 250 < refused


def test_a_nested_content_member_is_not_taken_for_the_content() -> None:
    rest = b',"channel":"c","id":"i","kind":"message","protocol":"p","peer":1,"content":1,"key":"k"'
    for native, takes in ((b"", True), (b',"native":{"a":1,"content":1,"b":2}', False)):
        assert bool(decode_fast(sealed(b'{"seq":5,"time":6%b%b' % (native, rest)), GATEWAY)) is takes


def repeated(line: bytes) -> bool:
    """Whether a name comes twice in the record."""
    pairs = json.loads(line, object_pairs_hook=list)
    return len(pairs) > len({name for name, _ in pairs})


def odd(dice: random.Random, line: bytes) -> bytes:
    body = line[:-19]
    if dice.random() < 0.5:
        return sealed(b"%b,%b" % (body, dice.choice(BEHIND)))
    name = dice.choice([*ODD])
    return sealed(body.replace(name, name + dice.choice(ODD[name]), 1))


def test_half_characters_of_a_name_become_question_marks() -> None:
    line = lines([message(2, START, b'"\\ud800"', id="a\ud800", ids=("\udc00",), sender=Peer(1, "toy", "\ud801"))])
    (taken,) = parse_lines([(1, line[0])], "file", GATEWAY, 1, 9)
    (row,) = taken.records.to_pylist()
    assert (row["id"], row["ids"], row["sender"], row["content"]) == ("a?", ["?"], "?", '"\\ud800"')


def test_one_row_that_no_column_holds_does_not_harm_its_neighbours() -> None:
    good = lines(talk(20))
    odd = sealed(
        b'{"seq":21,"time":5,"channel":"c","id":"i","kind":"message","protocol":"p","peer":1,"content":1,"key":5'
    )
    (taken,) = parse_lines(enumerate([*good, odd], 1), "file", GATEWAY, 1, 99)
    assert taken.records.num_rows == 20
    assert [(line, reason.partition(":")[0]) for _, line, reason, _ in taken.rejects] == [(21, "corrupt")]


def test_batches_are_bounded_and_places_are_kept() -> None:
    small = [message(seq, START) for seq in range(1, BATCH_ROWS + 20)]
    told = lines(small)
    told[4], told[BATCH_ROWS + 5] = b"x\n", told[BATCH_ROWS + 3]
    taken = list(parse_lines(enumerate(told, 1), "file", GATEWAY, 1, 1 << 62))
    assert [one.records.num_rows for one in taken] == [BATCH_ROWS, 17]
    rejects = [(line, reason.partition(":")[0]) for one in taken for _, line, reason, _ in one.rejects]
    assert rejects == [(5, "foreign"), (BATCH_ROWS + 6, "duplicate")]
