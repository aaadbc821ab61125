from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.storage.layout import first_seqs
from gateway.storage.record import BadRecord, Fact, encode, verify_checksum
from gateway.storage.segments import MAX_READERS, Segments, parse_header


def line(seq: int, size: int = 0) -> bytes:
    return encode(Fact("start", {"gateway": "g", "version": "x" * size}, seq, 1000 + seq))


def write(path: Path, seqs: Iterable[int], size: int = 0) -> list[bytes]:
    lines = [line(seq, size) for seq in seqs]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(lines))
    return lines


def sealed(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}.jsonl"


def opened(directory: Path, first: int) -> Path:
    return directory / f".open-{first:020d}.jsonl"


def facts(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}.facts.jsonl"


def seqs(segments: Segments, after: int = 0, offset: int = 0) -> list[int]:
    return [parse_header(found.data)[0] for found in segments.scan(after, offset)]


def test_an_empty_directory_begins_at_one(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "log")
    assert (segments.next_seq, segments.last_time, segments.first_seqs, seqs(segments)) == (1, 0, [], [])


def test_other_files_are_not_taken_for_segments(tmp_path: Path) -> None:
    for name in ("notes.txt", "1.jsonl", "2024-backup.jsonl", ".retire-00000000000000000001", "x" * 20 + ".jsonl"):
        (tmp_path / name).write_text("whatever")
    write(sealed(tmp_path, 1), [1, 2])
    assert first_seqs(tmp_path) == [1]
    assert Segments(tmp_path).next_seq == 3


def test_reading_and_scanning_across_segments(tmp_path: Path) -> None:
    lines = [data for first in (1, 4, 9) for data in write(sealed(tmp_path, first), range(first, min(first + 5, 12)))]
    write(sealed(tmp_path, 1), [1, 2, 3])
    segments = Segments(tmp_path)
    assert (segments.next_seq, segments.last_time) == (12, 1011)
    for after in range(12):
        assert seqs(segments, after) == list(range(after + 1, 12))
    for found in segments.scan():
        seq, _ = parse_header(found.data)
        assert found.data == line(seq)
        assert segments.read(seq, found.offset) == found.body == verify_checksum(line(seq))
        assert seqs(segments, seq - 1, found.offset) == list(range(seq, 12))
    assert lines[-1] == line(11)
    segments.close()


@pytest.mark.parametrize("offset", [0, 1, 10, 100, 5000, 1 << 40])
def test_a_record_is_found_from_any_offset(tmp_path: Path, offset: int) -> None:
    write(sealed(tmp_path, 1), range(1, 40))
    segments = Segments(tmp_path)
    assert [segments.read(seq, offset) for seq in range(1, 40)] == [verify_checksum(line(seq)) for seq in range(1, 40)]
    assert seqs(segments, 20, offset) == list(range(21, 40))
    assert segments.faults == []
    segments.close()


@pytest.mark.parametrize("size", [4000, 5000, 40_000, 3_000_000])
def test_long_records_are_read(tmp_path: Path, size: int) -> None:
    write(sealed(tmp_path, 1), [1, 2, 3], size)
    segments = Segments(tmp_path)
    assert segments.next_seq == 4
    assert segments.read(2, len(line(1, size))) == verify_checksum(line(2, size))
    segments.close()


def test_reading_a_sequence_outside_the_log_raises_bad_record(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    with pytest.raises(BadRecord):
        segments.read(1, 0)
    write(sealed(tmp_path, 5), [5, 6])
    segments = Segments(tmp_path)
    for seq in (4, 7):
        with pytest.raises(BadRecord):
            segments.read(seq, 0)
    segments.close()


def test_leftover_segments_are_sealed_and_empty_ones_removed(tmp_path: Path) -> None:
    write(sealed(tmp_path, 1), [1, 2])
    write(opened(tmp_path, 3), [3, 4])
    write(opened(tmp_path, 5), [])
    segments = Segments(tmp_path)
    assert (segments.first_seqs, segments.next_seq, segments.faults) == ([1, 3], 5, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == [sealed(tmp_path, first).name for first in (1, 3)]


@pytest.mark.parametrize("later", [sealed, opened])
def test_an_abandoned_segment_ends_where_the_next_begins(tmp_path: Path, later: object) -> None:
    write(opened(tmp_path, 1), range(1, 8))
    write(later(tmp_path, 5), [5, 6])  # type: ignore[operator]
    segments = Segments(tmp_path)
    assert (seqs(segments), segments.next_seq) == ([1, 2, 3, 4, 5, 6], 7)
    assert sealed(tmp_path, 1).read_bytes() == b"".join(map(line, range(1, 5)))
    assert [fault.file for fault in segments.faults] == [opened(tmp_path, 1).name]


def test_an_abandoned_tail_is_not_scanned_while_the_log_is_open(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    write(opened(tmp_path, 1), range(1, 8))
    write(opened(tmp_path, 5), [5, 6])
    for first in (1, 5):
        segments.add(first)
    assert seqs(segments) == [1, 2, 3, 4, 5, 6]


def test_a_partially_written_line_is_no_fault(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    write(opened(tmp_path, 1), [1, 2])
    with opened(tmp_path, 1).open("ab") as file:
        file.write(line(3)[:-1])
    segments.add(1)
    assert (seqs(segments), segments.faults) == ([1, 2], [])


def test_a_sealed_segment_is_read_on_while_it_is_renamed_and_retired(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    write(opened(tmp_path, 1), [1, 2, 3])
    segments.add(1)
    scan = segments.scan()
    assert parse_header(next(scan).data)[0] == 1
    segments.seal(1)
    write(facts(tmp_path, 1), [2])
    assert segments.path(1) == sealed(tmp_path, 1)
    assert segments.read(3, 0) == verify_checksum(line(3))
    sealed(tmp_path, 1).unlink()
    assert segments.path(1) == facts(tmp_path, 1)
    assert [parse_header(found.data)[0] for found in scan] == [2, 3]
    segments.close_reader(1)
    assert segments.read(2, 12345) == verify_checksum(line(2))
    with pytest.raises(BadRecord):
        segments.read(3, 0)
    assert segments.faults == []
    segments.close()


def test_facts_files_are_segments_with_gaps(tmp_path: Path) -> None:
    write(facts(tmp_path, 1), [1, 7, 30])
    write(facts(tmp_path, 41), [])
    write(sealed(tmp_path, 61), [61, 62])
    segments = Segments(tmp_path)
    assert (segments.first_seqs, segments.next_seq) == ([1, 41, 61], 63)
    assert seqs(segments) == [1, 7, 30, 61, 62]
    assert seqs(segments, 7) == [30, 61, 62]
    assert segments.read(30, 0) == verify_checksum(line(30))
    segments.close()


def test_a_segment_beside_its_facts_counts_once(tmp_path: Path) -> None:
    write(facts(tmp_path, 1), [2])
    write(sealed(tmp_path, 1), [1, 2, 3])
    segments = Segments(tmp_path)
    assert (segments.first_seqs, seqs(segments), segments.next_seq) == ([1], [1, 2, 3], 4)


@pytest.mark.parametrize(("contents", "next_seq"), [(b"", 6), (b"nothing good\n", 6), (b"a\nb\nc\n", 8)])
def test_the_number_of_a_damaged_segment_is_not_reused(tmp_path: Path, contents: bytes, next_seq: int) -> None:
    write(sealed(tmp_path, 1), [1, 2, 3, 4])
    sealed(tmp_path, 5).write_bytes(contents)
    segments = Segments(tmp_path)
    assert (segments.next_seq, segments.last_time) == (next_seq, 1004)


def test_few_files_are_kept_open(tmp_path: Path) -> None:
    count = MAX_READERS + 10
    for seq in range(1, count + 1):
        write(sealed(tmp_path, seq), [seq])
    segments = Segments(tmp_path)
    for seq in (*range(1, count + 1), 1, count):
        assert segments.read(seq, 0) == verify_checksum(line(seq))
    assert len(segments._readers) == MAX_READERS
    segments.close()
    assert not segments._readers
