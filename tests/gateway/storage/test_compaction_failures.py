"""A compaction that fails or stops half-way leaves one state or the other."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.storage import compaction as compaction_module
from gateway.storage import fact_index as fact_index_module
from gateway.storage import index as index_module
from gateway.storage.archive import verify
from gateway.storage.compaction import Compaction
from gateway.storage.file_lines import lines_backward
from gateway.storage.layout import Layout
from gateway.storage.record import Fact
from gateway.storage.segments import Segments

if TYPE_CHECKING:
    from tests.conftest import Core
from tests.gateway.storage.compactions import (
    EACH,
    MakeCore,
    churn,
    copy_before,
    entries,
    forgettable,
    names,
    retention,
    run,
    same_when_made_anew,
    tables,
)


@pytest.fixture(autouse=True, scope="module")
def _fast() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index_module, "GATHER_SECONDS", 0)
        patched.setattr(compaction_module, "GRACE_SECONDS", 0)
        yield


@pytest.fixture
def core(make_core: MakeCore) -> Core:
    return make_core(sealing=EACH)


STEPS = ["_exclude_in_use", "_remove_from_index", "_release", "_write", "_finish", "rename", "use", "unlink", "finish"]


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step_leaves_one_state_or_the_other(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch, step: str, rebuild: bool
) -> None:
    """The files are copied as they are when the step is about to happen; a gateway that starts with them goes on."""
    core = make_core(sealing=EACH)
    for number in range(3):
        churn(core, number)
    core.say(b'"today"', channel="kept")
    core.settle()
    run(core, retention(core, age=1, slack=1 << 40))
    old = entries_but_messages(core.data)
    owner, name = {
        "rename": (Path, "rename"),
        "use": (Segments, "use_front"),
        "unlink": (Path, "unlink"),
        "finish": (core.index.facts, "finish"),
    }.get(step, (Compaction, step))
    with monkeypatch.context() as patched:
        copies = copy_before(core, patched, owner, name)
        run(core, retention(core, age=1))
    assert core.disk_faults == []
    new = entries_but_messages(core.data)
    assert old != new
    assert copies
    for place, copy in enumerate(copies):
        if rebuild:
            (copy / "index.sqlite").unlink(missing_ok=True)
        check_one_state(core, copy, old, new, place)


def entries_but_messages(data: Path) -> list[tuple[int, str]]:
    return [(entry.seq, entry.kind) for entry in entries(data / "log") if isinstance(entry, Fact)]


def check_one_state(core: Core, data: Path, old: Any, new: Any, place: int) -> None:
    again = type(core)(data, sealing=EACH).start()
    try:
        assert verify(data / "log").faults == [], place
        found = entries_but_messages(data)
        assert found in (old, new), place
        same_when_made_anew(again)
        again.clock.now = core.clock.now
        run(again, retention(again, age=1))
        run(again, retention(again, age=1))
        assert again.disk_faults == []
        left = names(again)
        assert len([name for name in left if "facts" in name]) == 1
        assert not [name for name in left if name.startswith(".retire")]
    finally:
        again.stop()


def test_facts_of_a_compaction_that_fails_are_there_again(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        churn(core, number)
    core.say(b'"today"')
    core.settle()
    run(core, retention(core, age=1, slack=1 << 40))
    before = tables(core)

    def fail(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(compaction_module, "sync_directory", fail)
        patched.setattr(Path, "rename", fail)
        run(core, retention(core, age=1))
    assert len(core.disk_faults) == 1
    assert tables(core) == before | {"meta": tables(core)["meta"]}
    run(core, retention(core, age=1))
    assert Layout.read(core.data / "log").front is not None
    same_when_made_anew(core)


def fail(*_arguments: Any) -> None:
    raise OSError(5, "Input/output error")


def test_a_front_counts_once_it_is_renamed_even_if_the_sync_fails(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever speaks after its name could not be synced is known, be the front there or not after a crash."""
    core = make_core(sealing=EACH)
    forgettable(core)

    with monkeypatch.context() as patched:
        patched.setattr(compaction_module, "sync_directory", fail)
        run(core, retention(core, age=1))
    assert len(core.disk_faults) == 1
    who = core.peers.identity("toy", "peer 1")
    core.say(sender=who, channel="channel 1")
    core.settle()
    again = make_core(sealing=EACH)
    assert again.index.peer("toy", "peer 1") == who
    same_when_made_anew(again)


def test_files_that_could_not_be_removed_go_with_the_next_compaction(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgettable(core)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail)
        run(core, retention(core, age=1))
    assert len(core.disk_faults) == 1
    same_when_made_anew(core)
    forgettable(core)
    run(core, retention(core, age=1))
    assert len([name for name in names(core) if "facts" in name]) == 1


def test_a_mending_that_fails_is_tried_again(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    forgettable(core)
    before = tables(core)
    repair = core.index.facts.repair
    failures = [OSError(24, "Too many open files"), sqlite3.OperationalError("disk I/O error")]

    def failing() -> None:
        if failures:
            raise failures.pop()
        repair()

    def fail(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(core.index.facts, "repair", failing)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        run(core, retention(core, age=1))
    assert tables(core) == before | {"meta": tables(core)["meta"]}
    core.say(b'"more"')
    core.settle()
    assert core.index.history("lobby")[-1].content == b'"more"'
    assert core.index.trouble is None


def test_facts_are_found_while_a_mending_cannot_read_them(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    forgettable(core)
    before, found = tables(core), list[Any]()

    def once(files: Sequence[Path]) -> Iterator[bytes]:
        found.append(core.index.rows("SELECT min(seq) FROM records"))
        if len(found) == 1:
            raise OSError(24, "Too many open files")
        return lines_backward(files)

    def fail(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(fact_index_module, "BATCH_FACTS", 2)
    monkeypatch.setattr(fact_index_module, "lines_backward", once)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        run(core, retention(core, age=1))
    core.until(lambda: core.index.trouble is None and len(found) > 1)
    core.settle()
    assert found[:2] == [[(1,)]] * 2
    assert tables(core) == before | {"meta": tables(core)["meta"]}


@pytest.mark.parametrize("step", ["_remove_from_index", "_write", "finish"])
def test_an_index_older_than_the_front_is_rebuilt(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As a power cut leaves it: what the log says is on disk at once, what the index says a while later."""
    core = make_core(sealing=EACH)
    forgettable(core)
    owner: Any = core.index.facts if step == "finish" else Compaction
    with monkeypatch.context() as patched:
        copies = copy_before(core, patched, owner, step)
        run(core, retention(core, age=1))
    core.stop()
    copy = copies[0]
    for name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm"):
        (core.data / name).unlink(missing_ok=True)
        if (copy / name).exists():
            shutil.copy(copy / name, core.data / name)
    again = make_core(sealing=EACH)
    assert again.index.peer("toy", "peer 1") is None
    same_when_made_anew(again)
    assert bool(again.disk_faults) == (step == "_remove_from_index")


def test_an_index_rebuilt_during_a_compaction_drops_removed_facts(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    forgettable(core)
    write = Compaction._write

    def remaking(compaction: Compaction, *arguments: Any) -> None:
        core.index.rebuild()
        write(compaction, *arguments)

    monkeypatch.setattr(Compaction, "_write", remaking)
    run(core, retention(core, age=1))
    assert core.disk_faults == []
    assert core.index.peer("toy", "peer 1") is None
    same_when_made_anew(core)
