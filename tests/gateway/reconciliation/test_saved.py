"""A saved set is used again only if it is intact and belongs to this log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.core.message import Message
from gateway.reconciliation import saved
from gateway.reconciliation.items import make_item
from gateway.reconciliation.reading import read_items
from gateway.reconciliation.saved import MAX_FILES, MessageSet, SavedSets

from .test_reading import log_of, said

OTHER = "018bcfe5-6800-7abc-8def-000000000001"  # the id of nothing else here
COUNT = 600  # messages; several blocks
BOTH = frozenset(("a", "b"))


class Log:
    """A log with the messages *messages*, its index, and the sets that are saved for it in *folder*."""

    def __init__(self, home: Path, messages: list[Message], folder: Path | None = None) -> None:
        home.mkdir()
        self.segments, self.index = log_of(home, messages)
        self.saved = SavedSets(folder or home / "sync", self.index, self.segments)
        self.level = messages[-1].seq

    def read(self, *channels: str) -> MessageSet:
        kept = MessageSet(level=self.level)
        for chunk in read_items(self.index, self.segments, channels, 0, self.level):
            kept.add(chunk)
        return kept

    def load(self, first_kept: int = 0, beyond: int = 0) -> tuple[frozenset[str], MessageSet] | None:
        return self.saved.load(BOTH, beyond, self.level, first_kept)


def messages(count: int = COUNT, **more: object) -> list[Message]:
    return [said(seq, "ab"[seq % 2], **more) for seq in range(1, count + 1)]  # type: ignore[arg-type]


def items(kept: MessageSet) -> list[bytes]:
    return [*kept.items.items(0, len(kept.items))]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "log", messages())
    log.saved.save(BOTH, log.read(*BOTH))
    yield log
    log.segments.close()


def test_a_saved_set_is_the_same(log: Log) -> None:
    kept = log.read(*BOTH)
    found = log.load()
    assert found is not None
    names, loaded = found
    assert (names, items(loaded)) == (BOTH, items(kept))
    assert (loaded.level, loaded.newest, loaded.unsaved) == (COUNT, COUNT, 0)
    for begin, end in ((0, COUNT), (7, 300), (129, 130)):
        assert loaded.items.fingerprint(begin, end) == kept.items.fingerprint(begin, end)
    loaded.add([make_item(1, bytes(32), COUNT + 1)])
    assert (len(loaded.items), loaded.newest, loaded.unsaved) == (COUNT + 1, COUNT + 1, 1)


def test_retired_messages_are_removed_from_a_saved_set(log: Log) -> None:
    found = log.load(first_kept=COUNT // 2)
    assert found is not None
    assert items(found[1]) == [each for each in items(log.read(*BOTH)) if int.from_bytes(each[-6:]) >= COUNT // 2]
    assert log.load(first_kept=COUNT + 1) is None, "nothing is left that would prove it"


def test_a_damaged_file_is_not_used(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    (path,) = (log.index.parent / "sync").iterdir()
    whole = path.read_bytes()
    header = whole.index(b"\n")
    for at in (0, 2, header - 20, header, header + 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 4,)) + whole[at + 1 :])
        assert log.load() is None, at
    for size in (0, 1, 40, header, header + 1, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert log.load() is None, size
    assert "does not agree with the log" in caplog.text
    path.write_bytes(whole)
    assert log.load() is not None


def test_another_format_is_not_used(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "FORMAT", 2)
    assert log.load() is None


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    "others",
    [
        pytest.param(messages(COUNT - 1), id="shorter"),
        pytest.param([*messages(COUNT - 1), said(COUNT, "a", id=OTHER)], id="another newest message"),
        pytest.param([said(1, "b", id=OTHER), *messages()[1:]], id="another first message"),
        pytest.param([*messages(COUNT - 1), said(COUNT, "elsewhere")], id="the newest message is elsewhere"),
        pytest.param([each for each in messages() if each.seq != 77], id="a record is gone"),
    ],
)
def test_the_set_of_another_log_is_not_used(tmp_path: Path, others: list[Message]) -> None:
    other = Log(tmp_path / "other", others, folder=tmp_path / "log" / "sync")
    assert other.load() is None
    other.segments.close()


def test_the_file_with_most_channels_is_used(log: Log) -> None:
    log.saved.save(("a",), log.read("a"))
    found = log.saved.load(BOTH | {"c"}, 0, COUNT, 0)
    assert found is not None
    assert found[0] == BOTH
    assert log.load(beyond=2) is None, "the caller has as many already"
    (file,) = [path for path in (log.index.parent / "sync").iterdir() if b'"channels":["a","b"]' in path.read_bytes()]
    file.write_bytes(b"{}")
    found = log.load()
    assert found is not None
    assert found[0] == {"a"}
    assert log.saved.load(frozenset("b"), 0, COUNT, 0) is None


def test_few_files_are_kept(log: Log) -> None:
    for channels in (("a",), ("b",), ("a",)):
        log.saved.save(channels, log.read(*channels))
    assert len([*(log.index.parent / "sync").iterdir()]) == MAX_FILES


def test_a_disk_that_is_nearly_full_is_left_to_the_log(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = log.index.parent / "sync"
    shutil.rmtree(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=COUNT * 100))
    log.saved.save(BOTH, log.read(*BOTH))
    assert [*folder.iterdir()] == []


def test_a_set_that_cannot_be_saved_is_reported(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    folder = log.index.parent / "sync"
    shutil.rmtree(folder)
    folder.write_text("a file")
    log.saved.save(BOTH, log.read(*BOTH))
    assert "cannot be kept" in caplog.text
    assert log.load() is None
