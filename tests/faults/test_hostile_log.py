"""A gateway starts with a forged log that has valid checksums, skips impossible records and reports them."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from zlib_ng.zlib_ng import crc32

from adapters import ADAPTERS
from adapters.sprout.forest import forest
from adapters.sprout.forest.openpgp import SecretKey
from gateway.cli import app
from gateway.commands import log_commands
from gateway.core.jsontext import dumps
from gateway.core.message import Message, Peer
from gateway.runtime import Gateway
from gateway.settings.settings import settings_model
from gateway.storage import importing
from gateway.storage.archive import export, verify
from gateway.storage.importing import import_log
from gateway.storage.layout import paths
from gateway.storage.record import Entry, Fact, decode, encode, encode_base64url
from gateway.storage.segments import Segments
from tests.still import Posted

NOW = 1_763_700_000_000
pytestmark = pytest.mark.usefixtures("rsa_keys")
STREAM = '[32,["room",0,1763700000000,0,"0x%s","c"],null,27,0,0,null,"{}",null,0,null]' % ("ab" * 20)


def examples() -> list[Entry]:
    """A record of every kind, in an order in which a gateway could have written them."""
    key = SecretKey.generate(NOW // 1000)
    identity = forest.sign_identity("bob", key, NOW)
    author = forest.node_id(identity)
    community = forest.sign_community("room", author, key, NOW, b"")
    place = forest.ReplyPosition(forest.node_id(community), 1, forest.node_id(community), forest.NULL_ID)
    reply = forest.sign_reply(place, forest.Content(b"hello"), author, key, NOW, b"")
    entity = {"protocol": "sprout"}
    addresses = {"topic_relay": "room", "sprout": forest.node_id(community), "streamr": "room"}
    return [
        Fact("start", {"gateway": "0123456789abcdef", "version": "1"}),
        Fact("peer", {"first": 0, "count": 1024}),
        Fact("peer", {"peer": 1, "protocol": "sprout", "sender": author, "name": "bob"}),
        Fact("channel", {"channel": "room", "addresses": addresses, "open": True}),
        Fact("entity", entity | {"native": {"sprout": author}, "wire": encode_base64url(identity).decode()}),
        Fact("entity", entity | {"native": {"sprout": place.parent}, "wire": encode_base64url(community).decode()}),
        *example_messages(author, place.parent, reply),
        Fact("form", {"protocol": "sprout", "of": 9, "native": {"sprout": forest.node_id(reply)}}),
        Fact("entity", {"protocol": "streamr", "native": {"streamr": "room", "edition": 1}, "wire": "[{},[]]"}),
        Fact("counts", {"minute": NOW // 60_000 * 60_000, "flows": []}),
    ]


def example_messages(author: str, community: str, reply: bytes) -> list[Message]:
    """A message of each protocol; the last is a reply to the first."""
    return [
        Message(
            "room",
            Peer(1, "sprout", author),
            "sprout",
            b'{"content":"hello"}',
            encode_base64url(reply),
            id="00000000-0000-7000-8000-000000000007",
            timestamp=NOW,
            native={"sprout": forest.node_id(reply)},
            ids=(forest.node_id(reply),),
            refs={"streamr": [NOW, 0]},
        ),
        Message(
            "room",
            Peer(2, "streamr"),
            "streamr",
            b"{}",
            STREAM.encode(),
            id="00000000-0000-7000-8000-000000000008",
            timestamp=NOW,
            native={"streamr": ["room", 0, NOW, 0, f"0x{'ab' * 20}", "c"]},
            ids=("s",),
            refs={"sprout": {}},
        ),
        Message(
            "room",
            Peer(3, "rest", "key"),
            "rest",
            b'{"inReplyTo":"x"}',
            id="00000000-0000-7000-8000-000000000009",
            parent="00000000-0000-7000-8000-000000000007",
            key="key:k",
            refs={"streamr": [NOW, 1, NOW, 0], "sprout": {"parent": "x", "depth": 2, "conversation": community}},
            undelivered=("topic_relay",),
        ),
    ]


def numbered(entries: list[Entry]) -> list[bytes]:
    """The lines of *entries*, one after the other."""
    for seq, entry in enumerate(entries, 1):
        entry.seq, entry.time = seq, NOW
    return [encode(entry) for entry in entries]


def sealed(record: dict[str, Any]) -> bytes:
    """The line of *record*, with a good checksum."""
    body = dumps({name: value for name, value in record.items() if name != "crc"})[:-1]
    return body + b',"crc":"%08x"}\n' % crc32(body)


VALUES: list[Any] = [
    None, True, 0, -1, 1 << 43, 1 << 62, 1 << 63, 10**30, 1.5, "", "../../x", "/etc/x", "a\x00b", "\ud800", "x" * 2000,
    "peer x", "day x y", "day 2025-99-99 room", "gateway", "SHA512_B32__../../x", [], [[]], ["x"], {},
    {"sprout": "../../x"}, {"sprout": 7}, {"streamr": []}, {"streamr": ["room", "0", None]},
    {"topic_relay": "x" * 300, "sprout": "no id"},
]  # fmt: skip


def mutated(record: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """*record* with something changed in it, anywhere."""
    record = json.loads(json.dumps(record))
    for _ in range(chance.randint(1, 2)):
        place: Any = record
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = chance.choice(keys)
            if isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.6:
                place = place[key]
                continue
            break
        match chance.randrange(4):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[chance.choice(["what", "alias", "copy", "name", "wire", "kind", "ids"])] = chance.choice(VALUES)
            case 2 if isinstance(place[key], str) and place[key]:
                at = chance.randrange(len(place[key]))
                place[key] = place[key][:at] + chance.choice("A/.\n\x00~") + place[key][at + 1 :]
            case _:
                place[key] = chance.choice(VALUES)
        if not record:
            break
    return record


class Running:
    """A whole gateway without a loop."""

    def __init__(self, data: Path) -> None:
        self.posted = Posted()
        self.gateway = Gateway(settings_model(ADAPTERS)(data=data), ADAPTERS)
        self.gateway.start(self.posted.put)

    def say(self) -> None:
        """Take a message, and find it again with whatever stands beside it."""
        gateway = self.gateway
        said = gateway.bus.publish(Message("room", Peer(900, "rest"), "rest", b'"new"'))
        self.posted.until_called(lambda done: gateway.log.when_synced(said.seq, done))
        history = gateway.index.history("room", newest_first=True)
        assert history[0].content == b'"new"'
        for message in history:
            for adapter in gateway.adapters:
                adapter.flaw(message)
        gateway.tick()

    def stop(self) -> None:
        self.gateway.stop()
        self.posted.drain()


@contextmanager
def running(data: Path) -> Iterator[Running]:
    """The gateway in *data*, until it is stopped cleanly."""
    here = Running(data)
    try:
        yield here
    finally:
        here.stop()


def write(data: Path, lines: list[bytes]) -> None:
    log = data / "log"
    log.mkdir(parents=True)
    paths(log, 1)[1].write_bytes(b"".join(lines))


def outside(folder: Path) -> set[Path]:
    """Every file below *folder*."""
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_valid_log_is_imported_completely(tmp_path: Path) -> None:
    lines = numbered(examples())
    report = import_log(lines, tmp_path / "new", NOW, log_commands._check(ADAPTERS))
    assert (report.faults, report.records) == ([], len(lines))
    with running(tmp_path / "new") as here:
        assert here.gateway.log.segments.faults == []
        here.say()
        assert {message.protocol for message in here.gateway.index.history("room")} == {"sprout", "streamr", "rest"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_the_gateway_starts_with_any_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    good = numbered(examples())
    lines = list(good)
    for _ in range(40):
        record = json.loads(chance.choice(good))
        record["seq"] = len(lines) + 1
        lines.append(sealed(mutated(record, chance)))
    work = tmp_path / "work"
    write(work / "hostile", lines)
    archive_report = verify(work / "hostile" / "log", log_commands._check(ADAPTERS))
    out = io.BytesIO()
    export(work / "hostile" / "log", out)
    given = out.getvalue().splitlines(keepends=True)
    for name in ("empty", "full"):
        if name == "full":
            write(work / name, good)
        report = import_log(given, work / name, NOW, log_commands._check(ADAPTERS))
        assert report.records + report.skipped + len(report.faults) == len(given)
        left = verify(work / name / "log", log_commands._check(ADAPTERS)).faults
        assert all("comes next" in fault.reason for fault in left)  # the numbers of those that were refused
    before = outside(tmp_path)
    for name in ("hostile", "empty", "full"):
        with running(work / name) as here:
            here.say()
    assert {path.parent.name for path in outside(tmp_path) - before} <= {"log", "keys", "hostile", "empty", "full"}
    assert archive_report.records


def test_an_id_with_a_path_is_refused_and_never_written(tmp_path: Path) -> None:
    """An entity whose `native` is a path came in, and `export --grove` wrote it there."""
    lines = numbered(examples())
    record = json.loads(lines[4])
    record["native"] = {"sprout": "../../escaped"}
    record["seq"] = len(lines) + 1
    dump = tmp_path / "dump.jsonl"
    dump.write_bytes(b"".join([*lines, sealed(record)]))
    folder = tmp_path / "a" / "b" / "grove"
    runner = CliRunner()
    taken = runner.invoke(app, ["import", str(dump), "--data", str(tmp_path / "data")])
    assert f"{len(lines)} records imported, 0 skipped, refused: 1" in taken.output
    assert "no id of a node" in taken.output
    write(tmp_path / "raw", [*lines, sealed(record)])  # as if it had got in before
    for data in ("data", "raw"):
        before = outside(tmp_path)
        runner.invoke(app, ["export", "--grove", str(folder), "--data", str(tmp_path / data)])
        written = outside(tmp_path) - before
        assert {path.parent for path in written} <= {
            folder,
            tmp_path / data,
            tmp_path / data / "log",
            tmp_path / data / "keys",
        }
        assert not (tmp_path / "a" / "escaped").exists()
    assert len(outside(folder)) >= 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"time": NOW + 10 * importing.DAY}, "in the future"),
        ({"seq": 1 << 44}, "beyond what there can be"),
        ({"time": 1 << 50}, "beyond what there can be"),
        ({"channel": "bad\x00name"}, "its channel is not valid"),
        ({"kind": "odd"}, "kind"),
        ({"peer": -1}, "its peer is not valid"),
        ({"timestamp": 1 << 63}, "its timestamp is not valid"),
        ({"sender": 5}, "its sender is not valid"),
    ],
)
def test_impossible_records_are_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    lines = numbered(examples())
    record = json.loads(lines[8]) | {"seq": len(lines) + 1} | change
    report = import_log([*lines, sealed(record)], tmp_path / "new", NOW, log_commands._check(ADAPTERS))
    assert (len(report.faults), why in report.faults[0].reason) == (1, True)
    assert Segments(tmp_path / "new" / "log").next_seq == len(lines) + 1


def test_skipped_records_are_reported(tmp_path: Path) -> None:
    lines = numbered(examples())
    bad = [sealed(json.loads(lines[3]) | {"seq": len(lines) + 1, "addresses": 7})]
    write(tmp_path / "data", lines + bad)
    with running(tmp_path / "data") as here:
        faults = here.gateway.log.segments.faults
        assert [fault.reason for fault in faults] == ["not a record: its addresses is not valid"]
        assert here.gateway.metrics.counts["faults"]["record",] == 1
    assert isinstance(decode(lines[3]), Fact)
