"""A log damaged from outside serves its valid records, and reports the others without serving them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.storage.log import SealPolicy
from gateway.storage.record import Fact, encode
from gateway.storage.segments import Segments, parse_header

if TYPE_CHECKING:
    from tests.conftest import Core

MakeCore = Callable[..., "Core"]
EACH = SealPolicy(bytes=1)


def fill(core: Core, count: int = 6) -> list[bytes]:
    """A log of *count* messages; what it says, line by line."""
    for number in range(count):
        core.say(b'"message %d"' % number, ids=(f"id {number}",))
        core.sync()
    core.stop()
    return [line.data for line in Segments(core.data / "log").scan()]


def only_file(core: Core) -> Path:
    (path,) = (core.data / "log").iterdir()
    return path


def as_open(path: Path) -> Path:
    """As a crash would have left it."""
    return path.rename(path.with_name(f".open-{path.name}"))


def seqs(segments: Segments) -> list[int]:
    return [parse_header(line.data)[0] for line in segments.scan()]


def test_a_tail_torn_at_any_byte_of_the_last_record(make_core: MakeCore, tmp_path: Path) -> None:
    lines = fill(make_core())
    *whole, last = lines
    for size in range(len(last)):
        directory = tmp_path / str(size)
        directory.mkdir()
        (directory / f".open-{1:020d}.jsonl").write_bytes(b"".join(whole) + last[:size])
        segments = Segments(directory)
        assert (seqs(segments), segments.next_seq) == (list(range(1, len(lines))), len(lines))
        assert (directory / f"{1:020d}.jsonl").read_bytes() == b"".join(whole)
        assert [fault.offset for fault in segments.faults] == [sum(map(len, whole))] * (size > 0)


def test_the_log_continues_after_a_torn_tail(make_core: MakeCore) -> None:
    core = make_core()
    lines = fill(core)
    path = as_open(only_file(core))
    path.write_bytes(path.read_bytes()[:-7])
    core = make_core()
    assert core.log.next_seq == len(lines)
    assert len(core.segments.faults) == 1
    said = core.say(b'"again"')
    core.settle()
    assert [m.content for m in core.index.history("lobby")][-2:] == [b'"message 4"', b'"again"']
    assert said.seq == len(lines)
    core.stop()
    assert seqs(Segments(core.data / "log")) == list(range(1, len(lines) + 1))


@pytest.mark.parametrize("index", ["kept", "rebuilt"])
@pytest.mark.parametrize("state", ["sealed", "open"])
@pytest.mark.parametrize("seed", range(10))
def test_a_flipped_bit_anywhere(make_core: MakeCore, seed: int, state: str, index: str) -> None:
    """Of an open segment's last record a flipped bit looks like a torn write, and is cut like one."""
    core = make_core()
    lines = fill(core)
    path = only_file(core)
    data = bytearray(path.read_bytes())
    place = random.Random(seed).randrange(len(data))
    data[place] ^= 1 << random.Random(seed).randrange(8)
    path.write_bytes(data)
    if state == "open":
        as_open(path)
    if index == "rebuilt":
        (core.data / "index.sqlite").unlink()
    core = make_core()
    served = {encode(m) for m in core.index.history("lobby")} | {line.data for line in core.segments.scan()}
    entries = [core.index.entry(seq) for seq in range(1, len(lines) + 1)]
    served |= {encode(entry) for entry in entries if entry is not None}
    lost = set(lines) - served
    assert served - set(lines) == set()
    assert 1 <= len(lost) <= 2  # two where the damage is the end of a line
    assert core.segments.faults
    if state == "sealed":
        said = core.say()
        assert said.seq > len(lines) - (data.count(b"\n") < len(lines))  # no number comes twice


def test_damage_is_reported_once(make_core: MakeCore) -> None:
    core = make_core()
    fill(core)
    path = only_file(core)
    core = make_core()
    path.write_bytes(path.read_bytes().replace(b"message 3", b"message X"))
    told: list[str] = []
    core.segments.on_fault = lambda fault: told.append(fault.reason)
    for _ in range(3):
        core.index.history("lobby")
        list(core.segments.scan())
    assert told == ["the checksum does not agree"]


def test_sequences_of_a_damaged_end_are_not_reused(make_core: MakeCore) -> None:
    core = make_core()
    lines = fill(core)
    path = only_file(core)
    path.write_bytes(path.read_bytes().replace(b"message 4", b"message X").replace(b"message 5", b"message Y"))
    core = make_core()
    assert core.log.next_seq == len(lines) + 1
    said = core.say(b'"new"')
    core.settle()
    assert (said.seq, core.index.last_seq("lobby")) == (len(lines) + 1, len(lines) + 1)
    assert core.index.find("id 5") is None


def test_an_empty_open_segment(make_core: MakeCore) -> None:
    core = make_core()
    lines = fill(core)
    (core.data / "log" / f".open-{len(lines) + 1:020d}.jsonl").touch()
    core = make_core()
    assert core.log.next_seq == len(lines) + 1
    assert core.segments.faults == []
    core.say()
    core.settle()


def test_two_segments_left_open(make_core: MakeCore) -> None:
    """The first was given up, and could not even be cut, when a write failed; the batch went to the second."""
    core = make_core(sealing=EACH)
    lines = fill(core)
    log = core.data / "log"
    for path in list(log.iterdir()):
        path.unlink()
    (log / f".open-{1:020d}.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:20])
    (log / f".open-{4:020d}.jsonl").write_bytes(b"".join(lines[3:]))
    core = make_core()
    assert seqs(core.segments) == list(range(1, len(lines) + 1))
    assert len(core.segments.faults) == 1
    assert [m.content for m in core.index.history("lobby")] == [b'"message %d"' % number for number in range(6)]


def test_a_segment_of_nothing_but_damage(make_core: MakeCore) -> None:
    core = make_core(sealing=EACH)
    lines = fill(core)
    last = max((core.data / "log").iterdir())
    last.write_bytes(b"\0" * 100)
    core = make_core()
    first = int(last.name.split(".")[0])
    assert core.log.next_seq == first + 1
    assert first + 1 <= len(lines) + 1
    core.say(b'"new"')
    core.settle()
    assert core.index.history("lobby", newest_first=True, limit=1)[0].content == b'"new"'
    assert last.read_bytes() == b"\0" * 100


def test_the_clock_jumps_back_between_two_runs(make_core: MakeCore) -> None:
    core = make_core()
    first = core.say()
    core = make_core()
    core.clock.now -= 10_000_000
    second = core.say()
    fact = core.log.fact("start", {"gateway": "g", "version": "1"})
    core.clock.now += 5_000_000
    third = core.say()
    assert first.time == second.time == fact.time == third.time
    core.stop()
    times = [parse_header(line.data)[1] for line in Segments(core.data / "log").scan()]
    assert times == sorted(times)


def test_a_fact_survives_a_torn_tail(make_core: MakeCore) -> None:
    core = make_core()
    fact = core.log.fact("entity", {"protocol": "toy", "native": "n", "wire": "w"})
    core.sync()
    core.stop()
    path = as_open(only_file(core))
    path.write_bytes(path.read_bytes() + b'{"seq":2,')
    found = make_core().index.entry(fact.seq)
    assert isinstance(found, Fact)
    assert found.fields["wire"] == "w"
