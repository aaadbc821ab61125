"""The harness derives its faults from a seed, injects them, and detects the violations that it checks for."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.record import Fact, encode
from tests.faults.harness.checks import HistoryMessage, check_history, records
from tests.faults.harness.disk import cut_power, damage
from tests.faults.harness.fork_server import GatewayProcess
from tests.faults.harness.ledger import Ledger, SentMessage
from tests.faults.harness.plan import CONDITIONS, DAMAGE, ENDS, FAULTS, plan
from tests.faults.harness.shim import Call, Control, Kind, library
from tests.faults.runs import SEEDS, require_compiler

# Appends lines to a file below the fault layer, as the log does; prints what each call came to.
WRITER = """
import os, sys, time
path, data = sys.argv[1], sys.argv[2].encode()
file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
print("ready", flush=True)
for line in sys.stdin:
    try:
        match line.strip():
            case "write": print(os.write(file, data), flush=True)
            case "sync": os.fdatasync(file); print("synced", flush=True)
            case "name":
                folder = os.open(os.path.dirname(path), os.O_RDONLY)
                os.fsync(folder); os.close(folder); print("named", flush=True)
            case "cut": os.ftruncate(file, 0); print("cut", flush=True)
            case "open": os.close(os.open(path, os.O_RDONLY)); print("opened", flush=True)
            case "remove": os.unlink(path); print("removed", flush=True)
            case "time": print(time.time(), flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class FaultyWriter:
    """The program above, with the fault layer below it."""

    def __init__(self, place: Path) -> None:
        require_compiler()
        self.log = place / "data" / "log"
        self.log.mkdir(parents=True)
        self.path = self.log / ".open-00000000000000000001.jsonl"
        self.control = Control(place / "control")
        layer = {"LD_PRELOAD": str(library()), "FAULTS_CONTROL": str(self.control.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(self.path), "0123456789"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | layer | {"FAULTS_DATA": str(place / "data")},
        )
        assert self._answer() == "ready"

    def do(self, what: str) -> str:
        """Let it do something; what came of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    writer = FaultyWriter(tmp_path)
    yield writer
    writer.end()


def test_a_seed_determines_the_plan() -> None:
    assert [plan(seed) for seed in range(50)] == [plan(seed) for seed in range(50)]
    assert plan(7).chance("talk 0").random() == plan(7).chance("talk 0").random()


def test_the_runs_of_the_suite_cover_every_fault() -> None:
    happens = {name for seed in SEEDS for name in plan(seed).fault_names}
    wanted = {*FAULTS, *CONDITIONS, *ENDS, *DAMAGE, "kill while retiring"} - {"calm", "nothing", "stop"}
    assert happens == wanted


@pytest.mark.parametrize(
    ("call", "does"), [(Call.WRITE, "write"), (Call.SYNC, "sync"), (Call.TRUNCATE, "cut"), (Call.OPEN, "open")]
)
def test_a_call_fails_the_requested_number_of_times(writer: FaultyWriter, call: Call, does: str) -> None:
    writer.control.fail(Kind.LOG, call, errno.EIO, times=2)
    assert [writer.do(does) == str(errno.EIO) for _ in range(4)] == [True, True, False, False]
    assert writer.control.failures(Kind.LOG) == writer.control.failures(Kind.LOG, call) == 2
    writer.control.fail(Kind.INDEX, call, errno.EIO)
    assert writer.do(does) != str(errno.EIO), "it is no file of the index"


def test_a_write_stops_half_way(writer: FaultyWriter) -> None:
    writer.control.fail(Kind.LOG, Call.WRITE, 0, halves=True)
    assert writer.do("write") == "5"
    writer.control.fail(Kind.LOG, Call.WRITE, errno.ENOSPC, halves=True)
    assert [writer.do("write") for _ in range(3)] == ["5", str(errno.ENOSPC), "5"]
    writer.control.heal()
    assert writer.do("write") == "10"


def test_the_harness_shifts_the_clock(writer: FaultyWriter) -> None:
    before = float(writer.do("time"))
    writer.control.clock(86_400)
    assert 86_000 < float(writer.do("time")) - before < 90_000


def test_a_gateway_that_ended_is_sent_no_signal(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    GatewayProcess(ended.pid, "", "", tmp_path / "log", Control(tmp_path / "control")).kill()


def test_a_power_cut_removes_unsynced_data(writer: FaultyWriter) -> None:
    writer.do("name")
    for what in ("write", "sync", "write"):
        writer.do(what)
    writer.end()
    kept = set()
    for seed in range(30):
        with writer.path.open("r+b") as file:  # the same inode
            file.write(b"0123456789" * 2)
        cut_power(writer.control, writer.log, random.Random(seed))
        data = writer.path.read_bytes()
        kept.add(len(data))
        assert data[:10] == b"0123456789"
    assert min(kept) < 14
    assert max(kept) > 16


def test_a_power_cut_reports_the_holes_that_it_leaves(tmp_path: Path) -> None:
    """A record that is torn in the middle of what was never synced, with a whole one behind it."""
    log = tmp_path / "log"
    log.mkdir()
    path = log / f".open-{1:020d}.jsonl"
    holes = set()
    for seed in range(60):
        path.write_bytes(b"".join(map(line, range(1, 6))))
        control = Control(tmp_path / "control")
        (file := control.remember(path)).synced = len(line(1))
        assert file.inode == path.stat().st_ino
        found = cut_power(control, log, random.Random(seed))
        left = [record.seq for record in records(log)]
        assert left[0] == 1
        assert found == set(range(1, left[-1])) - set(left)
        holes |= found
    assert {2, 3} <= holes


def test_data_of_a_failed_sync_stays_unsynced(writer: FaultyWriter) -> None:
    writer.do("name")
    for what in ("write", "sync", "write"):
        writer.do(what)
    writer.control.fail(Kind.LOG, Call.SYNC, errno.EIO, times=1)
    assert [writer.do("sync"), writer.do("sync")] == [str(errno.EIO), "synced"]
    (file,) = [file for file in writer.control.files().values() if file.synced]
    assert file.synced == 10, "the kernel tells of a lost write once"


def test_an_unsynced_file_name_is_tracked(writer: FaultyWriter) -> None:
    writer.do("write")
    writer.do("sync")
    (file,) = writer.control.files().values()
    assert file.unnamed
    writer.do("name")
    assert not file.unnamed


def test_removed_files_are_kept_and_may_return_after_a_power_cut(writer: FaultyWriter) -> None:
    gone = writer.log.parent.with_name("data.gone")
    gone.mkdir()
    writer.do("write")
    writer.do("name")
    writer.control.fail(Kind.LOG, Call.UNLINK, errno.EROFS, times=1)
    assert [writer.do("remove"), writer.do("remove")] == [str(errno.EROFS), "removed"]
    assert not writer.path.exists()
    assert [path.read_bytes() for path in gone.iterdir()] == [b"0123456789"]
    back = set()
    for seed in range(20):
        cut_power(writer.control, writer.log, random.Random(seed))
        back.add(writer.path.exists())
        writer.path.unlink(missing_ok=True)
    assert back == {False, True}
    writer.do("name")
    for seed in range(20):
        cut_power(writer.control, writer.log, random.Random(seed))
        assert not writer.path.exists(), "its directory was synced since"


def test_a_gateway_kills_itself_at_the_requested_step(writer: FaultyWriter) -> None:
    writer.log.parent.with_name("data.gone").mkdir()
    writer.do("write")
    writer.control.kill_after(3)
    writer.do("name")
    assert writer.control.kill_pending
    assert writer.do("remove") == ""
    assert writer.path.exists()
    assert not writer.control.kill_pending


def test_a_third_of_the_runs_retire_and_compact() -> None:
    plans = [plan(seed) for seed in range(300)]
    assert sum(each.keep_bytes is not None for each in plans) == 100
    assert all(each.keep_bytes is not None for each in plans if any(life.kill_step for life in each.lives))
    assert 10 < sum(each.loop == "trio" for each in plans) < 60


def line(seq: int) -> bytes:
    return encode(Fact("counts", {"minute": 0, "flows": []}, seq, 1000 + seq))


@pytest.mark.parametrize("kind", ["flip in sealed", "flip in open", "cut sealed", "cut open", "zeros"])
@pytest.mark.parametrize("seed", range(5))
def test_damage_returns_the_records_that_it_destroys(tmp_path: Path, kind: str, seed: int) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / f"{1:020d}.jsonl").write_bytes(b"".join(map(line, range(1, 6))))
    (log / f".open-{6:020d}.jsonl").write_bytes(b"".join(map(line, range(6, 11))))
    done = damage(kind, tmp_path, random.Random(seed))
    left = {record.seq for record in records(log)}
    assert done.seqs == set(range(1, 11)) - left
    assert done.seqs
    assert done.roots
    assert (min(done.seqs) > 5) == ("open" in kind) or kind == "zeros"


def test_a_segment_ends_where_the_next_begins(tmp_path: Path) -> None:
    (tmp_path / f"{1:020d}.jsonl").write_bytes(b"".join(map(line, range(1, 6))))
    (tmp_path / f".open-{4:020d}.jsonl").write_bytes(b"".join(map(line, range(4, 7))))
    assert [record.seq for record in records(tmp_path)] == [1, 2, 3, 4, 5, 6]


def told(seq: int, token: str, **more: Any) -> HistoryMessage:
    return HistoryMessage(seq, token, f"id {seq}", {"content": token} | more, late=False)


def ledger(*tokens: str) -> Ledger:
    """A ledger of messages that were sent and accepted."""
    ledger = Ledger()
    for seq, token in enumerate(tokens, 1):
        content = {"content": token}
        sent = ledger.add("c", SentMessage(token, "lobby", "rest", content, json.dumps(content)))
        ledger.record_accept(sent, seq, f"id {seq}")
    return ledger


GOOD = [told(1, "a"), told(2, "b"), told(3, "c")]


def test_a_complete_history_has_no_violation() -> None:
    held = ledger("a", "b", "c")
    text = b"".join(b'{"content":{"content": "%b"}}' % token.encode() for token in ("a", "b", "c"))
    check_history(held, "lobby", GOOD, text)
    assert held.violations == []


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (GOOD[:2], "1 that were accepted are lost: c"),
        ([*GOOD, told(4, "b")], "b is in the history 2 times"),
        ([*GOOD, told(4, "d")], "which was not sent"),
        ([told(1, "a"), told(2, "b", more=1), told(3, "c")], "the history has b as"),
        ([told(1, "b"), told(2, "a"), told(3, "c")], "is in another order"),
        ([told(1, "a"), told(2, "b"), told(9, "c")], "c was accepted as 3 id 3 and is 9 id 9"),
        ([GOOD[1], GOOD[0], GOOD[2]], "not in the order of its sequences"),
    ],
)
def test_an_incomplete_history_is_a_violation(found: list[HistoryMessage], what: str) -> None:
    held = ledger("a", "b", "c")
    check_history(held, "lobby", found)
    assert any(what in wrong for wrong in held.violations), held.violations


def test_altered_text_in_history_is_a_violation() -> None:
    held = ledger("a")
    check_history(held, "lobby", GOOD[:1], b'{"content":{"content":"a"}}')
    assert held.violations == ["the history has a, but not as it was written"]


def test_damaged_records_may_be_missing() -> None:
    held = ledger("a", "b", "c")
    held.mark_damaged({"c"}, 2)
    check_history(held, "lobby", GOOD[:2])
    assert held.violations == []


def test_an_event_that_is_missing_on_disk_is_a_violation() -> None:
    held = ledger("a", "b")
    held.add("d", SentMessage("c", "lobby", "relay", {"content": "c"}))
    held.record_event("listener", "lobby", 3, {"content": "c"})
    check_history(held, "lobby", GOOD[:2])
    assert held.violations == ["c was shown as record 3 of lobby, which is None now"]
    held.record_event("listener", "lobby", 3, {"content": "c"})
    assert "was shown 3 after 3" in held.violations[-1]


def test_a_different_second_answer_is_a_violation() -> None:
    held = ledger("a")
    held.record_accept(held.messages["a"], 1, "id 1")
    assert held.violations == []
    held.record_accept(held.messages["a"], 2, "id 2")
    assert held.violations == ["a was answered 1 id 1, and again 2 id 2"]
