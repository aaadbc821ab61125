"""The jobs derive tables from tables, one after the other in one warehouse."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from gateway.core.message import Message
from gateway.storage.record import Fact
from pipeline import codecs, derive, jobs
from pipeline.config import LogSource, Options
from pipeline.errors import Unreachable
from pipeline.jobs import compact, decode, forest, gaps, ingest, integrity, questions, stats
from pipeline.run import Run
from pipeline.schemas import (
    ARBOR_NODES,
    BATCHES,
    CHANNEL_MINUTE,
    FOREST,
    GAPS,
    INTEGRITY,
    MESSAGES,
    STORAGE,
    STREAMR,
    THREADS,
    TOPIC_PACKETS,
    TableSpec,
)
from pipeline.sinks import bus
from pipeline.sinks.delta import Table
from pipeline.transforms.questions import TABLES as ANSWERED
from tests.pipeline.generate import MIXED, START, counted, lines, message, mixed, start, write
from tests.pipeline.ingested import cut_off, files, records
from tests.still import PATIENCE

MakeRun = Callable[..., Run]
VERIFYING = (ingest, decode, integrity)
STEPS = (ingest, decode, integrity, gaps, forest, stats)
MADE = (MESSAGES, STREAMR, ARBOR_NODES, TOPIC_PACKETS, INTEGRITY, GAPS, CHANNEL_MINUTE, FOREST)


def void(_text: str) -> None:
    """Say nothing."""


def rows(run: Run, spec: TableSpec) -> list[str]:
    found = ({name: row[name] for name in row if name != "checked_at"} for row in records(run, spec))
    return sorted(json.dumps(row, default=repr, sort_keys=True) for row in found)


def everything(run: Run) -> dict[str, list[str]]:
    return {spec.name: rows(run, spec) for spec in MADE}


def test_piece_by_piece_is_the_same_as_at_once(make_run: MakeRun, log: Path, whole: Run) -> None:
    write(log, MIXED[:80], each=80)
    run = make_run()
    assert [job.run(run) for job in STEPS] == [1] * len(STEPS)
    write(log, MIXED[80:], each=161, first=81)
    assert [job.run(run) for job in STEPS] == [1] * len(STEPS)
    assert (found := everything(run)) == everything(whole)
    assert all(found.values())
    streams = sum(b'"protocol":"streamr"' in line for line in MIXED)
    assert len(rows(run, STREAMR)) == streams, "each was decoded once"
    query = f'SELECT count(*) FROM {files(run.table(INTEGRITY).path)} GROUP BY log_seq, "check"'
    assert set(duckdb.execute(query).fetchall()) == {(1,)}, "each was verified once"


def test_a_rebuild_cut_off_after_a_table_is_finished(
    make_run: MakeRun, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a commit has failed, no other table is begun; the next run makes those that are missing."""
    write(log, MIXED[:80], each=80)
    run, begun, over = make_run(), list[str](), threading.Event()
    ingest.run(run)
    stage, commit = Table.stage, Table.replace

    def stage_one(table: Table, frame: Any) -> Any:
        begun.append(table.spec.name)
        assert table.spec is ANSWERED[0] or over.wait(PATIENCE)
        return stage(table, frame)

    def commit_one(table: Table, *arguments: Any, **options: Any) -> Any:
        commit(table, *arguments, **options)
        over.set()
        raise OSError("the machine stops here")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "stage", stage_one)
        patched.setattr(Table, "replace", commit_one)
        with pytest.raises(OSError, match="stops here"):
            questions.run(run)
    assert 1 <= len(begun) <= 1 + derive.STAGED_AT_ONCE < len(ANSWERED)
    assert [questions.run(run), questions.run(run)] == [1, 0]
    assert all(rows(run, spec) for spec in (STORAGE, THREADS))
    assert sorted(row["batch"] for row in records(run, BATCHES) if row["job"] == questions.JOB) == [1, 2]


def test_the_session_starts_without_the_library_that_slows_it(spark: SparkSession) -> None:
    assert spark.sparkContext._jvm is not None
    classpath = spark.sparkContext._jvm.java.lang.System.getProperty("java.class.path")
    assert ("spark-sql_" in classpath, "spark-mllib_" in classpath) == (True, False)


def test_jobs_do_nothing_without_new_records(whole: Run) -> None:
    assert [job.run(whole) for job in STEPS] == [0] * len(STEPS)


def test_a_job_that_was_cut_off_is_done_again(make_run: MakeRun, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(log, lines(mixed(90)))
    run = make_run()
    ingest.run(run)
    write(log, lines(mixed(120))[90:], first=91)
    for step in (0, 1, 2):  # before the first table; after it; before the last one
        with cut_off(monkeypatch, step):
            decode.run(run)
        assert not rows(run, TOPIC_PACKETS)
        if step:
            ingest.run(run)  # what arrives meanwhile is for the next batch
    assert decode.run(run) == 2
    for spec in (STREAMR, ARBOR_NODES, TOPIC_PACKETS):
        key = "seq" if spec is TOPIC_PACKETS else "log_seq"
        query = f"SELECT count(*), count(DISTINCT {key}) FROM {files(run.table(spec).path)}"
        (count, distinct), *_ = duckdb.execute(query).fetchall()
        assert count == distinct == len(rows(run, spec)) > 0
    told = [(row["batch"], row["rows_in"]) for row in records(run, BATCHES) if row["job"] == "decode"]
    assert sorted(told) == [(1, 90), (2, 30)]


def test_a_log_of_many_pieces_is_decoded_a_few_at_a_time(
    make_run: MakeRun, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps between segments make spans, each of which is a condition for Spark; some thousands end its stack."""
    monkeypatch.setattr(derive, "BATCH_SPANS", 4)
    told = lines(mixed(20))
    log.mkdir(parents=True)
    for at in range(0, 20, 2):
        (log / f"{at + 1:020d}.jsonl").write_bytes(told[at])
    run = make_run()
    ingest.run(run)
    assert sum(map(len, run.table(MESSAGES).state().spans.values())) == 10
    assert decode.run(run) == 3
    assert len(rows(run, TOPIC_PACKETS)) == sum(b'"protocol":"topic_relay"' in line for line in told[::2])


def test_compacting_changes_no_row_and_no_batch_is_forgotten(make_run: MakeRun, log: Path) -> None:
    told = lines(mixed(200))
    write(log, told, each=20)
    run = make_run(batch_segments=1)
    ingest.run(run)
    table = run.table(MESSAGES)
    before, small, version = rows(run, MESSAGES), table.names(), DeltaTable(table.path).version()
    frame = table.frame(run.spark)
    assert compact.run(run) == 2, "these files, and those of ops/batches"
    assert (len(small), len(table.names())) == (10, 1)
    assert rows(run, MESSAGES) == before
    assert duckdb.execute(f"SELECT count(*) FROM {files(table.path)}").fetchall() == [(200,)]
    assert ingest.run(run) == 0
    assert compact.run(run) == 0
    assert frame.count() == 200, "the files are kept for those who read them"
    assert DeltaTable(table.path, version=version - 1).to_pyarrow_table().num_rows == 180
    compact.run(make_run(keep_hours=0))
    assert [path.relative_to(table.path).as_posix() for path in table.path.rglob("part-*")] == table.names()
    write(log, lines(mixed(220))[200:], first=201)
    assert ingest.run(run) == 1
    assert len(rows(run, MESSAGES)) == 220


def test_retention_takes_old_messages_and_leaves_facts(make_run: MakeRun, log: Path) -> None:
    now = int(time.time() * 1000)
    entries = mixed(120)
    for entry in entries[100:]:
        entry.time = now
    write(log, lines(entries))
    run = make_run(keep_days=1)
    for job in (ingest, decode):
        job.run(run)
    nodes = {json.loads(row)["node_id"] for row in rows(run, ARBOR_NODES) if json.loads(row)["type"] != 2}
    assert compact.run(run) == 4
    found = [json.loads(row) for row in rows(run, MESSAGES)]
    assert {row["seq"] for row in found if row["kind"] == "message"} == {
        entry.seq for entry in entries if isinstance(entry, Message) and entry.seq > 100
    }
    assert "start" in {row["kind"] for row in found}
    for spec, seq in ((STREAMR, "log_seq"), (TOPIC_PACKETS, "seq")):
        assert min(json.loads(row)[seq] for row in rows(run, spec)) > 100
    left = [json.loads(row) for row in rows(run, ARBOR_NODES)]
    assert {row["node_id"] for row in left if row["type"] != 2} == nodes
    assert all(row["log_seq"] > 100 for row in left if row["type"] == 2)
    assert [job.run(run) for job in (ingest, decode)] == [0, 0], "what was let go is not taken in again"
    assert compact.run(run) == 0


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


@dataclass(frozen=True)
class LateAuthor:
    """What the jobs up to `integrity` made of a log without an identity, which `come` adds; *copies* are of nodes."""

    run: Run
    log: Path
    told: list[bytes]
    at: int
    copies: list[Message]

    def come(self) -> None:
        write(self.log, self.told[self.at : self.at + 1], first=self.at + 1)

    def verify(self) -> list[int]:
        """Run the three jobs; how many batches each found."""
        return [job.run(self.run) for job in VERIFYING]

    @property
    def after(self) -> int:
        """The first sequence that the log does not have yet."""
        return len(self.told) + len(self.copies) + 1

    @property
    def verdicts(self) -> dict[tuple[int, str], dict[str, Any]]:
        found = records(self.run, INTEGRITY)
        by_key = {(row["log_seq"], row["check"]): row for row in found}
        assert len(by_key) == len(found)
        return by_key

    def copied(self, run: Run, log: Path) -> LateAuthor:
        """The same elsewhere."""
        shutil.copytree(self.log, log)
        shutil.copytree(self.run.options.warehouse, run.options.warehouse)
        return replace(self, run=run, log=log)


@pytest.fixture(scope="module")
def made_without_author(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LateAuthor:
    folder = tmp_path_factory.mktemp("without author")
    log, told = folder / "log", lines(mixed(60))
    late = next(n for n, line in enumerate(told) if b'"kind":"entity"' in line)  # an identity
    replies = [json.loads(line) for line in told if b'"protocol":"sprout"' in line and b'"kind":"message"' in line]
    copies = [
        message(61 + n, START + 10**6, protocol="sprout", wire=one["wire"].encode(), native=one["native"])
        for n, one in enumerate(replies)
    ]
    write(log, told[:late], each=late)
    write(log, told[late + 1 :], first=late + 2)
    write(log, lines(copies), first=61)
    made = LateAuthor(Run(spark, Options(folder / "warehouse", LogSource(log)), void), log, told, late, copies)
    assert made.verify() == [1, 1, 1]
    return made


@pytest.fixture
def late(made_without_author: LateAuthor, make_run: MakeRun, log: Path) -> LateAuthor:
    return made_without_author.copied(make_run(), log)


def test_nodes_are_verified_when_their_author_arrives_late(late: LateAuthor, monkeypatch: pytest.MonkeyPatch) -> None:
    before = late.verdicts
    late.come()
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        # killed after the new records were verified and before the older ones
        patch.setattr(integrity, "_verify_late_authors", _killed)
        late.verify()
    assert late.verdicts.items() > before.items()
    integrity.run(late.run)
    after = late.verdicts
    changed = {key: row["verdict"] for key, row in before.items() if after[key]["verdict"] != row["verdict"]}
    assert changed
    assert {(check, after[seq, check]["verdict"]) for seq, check in changed} == {("openpgp", "ok")}
    assert set(changed.values()) == {"unverifiable"}
    assert late.verify() == [0, 0, 0]


def test_a_copy_is_verified_late_as_well_and_other_files_are_left_alone(late: LateAuthor) -> None:
    """A copy has no row in `silver/arbor_nodes`."""
    before, table = late.verdicts, late.run.table(INTEGRITY)
    names = {*table.names()}
    # Another batch, whose verdicts wait for nobody: its file is left alone.
    write(late.log, lines(mixed(240))[late.after - 1 :], first=late.after)
    late.verify()
    untouched = {*table.names()} - names
    made_of = derive.state_of(table.state())
    late.come()
    late.verify()
    found = late.verdicts
    assert len(found) == table.state().rows
    changed = {key for key, row in before.items() if found[key]["verdict"] != row["verdict"]}
    assert {seq for seq, _ in changed} & {one.seq for one in late.copies}
    assert all(found[key]["verdict"] == "ok" and found[key]["publisher"] for key in changed)
    assert untouched <= {*table.names()}
    assert derive.state_of(table.state()) != made_of


def test_retired_messages_keep_their_verdict(make_run: MakeRun, late: LateAuthor) -> None:
    """A message that is gone can be checked no more."""
    rows_before = late.run.table(INTEGRITY).state().rows
    compact.run(make_run(keep_days=1))
    late.come()
    late.verify()
    found = late.verdicts
    assert len(found) == rows_before + 2
    assert [row for row in found.values() if row["reason"] == codecs.NO_AUTHOR], "the message is gone"


def test_nothing_is_verified_twice_and_an_idle_run_reports_it(late: LateAuthor) -> None:
    said: list[str] = []
    checked = late.verdicts
    assert integrity.run(replace(late.run, say=said.append)) == 0
    assert said == [f"integrity: nothing to do, {late.after - 2} records were processed before"]
    assert late.verdicts == checked
    write(late.log, lines(mixed(240))[late.after - 1 : late.after + 3], first=late.after)
    assert late.verify() == [1, 1, 1]
    assert late.verdicts.items() > checked.items()


def test_all_jobs_rest_while_nothing_is_new(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is listed, and no report written; a gateway to publish on that is away does not stop the others."""
    did: list[str] = []
    new, away = [1], [False]

    def fake(name: str) -> Any:
        def run(_run: Run) -> int:
            did.append(name)
            if name == "stats" and away[0]:
                raise Unreachable("it is away")
            return new[0] if name == "ingest" else 0

        return run

    every = jobs.job(jobs.ALL)
    monkeypatch.setattr(jobs, "job", fake)
    run, built = make_run(follow=True), [name for name in jobs.ORDER if name not in jobs.AFTERWARDS]
    for new[0], expected in ((0, jobs.ORDER), (0, built), (1, jobs.ORDER), (0, built)):
        did.clear()
        assert every(run) == new[0]
        assert did == [*expected]
    monkeypatch.setattr(jobs, "REST_SECONDS", 0.0)
    new[0], away[0] = 1, True
    did.clear()
    with pytest.raises(Unreachable):
        every(run)
    assert did == [*jobs.ORDER]


def test_latencies_are_published_whenever_the_gateway_logs_them(
    make_run: MakeRun, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It logs those of a minute in the next one, when a record of that one may have been ingested already."""
    told: list[tuple[str, Any]] = []

    def keep(_url: str, _key: str | None, messages: Iterable[tuple[str, Any]]) -> int:
        before = len(told)
        told.extend(messages)
        return len(told) - before

    monkeypatch.setattr(bus, "publish", keep)
    begin, run = START // 60_000 * 60_000, make_run(publish="http://gateway")
    counts = Fact("counts", {**counted(4, begin).fields}, 4, begin + 60_002)
    talk = lines([start(1, begin), message(2, begin), message(3, begin + 60_001), counts, message(5, begin + 120_000)])
    for first, last in ((1, 3), (4, 4), (5, 5)):
        write(log, talk[first - 1 : last], first=first)
        assert [ingest.run(run), stats.run(run)] == [1, 1]
    assert len({key for key, _ in told}) == len(told) == 3
    assert [content["channel"] for _, content in told] == ["lobby", "lobby", None]
    assert told[2][1]["latency"][0]["n"] == 9
