"""Each message and node has one row, however often and in whatever spelling it was logged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from coincurve import PrivateKey

from adapters.streamr.crypto.signing import address_of, sign_message
from adapters.streamr.wire.message import MessageID, StreamMessage, parse_message
from gateway.storage.record import Entry, Fact
from pipeline.copies import ONCE, PERIODS, periods
from pipeline.jobs import decode, ingest
from pipeline.run import Run
from pipeline.schemas import ARBOR_NODES, STREAMR
from tests.pipeline.generate import START, VECTORS, lines, message, start, write
from tests.pipeline.ingested import records

MakeRun = Callable[..., Run]
KEY = PrivateKey(bytes(31) + b"\7")
ADDRESS = address_of(KEY.public_key)


def spellings(n: int) -> list[bytes]:
    """One message as several publishers and brokers write it, and another one of the same time in another chain."""
    id = MessageID("s", 0, START + n, 0, ADDRESS, "c")
    said = sign_message(StreamMessage(id, json.dumps({"n": n})), KEY)
    letters = replace(said, id=id._replace(publisher_id="0x" + ADDRESS[2:].upper()))
    other = sign_message(StreamMessage(id._replace(msg_chain_id="d"), said.content), KEY)
    return [said.encode(32), said.encode(31), letters.encode(32), other.encode(32), b'[32,["s",0],null]']


def streams(seq: int, picked: list[bytes]) -> list[Entry]:
    return [message(seq + n, START, protocol="streamr", wire=wire) for n, wire in enumerate(picked)]


def nodes(seq: int, count: int) -> list[Entry]:
    told = [
        one["node"] for one in json.loads((VECTORS / "sprout/valid.json").read_text()) if one["well_formed_and_signed"]
    ]
    more = ({"protocol": "sprout", "native": {"sprout": node["id"]}, "wire": node["raw_b64u"]} for node in told)
    return [Fact("entity", fields, seq + n, START) for n, fields in enumerate([*more][:count])]


def oracle(entries: list[Entry]) -> set[tuple[Any, ...]]:
    """The key of each message and the record that has it first; a message that nobody can read has its record only."""
    found: dict[tuple[Any, ...], int] = {}
    for entry in entries:
        if isinstance(entry, Fact) or entry.wire is None:
            continue
        key: tuple[Any, ...]
        try:
            id = parse_message(entry.wire.decode()).id
            key = (id.stream_id, id.msg_chain_id, id.timestamp, id.publisher_id.lower())
        except Exception:
            key = ("fault", entry.seq)
        found.setdefault(key, entry.seq)
    return {(seq, key[0] != "fault") for key, seq in found.items()}


def rows(run: Run) -> list[dict[str, Any]]:
    found = records(run, STREAMR)
    keys = [tuple(row[name] for name in STREAMR.key) for row in found if row["fault"] is None]
    assert len(keys) == len(set(keys))
    return found


def test_a_message_has_one_row_however_often_it_was_logged(make_run: MakeRun, log: Path) -> None:
    first, second = spellings(1), spellings(2)
    told: list[Entry] = [start(), *streams(2, [*first, *first]), *nodes(12, 4), *nodes(16, 3)]
    later: list[Entry] = [*streams(19, [*first, *second, second[1]]), *nodes(30, 6)]
    run = make_run()
    write(log, lines(told))
    for job in (ingest, decode):
        job.run(run)
    assert {(row["log_seq"], row["fault"] is None) for row in rows(run)} == oracle(told)
    write(log, lines(later), first=len(told) + 1)
    for job in (ingest, decode):
        job.run(run)
    assert {(row["log_seq"], row["fault"] is None) for row in rows(run)} == oracle([*told, *later])
    held = [row["node_id"] for row in records(run, ARBOR_NODES)]
    assert (len(held), len(set(held))) == (6, 6)
    _check_older_table(run, oracle([*told, *later]))


def test_copies_are_looked_for_at_the_times_of_a_batch() -> None:
    """A hostile time beside the present one does not have everything between them searched."""
    now = 490_000
    assert periods([]) == []
    assert periods([now, now + 1, now + 2]) == [(now, now + 2)]
    assert periods([now, 0, now + 5]) == [(0, 0), (now, now), (now + 5, now + 5)]
    dice = random.Random(3)
    for _ in range(50):
        hours = [dice.randrange(10**6) for _ in range(dice.randrange(1, 200))]
        found = periods(hours)
        assert len(found) <= PERIODS
        assert all(any(first <= hour <= last for first, last in found) for hour in hours)
        assert all(first in hours and last in hours for first, last in found)


def _check_older_table(run: Run, expected: set[tuple[Any, ...]]) -> None:
    """A table that an older version filled loses its copies."""
    table = run.table(STREAMR, decode.JOB)
    state, frame = table.state(), table.frame(run.spark)
    old = table.stage(frame.unionByName(frame.where("fault is null")))
    table.replace(old, replace(state, notes={name: note for name, note in state.notes.items() if name != ONCE}))
    assert decode.run(run) == 0
    assert {(row["log_seq"], row["fault"] is None) for row in rows(run)} == expected
    assert table.state().notes[ONCE] is True
