"""A compaction removes facts that nothing refers to, and keeps everything else."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.message import Message, Peer
from gateway.facts_in_use import GatewayFactCache
from gateway.storage import compaction as compaction_module
from gateway.storage import index as index_module
from gateway.storage.archive import export, verify
from gateway.storage.compaction import Compaction
from gateway.storage.importing import import_log
from gateway.storage.layout import Layout
from gateway.storage.segments import parse_header
from tests.still import PATIENCE

if TYPE_CHECKING:
    from tests.conftest import Core
from tests.gateway.storage.compactions import (
    EACH,
    MakeCore,
    churn,
    entries,
    facts,
    names,
    retention,
    run,
    same_when_made_anew,
    size,
)


@pytest.fixture(autouse=True, scope="module")
def _fast() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index_module, "GATHER_SECONDS", 0)
        patched.setattr(compaction_module, "GRACE_SECONDS", 0)
        yield


@pytest.fixture
def core(make_core: MakeCore) -> Core:
    return make_core(sealing=EACH)


def test_the_log_stays_bounded_while_everything_in_it_changes(core: Core) -> None:
    keeping = retention(core, slack=2_000, bytes=2_000)
    sizes = []
    for turn in range(20):
        churn(core, *range(10 * turn, 10 * turn + 5))
        churn(core, *range(10 * turn + 5, 10 * turn + 10))
        run(core, keeping)
        sizes.append(size(core))
    assert core.disk_faults == []
    assert max(sizes[10:]) < 2 * max(sizes[:5])
    assert len(names(core)) < 60
    assert verify(core.data / "log").faults == []


def test_needed_facts_are_kept(core: Core) -> None:
    keeping = retention(core, age=1)
    core.log.fact("start", {"gateway": "ab", "version": "1"})
    core.log.fact("start", {"gateway": "ab", "version": "2"})
    alice, bob, carol = (core.peers.identity("toy", name) for name in ("alice", "bob", "carol"))
    core.peers.identity("toy", "alice", "Alice")
    for who in (alice, bob, carol):
        core.say(sender=who, channel=f"by {who.identity}")
    for channel in ("by bob", "by carol"):
        core.channels.close(channel)
    core.settle()
    core.clock.now += 10
    core.say(sender=alice, channel="new")
    core.say(sender=Peer(7, "toy"), channel="by carol")
    core.channels.close("by carol")
    core.settle()
    for _ in range(2):
        run(core, keeping)
    left = [
        fact.fields.get("version") or fact.fields.get("channel") or fact.fields.get("sender") or fact.fields["first"]
        for fact in facts(core)
    ]
    assert left == ["1", 0, "alice", "by alice", "by carol", "new", "by carol", "by carol"]
    assert [core.index.peer("toy", name) for name in ("bob", "carol")] == [None, None]
    assert core.index.peer("toy", "alice") == Peer(alice.number, "toy", "alice", "Alice")


def test_a_forgotten_peer_returns_with_a_new_number(core: Core) -> None:
    """A number that was given away is never given to anybody else."""
    churn(core, 1)
    before = core.peers.identity("toy", "peer 1").number
    core.say()
    core.settle()
    core.clock.now += 10_000
    core.say(b'"today"')
    core.settle()
    run(core, retention(core, age=1))
    assert core.index.peer("toy", "peer 1") is None
    assert not core.channels.in_use("channel 1")
    after = core.peers.identity("toy", "peer 1").number
    assert after > before
    churn(core, 1)
    assert core.index.peer("toy", "peer 1") == Peer(after, "toy", "peer 1", ("a name " * 20)[:255])


def test_connected_peers_and_held_channels_are_kept(core: Core, toy_session: Any) -> None:
    session = toy_session(core.bus)
    core.bus.join(session)
    who = core.peers.identity("toy", "here")
    core.bus.bind(session, who)
    churn(core, 1)
    core.channels.hold("channel 1")
    core.clock.now += 10_000
    core.say(b'"today"')
    core.settle()
    run(core, retention(core, age=1))
    assert core.index.peer("toy", "here") == who
    assert "channel 1" in {name for name, _, _ in core.index.channels()}


def test_facts_used_during_a_compaction_are_kept(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer speaks again, and a channel is used again, after the log was looked at and before they have gone."""
    churn(core, 1)
    who = core.peers.identity("toy", "peer 1")
    core.clock.now += 10_000
    core.say(b'"today"')
    core.settle()
    last_seq = GatewayFactCache.last_seq

    def speak(self: GatewayFactCache) -> int:
        core.say(b'"again"', channel="channel 1", sender=who)
        return last_seq(self)

    monkeypatch.setattr(GatewayFactCache, "last_seq", speak)
    run(core, retention(core, age=1))
    core.settle()
    assert core.index.peer("toy", "peer 1") == who
    assert [open for name, _, open in core.index.channels() if name == "channel 1"] == [True]
    same_when_made_anew(core)


def test_messages_are_retired_while_facts_are_compacted(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        churn(core, number)
    core.say(b'"today"', channel="kept")
    core.settle()
    began, go_on = threading.Event(), threading.Event()
    judge = Compaction._select

    def waiting(*arguments: Any) -> Any:
        began.set()
        assert go_on.wait(PATIENCE)
        return judge(*arguments)

    monkeypatch.setattr(Compaction, "_select", waiting)
    keeping = retention(core, age=1)
    keeping.tick()
    core.until(lambda: keeping.compacting)
    assert began.wait(PATIENCE)
    core.clock.now += 10_000
    core.say(b'"tomorrow"', channel="kept")
    core.settle()
    keeping.tick()
    core.until(lambda: not keeping._busy)
    assert [message.content for message in core.index.history("kept")] == [b'"tomorrow"']
    go_on.set()
    core.until(lambda: not keeping.compacting)
    run(core, keeping)
    assert core.disk_faults == []
    assert verify(core.data / "log").faults == []
    same_when_made_anew(core)


def test_readers_continue_across_a_compaction(core: Core) -> None:
    """A scan, an export and a verification that had begun before see everything that stays, once."""
    for number in range(4):
        churn(core, number)
        core.peers.identity("toy", f"friend {number}")
        core.say(channel=f"open {number}")
        core.settle()
    core.clock.now += 10_000
    core.say(b'"today"', channel="kept")
    core.settle()
    log = core.data / "log"
    retire = retention(core, age=1, slack=1 << 40)
    run(core, retire)
    from gateway.storage.archive import _lines, _open_files

    scan, parts = core.segments.scan(), _open_files(log)
    seen = [parse_header(next(scan).data)[0] for _ in range(4)]
    read = [parse_header(line)[0] for _ in range(4) for _, line in _lines(next(parts))]
    run(core, retention(core, age=1))
    assert Layout.read(log).front is not None
    after = {entry.seq for entry in entries(log)}
    seen += [parse_header(line.data)[0] for line in scan]
    read += [parse_header(line)[0] for part in parts for _, line in _lines(part)]
    for found in (seen, read):
        assert found == sorted(set(found))
        assert after <= set(found)
    assert core.segments.faults == []
    for seq in after:
        entry = core.index.entry(seq)
        assert entry is not None
        assert entry.seq == seq


def test_a_compacted_log_survives_export_and_import(core: Core, tmp_path: Path) -> None:
    for number in range(3):
        churn(core, number)
    core.log.fact("start", {"gateway": "ab", "version": "1"})
    core.say(b'"today"', channel="kept")
    core.settle()
    run(core, retention(core, age=1))
    out = BytesIO()
    export(core.data / "log", out)
    lines = out.getvalue().splitlines(keepends=True)
    report = import_log(lines, tmp_path / "new", core.clock.now)
    assert (report.faults, report.records) == ([], len(lines))
    again = BytesIO()
    assert verify(tmp_path / "new" / "log").faults == []
    export(tmp_path / "new" / "log", again)
    assert again.getvalue() == out.getvalue()


STEP = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("name"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("close"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("seal"), st.just(0), st.just(0)),
    st.tuples(st.just("compact"), st.just(0), st.just(0)),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEP, max_size=25))
def test_kept_records_are_unchanged_by_a_compaction(core_class: type[Core], tmp_path_factory: Any, steps: Any) -> None:
    """Of a channel, a peer or a message that is kept everything stays, in the tables and when they are made anew."""
    core = core_class(tmp_path_factory.mktemp("data"), sealing=EACH).start()
    keeping = retention(core, bytes=3_000)
    try:
        for verb, one, other in [*steps, ("compact", 0, 0)]:
            match verb:
                case "say":
                    who = core.peers.identity("toy", f"peer {one}")
                    core.say(b'"%b"' % (b"x" * 400), channel=f"channel {other}", sender=who)
                case "name":
                    core.peers.identity("toy", f"peer {one}", f"name {other}")
                case "close":
                    core.channels.close(f"channel {one}")
                case "compact":
                    core.settle()
                    run(core, keeping)
                    check_kept(core)
            core.settle()
        same_when_made_anew(core)
    finally:
        core.stop()


def check_kept(core: Core) -> None:
    """Everything that a message refers to is known, and what memory says is what the log says."""
    assert core.disk_faults == []
    for message in said(core):
        assert core.index.peer_numbered(message.sender.number) == core.peers.find("toy", message.sender.identity or "")
        assert core.channels.addresses(message.channel) == {"toy": message.channel.upper()}
        assert message.channel in {name for name, _, _ in core.index.channels()}
    for name, addresses, is_open in core.index.channels():
        assert core.channels.exists(name) == is_open
        assert core.channels.addresses(name) == addresses


def said(core: Core) -> Iterable[Message]:
    return [entry for entry in entries(core.data / "log") if isinstance(entry, Message)]
