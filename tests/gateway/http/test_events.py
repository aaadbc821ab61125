"""Server-sent events miss and repeat nothing, show only records on disk, and end with a reason."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.message import Message, Peer
from gateway.core.outbox import LOW_WATER, MAX_OUTBOX
from gateway.http import events, listing, replay, views
from gateway.http.media import MAX_CONTENT
from gateway.http.selection import Selection
from gateway.http.streaming import coalesce
from gateway.storage.log import SealPolicy
from gateway.storage.retention import RetentionLimits
from tests.gateway.http.sent_events import Event, ids, parse


def test_a_stream_begins_with_its_number_and_shows_a_message_once_it_is_on_disk(still: Any) -> None:
    session = still.listen()
    (welcome,) = parse(session.data_to_send())
    assert welcome.name == "welcome"
    assert welcome.data["number"] == session.peer.number
    assert welcome.id == still.gateway.log.synced_seq
    said = still.say(b'{"n": 123456789012345678901234567890}')
    assert session.data_to_send() == []
    still.sync()
    sent = b"".join(session.data_to_send())
    assert b'"content":{"n": 123456789012345678901234567890}' in sent
    (heard,) = parse(sent)
    assert (heard.name, heard.id, heard.data["sequence"]) == ("message", said.seq, said.seq)


def test_a_stream_that_ends_before_its_first_message_is_resumed_without_a_gap(still: Any) -> None:
    before = still.say()
    still.sync()
    first = still.listen()
    (welcome,) = parse(first.data_to_send())
    assert welcome.id == before.seq
    first.receive_eof()
    missed = still.say()
    still.sync()
    second, heard = still.listen(welcome.id), list[Event]()
    while len(heard) < 2:
        heard += parse(second.data_to_send())
        still.drain()
    assert [event.id for event in heard] == [welcome.id, missed.seq]


@pytest.mark.parametrize("count", [listing.BATCH, listing.BATCH + 1, 5 * listing.BATCH])
def test_a_long_welcome_is_made_a_few_peers_at_a_time(still: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10_000, 10_000 + count):
        still.gateway.bus.presence.announce_present("lobby", Peer(number, "toy"), 1 << 60)
    shown, view = list[Peer](), views.peer

    def show(peer: Peer) -> dict[str, Any]:
        shown.append(peer)
        return view(peer)

    monkeypatch.setattr(views, "peer", show)
    said, session = still.say(), still.listen(0)
    assert len(shown) <= listing.BATCH + 1
    other = still.listen()  # of which the first one hears behind its welcome
    still.sync()
    pieces = list[bytes]()
    while len(pieces) < 2 or not pieces[-1].startswith(b"id:"):
        before = len(shown)
        pieces += session.data_to_send() or pytest.fail("something is missing")
        assert len(shown) - before <= listing.BATCH
    welcome, *rest = parse(pieces)
    assert [peer["number"] for peer in welcome.data["peers"]] == list(range(10_000, 10_000 + count))
    assert welcome.data["name"] is None
    assert [event.name for event in rest] == ["joined", "message"]
    assert (rest[0].data["number"], rest[1].id) == (other.peer.number, said.seq)


def test_a_truncated_welcome_is_not_a_complete_event(still: Any) -> None:
    for number in range(10_000, 10_100):
        still.gateway.bus.presence.announce_present("lobby", Peer(number, "toy"), 1 << 60)
    session = still.listen()
    pieces = [*session.data_to_send(), *session.data_to_send()]
    session.close(1008, "a right was taken away")
    pieces += session.data_to_send()
    pieces.append(session.closing_comment(session.closing.reason))
    assert b"".join(pieces).startswith(b'id: 0\nevent: welcome\ndata: {"number":')
    assert b"\n\n" not in b"".join(pieces)
    assert b"\n: a right was taken away\n" in pieces[-1]


def test_presence_and_direct_events_have_no_id(still: Any) -> None:
    session = still.listen()
    other = still.listen()
    assert [peer["number"] for peer in parse(other.data_to_send())[0].data["peers"]] == [session.peer.number]
    message = Message("lobby", other.who, "rest", b'"psst"')
    assert still.gateway.bus.direct(message, session.peer.number) == 1
    other.receive_eof()
    heard = parse(session.data_to_send())[1:]
    assert [event.name for event in heard] == ["joined", "direct", "left"]
    assert ids(heard) == []
    assert (
        heard[0].data
        == heard[2].data
        == {
            "number": other.peer.number,
            "protocol": "rest",
            "identity": None,
            "name": None,
            "channel": "lobby",
        }
    )
    assert heard[1].data["content"] == "psst"
    assert "sequence" not in heard[1].data


STEPS = st.lists(st.sampled_from(["say", "elsewhere", "drain", "sync", "pull", "pull"]), max_size=60)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.integers(0, 80), unsynced=st.integers(0, 40), steps=STEPS, seen=st.integers(0, 90))
def test_property_a_resumed_stream_misses_nothing_and_repeats_nothing(
    still_class: Any, before: int, unsynced: int, steps: list[str], seen: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        still = still_class(Path(folder))
        said = [still.say().seq for _ in range(before)]
        still.sync()
        said += [still.say().seq for _ in range(unsynced)]
        after = ([0, *said])[min(seen, len(said))]
        session = still.listen(after)
        heard: list[Event] = []
        for step in steps:
            if step == "say":
                said.append(still.say().seq)
            elif step == "elsewhere":
                still.say(channel="other")
            elif step == "pull":
                heard += parse(session.data_to_send())
            else:
                still.drain() if step == "drain" else still.sync()
        still.sync()
        while data := session.data_to_send():
            heard += parse(data)
        session.receive_eof()
        still.stop()
    assert ids(heard) == [seq for seq in said if seq > after]


def test_messages_published_while_the_boundary_waits_for_the_disk_come_once(still: Any) -> None:
    said = [still.say().seq]
    still.sync()
    session = still.listen(0)
    heard = parse(session.data_to_send())
    said.append(still.say().seq)
    heard += parse(session.data_to_send())  # the log has no more on disk: the boundary is set here
    said.append(still.say().seq)
    still.sync()
    while data := session.data_to_send():
        heard += parse(data)
    assert ids(heard) == said


def test_a_long_catching_up_waits_in_the_log_and_not_in_memory(still: Any) -> None:
    big = b'"' + b"x" * 10_000 + b'"'
    said = [still.say(big).seq for _ in range(2 * MAX_OUTBOX // len(big))]
    still.sync()
    session = still.listen(0)
    heard = parse(session.data_to_send())
    said += [still.say(big).seq for _ in range(2 * MAX_OUTBOX // len(big))]
    still.sync()
    assert session.closing is None, "what is said meanwhile does not fill the outbox"
    while data := session.data_to_send():
        assert sum(map(len, data)) <= (replay.PAGE + 1) * 2 * len(big)
        heard += parse(data)
    assert ids(heard) == said


def test_a_stream_ends_with_a_reason_if_the_log_is_unreadable(still: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why, and who resumes it is shown the rest."""

    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for number in range(100):
        still.say(b"%d" % number)
    still.sync()
    index = still.gateway.index  # once it has all, what was said is read from the log, and not from memory
    still.posted.until_called(lambda done: index.submit(lambda: still.posted.put(done)))
    session = still.listen(0)
    shown = ids(parse(session.data_to_send()))
    with monkeypatch.context() as patch:
        patch.setattr(still.gateway.log.segments, "read", fails)
        assert session.data_to_send() == []
    assert session.closing is not None
    assert "the log cannot be read" in session.closing.reason
    assert session.data_to_send() == []
    again = still.listen(shown[-1])
    while page := ids(parse(again.data_to_send())):
        shown += page
    assert len(shown) == len(set(shown)) == 100


def test_long_messages_are_read_from_the_log_one_by_one(still: Any) -> None:
    big = b'"' + b"x" * 500_000 + b'"'
    said = [still.say(big).seq for _ in range(6)]
    still.sync()
    session = still.listen(0)
    heard: list[Event] = []
    while data := session.data_to_send():
        assert sum(map(len, data)) < 2 * len(big)
        heard += parse(data)
    assert ids(heard) == said


def test_a_stream_that_is_not_read_is_closed(still: Any) -> None:
    session = still.listen()
    other = still.listen()
    other.data_to_send()
    big = b'"' + b"x" * 100_000 + b'"'
    for _ in range(events.MAX_OUTBOX // len(big) + 2):
        still.say(big)
        still.sync()
        assert other.data_to_send()
    assert session.closing is not None
    assert "too slow" in session.closing.reason
    assert session.data_to_send() == []
    assert other.closing is None


def test_the_longest_message_closes_no_stream(still: Any) -> None:
    session = still.listen()
    still.say(b'"' + b"x" * (MAX_CONTENT - 2) + b'"')
    still.sync()
    assert session.closing is None
    assert len(ids(parse(session.data_to_send()))) == 1


def test_messages_removed_by_retention_are_a_gap(make_still: Callable[..., Any], tmp_path: Path) -> None:
    still = make_still()
    lost = [still.say().seq for _ in range(3)]
    still = make_still()  # a clean stop seals the segment
    kept = [still.say().seq for _ in range(2)]
    still = make_still()
    retire(tmp_path / "data")
    still = make_still()
    session = still.listen(lost[0])
    heard = parse(session.data_to_send())
    assert [event.name for event in heard[:2]] == ["welcome", "gap"]
    assert (heard[1].id, heard[1].data["after"]) == (None, lost[0])
    assert lost[-1] < heard[1].data["before"] <= kept[0]
    still.sync()
    while data := session.data_to_send():
        heard += parse(data)
    assert ids(heard) == kept
    whole = still.listen(kept[0])
    assert "gap" not in [event.name for event in parse(whole.data_to_send())]


def test_a_stream_overtaken_by_retention_gets_a_gap_event(still: Any) -> None:
    """It was shown a page; what would have come next is retired before it is read."""
    gateway = still.gateway
    gateway.log._writer._sealing = SealPolicy(bytes=1)
    said = []
    for _ in range(3 * replay.PAGE):
        said.append(still.say().seq)
        still.sync()
    session = still.listen(0)
    heard = parse(session.data_to_send())
    assert ids(heard) == said[: replay.PAGE]
    gateway.retention.limits = RetentionLimits(bytes=5_000)
    gateway.retention.tick()
    still.posted.until(lambda: not gateway.retention._busy)
    kept = gateway.log.segments.first_kept
    assert said[replay.PAGE] < kept < said[-1]
    while data := session.data_to_send():
        heard += parse(data)
    gaps = [event.data for event in heard if event.name == "gap"]
    assert gaps == [{"after": said[replay.PAGE - 1], "before": kept}]
    assert ids(heard) == [seq for seq in said if seq <= said[replay.PAGE - 1] or seq >= kept]


def dechunked(data: bytes) -> bytes:
    """The body that some chunks are (RFC 9112, section 7.1)."""
    whole = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        end = int(size, 16)
        assert rest[end : end + 2] == b"\r\n"
        whole, data = whole + rest[:end], rest[end + 2 :]
    return whole


def two_streams(still: Any, peer: Peer) -> list[events.EventSession]:
    """Two streams of the same channels, both of *peer*, whose beginnings were read."""
    streams = [events.EventSession(still.gateway, still.caller(), Selection(("lobby",), ("news/",))) for _ in range(2)]
    for session in streams:
        still.gateway.bus.bind(session, peer)
    for session in streams:
        session.data_to_send()
    return streams


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("say"), st.sampled_from(["lobby", "news/a", "other"])),
            st.tuples(st.sampled_from(["sync", "direct", "visit", "tick", "take", "detach"]), st.none()),
        ),
        max_size=30,
    )
)
def test_property_a_detached_stream_equals_an_attached_one(still_class: Any, steps: list[tuple[str, Any]]) -> None:
    """It is detached at any time, also while messages wait for the disk."""
    with tempfile.TemporaryDirectory() as folder:
        still = still_class(Path(folder) / "data")
        bus, ada = still.gateway.bus, still.gateway.peers.identity("rest", "ada", "ada")
        plain, other = two_streams(still, ada)
        heard: dict[events.EventSession, bytes] = {plain: b"", other: b""}
        now, detached = bus.clock(), False

        def take() -> None:
            for session in (plain, other):
                data = b"".join(session.data_to_send())
                heard[session] += dechunked(data) if session is other and detached else data

        for step, channel in steps:
            if step == "say":
                still.say(channel=channel)
            elif step == "sync":
                still.sync()
            elif step == "direct":
                bus.direct(Message("lobby", still.caller().who, "rest", b'"psst"'), ada.number)
            elif step == "visit":
                still.listen().receive_eof()
            elif step == "tick":
                now += 16_000
                plain.tick(now)
                other.tick(now)
            elif step == "take":
                take()
            elif not detached:
                take()
                other.detach()
                detached = True
        still.sync()
        take()
        still.stop()
    assert heard[other] == heard[plain]


def test_messages_that_wait_for_the_disk_do_not_reach_a_client_that_left(still: Any) -> None:
    session, other = still.listen(), still.listen()
    for each in (session, other):
        each.data_to_send()
        each.detach()
    still.say()
    session.receive_eof()
    still.sync()
    assert not session.data_to_send()
    assert ids(parse(dechunked(b"".join(other.data_to_send()))))


def retire(data: Path) -> None:
    """What retention does to the oldest segment, and an index that is made anew."""
    first = min((data / "log").glob("0*.jsonl"))
    facts = [line for line in first.read_bytes().splitlines(keepends=True) if b'"kind":"message"' not in line]
    first.with_name(first.name.replace(".jsonl", ".facts.jsonl")).write_bytes(b"".join(facts))
    first.unlink()
    for path in data.glob("index.sqlite*"):
        path.unlink()


def test_a_piece_is_about_a_write() -> None:
    data = [b"x" * 1_000] * 200
    joined = [*coalesce(data)]
    assert b"".join(joined) == b"".join(data)
    assert all(len(piece) < LOW_WATER + 1_000 for piece in joined)
    assert [*coalesce([])] == []
