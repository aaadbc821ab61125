from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.message import Message, Peer
from gateway.storage import log as log_module
from gateway.storage.log import Log, SealPolicy, SyncedBatch
from gateway.storage.record import decode
from gateway.storage.segments import Segments, parse_header

if TYPE_CHECKING:
    from tests.still import Clock


class LogUnderTest:
    """A log in *directory*, with what it posts and whom it tells."""

    def __init__(self, directory: Path, clock: Callable[[], int], sealing: SealPolicy | None = None) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.batches: list[SyncedBatch] = []
        self.rooms = 0
        self.log = Log(Segments(directory), self.posted.put, clock, sealing=sealing)
        self.log.on_synced = self.batches.append
        self.log.on_resume = self._room

    def say(self, content: bytes = b"1", time: int = 0) -> Message:
        message = Message("lobby", Peer(1, "toy"), "toy", content, id="x", seq=self.log.next_seq, time=time)
        self.log.append(message)
        return message

    def sync(self) -> None:
        done: list[bool] = []
        self.log.when_synced(self.log.next_seq - 1, lambda: done.append(True))
        while not done:
            self.posted.get(timeout=60)()

    def close(self) -> None:
        self.log.close()
        while not self.posted.empty():
            self.posted.get()()

    def _room(self) -> None:
        self.rooms += 1


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., LogUnderTest]]:
    desks: list[LogUnderTest] = []

    def make(sealing: SealPolicy | None = None) -> LogUnderTest:
        desks.append(LogUnderTest(tmp_path / "log", clock, sealing))
        return desks[-1]

    yield make
    for desk in desks:
        if desk.log._thread.is_alive():
            desk.close()


def lines(directory: Path) -> list[bytes]:
    return [found.data for found in Segments(directory).scan()]


def test_appended_records_are_on_disk_when_acknowledged(make: Callable[..., LogUnderTest], tmp_path: Path) -> None:
    desk = make()
    desk.log.start()
    first = desk.say()
    told: list[int] = []
    desk.log.when_synced(1, lambda: told.append(desk.log.synced_seq))
    assert told == []
    desk.sync()
    assert told == [1]
    (path,) = (tmp_path / "log").iterdir()
    assert (path.name, decode(path.read_bytes()).seq) == (".open-00000000000000000001.jsonl", first.seq)
    desk.log.when_synced(1, lambda: told.append(-1))
    assert told == [1, -1]  # at once


def test_callbacks_come_in_order_of_sequence_after_the_batch(make: Callable[..., LogUnderTest]) -> None:
    desk = make()
    told: list[int | str] = []
    desk.log.on_synced = lambda _batch: told.append("batch")
    for _ in range(5):
        desk.say()
    for seq in (3, 1, 5, 3, 2, 4):
        desk.log.when_synced(seq, lambda seq=seq: told.append(seq))  # type: ignore[misc]
    desk.log.start()
    desk.sync()
    assert told == ["batch", 1, 2, 3, 3, 4, 5]


def test_a_batch_has_the_offset_of_each_entry(make: Callable[..., LogUnderTest]) -> None:
    desk = make()
    desk.log.start()
    for _ in range(3):
        for number in range(20):
            desk.say(b'"%s"' % (b"x" * number))
        desk.sync()
    synced = [pair for batch in desk.batches for pair in zip(*batch, strict=True)]
    assert [entry.seq for entry, _ in synced] == list(range(1, 61))
    for entry, offset in synced:
        assert parse_header(desk.log.segments.read(entry.seq, offset)) == (entry.seq, entry.time)


def test_facts_are_dated_and_time_never_decreases(
    make: Callable[..., LogUnderTest], clock: Clock, tmp_path: Path
) -> None:
    desk = make()
    desk.log.start()
    now = clock.now
    assert desk.log.fact("start", {"gateway": "g", "version": "1"}).time == now
    clock.now -= 3_600_000
    assert desk.log.fact("start", {"gateway": "g", "version": "1"}).time == now
    assert desk.say(time=clock.now).time == now
    assert desk.say(time=now + 5).time == now + 5
    desk.close()
    again = make()
    assert again.log.fact("start", {"gateway": "g", "version": "1"}).time == now + 5
    again.log.start()
    again.close()
    times = [parse_header(line)[1] for line in lines(tmp_path / "log")]
    assert times == sorted(times)


@pytest.mark.parametrize("seq", [0, 2, -1])
def test_only_the_next_sequence_is_taken(make: Callable[..., LogUnderTest], seq: int) -> None:
    desk = make()
    with pytest.raises(ValueError, match="comes next"):
        desk.log.append(Message("lobby", Peer(1, "toy"), "toy", b"1", seq=seq))
    assert desk.log.next_seq == 1


def test_a_clean_stop_seals_and_the_next_start_continues(make: Callable[..., LogUnderTest], tmp_path: Path) -> None:
    desk = make()
    desk.log.start()
    desk.say()
    desk.say()
    desk.close()
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["00000000000000000001.jsonl"]
    again = make()
    assert (again.log.next_seq, again.log.synced_seq) == (3, 2)
    again.log.start()
    again.say()
    again.close()
    assert [parse_header(line)[0] for line in lines(tmp_path / "log")] == [1, 2, 3]
    assert sorted(path.name for path in (tmp_path / "log").iterdir())[1] == "00000000000000000003.jsonl"


def test_a_stop_without_anything_written_leaves_nothing(make: Callable[..., LogUnderTest], tmp_path: Path) -> None:
    desk = make()
    desk.log.start()
    desk.close()
    assert list((tmp_path / "log").iterdir()) == []


@pytest.mark.parametrize(
    ("sealing", "count"),
    [
        (SealPolicy(bytes=1), 3),
        (SealPolicy(seconds=0, min_records=1), 3),
        (SealPolicy(seconds=0, min_bytes=1), 3),
        (SealPolicy(max_seconds=0), 3),
        (SealPolicy(seconds=0), 0),
        (SealPolicy(), 0),
    ],
)
def test_a_segment_is_sealed_by_its_policy(
    make: Callable[..., LogUnderTest], tmp_path: Path, sealing: SealPolicy, count: int
) -> None:
    desk = make(sealing)
    desk.log.start()
    for _ in range(3):
        desk.say()
        desk.sync()
    desk.say()
    desk.sync()  # the third seal, if any, is done by now
    names = [path.name for path in (tmp_path / "log").iterdir() if not path.name.startswith(".")]
    assert len(names) >= count
    assert count or not names
    assert [parse_header(line)[0] for line in (found.data for found in desk.log.segments.scan())] == [1, 2, 3, 4]


def test_too_much_unsynced_is_congestion_until_there_is_room(
    make: Callable[..., LogUnderTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "MAX_UNSYNCED_BYTES", 4000)
    desk = make()
    while not desk.log.congested:
        desk.say(b'"%s"' % (b"x" * 500))
    assert (desk.log.next_seq, desk.rooms) == (8, 0)
    desk.log.start()
    desk.sync()
    assert (desk.log.congested, desk.rooms) == (False, 1)


def test_a_log_is_crowded_while_much_waits(make: Callable[..., LogUnderTest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CROWDED_BYTES", 1000)
    desk = make()
    desk.say(b'"%s"' % (b"x" * 500))
    assert not desk.log.crowded
    desk.say(b'"%s"' % (b"x" * 500))
    assert desk.log.crowded
    desk.log.start()
    desk.sync()
    assert not desk.log.crowded


def test_a_slow_disk_makes_the_log_crowded_earlier(
    make: Callable[..., LogUnderTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SLOW_BYTES", 1000)
    desk = make()
    for _ in range(3):
        desk.say(b'"%s"' % (b"x" * 500))
    now = monotonic()
    monkeypatch.setattr(log_module, "monotonic", lambda: now)
    assert not desk.log.crowded
    now += 2 * log_module.SLOW_SECONDS
    assert desk.log.crowded
    desk.log.start()
    desk.sync()
    assert not desk.log.crowded


def test_a_failing_log_reports_its_error_until_it_succeeds(
    make: Callable[..., LogUnderTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(log_module, "UNCERTAIN_SECONDS", 0.1)
    full = threading.Event()
    full.set()

    def write(file: int, data: bytes) -> int:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(file, data)

    monkeypatch.setattr(log_module, "os", _Os(write))
    desk = make()
    told: list[str] = []
    desk.say()
    desk.log.when_synced(1, lambda: told.append("synced"), lambda: told.append("doubtful"))
    desk.log.when_synced(1, lambda: told.append("waited"))
    desk.log.start()
    while not told:
        desk.posted.get(timeout=60)()
    assert (told, desk.log.failing, desk.log.congested) == (["doubtful"], "No space left on device", True)
    assert desk.rooms == 1  # those that a slow disk held back are refused now
    full.clear()
    while desk.log.failing:
        desk.posted.get(timeout=60)()
    assert (told, desk.log.congested, desk.rooms) == (["doubtful", "waited"], False, 2)


class _Os:
    """The module, with another *write*."""

    def __init__(self, write: Callable[[int, bytes], int]) -> None:
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
