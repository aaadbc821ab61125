"""A process without file descriptors writes and reads its log, and its answers are complete or errors."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import Unavailable
from gateway.storage import segments as segments_module
from gateway.storage.descriptors import RESERVED_DESCRIPTORS, DescriptorReserve
from gateway.storage.log import SealPolicy

if TYPE_CHECKING:
    from tests.conftest import Core

MakeCore = Callable[..., "Core"]
COUNT = 60


@contextmanager
def none_left() -> Iterator[list[int]]:
    """Take every descriptor that the process may have; those that were taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], highest + 20), before[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield taken
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)


def fill(core: Core) -> list[bytes]:
    """Messages, each in a segment of its own; what they say."""
    said = [b"%d" % number for number in range(COUNT)]
    for content in said:
        core.say(content, ids=(f"id {content.decode()}",))
        core.settle()
    return said


def test_history_is_whole_without_descriptors(make_core: MakeCore) -> None:
    core = make_core(sealing=SealPolicy(bytes=1))
    said = fill(core)
    core = make_core(sealing=SealPolicy(bytes=1))
    with none_left():
        assert [message.content for message in core.index.history("lobby")] == said
        assert all(core.index.find(f"id {number}") is not None for number in range(COUNT))


def test_messages_are_accepted_without_descriptors(make_core: MakeCore) -> None:
    core = make_core(sealing=SealPolicy(bytes=1))
    said = fill(core)
    with none_left():
        said += fill(core)
        assert [message.content for message in core.index.history("lobby")] == said
        assert core.disk_faults == []


def test_the_readers_stay_few(make_core: MakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "MAX_READERS", 4)
    core = make_core(sealing=SealPolicy(bytes=1))
    said = fill(core)
    before = len(os.listdir("/proc/self/fd"))
    core.segments.close_reader(core.segments.first_seqs[-1])
    assert [message.content for message in core.index.history("lobby")] == said
    assert len(os.listdir("/proc/self/fd")) <= before + 4


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_a_failed_read_raises_unavailable_instead_of_a_short_answer(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    core = make_core()
    said = fill(core)
    core = make_core()
    left = [8]

    class Os:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def pread(self, *arguments: int) -> bytes:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(code, os.strerror(code))
            return os.pread(*arguments)

    index = core.index
    with monkeypatch.context() as patched:
        patched.setattr(segments_module, "os", Os())
        for ask in (
            lambda: index.history("lobby"),
            lambda: index.find("id 59"),
            lambda: index.message("id 59"),
            lambda: index.entry(9),
            lambda: list(index.newest("lobby")),
            lambda: core.bus.find("id 59"),
        ):
            left[0] = min(left[0], 8)
            with pytest.raises(Unavailable, match=os.strerror(code)):
                ask()
    assert [message.content for message in index.history("lobby")] == said
    assert core.segments.faults == []


def test_a_segment_whose_file_is_gone_is_reported(make_core: MakeCore) -> None:
    core = make_core(sealing=SealPolicy(bytes=1))
    fill(core)
    core = make_core()
    core.segments.path(core.segments.first_seqs[10]).unlink()
    assert len(core.index.history("lobby")) == COUNT - 1
    assert [fault.reason for fault in core.segments.faults] == ["the file is gone"]


def test_a_reserve_lends_what_it_holds_and_takes_it_back(tmp_path: Path) -> None:
    reserve = DescriptorReserve()
    with none_left() as taken:
        held = reserve.run(lambda: os.open(tmp_path, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)  # nothing of what is left goes to others
        for _ in range(RESERVED_DESCRIPTORS):
            os.close(reserve.run(lambda: os.open(tmp_path, os.O_RDONLY)))
        os.close(taken.pop())
        reserve.refill()
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        os.close(held)
    with pytest.raises(OSError, match="No such file"):
        reserve.run(lambda: os.open(tmp_path / "none", os.O_RDONLY))
    reserve.close()


def test_a_reserve_that_nobody_closes_gives_its_descriptors_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        DescriptorReserve()
    assert len(os.listdir("/proc/self/fd")) == before
