"""On a log with known faults and copies, every table equals the one that plain Python makes (`oracle.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import Row

from pipeline.jobs import ALL, job
from pipeline.run import Run
from pipeline.schemas import BATCHES, FAULTS, MESSAGES, REJECTS, TABLES, TableSpec
from tests.pipeline.faulty_log import log as make_log
from tests.pipeline.generate import GATEWAY, write
from tests.pipeline.ingested import records
from tests.pipeline.oracle import Oracle, Rows
from tests.pipeline.test_records import by_hand, value_of

SEGMENT = 100  # records

# What of each row is compared; the oracle has the same, in the same order.
SHAPES: dict[str, Callable[[Row], Any]] = {
    "streamr": lambda r: (
        (r.log_seq, True)
        if r.fault
        else (
            r.log_seq,
            False,
            (r.stream, r.partition, r.publisher, r.chain, r.ts, r.seq),
            None if r.prev_ts is None else (r.prev_ts, r.prev_seq),
            r.version,
            r.content,
            r.signature,
        )
    ),
    "arbor_nodes": lambda r: (
        *(r.log_seq, r.node_id, r.type, r.parent, r.community, r.conversation, r.depth),
        r.author or "NullHash_B0__",
    ),
    "topic_packets": lambda r: (r.seq, r.type, r.src, r.extra and json.loads(r.extra), r.fault is not None),
    "integrity": lambda r: (r.log_seq, r.check, r.verdict, r.publisher),
    "gaps": lambda r: (
        *(r.stream, r.partition, r.publisher, r.chain, r.ts, r.seq, r.want_ts, r.want_seq),
        None if r.have_ts is None else (r.have_ts, r.have_seq),
        r.state,
    ),
    "channel_minute": lambda r: (r.at // 60_000, r.protocol, r.channel, r.n, r.bytes, r.senders, r.undelivered),
    "latency_minute": lambda r: (
        *(r.at // 60_000, r.from_protocol, r.to_protocol, r.n),
        *(round(value, 6) for value in (r.p50, r.p95, r.p99)),
        r.undelivered,
    ),
    **dict.fromkeys(("forest", "answers", "answer_times", "retention", "threads", "storage", "publishers"), tuple),
}


def rows(run: Run, spec: TableSpec) -> list[Row]:
    found = records(run, spec)
    for row in found:
        if "minute" in row:
            row["at"] = int(row.pop("minute").timestamp() * 1000)
    return [Row(**row) for row in found]


def in_order(found: Any) -> list[str]:
    return sorted(json.dumps(row, default=str) for row in found)


def test_every_table_is_the_one_that_plain_python_makes(make_run: Callable[..., Run], log: Path) -> None:
    told, bad, known = made()
    paths = write(log, told, each=SEGMENT)
    run = make_run(batch_segments=2)
    job(ALL)(run)
    oracle = Oracle(told, bad, known)
    for spec in TABLES:
        name = spec.name.rpartition("/")[2]
        if name in SHAPES:
            expected: Rows = getattr(oracle, name)()
            assert in_order(map(SHAPES[name], rows(run, spec))) == in_order(expected), name
            assert expected, name
    places = {at for at, _ in bad}
    good = [line for at, line in enumerate(told, 1) if at not in places]
    found = [row.asDict() for row in rows(run, MESSAGES)]
    assert in_order(map(plain, found)) == in_order(map(plain, map(by_hand, good)))
    rejects = [(row.file, row.line, row.reason.partition(":")[0]) for row in rows(run, REJECTS)]
    where = [(str(paths[(at - 1) // SEGMENT]), (at - 1) % SEGMENT + 1, cause) for at, cause in bad]
    assert sorted(rejects) == sorted(where)
    faults = {(kind, cause): n for kind, cause, n in oracle.faults()}
    counted: dict[tuple[str, str], int] = {}
    for row in rows(run, FAULTS):
        key = (row.what, "" if row.what.startswith("check") else row.cause)
        counted[key] = counted.get(key, 0) + row.n
    assert counted == faults
    batches = rows(run, BATCHES)
    ingested = [(row.batch, row.rows_in, row.rejected) for row in batches if row.job == "ingest"]
    assert (len(ingested), sum(n for _, n, _ in ingested), sum(n for *_, n in ingested)) == (2, len(told), len(bad))
    assert len({(row.job, row.batch) for row in batches}) == len(batches)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"gateway_id": GATEWAY, "refs": value_of(row["refs"]), "native": value_of(row["native"])}


def made() -> Any:
    """The log; a fixture of these tests has its name."""
    return make_log()


def test_the_log_has_every_fault() -> None:
    """Else the comparison would say less than it seems to."""
    oracle = Oracle(*make_log())
    assert {row[-1] for row in oracle.gaps()} >= {"open", "fork", "unknown before"}
    assert {verdict for _, check, verdict, _ in oracle.integrity() if check == "eth"} == {"ok", "bad", "unverifiable"}
    assert {verdict for _, check, verdict, _ in oracle.integrity() if check == "openpgp"} >= {"ok", "bad"}
    assert len(oracle.streamr()) < len(oracle.streams)
    assert len(oracle.arbor_nodes()) < len(oracle.nodes)
    assert {kind.partition(" ")[0] for kind, *_ in oracle.faults()} == {"line", "check", "chain", "copy", "undelivered"}
    assert len(oracle.threads()) > 4
