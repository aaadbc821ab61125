from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from gateway.core.message import Message
from gateway.storage import importing
from gateway.storage.archive import LogReport, export, verify
from gateway.storage.importing import import_log
from gateway.storage.layout import FACTS_SUFFIX, paths
from gateway.storage.log import SealPolicy
from gateway.storage.record import Entry, Fact, decode, encode
from gateway.storage.retention import is_fact
from gateway.storage.segments import Segments

if TYPE_CHECKING:
    from tests.conftest import Core

EACH = SealPolicy(bytes=1)
NOW = 1_763_700_000_000 + 1_000_000  # ms; after everything in these logs
MakeCore = Callable[..., "Core"]


def lines(directory: Path) -> list[bytes]:
    return [line.data for line in Segments(directory).scan()]


def exported(directory: Path, after: int = 0, until: int = 1 << 62) -> tuple[LogReport, list[bytes]]:
    out = io.BytesIO()
    report = export(directory, out, after, until)
    return report, out.getvalue().splitlines(keepends=True)


def talk(core: Core, rounds: int = 5) -> list[Message]:
    said = []
    for number in range(rounds):
        alice = core.peers.identity("toy", f"alice {number % 2}", "Alice")
        said.append(core.say(b"%d" % number, sender=alice, ids=(f"id {number}",)))
        said.append(core.say(b'{"a" : 1.0}', channel="other", sender=core.peers.connection("toy")))
        core.settle()
        core.clock.now += 1000
    return said


def retire(log: Path, count: int) -> None:
    """Leave only the facts of the first segments."""
    for first in Segments(log).first_seqs[:count]:
        _, sealed, facts = paths(log, first)
        facts.write_bytes(b"".join(line for line in sealed.read_bytes().splitlines(keepends=True) if is_fact(line)))
        sealed.unlink()


@pytest.fixture
def log(make_core: MakeCore) -> Path:
    """A stopped gateway's log of several segments."""
    core = make_core(sealing=EACH)
    talk(core)
    core.stop()
    return core.data / "log"


# Verify


def test_a_good_log_has_no_faults(log: Path) -> None:
    report = verify(log)
    assert (report.faults, report.records, report.first, report.last) == ([], len(lines(log)), 1, len(lines(log)))


def test_a_retired_log_has_no_faults(log: Path) -> None:
    retire(log, 3)
    report = verify(log)
    assert (report.faults, report.records) == ([], len(lines(log)))


def test_verifying_changes_nothing_beside_a_running_gateway(make_core: MakeCore) -> None:
    core = make_core()
    talk(core)
    log = core.data / "log"
    (path,) = log.iterdir()
    with path.open("ab") as file:
        file.write(b'{"seq":17,"ti')
    before = path.read_bytes()
    report = verify(log)
    assert (report.faults, report.last) == ([], core.log.synced_seq)
    assert [(path.name, path.read_bytes()) for path in log.iterdir()] == [(path.name, before)]


@pytest.mark.parametrize("seed", range(20))
def test_every_flipped_bit_is_reported(log: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = chance.choice(sorted(log.iterdir()))
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data))
    data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    report = verify(log)
    assert report.faults
    assert {fault.file for fault in report.faults} <= {path.name, *(p.name for p in log.iterdir() if p > path)}
    good = exported(log)[1]
    assert len(good) == report.records == len([decode(line) for line in good])


def test_a_missing_segment_is_reported(log: Path) -> None:
    files = sorted(log.iterdir())
    files[1].unlink()
    (fault,) = verify(log).faults
    assert (fault.file, "comes next" in fault.reason) == (files[2].name, True)


def test_a_missing_record_is_reported(make_core: MakeCore) -> None:
    core = make_core()
    talk(core)
    core.stop()
    (file,) = (core.data / "log").iterdir()
    kept = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(kept[:2] + kept[3:]))
    (fault,) = verify(core.data / "log").faults
    assert (fault.file, "3 comes next" in fault.reason) == (file.name, True)


def test_times_and_sequences_that_go_back_are_reported(tmp_path: Path) -> None:
    fields = {"gateway": "g", "version": "1"}
    path = paths(tmp_path, 1)[1]
    path.write_bytes(b"".join(encode(Fact("start", fields, seq, time)) for seq, time in [(1, 5), (2, 4), (2, 6)]))
    reasons = [fault.reason for fault in verify(tmp_path).faults]
    assert reasons == ["record 2 is older than the one before it", "record 2 stands where 3 comes next"]


def test_verify_runs_an_additional_check(log: Path) -> None:
    def check(entry: Entry) -> str | None:
        return "the signature is wrong" if isinstance(entry, Message) and entry.content == b"3" else None

    (fault,) = verify(log, check).faults
    assert fault.reason == "the signature is wrong"
    line = (log / fault.file).read_bytes()[fault.offset :].splitlines(keepends=True)[0]
    assert b'"content":3' in line


# Export


def test_an_export_is_verbatim(log: Path) -> None:
    report, out = exported(log)
    assert (out, report.faults) == (lines(log), [])
    for after, until in [(0, 3), (4, 9), (3, 4), (9, 9), (1000, 2000)]:
        report, out = exported(log, after, until)
        assert out == lines(log)[after:until]
        assert report.records == len(out)


def test_an_export_skips_damaged_records(log: Path) -> None:
    before = lines(log)
    path = paths(log, 1)[1]
    path.write_bytes(path.read_bytes().replace(b'"time"', b'"tame"', 1))
    report, out = exported(log)
    assert out == before[1:]
    assert [fault.file for fault in report.faults] == [path.name]


# Import


def test_into_an_empty_directory_it_is_the_same_log(log: Path, tmp_path: Path) -> None:
    report = import_log(exported(log)[1], tmp_path / "new", NOW)
    assert (report.faults, report.skipped, report.records) == ([], 0, len(lines(log)))
    assert lines(tmp_path / "new" / "log") == lines(log)
    assert verify(tmp_path / "new" / "log").faults == []


def test_a_retired_log_survives_export_and_import(log: Path, tmp_path: Path) -> None:
    retire(log, 3)
    import_log(exported(log)[1], tmp_path / "new", NOW)
    new = tmp_path / "new" / "log"
    assert lines(new) == lines(log)
    assert verify(new).faults == []
    assert any(path.name.endswith(FACTS_SUFFIX) for path in new.iterdir())
    assert Segments(new).next_seq == Segments(log).next_seq


def test_a_part_of_a_log_can_be_a_log(log: Path, tmp_path: Path) -> None:
    import_log(exported(log, 4)[1], tmp_path / "new", NOW)
    *same, given = lines(tmp_path / "new" / "log")
    assert same == lines(log)[4:]
    assert b'"kind":"peer"' in given  # no number of those who speak in it is given to anybody else
    assert verify(tmp_path / "new" / "log").faults == []


def test_segments_of_an_import_are_bounded(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "SEGMENT_BYTES", 400)
    import_log(exported(log)[1], tmp_path / "new", NOW)
    sizes = [path.stat().st_size for path in (tmp_path / "new" / "log").iterdir()]
    assert len(sizes) > 3
    assert max(sizes) < 800
    assert lines(tmp_path / "new" / "log") == lines(log)


def test_damaged_or_misordered_records_are_refused(log: Path, tmp_path: Path) -> None:
    good = lines(log)
    given = [good[0], b"nonsense\n", good[1], good[0], good[2].replace(b"kind", b"kinx"), *good[2:]]
    report = import_log(given, tmp_path / "new", NOW)
    assert lines(tmp_path / "new" / "log") == good
    assert [fault.offset for fault in report.faults] == [
        sum(map(len, given[:1])),
        sum(map(len, given[:3])),
        sum(map(len, given[:4])),
    ]


def test_lines_without_a_line_feed_are_imported(log: Path, tmp_path: Path) -> None:
    import_log([line.rstrip(b"\n") for line in lines(log)], tmp_path / "new", NOW)
    assert lines(tmp_path / "new" / "log") == lines(log)


def test_appended_messages_keep_their_ids_content_and_senders(log: Path, core_class: type[Core]) -> None:
    data = log.parent.parent / "other"
    core = core_class(data, salt=12345).start()
    stranger = core.say(b'"here before"', sender=core.peers.connection("toy"))
    alice = core.peers.identity("toy", "alice 1", "Alice")
    core.channels.register("other")
    core.settle()
    core.stop()
    before = lines(data / "log")
    now = core.clock.now + 1_000_000

    report = import_log(exported(log)[1], data, now)
    assert (report.records, report.faults) == (10 + 1, [])  # the messages, and the Alice who was not known yet
    assert verify(data / "log").faults == []
    assert lines(data / "log")[: len(before)] == before
    messages = [entry for line in lines(log) if isinstance(entry := decode(line), Message)]
    appended = [entry for line in lines(data / "log")[len(before) :] if isinstance(entry := decode(line), Message)]
    for old, new in zip(messages, appended, strict=True):
        assert (new.id, new.content, new.ids, new.channel, new.sender.identity) == (
            old.id,
            old.content,
            old.ids,
            old.channel,
            old.sender.identity,
        )
        assert (new.time, new.timestamp) == (now, old.timestamp)
    assert {m.sender.number for m in appended if m.sender.identity == "alice 1"} == {alice.number}
    strangers = [m.sender.number for m in appended if m.sender.identity is None]
    assert len(set(strangers)) == 5
    assert stranger.sender.number not in strangers

    again = import_log(exported(log)[1], data, now)
    assert (again.records, again.skipped) == (0, len(lines(log)))
    core = core_class(data, salt=12345).start()
    assert [m.content for m in core.index.history("lobby")] == [b'"here before"', b"0", b"1", b"2", b"3", b"4"]
    assert core.index.find("id 3") is not None
    assert core.peers.connection("toy").number == 2048
    core.stop()


def test_the_identity_of_a_key_survives_an_import(make_core: MakeCore, core_class: type[Core]) -> None:
    core = make_core()
    core.say(sender=core.peers.identity("rest", "alice", "alice"))  # on a protocol that is not REST
    core.settle()
    core.stop()
    data = core.data.parent / "other"
    other = core_class(data, salt=12345).start()
    other.say()
    other.stop()
    assert import_log(exported(core.data / "log")[1], data, core.clock.now).faults == []
    found = [fact.fields for line in lines(data / "log") if isinstance(fact := decode(line), Fact)]
    assert [(fields["protocol"], fields["sender"]) for fields in found if "sender" in fields] == [("rest", "alice")]


def test_invalid_records_with_a_valid_checksum_are_not_appended(make_core: MakeCore) -> None:
    core = make_core()
    core.say()
    core.stop()
    bodies = [
        b'{"seq":1,"time":2,"kind":"peer","protocol":[],"sender":{}',
        b'{"seq":1,"time":2,"kind":"channel","channel":"x","addresses":[],"open":true',
        b'{"seq":1,"time":2,"channel":"c","id":"i","kind":"message","protocol":"p","peer":[],"content":1',
        b'{"seq":1,"time":2,"channel":"c","id":[],"kind":"message","protocol":"p","peer":1,"content":1',
        b'{"seq":1,"time":2,"channel":"c","id":"i","kind":"message","protocol":"p","peer":1,"sender":"x",'
        b'"sender_protocol":[],"content":1',
    ]
    before = lines(core.data / "log")
    report = import_log([b'%b,"crc":"%08x"}\n' % (body, crc32(body)) for body in bodies], core.data, NOW)
    assert len(report.faults) == 5
    assert lines(core.data / "log")[: len(before)] == before
    assert not any(isinstance(decode(line), Message) for line in lines(core.data / "log")[len(before) :])
    assert verify(core.data / "log").faults == []


def test_an_entity_and_a_channel_come_once(make_core: MakeCore) -> None:
    core = make_core()
    core.say()
    core.stop()
    facts = [
        Fact("entity", {"protocol": "toy", "native": "n", "wire": "w"}, 1, 1),
        Fact("channel", {"channel": "new", "addresses": {"toy": "NEW", "x": "1"}, "open": True}, 2, 1),
        Fact("channel", {"channel": "thief", "addresses": {"toy": "LOBBY", "x": "2"}, "open": True}, 3, 1),
        Fact("channel", {"channel": "lobby", "addresses": {"toy": "STOLEN"}, "open": True}, 4, 1),
        Fact("peer", {"first": 0, "count": 5}, 5, 1),
        Fact("form", {"protocol": "toy", "of": 1, "native": "z"}, 6, 1),
    ]
    for records in (3, 0):
        report = import_log(map(encode, facts), core.data, NOW)
        assert (report.records, report.skipped) == (records, len(facts) - records)
    found = make_core().channels
    assert found.addresses("lobby") == {"toy": "LOBBY"}
    assert found.addresses("new") == {"toy": "NEW"}
    assert found.addresses("thief") == {"toy": "THIEF"}
