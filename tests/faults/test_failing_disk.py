"""A disk that fails for a while loses no accepted record, writes none twice, and recovers."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.errors import Unavailable
from gateway.storage import log as log_module
from gateway.storage import segments as segments_module
from gateway.storage.log import SealPolicy
from gateway.storage.segments import Segments, parse_header
from gateway.system.directories import sync_directory

if TYPE_CHECKING:
    from tests.conftest import Core, ToySession

MakeCore = Callable[..., "Core"]


NAMES = ["open", "write", "fdatasync", "fsync", "ftruncate", "directory"]


class Disk:
    """The system calls of the log, some of which fail: `failing` names them, `left` counts the failures to come."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.left = 0
        self.error = errno.ENOSPC
        self.partial = False
        self.calls = 0
        self._lock = threading.Lock()
        for name in ("open", "write", "fdatasync", "fsync", "ftruncate"):
            setattr(self, name, self._wrapped(name, getattr(os, name)))
        self.directory = self._wrapped("directory", sync_directory)

    def fail(self, *names: str, times: int = 0, error: int = errno.ENOSPC, partial: bool = False) -> None:
        """Let the next calls of those names fail, *times* in all; *partial*: a write stops half way first."""
        self.failing, self.left, self.error, self.partial = set(names), times, error, partial

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                fails = name in self.failing and self.left > 0
                self.left -= fails
                self.calls += fails
            if fails:
                if name == "write" and self.partial:
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                raise OSError(self.error, os.strerror(self.error))
            return real(*arguments, **options)

        return call


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(log_module, "os", disk)
    monkeypatch.setattr(segments_module, "sync_directory", disk.directory)
    monkeypatch.setattr(log_module, "RETRY_SECONDS", 0.02)
    return disk


def seqs(core: Core) -> list[int]:
    return [parse_header(line.data)[0] for line in Segments(core.data / "log").scan()]


def contents(core: Core) -> list[bytes]:
    return [message.content for message in core.index.history("lobby")]


FAILURES = [
    ("write",),
    ("fdatasync",),
    ("write", "ftruncate"),
    ("fdatasync", "fsync"),
    ("open",),
    ("directory",),
    ("open", "directory", "write"),
]


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("names", FAILURES, ids="+".join)
def test_a_disk_that_fails_for_a_while(
    make_core: MakeCore, toy_session: type[ToySession], disk: Disk, names: tuple[str, ...], times: int, error: int
) -> None:
    core = make_core()
    session = toy_session(core.bus)
    core.say(b"0")
    core.sync()
    first = core.log.next_seq
    if {"open", "directory"} & set(names):  # no segment is open any more
        core.stop()
        core = make_core()
        session = toy_session(core.bus)
        first = core.log.next_seq - 1
    disk.fail(*names, times=times, error=error, partial=True)
    accepted: list[int] = []
    said = core.say(b"1")
    core.log.when_synced(said.seq, lambda: accepted.append(said.seq))
    core.until(lambda: core.log.congested or bool(accepted))
    assert core.disk_faults
    if core.log.congested:
        assert accepted == []
        check_refusals(core, session)
    core.until(lambda: bool(accepted) and not core.log.congested)
    session.receive_data(b"2")
    core.say(b"3")
    core.settle()
    assert session.ask_to_read()
    assert (disk.left, disk.calls) == (0, times)
    assert contents(core) == [b"0", b"1", b"2", b"3"]
    core.stop()
    assert seqs(core) == list(range(1, core.log.next_seq))
    assert said.seq >= first
    again = make_core()
    assert contents(again) == [b"0", b"1", b"2", b"3"]
    (again.data / "index.sqlite").unlink()
    again.stop()
    assert contents(make_core()) == [b"0", b"1", b"2", b"3"]


def check_refusals(core: Core, session: ToySession) -> None:
    """Nothing is accepted, and nothing more is read."""
    with pytest.raises(Unavailable):
        core.say(b"refused")
    with pytest.raises(Unavailable):
        session.receive_data(b"refused")
    assert session.ask_to_read()


@pytest.mark.parametrize("names", [("fsync",), ("fsync", "fdatasync")])
def test_a_seal_that_fails_writes_nothing_twice(make_core: MakeCore, disk: Disk, names: tuple[str, ...]) -> None:
    core = make_core(sealing=SealPolicy(bytes=1))
    disk.fail(*names, times=2, error=errno.EIO)
    for number in range(4):
        core.say(b"%d" % number)
        core.until(lambda: not core.log.congested)
        core.sync()
    core.settle()
    assert len(core.disk_faults) == 2
    assert contents(core) == [b"0", b"1", b"2", b"3"]
    core.stop()
    assert seqs(core) == list(range(1, core.log.next_seq))
    assert contents(make_core()) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("left", [0, 1, 2, 1 << 30])
def test_a_stop_while_the_disk_refuses_leaves_no_gap(make_core: MakeCore, disk: Disk, left: int) -> None:
    """Either the disk recovers in time and all is accepted, or nothing is of what could not be written."""
    core = make_core()
    core.say(b"0")
    core.sync()
    before = core.log.synced_seq
    disk.fail("write", times=1 << 30)
    accepted: list[bytes] = []
    for content in (b"1", b"2"):
        said = core.say(content)
        core.log.when_synced(said.seq, lambda content=content: accepted.append(content))  # type: ignore[misc]
    core.until(lambda: core.log.congested)
    core.log.fact("start", {"gateway": "g", "version": "1"})  # facts are still taken
    disk.left = left
    core.stop()
    disk.fail()
    recovers = left < 3
    assert accepted == ([b"1", b"2"] if recovers else [])
    assert seqs(core) == list(range(1, (core.log.next_seq if recovers else before + 1)))
    again = make_core()
    assert contents(again) == ([b"0", b"1", b"2"] if recovers else [b"0"])


@pytest.mark.parametrize("seed", range(6))
def test_any_failures_under_load(make_core: MakeCore, disk: Disk, seed: int) -> None:
    """What was accepted is there, once, in order; what was refused is not."""
    chance = random.Random(seed)
    core = make_core(sealing=SealPolicy(bytes=chance.choice([1, 500, 1 << 20])))
    said: list[bytes] = []
    accepted: list[bytes] = []
    for number in range(300):
        if chance.random() < 0.05:
            names = chance.sample(NAMES, chance.randint(1, len(NAMES)))
            disk.fail(*names, times=chance.randint(1, 3), error=errno.EIO, partial=True)
        content = b"%d" % number
        try:
            message = core.say(content)
        except Unavailable:
            core.until(lambda: not core.log.congested)
            continue
        said.append(content)
        core.log.when_synced(message.seq, lambda content=content: accepted.append(content))  # type: ignore[misc]
        if chance.random() < 0.2:
            core.sync()
        core.drain()
    disk.fail()
    core.settle()
    assert accepted == said
    core.stop()
    assert seqs(core) == list(range(1, core.log.next_seq))
    core = make_core()
    history = core.index.history("lobby")
    history += core.index.history("lobby", after=history[-1].seq)
    assert [m.content for m in history] == said
