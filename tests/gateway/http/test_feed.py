"""Event streams of several channels and patterns miss and repeat nothing, and respect rights."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from fastapi import Request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.access.authorization import ApiKey, KeyFile, digest
from gateway.core.errors import Forbidden, UnknownChannel
from gateway.core.message import Message
from gateway.http import replay
from gateway.http.callers import Caller
from gateway.http.events import EventSession, open_stream
from gateway.http.feed import Feed
from gateway.http.problems import Problem
from gateway.http.selection import MAX_SELECTED, Selection, parse_selection
from tests.gateway.http.sent_events import Event, ids, parse

NEWS = Selection(("lobby",), ("news/",))
CHANNELS = ("lobby", "news/a", "news/b", "other")


def open_session(still: Any, selection: Selection = NEWS, after: int | None = None) -> EventSession:
    return EventSession(still.gateway, still.caller(), selection, after)


def drain(session: EventSession) -> list[Event]:
    heard = parse(session.data_to_send())
    while session._feed.ready or session.has_more:
        heard += parse(session.data_to_send())
    return heard


@pytest.mark.parametrize(
    ("lists", "names", "patterns", "expected"),
    [
        (["a,b", "news/*"], [], [], Selection(("a", "b"), ("news/",))),
        (["*"], [], [], Selection((), ("",))),
        ([], ["a,b", "x*y", "*"], [], Selection(("a,b", "x*y", "*"))),
        (["a,a"], ["a"], [], Selection(("a",))),
        (["a*"], [], ["a*", "b,c/*"], Selection((), ("a", "b,c/"))),
    ],
)
def test_a_selection_is_parsed(lists: list[str], names: list[str], patterns: list[str], expected: Selection) -> None:
    assert parse_selection(lists, names, patterns) == expected


@pytest.mark.parametrize("pattern", ["", "a", "a*b*", "\n*"])
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(Problem) as refused:
        parse_selection([], [], [pattern])
    assert refused.value.status == 422


@pytest.mark.parametrize("lists", [[], ["a*b"], ["**"], ["*/x"], [",".join(map(str, range(MAX_SELECTED + 1)))]])
def test_an_empty_or_malformed_selection_is_refused(lists: list[str]) -> None:
    with pytest.raises(Problem) as refused:
        parse_selection(lists, [])
    assert refused.value.status == 422


def test_an_invalid_channel_name_is_refused() -> None:
    for text in ("a,,b", "", "a/@b"):
        with pytest.raises(UnknownChannel):
            parse_selection([text], [])


def test_events_name_their_channel_and_patterns_follow_new_channels(still: Any) -> None:
    session = open_session(still)
    welcomes = drain(session)
    assert [(event.name, event.data.get("channel"), event.data.get("pattern")) for event in welcomes] == [
        ("welcome", "lobby", None),
        ("welcome", None, "news/*"),
    ]
    said = [still.say(channel=name) for name in CHANNELS]
    still.sync()
    heard = drain(session)
    assert [event.data["channel"] for event in heard] == ["lobby", "news/a", "news/b"]
    assert ids(heard) == [message.seq for message in said[:3]]
    assert still.gateway.bus.peers_in("news/a") == [], "who listens by a pattern is not there"
    session.receive_eof()
    still.say(channel="news/a")
    assert not still.gateway.bus.watchers.prefixes


def test_presence_on_one_of_several_channels_names_the_channel(still: Any) -> None:
    session = open_session(still, Selection(("a", "b")))
    other = open_session(still, Selection(("b",)))
    message = Message("b", other.who, "rest", b'"psst"')
    assert still.gateway.bus.direct(message, session.peer.number) == 1
    assert [(event.name, event.data["channel"]) for event in drain(session)[2:]] == [("joined", "b"), ("direct", "b")]


def test_a_new_subscription_receives_no_earlier_messages(still: Any) -> None:
    session = open_session(still, Selection(("lobby",)))
    heard = []
    feed = Feed(still.gateway, session, lambda each, message: heard.append((each, message.seq)), lambda: None)
    first = feed.add(Selection(("lobby",)), None)
    before = still.say()
    feed.offer(before)  # it is not on disk yet, so nobody has heard it
    second = feed.add(Selection((), ("lob",)), None)
    after = still.say()
    feed.offer(after)
    still.sync()
    assert heard == [(first, before.seq), (first, after.seq), (second, after.seq)]


STEPS = st.lists(
    st.one_of(st.sampled_from([*CHANNELS]), st.sampled_from(["drain", "sync", "pull", "pull"])), max_size=40
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(st.sampled_from(CHANNELS), max_size=80), steps=STEPS, seen=st.integers(0, 90), held=st.booleans()
)
def test_property_a_resumed_stream_of_several_misses_nothing_and_repeats_nothing(
    still_class: Any, before: list[str], steps: list[str], seen: int, held: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if held:
            patch.setattr(replay, "MAX_HELD", 2 * replay.OVERHEAD)  # the boundary is given up again and again
        still = still_class(Path(folder))
        said = [(still.say(channel=name).seq, name) for name in before]
        still.sync()
        after = ([0, *(seq for seq, _ in said)])[min(seen, len(said))]
        session = open_session(still, after=after)
        heard: list[Event] = []
        for step in steps:
            if step in CHANNELS:
                said.append((still.say(channel=step).seq, step))
            elif step == "pull":
                heard += parse(session.data_to_send())
            else:
                still.drain() if step == "drain" else still.sync()
        still.sync()
        heard += drain(session)
        still.sync()
        heard += drain(session)
        session.receive_eof()
        still.stop()
    assert ids(heard) == [seq for seq, name in said if seq > after and NEWS.covers(name)]


def test_a_busy_gateway_does_not_keep_a_stream_from_its_boundary(still: Any) -> None:
    """Others talk in each turn, on channels that are not selected: what was missed still comes to its end."""
    missed = still.say(channel="news/a")
    still.sync()
    session = open_session(still, Selection((), ("news/",)), 0)
    for _ in range(10):
        still.say(channel="other")
        still.sync()
        session.data_to_send()
    assert not session._feed.ready
    live = still.say(channel="news/b")
    still.sync()
    assert missed.seq < live.seq
    assert ids(drain(session)) == [live.seq]


def test_a_pattern_delivers_only_permitted_channels_live_and_missed(still: Any) -> None:
    gateway = still.gateway
    for name in ("news/a", "news/secret"):
        still.say(channel=name)
    gateway.access.set_keys([ApiKey("ada", digest("s"), rights=("subscribe:news/*", "!subscribe:news/secret"))])
    request = Request({"type": "http", "headers": [(b"authorization", b"Bearer s")], "client": ("127.0.0.1", 1)})
    caller = Caller(gateway, request)
    caller.check_selection(Selection((), ("",)))
    still.sync()
    session = EventSession(gateway, caller, Selection((), ("",)), 0)
    assert [event.data["channel"] for event in drain(session)[1:]] == ["news/a"]
    for name in ("news/secret", "lobby", "news/b"):
        gateway.bus.publish(Message(name, session.who, "rest", b"1"))
    still.sync()
    assert [event.data["channel"] for event in drain(session)] == ["news/b"]
    gateway.access.set_keys([ApiKey("ada", digest("s"), rights=("publish:*",))])
    gateway.bus.publish(Message("news/b", session.who, "rest", b"1"))
    still.sync()
    assert drain(session) == []


def listener_with(still: Any, *rights: str) -> Caller:
    still.gateway.access.set_keys([ApiKey("ada", digest("s"), rights=rights)])
    request = Request({"type": "http", "headers": [(b"authorization", b"Bearer s")], "client": ("127.0.0.1", 1)})
    return Caller(still.gateway, request)


def open_and_end(caller: Caller, selection: Selection, after: int | None) -> None:
    async def run() -> None:
        open_stream(caller, selection, after).end()

    anyio.run(run)


def test_old_messages_need_the_right_to_read_history(still: Any) -> None:
    bus = still.gateway.bus
    old = [still.say(channel=name) for name in ("news/a", "news/b", "lobby")]
    still.sync()
    clock = bus.clock
    caller = listener_with(still, "subscribe:*", "history:news/b")
    open_and_end(caller, Selection(("lobby",)), 0)  # who was cut off a moment ago goes on
    bus.clock = lambda: clock() + replay.GRACE_MS + 60_000
    for channels in (("news/a",), ("news/b", "lobby")):
        with pytest.raises(Forbidden, match="history"):
            open_and_end(caller, Selection(channels), 0)
    for selection, after in (
        (Selection(("news/a",)), old[0].seq),  # whatever was said elsewhere meanwhile
        (Selection(("news/a",)), None),
        (Selection(("news/b",)), 0),
    ):
        open_and_end(caller, selection, after)
    session = EventSession(still.gateway, caller, Selection((), ("",)), 0)
    new = still.say(channel="lobby")
    new.time = bus.clock()
    still.sync()
    assert ids(drain(session)[1:]) == [old[1].seq, new.seq], "of a pattern, what may not be read is left out"


def test_a_long_resumption_loses_nothing_that_was_new_when_it_began(still: Any) -> None:
    bus = still.gateway.bus
    said = [still.say() for _ in range(2 * replay.PAGE)]
    still.sync()
    session = EventSession(still.gateway, listener_with(still, "subscribe:*"), Selection(("lobby",)), 0)
    clock = bus.clock
    bus.clock = lambda: clock() + replay.GRACE_MS + 60_000
    assert ids(drain(session)[1:]) == [each.seq for each in said]


def test_streams_need_the_right_for_each_channel_and_pages_send_the_key_in_the_url(
    make_process: Callable[..., Any], tmp_path: Path
) -> None:
    keys = KeyFile(tmp_path / "data/keys/api-keys.json")
    secret, mute = keys.add("ada", ("subscribe:a", "subscribe:news/*")), keys.add("mute", ("publish:*",))
    url = f"{make_process().url}/v1/events"

    def status(**params: str) -> int:
        with httpx.stream("GET", url, params=params) as response:
            return response.status_code

    assert status(channels="a,news/*", key=secret) == 200
    assert status(channels="a,b", key=secret) == 403
    assert status(channels="*", key=secret) == 200
    assert status(channels="*", key=mute) == 403
    assert status(channels="*") == status(channels="a") == status(channels="a", key="wrong") == 401
    assert status(key=secret) == 422
