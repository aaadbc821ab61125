from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import duckdb
import pytest
from deltalake import DeltaTable

from gateway.core.message import Message
from gateway.storage.archive import verify
from gateway.storage.layout import Front
from gateway.storage.record import Fact, decode
from pipeline.config import LogSource
from pipeline.errors import DamagedWarehouse, JobLocked, PipelineError
from pipeline.jobs import compact, ingest, stats
from pipeline.locks import JobLock
from pipeline.run import Run
from pipeline.schemas import BATCHES, MESSAGES, REJECTS
from pipeline.sinks.delta import LOG
from pipeline.sources import segments
from pipeline.sources.records import BATCH_ROWS, parse_lines
from pipeline.sources.segments import Segment, distribute
from tests.pipeline.generate import GATEWAY, NASTY, START, lines, message, start, talk, write
from tests.pipeline.ingested import MakeRun, by_name, by_spark, cut_off, expected, files, records, rows


def test_every_record_becomes_a_row_with_exact_digits(make_run: MakeRun, log: Path) -> None:
    told = lines([*talk(500), *(message(501 + i, START + 10**6, text) for i, text in enumerate(NASTY))])
    write(log, told)
    run = make_run()
    assert ingest.run(run) == 1
    found = by_spark(run)
    assert found == expected(told) == rows(run)
    for line, row in zip(told, map(by_name, found), strict=True):  # not by way of our own code
        record = json.loads(line)
        assert (row["seq"], row["kind"], row["crc"]) == (record["seq"], record["kind"], record["crc"])
        if record["kind"] == "message":
            assert json.loads(row["content"]) == record["content"]
            assert b',"content":' + row["content"].encode() in line
            assert json.loads(row["native"] or "null") == record.get("native")
            assert row["wire"] == record.get("wire")
        else:
            assert row["content"] is None
            assert json.loads(row["fact"]).items() <= record.items()
    assert rows(run, REJECTS) == by_spark(run, REJECTS) == []


def test_segments_are_dealt_out_evenly() -> None:
    sizes = (64, 1, 1, 30, 2, 40, 1)
    found = [Segment("", n, n, n + 1, size) for n, size in enumerate(sizes, 1)]
    piles = distribute(found, 2)
    assert sorted(segment.first for pile in piles for segment in pile) == [*range(1, 8)]
    assert abs(sum(s.size for s in piles[0]) - sum(s.size for s in piles[1])) <= 5
    assert [len(pile) for pile in distribute(found, 99)] == [1] * 7


def test_only_new_segments_are_ingested(make_run: MakeRun, log: Path) -> None:
    told = lines(talk(300))
    write(log, told[:100])
    run = make_run()
    assert (ingest.run(run), ingest.run(run)) == (1, 0)
    (log / f".open-{101:020d}.jsonl").write_bytes(b"".join(told[100:150]))
    assert ingest.run(run) == 0, "what is being written is left alone"
    (log / f".open-{101:020d}.jsonl").unlink()
    write(log, told[100:], each=50, first=101)
    assert ingest.run(make_run(batch_segments=1)) == 4
    assert rows(run) == expected(told)


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "checksum": lambda line: line.replace(b'"kind"', b'"kInd"', 1),
    "torn": lambda line: line[: len(line) // 2] + b"\n",
    "foreign": lambda _line: b"Nov 21 12:00:00 host kernel: hello\n",
    "corrupt": lambda line: _sealed(b'{"seq":%d,"time":5,"kind":"message"' % json.loads(line)["seq"]),
}


def _sealed(body: bytes) -> bytes:
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def test_bad_lines_are_rejected_with_their_places_and_reasons(make_run: MakeRun, log: Path) -> None:
    told = lines(talk(150))
    places = dict(zip(range(41, 150, 30), FAULTS.items(), strict=True))  # the twelfth line of each later segment
    bad = {at: spoil(told[at]) for at, (_, spoil) in places.items()}
    paths = write(log, [bad.get(at, line) for at, line in enumerate(told)], each=30)
    run = make_run()
    ingest.run(run)
    assert rows(run) == expected([line for at, line in enumerate(told) if at not in bad])
    found = [(file, line, why.partition(":")[0], raw) for file, line, why, raw in rows(run, REJECTS)]
    reasons = [reason for reason, _ in places.values()]
    texts = [line.decode().rstrip("\n") for line in bad.values()]
    assert found == [(str(path), 12, *told) for path, *told in zip(paths[1:], reasons, texts, strict=True)]
    assert [fault.file for fault in verify(log).faults if fault.offset] == [path.name for path in paths[1:]]


def test_malformed_records_are_rejected_by_kind(make_run: MakeRun, log: Path) -> None:
    told = lines(talk(20))
    odd = [
        _sealed(b'{"seq":21,"time":5,"kind":"peer","first":1,"count":1'),
        _sealed(b'{"seq":22,"time":5,"kind":"unheard of"'),
        _sealed(b'{"seq":"23","time":5,"kind":"peer"'),
        _sealed(b'{"seq":24,"time":5,"channel":"c","id":"i","kind":"message","protocol":"p","peer":"x","content":1'),
        _sealed(b'{"seq":25,"time":5,"channel":"c\xff","id":"i","kind":"message","protocol":"p","peer":1,"content":1'),
        _sealed(b'{"seq":26,"time":5,"kind":"form","protocol":"p"'),
        told[3],
        b"\n",
        _sealed(b'{"seq":9999,"time":5,"kind":"peer"')[:-1],
    ]
    write(log, [*told, *odd], each=100)
    run = make_run()
    ingest.run(run)
    assert rows(run) == expected([*told, odd[0]])
    found = {line: why.partition(":")[0] for _, line, why, _ in rows(run, REJECTS)}
    kinds = ("corrupt", "corrupt", "corrupt", "corrupt", "corrupt", "duplicate", "foreign", "torn")
    assert found == dict(zip(range(22, 30), kinds, strict=True))


def test_late_and_duplicated_segments(make_run: MakeRun, log: Path) -> None:
    told = lines(talk(300))
    write(log, told[:100])
    write(log, told[200:], first=201)
    run = make_run()
    ingest.run(run)
    late = write(log, told[100:200], first=101)
    ingest.run(run)
    assert rows(run) == expected(told)
    # The same records once more under another name, one of them changed, and one that is new.
    other = lines([message(151, START, b'"another"')])
    (log / f"{150:020d}.jsonl").write_bytes(told[149] + other[0] + told[151])
    ingest.run(run)
    assert rows(run) == expected(told)
    assert [why for *_, why, _ in rows(run, REJECTS)] == ["foreign: the table has a different record 151"]
    assert late[0].exists()


def test_retired_segments_count_once_and_their_facts_are_not_lost(make_run: MakeRun, log: Path) -> None:
    told = lines(talk(200))
    first, second = write(log, told)
    run = make_run(batch_segments=1)
    facts = [line for line in told if not isinstance(decode(line), Message)]
    second.rename(log / "later")
    ingest.run(run)
    first.with_name(f"{1:020d}.facts.jsonl").write_bytes(b"".join(line for line in told[:100] if line in facts))
    first.unlink()
    kept = [line for line in told[100:] if line in facts]
    second.with_name(f"{101:020d}.facts.jsonl").write_bytes(b"".join(kept))
    ingest.run(run)
    assert rows(run) == expected([*told[:100], *kept])
    assert rows(run, REJECTS) == []


def test_the_front_counts_once_each_time_it_is_written(make_run: MakeRun, log: Path) -> None:
    """What was not read before its segment was compacted is read from the front, and nothing of it twice."""
    told = lines(talk(300))
    kept = [line for line in told if not isinstance(decode(line), Message)]
    first, second, third = write(log, told)
    run = make_run(batch_segments=1)
    for file in (second, third):
        file.rename(log / f"later {file.name}")
    ingest.run(run)
    first.unlink()
    front = Front(1, 200).path(log)
    front.write_bytes(b"".join(line for line in kept if line in told[:200]))
    third.write_bytes((log / f"later {third.name}").read_bytes())
    ingest.run(run)
    assert rows(run) == expected([*told[:100], *[line for line in told[100:200] if line in kept], *told[200:]])
    front.unlink()
    third.unlink()
    Front(1, 300).path(log).write_bytes(b"".join(kept))
    before = rows(run)
    ingest.run(run)
    ingest.run(run)
    assert rows(run) == before
    assert rows(run, REJECTS) == []


def test_removed_records_leave_no_gap(make_run: MakeRun, log: Path) -> None:
    """A front, a file of facts and a damaged end leave no gap, so that statistics are published past them."""
    told = lines(talk(500))
    facts = [line for line in told if not isinstance(decode(line), Message)]
    front, left, damaged, _ = write(log, told[100:], first=101)
    for path, begin, end in ((front, 1, 200), (left, 201, 300)):
        path.unlink()
        name = Front(1, 200).path(log) if path is front else path.with_name(f"{201:020d}.facts.jsonl")
        name.write_bytes(b"".join(line for line in told[begin - 1 : end - 5] if line in facts))
    damaged.write_bytes(b"".join([*told[300:398], b"one\n", b"two\n"]))
    run = make_run(batch_segments=1)
    assert ingest.run(run) == 4
    assert run.table(MESSAGES).state().spans == {GATEWAY: [[1, 500]]}
    assert stats.watermark(run) == json.loads(told[-1])["time"] // 60_000 * 60_000
    assert ingest.run(run) == 0
    assert len(rows(run, REJECTS)) == 2


def test_the_damaged_end_of_a_segment_is_known_from_the_next_one(make_run: MakeRun, log: Path) -> None:
    told = lines(talk(300))
    write(log, [*told[:99], b"rubbish\n"])
    run = make_run()
    assert ingest.run(run) == 1
    assert run.table(MESSAGES).state().spans == {GATEWAY: [[1, 99]]}
    write(log, told[200:], first=201)
    assert ingest.run(run) == 1
    assert run.table(MESSAGES).state().spans == {GATEWAY: [[1, 100], [201, 300]]}, "a segment may come late"
    assert len(rows(run, REJECTS)) == 1, "what was rejected is not rejected again"
    assert rows(run) == expected([*told[:99], *told[200:]])


def test_bad_lines_are_never_all_in_memory(make_run: MakeRun, log: Path) -> None:
    bad = [b"rubbish %d\n" % n for n in range(6_000)]
    parsed = list(parse_lines(enumerate(bad, 1), "f", GATEWAY, 1, 10))
    assert [len(each.rejects) for each in parsed] == [BATCH_ROWS, BATCH_ROWS, 1_000]
    write(log, [*lines(talk(20)), *bad], each=len(bad) + 20)
    run = make_run()
    found = segments.find_new(log, (), 1, 1)
    folder = run.table(MESSAGES, ingest.JOB).folder()
    assert segments.write_records(run.spark, found, GATEWAY, folder, folder / "rejects") == len(bad), "only how many"
    assert ingest.run(run) == 1
    assert len(rows(run)) == 20
    assert sorted(row[3] for row in rows(run, REJECTS)) == sorted(line.decode().rstrip() for line in bad)


def test_every_reader_of_delta_tables_sees_the_same(make_run: MakeRun, log: Path) -> None:
    told = lines(talk(250))
    write(log, told)
    run = make_run(batch_segments=1)
    ingest.run(run)
    table = run.table(MESSAGES).path
    crcs = sorted(json.loads(line)["crc"] for line in told)
    assert sorted(row[0] for row in duckdb.execute(f"SELECT crc FROM {files(table)}").fetchall()) == crcs
    assert by_spark(run) == expected(told)
    read = DeltaTable(table)
    assert sorted(read.to_pyarrow_dataset().to_table(columns=["crc"])["crc"].to_pylist()) == crcs
    some = read.to_pyarrow_table(filters=[("seq", ">", 200)], columns=["crc"])
    assert sorted(some["crc"].to_pylist()) == sorted(json.loads(line)["crc"] for line in told[200:])
    early = DeltaTable(table, version=1)
    assert (early.to_pyarrow_table().num_rows, early.transaction_version("trellis/ingest")) == (100, 1)


@pytest.mark.parametrize("step", range(6))
def test_a_batch_that_was_cut_off_anywhere_is_done_again_and_counts_once(
    make_run: MakeRun, log: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Cut off at any commit (of the rejects, the records, the counts), with a segment that arrives in between."""
    told = lines(talk(120))
    bad = [*told[:30], b"rubbish\n", *told[31:]]
    write(log, bad[:60], each=30)
    run = make_run()
    with cut_off(monkeypatch, step):
        ingest.run(run)
    assert listed(run) == ([] if step < 3 else [*range(1, 31), *range(32, 61)])
    write(log, bad[60:], each=30, first=61)
    ingest.run(run)
    assert rows(run) == expected([*told[:30], *told[31:]])
    assert [(line, raw) for _, line, _, raw in rows(run, REJECTS)] == [(1, "rubbish")]
    assert listed(run) == [*range(1, 31), *range(32, 121)]
    told_of = records(run, BATCHES)
    assert [sum(row[name] for row in told_of) for name in ("rows_in", "rows_out", "rejected")] == [120, 119, 1]
    compact.run(make_run(keep_hours=0))
    for spec in (MESSAGES, REJECTS, BATCHES):
        table = run.table(spec)
        there = sorted(path.relative_to(table.path).as_posix() for path in table.path.rglob("part-*"))
        assert there == sorted(table.names()), "what the interrupted batch left is gone"


def listed(run: Run) -> list[int]:
    """The sequences that DuckDB finds."""
    if not (run.table(MESSAGES).path / LOG).exists():
        return []
    return [
        seq for (seq,) in duckdb.execute(f"SELECT seq FROM {files(run.table(MESSAGES).path)} ORDER BY seq").fetchall()
    ]


def test_tables_that_are_gone_are_refused(make_run: MakeRun, log: Path) -> None:
    write(log, lines(talk(40)), each=20)
    run = make_run(batch_segments=1)
    ingest.run(run)
    shutil.rmtree(run.table(MESSAGES).path)
    with pytest.raises(DamagedWarehouse, match="has 2 batches of ingest, and its tables have 0"):
        ingest.run(run)
    shutil.rmtree(run.table(BATCHES).path)
    assert ingest.run(run) == 2, "as it says"


def test_rejects_without_their_records_are_refused(make_run: MakeRun, log: Path) -> None:
    write(log, [*lines(talk(20)), b"rubbish\n"], each=10)
    run = make_run(batch_segments=1)
    ingest.run(run)
    for spec in (MESSAGES, BATCHES):
        shutil.rmtree(run.table(spec).path)
    with pytest.raises(DamagedWarehouse, match="3 batches and bronze/messages only 0"):
        ingest.run(run)


def test_files_without_the_log_of_their_table_are_refused(make_run: MakeRun, log: Path) -> None:
    write(log, lines(talk(20)))
    run = make_run()
    ingest.run(run)
    shutil.rmtree(run.table(MESSAGES).path / LOG)
    shutil.rmtree(run.table(BATCHES).path)
    with pytest.raises(DamagedWarehouse, match="has files but no _delta_log"):
        ingest.run(run)


def test_two_cannot_ingest_at_once(make_run: MakeRun, log: Path) -> None:
    write(log, lines(talk(20)))
    run = make_run()
    with JobLock(run.options.warehouse, ingest.JOB) as held:
        with pytest.raises(JobLocked, match="another process"):
            JobLock(run.options.warehouse, ingest.JOB, patience_seconds=0.1)
        threading.Timer(0.5, held.close).start()
        assert ingest.run(run) == 1, "a short while is waited"


def test_another_gateways_log_goes_beside_the_first(make_run: MakeRun, log: Path, tmp_path: Path) -> None:
    write(log, lines(talk(20)))
    run = make_run()
    ingest.run(run)
    other = tmp_path / "other"
    write(other, lines([start(gateway="beef"), message(2, START)]))
    ingest.run(make_run(source=LogSource(other)))
    assert len(rows(run)) == 22
    assert {row[0] for row in rows(run)} == {GATEWAY, "beef"}


def test_any_gateways_log_of_a_cluster_is_the_source(make_run: MakeRun, log: Path, tmp_path: Path) -> None:
    """All have the same lines, in segments that end where they like; one is replaced by another at any time."""
    told = lines(talk(400))
    logs = [(log, 40, 120), (tmp_path / "longer", 80, 200), (tmp_path / "odd", 33, 300), (tmp_path / "one", 400, 400)]
    for directory, each, until in logs:
        write(directory, told[:until], each=each)
        run = make_run(source=LogSource(directory))
        assert ingest.run(run) == 1
        assert rows(run) == expected(told[:until])
        assert ingest.run(run) == 0
    assert ingest.run(make_run(source=LogSource(log))) == 0
    assert rows(run, REJECTS) == []


def test_a_log_without_a_known_gateway_is_refused(make_run: MakeRun, log: Path) -> None:
    with pytest.raises(PipelineError, match="no log"):
        ingest.run(make_run())
    write(log, lines([message(1, START)]))
    with pytest.raises(PipelineError, match="names the log's gateway"):
        ingest.run(make_run())


def test_an_empty_log_is_no_fault(make_run: MakeRun, log: Path) -> None:
    log.mkdir(parents=True)
    assert ingest.run(make_run()) == 0
    assert os.listdir(log) == []
    assert isinstance(start(), Fact)
