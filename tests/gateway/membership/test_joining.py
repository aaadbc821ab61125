"""A gateway joins its cluster, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cluster.accepting_turn import Turn
from gateway.jetstream import stream
from gateway.jetstream.connecting import JetStreamSettings
from gateway.membership import joining, membership
from gateway.membership.membership import Membership
from gateway.membership.transport import CannotJoin, ClusterTransport, JetStreamTransport
from gateway.storage.log import Log, _SegmentWriter
from gateway.storage.record import Fact, encode
from gateway.storage.segments import Segments
from tests.nats import NatsServer
from tests.ports import reserved_port
from tests.waiting import until


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[..., Membership]]:
    """Joins a cluster, with a log of so many records."""
    nats = NatsServer(tmp_path / "nats")
    joined: list[Membership] = []

    def join(
        name: str,
        records: int = 0,
        about: str = "",
        index: Callable[[Membership, Path], object] = lambda _member, _data: None,
        at: str = "",
    ) -> Membership:
        folder = tmp_path / (at or name) / "log"
        folder.mkdir(parents=True, exist_ok=True)
        log = Log(Segments(folder), lambda _call: None, lambda: 5)
        log.start()
        for _ in range(records):
            log.fact("start", {"gateway": name, "version": "1"})
        log.close()
        settings = JetStreamSettings("main", (nats.url,), 1, about=about)
        joined.append(Membership(name, JetStreamTransport(settings)))
        joined[-1].join(folder.parent, lambda: index(joined[-1], folder.parent))
        return joined[-1]

    yield join
    for member in joined:
        member.transport.close()
    nats.kill()


def test_a_gateway_with_other_keys_is_refused(join: Callable[..., Membership]) -> None:
    assert join("one", about="keys 1").turn.acting
    with pytest.raises(CannotJoin, match="have 'keys 1' in common, and this gateway has 'keys 2': copy the folder"):
        join("two", about="keys 2")


def test_an_unreadable_stream_fails_the_join_of_a_known_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its position in the stream is known, so it waits for nothing but the stream."""
    do_next = joining._do_next

    def do_next_until_it_failed(turn: Turn, transport: ClusterTransport) -> None:
        do_next(turn, transport)
        if transport.status().error:
            monkeypatch.setattr(joining, "JOIN_SECONDS", 0.0)

    monkeypatch.setattr(joining, "_do_next", do_next_until_it_failed)
    log = Log(Segments(tmp_path / "log"), lambda _call: None, lambda: 5)
    log.start()
    log.fact("start", {"gateway": "one", "version": "1"})
    log.close()
    (tmp_path / membership.FILE).write_text('{"place": 1, "digest": null, "number": 1, "holder": "-", "next_seq": 2}')
    server = f"127.0.0.1:{reserved_port()}"
    member = Membership("one", JetStreamTransport(JetStreamSettings("main", (f"nats://me:secret@{server}",))))
    with pytest.raises(CannotJoin, match=rf"for 0 seconds: \[Errno 111\] .*refused.* \({server}\)$"):
        member.join(tmp_path)


def test_a_log_that_does_not_fit_the_stream_is_refused(join: Callable[..., Membership]) -> None:
    join("one", 3)
    with pytest.raises(CannotJoin, match="ends with record 0, and what the stream has begins with 4: restore a"):
        join("two")
    with pytest.raises(CannotJoin, match="has record 4, and the stream ends with 3: the stream was lost"):
        join("three", 4)


def test_a_log_is_not_compared_with_a_stream_of_which_no_leader_answers(
    join: Callable[..., Membership], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be cut off, so that others have more."""
    join("one", 3)
    monkeypatch.setattr(stream, "has_leader", lambda _info: False)
    monkeypatch.setattr(joining, "JOIN_SECONDS", 0.5)
    with pytest.raises(
        CannotJoin, match="no turn in the cluster for 0 seconds: no other member passes the turn on, or"
    ):
        join("two", 4)


def test_a_member_whose_disk_lacks_part_of_the_stream_cannot_join(
    join: Callable[..., Membership], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway would go on with another log than the others, whose position it has."""
    accept(join("one"), 3)
    write, failing = _SegmentWriter.write, list[bool]()

    def full(*arguments: Any) -> Any:
        if failing:
            raise OSError(28, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(_SegmentWriter, "write", full)
    failing.append(True)
    with pytest.raises(CannotJoin, match="the disk took the log up to record 0, and the stream has 3"):
        join("two")


def test_a_log_that_was_not_written_to_its_end_has_no_bookmark(
    join: Callable[..., Membership], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would say that the log has what the disk did not take."""

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    member, bookmark = join("one"), tmp_path / "one" / "stream-position.json"
    for failing in (True, False):
        log = Log(Segments(tmp_path / "one" / "log"), lambda _call: None, lambda: 5)
        log.start()
        with monkeypatch.context() as patch:
            if failing:
                patch.setattr(_SegmentWriter, "write", full)
            log.fact("start", {"gateway": "one", "version": "1"})
            log.close()
        member._log = log
        member.closed()
        assert bookmark.exists() != failing


def test_a_member_that_catches_up_yields_to_the_event_loop(
    join: Callable[..., Membership], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "SLICE_SECONDS", 0.0)
    one = join("one")
    posted: list[Callable[[], None]] = []
    drain(one)
    one.transport.on_call = lambda: None
    one._post = posted.append
    for _ in range(3):
        one.transport.publish(b"no batch")
    ignored = one.turn.ignored
    until(lambda: one.transport.status().position >= one.transport.place + 3)
    for taken in (1, 2, 3):
        until(lambda taken=taken: (one._receive(), one.turn.ignored == ignored + taken)[1])  # type: ignore[misc, func-returns-value]
        assert posted.pop() == one._receive


def test_entries_are_indexed_before_the_first_turn_is_wanted(
    join: Callable[..., Membership], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others wait for a gateway that has the turn and does not use it."""
    monkeypatch.setattr(joining, "MAX_UNINDEXED", 3)
    one = join("one")
    accept(one, 3)
    indexed: list[tuple[int, float]] = []

    def index(member: Membership, data: Path) -> None:
        """Note what there is to index; then others accept more, the first time much."""
        segments = Segments(data / "log")
        segments.close()
        indexed.append((segments.next_seq - 1, member.turn.waited))
        accept(one, 5 if len(indexed) == 1 else 1)
        stored = member.transport.status().stored
        until(lambda: member.transport.status().stored != stored)  # it asks every two seconds
        if len(indexed) == 2:
            one.turn.pinned = False
            one.transport.on_call = lambda: drain(one)

    member = join("two", index=index)
    assert indexed == [(3, 0.0), (8, 0.0)]
    assert member.turn.position.next_seq == 10


def accept(member: Membership, count: int) -> None:
    """Have *member* accept so many facts, and wait until they are in the stream."""
    turn = member.turn
    first = turn.position.next_seq or 1
    facts = [Fact("start", {"gateway": "x", "version": "1"}, seq, 5) for seq in range(first, first + count)]
    turn.logged(facts, [encode(fact) for fact in facts])
    until(lambda: (drain(member), turn.position.next_seq == first + count)[1])  # type: ignore[func-returns-value]


def drain(member: Membership) -> None:
    """Do everything that is due."""
    while (call := member.transport.receive(0)) is not None:
        call()


def test_two_gateways_with_one_name_are_refused(join: Callable[..., Membership]) -> None:
    """Each would claim the turn from the other at once."""
    first = join("one")
    first.transport.on_call = lambda: drain(first)
    with pytest.raises(CannotJoin, match=r"is named one, and was there before: .* \(cluster.gateway\)"):
        join("one", at="another machine")
    assert first.turn.acting


def test_a_gateway_that_cannot_write_reads_a_bounded_part(join: Callable[..., Membership]) -> None:
    """While a disk is full, what the others accept would fill the memory."""
    member = join("one")
    link = member.transport
    assert isinstance(link, JetStreamTransport)
    link.is_full = lambda: True
    before = link.place

    def pump() -> None:
        while (call := link.receive(0.05)) is not None and call != link._on_tick:
            call()

    def taken() -> int:
        reader = link._stream._reader
        assert reader is not None
        return reader.taken

    until(lambda: taken() == before)
    link.publish(b"no batch")
    until(lambda: (pump(), link.place > before)[1])  # type: ignore[func-returns-value]
    link._on_tick()
    assert (taken(), member.turn.ignored) == (before, 1)
    link.is_full = lambda: False
    link._on_tick()
    until(lambda: taken() == link.place)
