"""The transforms agree with plain Python on small tables."""

from __future__ import annotations

import json
import random
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import defaultdict
from datetime import UTC, datetime
from hashlib import new
from pathlib import Path
from typing import Any

import pytest
from coincurve import PrivateKey
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from adapters.streamr.crypto.signing import address_of, sign, sign_message, signed_payloads
from adapters.streamr.wire.message import ETH_LEGACY, MessageID, MessageRef, StreamMessage
from gateway.core.message import Peer
from gateway.storage.record import Entry, Fact
from pipeline import codecs
from pipeline.schemas import ARBOR_NODES, FOREST, GAPS, INTEGRITY, MESSAGES, STREAMR, TOPIC_PACKETS
from pipeline.sources.records import decode_row
from pipeline.transforms import decode, integrity
from pipeline.transforms import gaps as gaps_module
from pipeline.transforms.forest import forest, shown
from pipeline.transforms.gaps import gaps
from pipeline.transforms.latency import latency, latency_minute
from pipeline.transforms.stats import channel_minute
from tests.pipeline.forest_nodes import drawn_node, random_nodes
from tests.pipeline.generate import GATEWAY, START, lines, message, start, talk

VECTORS = Path(__file__).parents[1] / "vectors"
KEY = PrivateKey(bytes(31) + b"\7")
ADDRESS = address_of(KEY.public_key)


def bronze(spark: SparkSession, entries: list[Entry]) -> DataFrame:
    return spark.createDataFrame([decode_row(line, GATEWAY) for line in lines(entries)], MESSAGES.schema)


def dicts(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


# Streamr


def stream_entry(seq: int, said: StreamMessage) -> Entry:
    more: dict[str, Any] = {"protocol": "streamr", "wire": said.encode(32), "native": {"streamr": list(said.id)}}
    return message(seq, START + seq, said.content.encode(), sender=Peer(1, "streamr", ADDRESS), **more)


def said(
    ts: int, seq: int = 0, prev: tuple[int, int | None] | None = None, chain: str = "c", **more: Any
) -> StreamMessage:
    id = MessageID("s", 0, ts, seq, ADDRESS, chain)
    return StreamMessage(id, more.pop("content", '{"a":1}'), None if prev is None else MessageRef(*prev), **more)


def test_streamr_is_decoded(spark: SparkSession) -> None:
    good = sign_message(said(5, 1, (4, None)), KEY)
    broken = message(3, START, protocol="streamr", wire=b'[32,["s",0],null]')
    found = dicts(decode.streamr(bronze(spark, [stream_entry(2, good), broken, message(4, START)])))
    assert [set(row) for row in found] == [set(STREAMR.schema.fieldNames())] * 2
    first, second = sorted(found, key=lambda row: row["log_seq"])
    assert first == {
        **dict.fromkeys(STREAMR.schema.fieldNames()),
        **{"gateway_id": GATEWAY, "log_seq": 2, "stream": "s", "partition": 0, "publisher": ADDRESS, "chain": "c"},
        **{"ts": 5, "seq": 1, "prev_ts": 4, "prev_seq": 0, "version": 32, "message_type": 27, "encryption_type": 0},
        **{"signature_type": 2, "content": '{"a":1}', "signature": good.signature},
    }
    assert second["fault"] is not None
    assert second["stream"] is None


def test_the_decrypted_content_of_an_encrypted_message_is_used(spark: SparkSession) -> None:
    sealed = sign_message(said(5, content="c0ffee", encryption_type=2, group_key_id="k"), KEY)
    wrapped = b'{"encrypted":{"groupKeyId":"k","content":"c0ffee"}}'
    given = {"protocol": "streamr", "wire": sealed.encode(32), "native": {"streamr": list(sealed.id)}}
    rows: list[Entry] = [message(2, START, b'{"a": 1}', **given), message(3, START, wrapped, **given)]
    found = sorted(dicts(decode.streamr(bronze(spark, rows))), key=lambda row: row["log_seq"])
    assert [row["content"] for row in found] == ['{"a": 1}', "c0ffee"]
    assert {row["encryption_type"] for row in found} == {2}


def test_every_kind_of_signature_gets_its_verdict(spark: SparkSession) -> None:
    legacy = said(6, content='{"old":"ü"}', signature_type=ETH_LEGACY)
    legacy = StreamMessage(
        legacy.id, legacy.content, signature_type=ETH_LEGACY, signature=sign(signed_payloads(legacy)[0], KEY)
    )
    good = sign_message(said(5), KEY)
    forged = StreamMessage(good.id, '{"a":2}', signature_type=2, signature=good.signature)
    utf16 = sign_message(said(7, content='{"a":"ü"}'), KEY, utf16=True)
    bare = StreamMessage(good.id, "{}", signature_type=2)
    all_of_them = [good, legacy, forged, utf16, said(8), bare]
    rows = bronze(spark, [stream_entry(seq, one) for seq, one in enumerate(all_of_them, 2)])
    found = {row["log_seq"]: row for row in dicts(integrity.streamr(rows, 99))}
    told = [(found[seq]["check"], found[seq]["verdict"]) for seq in sorted(found)]
    assert told == [
        ("eth", "ok"),
        ("eth_legacy", "ok"),
        ("eth", "bad"),
        ("eth", "ok"),
        ("eth", "unverifiable"),
        ("eth", "bad"),
    ]
    assert found[4]["reason"] == "a forged signature"
    assert json.loads(found[2]["native_id"]) == list(good.id)
    assert {row["checked_at"] for row in found.values()} == {99}


def chains(seed: int) -> list[dict[str, Any]]:
    """Rows of `silver/streamr`: chains with messages left out, late ones, twice ones, and references without number."""
    dice = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for chain in range(6):
        place: tuple[int, int] = (dice.randrange(50), 0)
        previous: tuple[int, int] | None = None
        told: list[tuple[tuple[int, int], tuple[int, int] | None]] = []
        for _ in range(60):
            told.append((place, previous))
            previous = place
            place = (place[0], place[1] + 1) if dice.random() < 0.3 else (place[0] + dice.randrange(1, 5), 0)
        kept = [one for one in told if dice.random() > 0.1]
        kept += dice.sample(kept, 4)
        kept += [((9_000 + chain, 0), dice.choice(told)[0])]  # follows any older one
        for n, (at, before) in enumerate(kept):
            late = dice.random() < 0.1
            rows.append({"chain": f"c{chain}", "at": at, "before": before, "order": n + (30 if late else 0)})
    rows.sort(key=lambda row: row["order"])
    return rows


def gaps_by_hand(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    found = set()
    by_chain = defaultdict(list)
    for arrived, row in enumerate(rows):
        by_chain[row["chain"]].append((row["at"], row["before"], arrived))
    for chain, told in by_chain.items():
        first_seen: dict[tuple[int, int], int] = {}
        links = {}
        for at, before, arrived in told:
            if at not in first_seen:
                first_seen[at], links[at] = arrived, before
        places = sorted(first_seen)
        for n, at in enumerate(places):
            want = links[at]
            have = places[n - 1] if n else None
            if want is None:
                continue
            if have is None:
                state = "unknown before"
            elif want == have:
                if first_seen[have] <= first_seen[at]:
                    continue
                state = "filled"
            else:
                state = "fork" if want in first_seen else "open"
            found.add((chain, at, want, have, state))
    return found


def test_gaps_are_those_that_a_loop_finds(spark: SparkSession) -> None:
    rows = [row | {"chain": f"{seed} {row['chain']}"} for seed in range(2) for row in chains(seed)]
    fields = STREAMR.schema.fieldNames()
    told = []
    for arrived, row in enumerate(rows):
        values = {**dict.fromkeys(fields), "stream": "s", "partition": 0, "publisher": "p", "chain": row["chain"]}
        values |= {"ts": row["at"][0], "seq": row["at"][1], "log_seq": arrived, "gateway_id": GATEWAY}
        if row["before"] is not None:
            values |= {"prev_ts": row["before"][0], "prev_seq": row["before"][1]}
        told.append(tuple(values[name] for name in fields))
    found = gaps(spark.createDataFrame(told, STREAMR.schema))
    assert found.columns == GAPS.schema.fieldNames()
    have = {
        (
            row["chain"],
            (row["ts"], row["seq"]),
            (row["want_ts"], row["want_seq"]),
            None if row["have_ts"] is None else (row["have_ts"], row["have_seq"]),
            row["state"],
        )
        for row in dicts(found)
    }
    expected = gaps_by_hand(rows)
    assert have == expected
    assert {state for *_, state in expected} == {"open", "filled", "unknown before", "fork"}


@pytest.mark.parametrize("most", [0, 100_000])
def test_forks_are_found_at_any_number(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Also where they are too many to be sent to all workers; late is only what the same gateway logged later."""
    monkeypatch.setattr(gaps_module, "MOST_BROADCAST", most)
    fields = STREAMR.schema.fieldNames()

    def row(gateway: str, logged: int, chain: str, ts: int, prev: int | None) -> tuple[Any, ...]:
        told = {"stream": "s", "partition": 0, "publisher": "p", "chain": chain, "ts": ts, "seq": 0, "prev_ts": prev}
        told |= {"gateway_id": gateway, "log_seq": logged, "prev_seq": None if prev is None else 0}
        return tuple((dict.fromkeys(fields) | told)[name] for name in fields)

    rows = [row("a", 1, "fork", 1, None), row("a", 2, "fork", 2, 1), row("a", 3, "fork", 3, 1)]
    rows += [row("a", 5, "late", 1, None), row("a", 4, "late", 2, 1)]
    rows += [row("a", 9, "two gateways", 1, None), row("b", 4, "two gateways", 2, 1)]
    found = gaps(spark.createDataFrame(rows, STREAMR.schema)).collect()
    assert sorted((each.chain, each.ts, each.state) for each in found) == [("fork", 3, "fork"), ("late", 2, "filled")]


def test_numbers_that_no_column_holds_are_faults() -> None:
    """A log that was imported or adopted may have them, and a batch with one would fail for ever."""
    for partition, fault in ((2**31 - 1, None), (2**31, "partition 2147483648 is too large")):
        wire = StreamMessage(MessageID("s", partition, 1, 0, "p", "c"), "{}").encode(32).decode()
        assert codecs.stream(wire).fault == fault
    for kind, fault in (("6", None), ("3000000000", "its type is too large"), ("1e999", "its type is too large")):
        assert codecs.packet(f'{{"type":{kind},"topic":"t"}}').fault == fault


# Arbor


def nodes() -> list[dict[str, Any]]:
    """The nodes that genuine programs made and signed."""
    told: list[dict[str, Any]] = json.loads((VECTORS / "sprout/valid.json").read_text())
    return [one for one in told if one["well_formed_and_signed"]]


def b64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def node_entry(seq: int, id: str, raw: bytes) -> Entry:
    if raw[2] == 2:
        sender = Peer(1, "sprout", "who")
        return message(seq, START, protocol="sprout", sender=sender, wire=b64(raw).encode(), native={"sprout": id})
    return Fact("entity", {"protocol": "sprout", "native": {"sprout": id}, "wire": b64(raw)}, seq, START)


def node_id(raw: bytes) -> str:
    return "SHA512_B32__" + b64(new("sha512_256", raw).digest())


def raw_of(one: dict[str, Any]) -> bytes:
    text: str = one["node"]["raw_b64u"] if "raw_b64u" in one["node"] else one["raw_b64u"]
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_arbor_nodes_are_decoded_and_verified(spark: SparkSession) -> None:
    raws = [raw_of(one) for one in nodes()]
    entries = [node_entry(seq, node_id(raw), raw) for seq, raw in enumerate(raws, 2)]
    reply = next(raw for raw in raws if raw[2] == 2)
    forged = reply[:-9] + bytes([reply[-9] ^ 1]) + reply[-8:]
    n = len(entries) + 2
    entries += [
        node_entry(n, node_id(forged), forged),
        node_entry(n + 1, node_id(raws[0]), reply),
        Fact("entity", {"protocol": "sprout", "native": {"sprout": "SHA512_B32__x"}, "wire": "!"}, n + 2, START),
    ]
    rows = bronze(spark, entries)
    silver = decode.arbor_nodes(rows)
    assert silver.columns == ARBOR_NODES.schema.fieldNames()
    decoded = {row["log_seq"]: row for row in dicts(silver)}
    assert [bytes(decoded[seq]["raw"]) for seq in range(2, n)] == raws
    assert [decoded[seq]["type"] for seq in range(2, n)] == [raw[2] for raw in raws]
    assert [decoded[seq]["created"] for seq in range(2, n)] == [one["node"]["fields"]["created_ms"] for one in nodes()]
    assert decoded[n + 2]["fault"] is not None
    identities = silver.where("type = 0 and fault is null").select("node_id", "raw")
    found = integrity.arbor(rows, identities, 1)
    assert found.columns == INTEGRITY.schema.fieldNames()
    verdicts = {(row["log_seq"], row["check"]): row["verdict"] for row in dicts(found)}
    known = {node_id(raw) for raw in raws if raw[2] == 0}
    for seq, one in enumerate(nodes(), 2):
        assert verdicts[seq, "node_id"] == "ok"
        held = one["node"]["fields"]["author"]["text"] in known or raws[seq - 2][2] == 0
        assert verdicts[seq, "openpgp"] == ("ok" if held else "unverifiable")
    assert "ok" in {verdicts[seq, "openpgp"] for seq, raw in enumerate(raws, 2) if raw[2] == 2}
    assert (verdicts[n, "node_id"], verdicts[n, "openpgp"]) == ("ok", "bad")
    assert (verdicts[n + 1, "node_id"], verdicts[n + 2, "node_id"]) == ("bad", "bad")
    without = integrity.arbor(rows, identities.limit(0), 1)
    assert {row["verdict"] for row in dicts(without) if row["check"] == "openpgp" and row["log_seq"] < n} == {
        "unverifiable"
    }


def test_the_forest_is_the_one_that_a_loop_draws(spark: SparkSession) -> None:
    made = random_nodes()
    fields = ARBOR_NODES.schema.fieldNames()
    rows = [tuple({**dict.fromkeys(fields), **one}[name] for name in fields) for one in [*made, made[5]]]
    facts = bronze(
        spark, [start(), Fact("form", {"protocol": "sprout", "of": 1, "native": {"sprout": "bridged"}}, 2, START)]
    )
    drawn = forest(spark.createDataFrame(rows, ARBOR_NODES.schema), shown(facts))
    assert drawn.columns == FOREST.schema.fieldNames()
    told = dicts(drawn)
    found = {row["node_id"]: row for row in told}
    assert len(found) == len(told) == len(made)
    by_id = {one["node_id"]: one for one in made}
    for id, one in by_id.items():
        assert found[id] == drawn_node(id, one, made)
    assert {one["depth_ok"] for one in found.values()} == {True, False, None}


# The topic relay


def test_topic_packets_are_decoded(spark: SparkSession) -> None:
    wire = b'{"type":6,"topic":"t","a":1.50,"src":9}'
    rows = bronze(
        spark,
        [message(2, START, protocol="topic_relay", wire=wire), message(3, START, protocol="topic_relay", wire=b"[]")],
    )
    first, second = sorted(dicts(decode.topic_packets(rows)), key=lambda row: row["seq"])
    assert list(first) == TOPIC_PACKETS.schema.fieldNames()
    assert first == {
        "gateway_id": GATEWAY,
        "seq": 2,
        "type": 6,
        "topic": "t",
        "src": 7,
        "extra": '{"a":1.50}',
        "fault": None,
    }
    assert (second["type"], second["fault"]) == (None, "InvalidParams")


# Statistics


def test_channel_minutes_are_those_that_a_loop_counts(spark: SparkSession) -> None:
    told = lines(talk(400))
    expected: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [0, 0, set(), 0])
    for record in map(json.loads, told):
        if record["kind"] == "message" and not record["channel"].startswith("gateway/"):
            minute = datetime.fromtimestamp(record["time"] // 60_000 * 60, UTC).replace(tzinfo=None)
            cell = expected[minute, record["protocol"], record["channel"]]
            text = record.get("wire")
            line = decode_row(next(one for one in told if one.startswith(b'{"seq":%d,' % record["seq"])), GATEWAY)
            cell[0] += 1
            cell[1] += len((line[MESSAGES.schema.fieldNames().index("content")] if text is None else text).encode())
            cell[2].add(record.get("sender", record["peer"]))
            cell[3] += bool(record.get("undelivered"))
    rows = spark.createDataFrame([decode_row(line, GATEWAY) for line in told], MESSAGES.schema)
    found = {tuple(row)[:3]: tuple(row)[3:] for row in channel_minute(rows).collect()}
    assert found == {key: (n, size, len(who), missed) for key, (n, size, who, missed) in expected.items()}
    assert len({minute for minute, *_ in found}) > 1


def counts(seq: int, minute: int, *flows: tuple[str, str, int, int, list[list[int]]]) -> Fact:
    names = ("from", "to", "delivered", "undelivered", "latency")
    told = [dict(zip(names, flow, strict=True)) for flow in flows]
    return Fact("counts", {"minute": minute, "flows": told}, seq, START + seq)


def test_latency_is_read_off_the_histograms(spark: SparkSession) -> None:
    minute = START // 60_000 * 60_000
    rows = bronze(
        spark,
        [
            counts(2, minute, ("sprout", "streamr", 100, 1, [[1000, 50], [2000, 50]]), ("rest", "rest", 0, 3, [])),
            counts(3, minute, ("sprout", "streamr", 100, 2, [[2000, 98], [9000, 2]])),
            counts(4, minute + 60_000, ("sprout", "streamr", 1, 0, [[500, 1]])),
        ],
    )
    found = {(row["minute"], row["from_protocol"]): row for row in dicts(latency_minute(rows))}
    at = datetime.fromtimestamp(minute // 1000, UTC).replace(tzinfo=None)
    first = found[at, "sprout"]
    assert (first["n"], first["undelivered"]) == (200, 3)
    # 50 up to 1 ms, 148 up to 2 ms, 2 up to 9 ms: the 100th, 190th and 198th of 200.
    assert first["p50"] == pytest.approx(1 + 50 / 148)
    assert first["p95"] == pytest.approx(1 + 140 / 148)
    assert first["p99"] == pytest.approx(2.0)
    rest = found[at, "rest"]
    assert (rest["n"], rest["undelivered"], rest["p50"]) == (0, 3, None)
    assert len(found) == 3
    whole = {row["from_protocol"]: row for row in dicts(latency(rows, F.lit(0)))}
    assert (whole["sprout"]["n"], whole["sprout"]["undelivered"]) == (201, 3)
    assert whole["sprout"]["p50"] == pytest.approx(1 + (100.5 - 51) / 148), "one more is up to 0.5 ms"
    assert len(whole) == 2
