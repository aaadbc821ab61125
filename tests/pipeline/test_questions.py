"""The queries of docs/questions.md agree with plain Python on a small log."""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gateway.core.message import Message, Peer
from gateway.storage.record import encode
from pipeline.catalog import register
from pipeline.schemas import (
    ANSWERS,
    FOREST,
    GAPS,
    INTEGRITY,
    LATENCY_MINUTE,
    MESSAGES,
    PUBLISHERS,
    REJECTS,
    TableSpec,
)
from pipeline.sources.records import decode_row
from pipeline.transforms.questions import SOURCES
from pipeline.transforms.questions import TABLES as ANSWERED
from pipeline.transforms.questions import answer as transform
from tests.pages import blocks
from tests.pipeline.generate import GATEWAY, lines, message, start

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
WHOM, FIRST, SLOW, BACK, DEPTHS, BYTES, WRONG, WHOSE, TWICE, LONG, WORD = [block.code for block in blocks(PAGE)]
WEEK = 7 * 86_400_000
MONDAY = 1_763_942_400_000  # 2025-11-24


def talk() -> list[Message]:
    """Messages of four weeks, some of which answer others by one of their ids; some are there twice."""
    dice = random.Random(20)
    told: list[Message] = []
    for seq in range(2, 302):
        speaks = dice.choice(("rest", "sprout", "streamr"))
        identity = dice.choice((None, "ann", "bob", "ü"))  # only who has one may have it in another protocol
        peer = Peer(dice.randrange(3), dice.choice((speaks, "topic_relay")) if identity else speaks, identity)
        asked = dice.choice(told) if told and dice.random() < 0.5 else None
        more: dict[str, Any] = {"channel": dice.choice(("lobby", "weather")), "protocol": speaks, "sender": peer}
        more["parent"] = None if asked is None else dice.choice((asked.id, *asked.ids))
        more["ids"] = dice.choice(((), (f"other-{seq}",)))
        more["wire"] = dice.choice((None, b'"\xc3\xbc"'))
        more["refs"] = dice.choice(({}, {"streamr": [1, 0]}))
        more["undelivered"] = dice.choice(((), (), ("sprout",), ("sprout", "streamr")))
        more["id"] = dice.choice(told).id if told and dice.random() < 0.05 else f"id-{seq}"
        text = dice.choice(("hi", "the WEATHER", "weather ü", ""))
        content = json.dumps({"text": text}, ensure_ascii=False).encode() if dice.random() < 0.9 else b'"weather"'
        told.append(message(seq, MONDAY + seq * WEEK // 90, content, **more))
    return told


TOLD = talk()


def latencies() -> list[tuple[Any, ...]]:
    """Minutes of two paths, some without a measured delivery, some as slow as another."""
    dice = random.Random(21)
    told: list[tuple[Any, ...]] = []
    for n in range(40):
        minute = datetime(2025, 11, 24, 10, n // 2)
        p99 = dice.choice((None, float(dice.randrange(9))))
        told.append((minute, "rest", ("sprout", "streamr")[n % 2], n, p99 and p99 / 3, p99 and p99 / 2, p99, 0))
    return told


LATENCIES = latencies()
FAULTY = [("streamr", f"0x{n}", 9, n % 3, None, n % 2, None) for n in range(12)]
FAULTY += [("sprout", f"n{n}", 9, 0, None, n, None) for n in range(3)]


@pytest.fixture(scope="module")
def asked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session in which the tables have rows with known answers."""
    register(spark, tmp_path_factory.mktemp("empty"))
    logged = [decode_row(line, GATEWAY) for line in lines([start(1, MONDAY), *TOLD])]
    verdict = (GATEWAY, 2, "x", "eth", "bad", "signed by another", 0, "0xa")
    gap = ("s", 0, "p", "c", 1, 0, 1, 0, 1, 0)
    tables: dict[TableSpec, list[tuple[Any, ...]]] = {
        MESSAGES: logged,
        REJECTS: [("f", 1, "checksum", ""), ("f", 2, "foreign: it is", ""), ("f", 3, "foreign: so", "")],
        INTEGRITY: [verdict, (*verdict[:4], "ok", None, *verdict[6:]), (GATEWAY, 3, *verdict[2:])],
        GAPS: [(*gap, "open"), (*gap, "filled"), (*gap, "fork"), (*gap, "open")],
        LATENCY_MINUTE: LATENCIES,
        PUBLISHERS: FAULTY,
        FOREST: [(name, name[0], True, True, 0, name != name[0], 3) for name in ("a", "ab", "ac", "b", "bd")],
    }
    for spec, rows in tables.items():
        name = spec.name.rpartition("/")[2]
        spark.createDataFrame(rows, spec.schema).coalesce(1).createOrReplaceTempView(name)
    sources = {name: spark.table(name) for name in SOURCES}
    for spec in ANSWERED:
        transform(spec, sources).createOrReplaceTempView(spec.name.rpartition("/")[2])
    return spark


def rows(asked: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in asked.sql(query).collect()]


def who(one: Message) -> tuple[str, str]:
    return one.sender.protocol, one.sender.identity or f"peer {one.sender.number}"


def test_the_query_of_answers_counts_pairs_of_senders(asked: SparkSession) -> None:
    expected: Counter[tuple[str, ...]] = Counter()
    for answer in TOLD:
        told = {who(one) for one in TOLD if one.seq < answer.seq and answer.parent in (one.id, *one.ids)}
        expected.update((*who(answer), *other) for other in told)
    found = rows(asked, WHOM)
    assert {row[:4]: row[4] for row in found} == expected
    assert [row[4] for row in found] == sorted(expected.values(), reverse=True)


def test_answers_in_two_gateways_are_two(spark: SparkSession) -> None:
    """Two logs in one warehouse have the same sequences."""
    pair = lines([start(1, MONDAY), message(2, MONDAY, id="a"), message(3, MONDAY, id="b", parent="a")])
    logged = [decode_row(line, gateway) for gateway in ("one", "two") for line in pair]
    told = {"messages": spark.createDataFrame(logged, MESSAGES.schema)}
    empty = {name: spark.createDataFrame([], spec.schema) for name, spec in SOURCES.items() if name not in told}
    assert [row.answers for row in transform(ANSWERS, told | empty).collect()] == [2]


def test_the_query_of_first_answers_gives_quantiles(asked: SparkSession) -> None:
    took: defaultdict[str, list[int]] = defaultdict(list)
    for one in TOLD:
        answers = [other.time for other in TOLD if other.seq > one.seq and other.parent in (one.id, *one.ids)]
        if answers:
            took[one.channel].append(min(answers) - one.time)
    cut = {channel: quantiles(ms, n=20, method="inclusive") for channel, ms in took.items()}
    assert rows(asked, FIRST) == [
        (channel, len(took[channel]), pytest.approx(cut[channel][9]), pytest.approx(cut[channel][18]))
        for channel in sorted(took)
    ]


def test_when_deliveries_were_slow(asked: SparkSession) -> None:
    measured = [row[:7] for row in LATENCIES if row[6] is not None]
    assert rows(asked, SLOW) == sorted(measured, key=lambda row: (-row[6], *row[:3]))[:20]
    assert len(measured) < len(LATENCIES)


def test_whose_messages_are_missing_or_forged(asked: SparkSession) -> None:
    wrong = [(*row[:4], row[5]) for row in FAULTY if row[3] or row[5]]
    assert rows(asked, WHOSE) == sorted(wrong, key=lambda row: (-row[3] - row[4], row[:2]))
    assert 3 < len(wrong) < len(FAULTY)


def test_the_query_of_returning_senders_counts_them_by_week(asked: SparkSession) -> None:
    weeks: defaultdict[tuple[str, str], set[Any]] = defaultdict(set)
    for one in TOLD:
        if one.sender.identity is not None:
            day = datetime.fromtimestamp(one.time / 1000, UTC).date()
            weeks[who(one)].add(day - timedelta(day.weekday()))
    expected = Counter((min(known), (week - min(known)).days // 7) for known in weeks.values() for week in known)
    assert rows(asked, BACK) == [(*key, n) for key, n in sorted(expected.items())]
    assert len(expected) > 3


def test_the_query_of_threads_counts_them_by_depth(asked: SparkSession) -> None:
    depth: dict[int, int] = {}
    top: dict[int, int] = {}
    took: defaultdict[int, list[int]] = defaultdict(list)
    for one in TOLD:
        known = [other for other in TOLD if other.seq < one.seq and one.parent in (other.id, *other.ids)]
        if known:
            depth[one.seq], top[one.seq] = depth.get(known[0].seq, 0) + 1, top.get(known[0].seq, known[0].seq)
            took[depth[one.seq]].append(one.time - known[0].time)
    deepest = {seq: max(depth[other] for other in top if top[other] == seq) for seq in set(top.values())}
    ends = Counter(deepest.values())
    below = [(n, len(took[n]), ends[n], pytest.approx(median(took[n]))) for n in sorted(took)]
    assert rows(asked, DEPTHS) == [(0, len(deepest), 0, None), *below]
    assert len(below) > 5, "more than two rounds of climbing"


def test_the_query_of_bytes_sums_them_by_channel(asked: SparkSession) -> None:
    count, size = Counter(one.channel for one in TOLD), defaultdict[str, list[int]](lambda: [0, 0, 0])
    for one in TOLD:
        line = json.loads(encode(one))
        more = sum(len(json.dumps(line[name], separators=(",", ":"))) for name in ("native", "refs") if name in line)
        for place, n in enumerate((len(one.content), len(one.wire or b""), more)):
            size[one.channel][place] += n
    expected: list[tuple[Any, ...]] = [(channel, count[channel], *sizes, sum(sizes)) for channel, sizes in size.items()]
    assert rows(asked, BYTES) == sorted(expected, key=lambda row: -row[-1])
    assert all(sizes[2] for sizes in size.values())


def test_the_query_of_duplicates_counts_repeated_ids(asked: SparkSession) -> None:
    contents: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    for one in TOLD:
        contents[one.channel, one.id].append(one.content)
    expected = [(*key, len(told), len(set(told))) for key, told in contents.items() if len(told) > 1]
    assert rows(asked, TWICE) == sorted(expected, key=lambda row: (-row[2], row[:2]))
    assert expected


def test_the_query_of_faults_counts_each_kind(asked: SparkSession) -> None:
    missed = Counter(name for one in TOLD for name in one.undelivered)
    said: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    for one in TOLD:
        said[one.channel, one.id].append(one.content)
    copies = Counter[str]()
    for told in said.values():
        copies["another content" if len(set(told)) > 1 else "the same content"] += len(told) - 1
    assert all(missed.values())
    assert all(copies.values())
    assert rows(asked, WRONG) == [
        ("chain", "fork", 1),
        ("chain", "open", 2),
        ("check eth", "signed by another", 2),
        *(("copy", cause, n) for cause, n in sorted(copies.items())),
        ("line", "checksum", 1),
        ("line", "foreign", 2),
        *(("undelivered", name, n) for name, n in sorted(missed.items())),
    ]


def test_the_query_of_conversations_lists_the_longest(asked: SparkSession) -> None:
    assert rows(asked, LONG) == [("a", 3, 2), ("b", 2, 1)]


def test_the_query_of_words_finds_matching_messages(asked: SparkSession) -> None:
    def expected(*words: str) -> list[tuple[Any, ...]]:
        told = sorted(TOLD, key=lambda one: -one.time)
        found = [one for one in told if {*words} <= {*re.findall(r"\w+", one.content.decode().lower())}]
        return [(one.channel, one.sender.identity, one.content.decode()) for one in found]

    assert [row[1:] for row in rows(asked, WORD)] == expected("weather", "ü")[:100]
    assert len(expected("weather", "ü")) > 30
    for query, words in {
        "Weather": ["weather"],
        "weath": ["weath"],
        ".* (weather": ["weather"],
        "x'' OR": ["or"],
    }.items():
        found = rows(asked, f"SELECT channel, sender, content FROM search('{query}') ORDER BY at DESC")
        assert found == expected(*words)
    assert rows(asked, "SELECT * FROM search(' .')") == [], "nothing was asked"
    catalog = asked.conf.get("spark.sql.warehouse.dir")  # a function makes this folder
    assert catalog is not None
    assert catalog.endswith("/.checkpoints"), "none where Spark runs"
