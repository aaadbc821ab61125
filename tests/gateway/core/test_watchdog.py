"""A queue that has work and makes no progress is reported once, until it continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.core import watchdog
from gateway.core.watchdog import STALL_SECONDS, Progress, Watchdog


class Watched:
    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.late: list[tuple[float, str]] = []
        self.progress = Progress(0, 0)
        self.dog = Watchdog(self.told.append, lambda late, where: self.late.append((late, where)), lambda: self.now)
        self.dog.watch("it", lambda: self.progress)

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        self.dog.tick()


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.dog.stop()


def test_idle_objects_need_no_progress(watched: Watched) -> None:
    watched.pass_(1000)
    watched.pass_(1000)
    assert not watched.dog.stalled


def test_an_object_that_progresses_may_always_have_work(watched: Watched) -> None:
    for done in range(100):
        watched.progress = Progress(5, done)
        watched.pass_(STALL_SECONDS * 0.9)
    assert not watched.dog.stalled


def test_a_stall_is_reported_once_until_there_is_progress(watched: Watched) -> None:
    watched.progress = Progress(1, 7)
    watched.pass_(1)
    watched.pass_(STALL_SECONDS - 0.1)
    assert not watched.dog.stalled
    watched.pass_(0.2)
    watched.pass_(100)
    assert watched.dog.stalled == ["it"]
    assert watched.told == ["it"]
    watched.progress = Progress(1, 8)
    watched.pass_(1)
    assert not watched.dog.stalled
    watched.pass_(STALL_SECONDS + 1)
    assert watched.told == ["it", "it"]


def test_new_work_is_not_a_stall(watched: Watched) -> None:
    watched.pass_(1000)
    watched.progress = Progress(1, 0)
    watched.pass_(STALL_SECONDS - 1)
    watched.pass_(STALL_SECONDS + 1)
    assert watched.dog.stalled, "now it is"


@pytest.mark.slow
def test_a_late_loop_is_reported_with_its_stack(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, done = threading.Event(), threading.Event()

    def loop() -> None:
        watched.dog.start()
        ready.set()
        stands_here(done)

    def stands_here(done: threading.Event) -> None:
        done.wait(20)

    monkeypatch.setattr(watchdog, "LATE_SECONDS", 5.0)
    thread = threading.Thread(target=loop)
    thread.start()
    ready.wait(20)
    watched.now = 6.0
    deadline = time.monotonic() + 20
    while not watched.late and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.5)
    done.set()
    thread.join()
    ((late, where),) = watched.late
    assert late == 6.0
    assert "stands_here" in where


def test_a_gateway_with_a_stall_is_not_ready(
    still: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = still.gateway
    assert gateway.unready_reasons() == []
    monkeypatch.setattr(watchdog, "STALL_SECONDS", 0.0)
    gateway.watchdog.watch("the flusher", lambda: Progress(1, 0))
    gateway.tick()
    gateway.tick()
    assert "the flusher makes no progress" in gateway.unready_reasons()
    assert "the flusher" in "".join(capsys.readouterr())
    assert gateway.metrics.counts["faults"]["stalled",] >= 1


def test_log_and_index_report_their_progress(still: Any) -> None:
    dog = still.gateway.watchdog
    still.say()
    for name in ("the log", "the index", "the worker"):
        assert name in dog._watched
    assert dog._watched["the log"].read().waiting >= 1
    still.sync()
    waiting, done = dog._watched["the log"].read()
    assert (waiting, done) == (0, still.gateway.log.synced_seq)
