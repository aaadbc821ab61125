from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway import runtime
from gateway.core.message import LATE_AFTER, Message, Peer
from gateway.storage import record_schema
from gateway.storage import retention as retention_module
from gateway.storage.log import SealPolicy
from gateway.storage.record import Fact, decode, encode
from gateway.storage.retention import Retention, is_fact
from gateway.storage.segments import parse_header
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conftest import Core

DAY = 86_400_000
EACH = SealPolicy(bytes=1)  # a segment for each batch

MakeCore = Callable[..., "Core"]


def names(core: Core) -> list[str]:
    return sorted(path.name for path in (core.data / "log").iterdir())


def lines(core: Core) -> list[bytes]:
    """What the log has; others than its own `Segments` would repair what is still being sealed."""
    return [line.data for line in core.segments.scan()]


def run(core: Core, retention: Retention) -> None:
    """One tick, and all it brings about."""
    retention.tick()
    retention.tick()  # one at a time
    core.settle()


def retired(core: Core) -> list[bool]:
    """For each segment, whether only its facts are left."""
    files = {int(name.removeprefix(".open-").split(".")[0]): name for name in names(core)}
    return [files[first].endswith(".facts.jsonl") for first in sorted(files)]


def whole_from(core: Core, message: Message) -> bool:
    """Whether every segment before the one of *message*, and none from there on, is retired."""
    files = sorted(core.segments.first_seqs)
    return retired(core) == [any(first < other <= message.seq for other in files) for first in files]


def days(core: Core, count: int) -> list[Message]:
    """A few segments a day: somebody new says something in a new channel."""
    said = []
    for day in range(count):
        core.peers.identity("toy", f"peer {day}")
        core.sync()
        said.append(core.say(b'"day %d"' % day, ids=(f"id {day}",), channel=f"channel {day % 2}"))
        core.settle()
        core.clock.now += DAY
    core.settle()
    return said


@pytest.fixture
def core(make_core: MakeCore) -> Core:
    return make_core(sealing=EACH)


@pytest.mark.parametrize("kind", record_schema.FACT_FIELDS)
def test_facts_are_distinguished_from_messages(kind: str) -> None:
    assert is_fact(encode(Fact(kind, {"channel": 'x","kind":"y'}, 7, 8)))
    assert not is_fact(encode(Message(f'"kind":"{kind}"', Peer(1, "toy"), "toy", b'{"kind":"start"}')))


def test_without_limits_everything_is_kept(core: Core) -> None:
    days(core, 3)
    before = names(core)
    run(core, core.retention())
    assert names(core) == before


def test_old_messages_are_retired_and_facts_kept(core: Core) -> None:
    said = days(core, 3)
    core.say(b'"today"', channel="channel 0")
    core.settle()
    before = lines(core)
    run(core, core.retention(age=DAY + 1))
    gone = {message.seq for message in said[:2]}
    assert lines(core) == [line for line in before if parse_header(line)[0] not in gone]
    assert any(retired(core))
    assert not retired(core)[-1]
    assert [m.content for m in core.index.history("channel 0")] == [b'"day 2"', b'"today"']
    assert core.index.history("channel 1") == []
    assert [core.index.find(id) is None for id in ("id 0", "id 1", "id 2", said[0].id)] == [True, True, False, True]
    assert core.disk_faults == []
    for line in lines(core):
        seq, _ = parse_header(line)
        entry = core.index.entry(seq)
        assert entry is not None
        assert encode(entry) == line
    assert core.segments.faults == []


def test_facts_are_found_after_a_restart_and_a_rebuild(make_core: MakeCore) -> None:
    core = make_core(sealing=EACH)
    days(core, 3)
    core.say(b'"today"')
    core.settle()
    run(core, core.retention(age=1))
    next_seq = core.log.next_seq
    for damage in (False, True):
        core.stop()
        if damage:
            (core.data / "index.sqlite").unlink()
        core = make_core(sealing=EACH)
        assert core.log.next_seq == next_seq
        assert [core.index.peer("toy", f"peer {day}") is not None for day in range(3)] == [True] * 3
        assert [name for name, _, _ in core.index.channels()] == ["channel 0", "channel 1", "lobby"]
        assert core.index.history("channel 0") == []
        assert [m.content for m in core.index.history("lobby")] == [b'"today"']
        assert core.index.next_number == 1024


def test_too_many_bytes_retire_the_oldest_messages(core: Core) -> None:
    before = days(core, 5)
    kept = sum(len(line) for line in lines(core) if parse_header(line)[0] >= before[3].seq)
    run(core, core.retention(bytes=kept))
    assert [core.index.find(f"id {day}") is not None for day in range(5)] == [False, False, False, True, True]
    assert whole_from(core, before[3])
    run(core, core.retention(bytes=1))
    assert retired(core) == [True] * (len(retired(core)) - 1) + [False]


def test_a_log_without_new_messages_is_retired(core: Core) -> None:
    days(core, 2)

    def only_marks_are_left() -> bool:
        """Whether all is retired but the mark; there are two where a turn came before the first was on disk."""
        run(core, core.retention(age=1))
        marks, found = sum(b'"counts"' in line for line in lines(core)[-2:]), retired(core)
        return marks > 0 and found == [True] * (len(found) - marks) + [False] * marks

    until(only_marks_are_left)  # the seal, the mark and the retirement each take a turn, or more
    assert core.index.find("id 1") is None
    core.settle()
    settled = lines(core)
    assert b'"counts"' in settled[-1]
    run(core, core.retention(age=1))
    assert lines(core) == settled, "and then no more happens"


def test_an_open_segment_stays(make_core: MakeCore) -> None:
    core = make_core()
    said = core.say()
    core.settle()
    core.clock.now += DAY
    run(core, core.retention(age=1))
    assert core.index.find(said.id) is not None


def test_segments_that_are_not_indexed_yet_are_kept(core: Core) -> None:
    days(core, 3)
    assert list(core.retention(age=1).due(core.segments.first_seqs[1] - 2)) == []
    assert len(list(core.retention(age=1).due(core.segments.first_seqs[1] - 1))) == 1


def test_a_damaged_line_is_reported_when_it_is_retired(core: Core) -> None:
    days(core, 2)
    path = core.data / "log" / f"{1:020d}.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"kind"', b'"kinx"', 1))
    run(core, core.retention(age=DAY))
    (fault,) = core.segments.faults
    assert "lost when it was retired" in fault.reason
    assert path.with_name(f"{1:020d}.facts.jsonl").exists()


STEPS = ["open", "rename", "sync", "prune", "unlink"]


def crash(*_arguments: Any, **_options: Any) -> Any:
    raise OSError("the machine stops here")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("rebuild", [False, True])
def test_a_crash_at_each_step_loses_no_fact(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch, step: str, rebuild: bool
) -> None:
    """The step does not happen; a later run, after a restart, finishes the work."""
    core = make_core(sealing=EACH)
    days(core, 2)
    core.say(b'"today"')
    core.settle()
    until(lambda: not core.segments.open_path(core.segments.first_seqs[-1]).exists())  # the log's thread is done
    facts = [line for line in lines(core) if is_fact(line)]

    with monkeypatch.context() as patched:
        target: tuple[Any, str] = {
            "open": (os, "fsync"),
            "rename": (Path, "rename"),
            "sync": (retention_module, "sync_directory"),
            "prune": (core.index, "prune"),
            "unlink": (Path, "unlink"),
        }[step]
        patched.setattr(*target, crash)
        retirement = core.retention(age=DAY)
        retirement.tick()
        core.until(lambda: not retirement._busy)
    assert len(core.disk_faults) == 1
    assert [line for line in lines(core) if is_fact(line)] == facts
    core.stop()
    if rebuild:
        (core.data / "index.sqlite").unlink()
    core = make_core(sealing=EACH)
    assert [line for line in lines(core) if is_fact(line)] == facts
    assert [core.index.peer("toy", f"peer {day}") is not None for day in range(2)] == [True, True]
    core.clock.now += 3 * DAY
    run(core, core.retention(age=DAY))
    assert [line for line in lines(core) if is_fact(line)] == facts
    assert [core.index.find(f"id {day}") for day in range(2)] == [None, None]
    assert core.index.history("channel 0") == core.index.history("channel 1") == []
    assert [name for name in names(core) if name.startswith(".retire")] == []
    whole = {name.split(".")[0] for name in names(core) if name.count(".") == 1}
    assert not whole & {name.split(".")[0] for name in names(core) if name.endswith(".facts.jsonl")}


def test_a_kill_before_the_removal_of_a_file_leaves_no_partial_state(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages have left the index, and the log may be told to keep everything at the next start."""
    core = make_core(sealing=EACH)
    first = days(core, 4)[0].seq
    segment = core.segments.path(max(each for each in core.segments.first_seqs if each <= first))
    copy = core.data.parent / "copy"
    unlink = Path.unlink

    def copying(path: Path, *arguments: Any, **options: Any) -> None:
        if path == segment:
            shutil.copytree(core.data, copy)
        unlink(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", copying)
        run(core, core.retention(age=2 * DAY))
    again = type(core)(copy, sealing=EACH).start()
    try:
        said = [entry for line in again.segments.scan() if isinstance(entry := decode(line.data), Message)]
        shown = [each for name in ("channel 0", "channel 1") for each in again.index.history(name)]
        assert sorted(each.seq for each in shown) == [each.seq for each in said]
        assert again.index.first_kept <= said[0].seq
    finally:
        again.stop()


def test_messages_of_an_unremovable_file_leave_the_index(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever resumes is told of the gap: the messages have left the index."""
    said = days(core, 4)
    stuck = core.segments.path(max(first for first in core.segments.first_seqs if first <= said[0].seq))
    unlink = Path.unlink

    def fail(path: Path, *arguments: Any, **options: Any) -> None:
        if path == stuck:
            raise OSError(5, "Input/output error")
        unlink(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail)
        run(core, core.retention(age=2 * DAY))
    assert core.disk_faults
    shown = [each.seq for name in ("channel 0", "channel 1") for each in core.index.history(name)]
    assert said[0].seq not in shown
    assert said[0].seq < core.index.first_kept <= min(shown)


def test_messages_accepted_with_a_clock_ahead_do_not_refuse_later_ones(make_core: MakeCore) -> None:
    """What is signed now would be older than all that is kept, for as long as the clock had jumped."""
    core = make_core(sealing=EACH)
    now = core.clock.now
    core.clock.now = now + 3 * DAY
    days(core, 4)
    run(core, core.retention(bytes=1))
    since = core.index.kept_since(core.clock.now)
    assert now < since <= core.clock.now
    assert core.index.kept_since(now) == now - LATE_AFTER


def test_retention_continues_when_the_clock_is_set_back(still: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []
    ahead, later = runtime.clock() + 3 * DAY, time.monotonic() + 61
    monkeypatch.setattr(still.gateway.retention, "tick", lambda: ticks.append(1))
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "clock", lambda: ahead)
        still.gateway.tick()
    monkeypatch.setattr(runtime, "monotonic", lambda: later)
    still.gateway.tick()
    assert ticks == [1, 1]
