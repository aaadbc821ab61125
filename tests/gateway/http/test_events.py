"""Server-sent events: nothing missing, nothing twice, nothing that is not on disk; and streams that end well."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.access.auth import KeyFile
from gateway.core.message import Message, Peer
from gateway.core.outbox import LOW_WATER, MAX_OUTBOX
from gateway.http import events, listing, replay, views
from gateway.http.media import MAX_CONTENT
from gateway.http.selection import Selection
from gateway.http.streaming import coalesce
from gateway.shells import uvicorn_http
from gateway.storage.log import SealPolicy
from gateway.storage.retention import RetentionLimits

PATIENCE = 60.0


class Event(NamedTuple):
    name: str
    id: int | None
    data: Any


def parse(data: bytes | list[bytes]) -> list[Event]:
    """What the bytes of a stream say, comments left out (WHATWG HTML, section 9.2.6)."""
    text = data if isinstance(data, bytes) else b"".join(data)
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append(
                Event(fields["event"], int(fields["id"]) if "id" in fields else None, json.loads(fields["data"]))
            )
    return found


def ids(heard: list[Event]) -> list[int]:
    """Those of everything but the welcome."""
    return [event.id for event in heard if event.id is not None and event.name != "welcome"]


# Without a loop


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


def test_a_welcome_that_is_cut_short_is_no_event(still: Any) -> None:
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


def test_who_comes_and_goes_and_what_is_direct_has_no_id(still: Any) -> None:
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


def test_what_is_said_while_the_boundary_waits_for_the_disk_comes_once(still: Any) -> None:
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


def test_a_stream_ends_where_the_log_cannot_be_read(still: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_longest_message_closes_nobody(still: Any) -> None:
    session = still.listen()
    still.say(b'"' + b"x" * (MAX_CONTENT - 2) + b'"')
    still.sync()
    assert session.closing is None
    assert len(ids(parse(session.data_to_send()))) == 1


def test_what_retention_took_is_a_gap(make_still: Callable[..., Any], tmp_path: Path) -> None:
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


def test_a_stream_that_retention_overtakes_is_told_of_the_gap(still: Any) -> None:
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
def test_property_a_detached_stream_says_what_any_other_does(still_class: Any, steps: list[tuple[str, Any]]) -> None:
    """It is detached at any time, also while messages wait for the disk."""
    with tempfile.TemporaryDirectory() as folder:
        still = still_class(Path(folder) / "data")
        bus, ada = still.gateway.bus, still.gateway.peers.identity("rest", "ada", "ada")
        plain, other = (
            events.EventSession(still.gateway, still.caller(), Selection(("lobby",), ("news/",))) for _ in range(2)
        )
        for session in (plain, other):
            bus.bind(session, ada)
        for session in (plain, other):
            session.data_to_send()
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


def test_what_waits_for_the_disk_does_not_reach_who_has_left(still: Any) -> None:
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


# Behind a server, which runs streams itself once they have caught up or leaves them to ASGI


@pytest.fixture(params=["detached", "asgi"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "asgi":
        monkeypatch.setattr(uvicorn_http, "DETACH_EXTENSION", "of another server")


@asynccontextmanager
async def listening(url: str, after: int | None = None, **options: str) -> AsyncIterator[AsyncIterator[Event]]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as client,
        client.stream("GET", f"{url}/v1/channels/lobby/events", headers=headers | options) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield stream(response)


async def stream(response: httpx.Response) -> AsyncIterator[Event]:
    lines: list[str] = []
    async for line in response.aiter_lines():
        lines.append(line)
        if not line:
            for event in parse("\n".join([*lines, ""]).encode()):
                yield event
            lines = []


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not true():
            await anyio.sleep(0.01)


async def publish(client: httpx.AsyncClient, url: str, content: str) -> dict[str, Any]:
    response = await client.post(f"{url}/v1/channels/lobby/messages", content=content)
    assert response.status_code == 201, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.anyio
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
async def test_publish_events_and_history_agree_on_both_loops(make_process: Callable[..., Any], loop: str) -> None:
    url = make_process(loop=loop).url
    async with httpx.AsyncClient(timeout=PATIENCE) as client, listening(url) as live:
        assert (await anext(live)).name == "welcome"
        one = await publish(client, url, '{"text": "one", "n": 1e400}')
        heard = await anext(live)
        assert (heard.id, heard.data["id"]) == (one["sequence"], one["id"])
        lines = await client.post(
            f"{url}/v1/channels/lobby/messages",
            content=b'"two"\n"three"\n',
            headers={"Content-Type": "application/x-ndjson"},
        )
        results = [json.loads(line) for line in lines.text.splitlines()]
        assert [(await anext(live)).id for _ in results] == [result["sequence"] for result in results]
        history = (await client.get(f"{url}/v1/channels/lobby/messages")).json()["messages"]
        assert [message["id"] for message in history] == [one["id"], *(result["id"] for result in results)]
        async with listening(url, after=one["sequence"]) as resumed:
            again = [await anext(resumed) for _ in range(3)]
            assert ids(again) == [result["sequence"] for result in results]


@pytest.mark.slow
@pytest.mark.anyio
async def test_resuming_over_and_over_while_others_publish(local: Any) -> None:
    accepted: list[int] = []
    seen: list[int] = []

    async def talk() -> None:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            for n in range(100):
                taken = await publish(client, local.url, str(n))
                accepted.append(taken["sequence"])

    async def listen() -> None:
        content = None
        while content != "the end":
            async with listening(local.url, after=seen[-1] if seen else 0) as heard:
                for _ in range(8):
                    event = await anext(heard)
                    if event.id is not None and event.name == "message":
                        seen.append(event.id)
                        content = event.data["content"]
                    if content == "the end":
                        break

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            async with anyio.create_task_group() as talkers:
                for _ in range(4):
                    talkers.start_soon(talk)
            async with httpx.AsyncClient(timeout=PATIENCE) as client:
                accepted.append((await publish(client, local.url, '"the end"'))["sequence"])
    assert len(accepted) == 401
    assert seen == sorted(accepted)
    await until(lambda: local.gateway.bus.session_count == 0)


@pytest.mark.usefixtures("either")
@pytest.mark.anyio
async def test_who_hangs_up_has_left(local: Any) -> None:
    async with listening(local.url) as first:
        await anext(first)
        async with listening(local.url) as second:
            await anext(second)
            assert (await anext(first)).name == "joined"
            async with httpx.AsyncClient() as client:
                peers = (await client.get(f"{local.url}/v1/channels/lobby/peers")).json()["peers"]
            assert len(peers) == 2
        assert await anext(first) == ("left", None, peers[1] | {"channel": "lobby"})
    await until(lambda: local.gateway.bus.session_count == 0)


@pytest.mark.usefixtures("either")
def test_a_client_that_does_not_read_is_told_at_the_end(local: Any) -> None:
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(PATIENCE)
        slow.connect(("127.0.0.1", local.port))
        slow.sendall(b"GET /v1/channels/lobby/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        body = b'"' + b"x" * 500_000 + b'"\n'
        with httpx.Client(timeout=PATIENCE) as client:
            deadline = time.monotonic() + PATIENCE
            while not local.gateway.metrics.counts["overflows"]["rest",]:
                assert time.monotonic() < deadline
                client.post(
                    f"{local.url}/v1/channels/lobby/messages",
                    content=body * 4,
                    headers={"Content-Type": "application/x-ndjson"},
                )
        end = b""
        while b"too slow" not in end:
            data = slow.recv(1 << 20)
            assert data, "closed without a word"
            end = end[-100:] + data
    assert b"\n: too slow" in end


@pytest.mark.usefixtures("either")
def test_an_idle_stream_is_kept_open_by_comments(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions are looked at once a second."""
    monkeypatch.setattr(events, "PING_SECONDS", 0.1)
    with httpx.Client(timeout=PATIENCE) as client, client.stream("GET", f"{local.url}/v1/channels/lobby/events") as got:
        text = ""
        for part in got.iter_text():
            text += part
            if ": ping\n\n" in text:
                break
    assert "event: welcome" in text


@pytest.mark.usefixtures("either")
def test_a_client_that_never_reads_is_given_up(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STALLED_SECONDS", 0.1)
    with socket.socket() as dead, httpx.Client(timeout=PATIENCE) as client:
        dead.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        dead.connect(("127.0.0.1", local.port))
        dead.sendall(b"GET /v1/channels/lobby/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        deadline = time.monotonic() + PATIENCE
        while local.gateway.bus.session_count or not local.gateway.metrics.counts["connections"]["rest",]:
            assert time.monotonic() < deadline
            client.post(f"{local.url}/v1/channels/lobby/messages", content=b'"' + b"x" * 500_000 + b'"')


def test_a_stream_that_has_caught_up_costs_no_task(local: Any) -> None:
    count = local.gateway.metrics.gauges["tasks"]
    with contextlib.ExitStack() as stack:

        def tasks() -> int:
            found: SimpleQueue[int] = SimpleQueue()
            local.call(lambda: found.put(count()))
            return found.get(timeout=PATIENCE)

        before = tasks()
        for _ in range(5):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", local.port), PATIENCE))
            peer.sendall(b"GET /v1/channels/lobby/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert peer.recv(1 << 12).startswith(b"HTTP/1.1 200")
        deadline = time.monotonic() + PATIENCE
        while tasks() > before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert local.gateway.bus.session_count == 5


def read_until(peer: socket.socket, text: bytes) -> bytes:
    """What comes up to and with *text*."""
    said = b""
    while text not in said:
        data = peer.recv(1 << 16)
        assert data, said
        said += data
    return said


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_who_sends_more_while_it_listens_harms_nobody(local: Any, version: bytes) -> None:
    """A body, and requests behind the one for the stream: none is answered, and the stream goes on."""
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as peer:
        head = b"GET /v1/channels/lobby/events HTTP/%b\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" % version
        peer.sendall(head + b"x" * 100_000 + b"GET / HTTP/1.1\r\n\r\n" * 100)
        said = read_until(peer, b"event: welcome")
        httpx.post(f"{local.url}/v1/channels/lobby/messages", content='"hi"').raise_for_status()
        said += read_until(peer, b"event: message")
    assert said.count(b"HTTP/1.1 ") == 1
    assert local.gateway.metrics.counts["connections"]["rest",] == 1


@pytest.mark.anyio
async def test_a_gateway_that_stops_says_so(make_process: Callable[..., Any]) -> None:
    process = make_process()
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as client,
        client.stream("GET", f"{process.url}/v1/channels/lobby/events") as response,
    ):
        text = response.aiter_text()
        assert "welcome" in await anext(text)
        await anyio.to_thread.run_sync(process.stop)
        assert ": the gateway is stopping" in "".join([part async for part in text])


@pytest.mark.usefixtures("either")
@pytest.mark.anyio
async def test_a_key_is_one_peer_however_many_streams_it_has(make_local: Callable[..., Any], tmp_path: Path) -> None:
    secret = KeyFile(tmp_path / "data/keys/api-keys.json").add("ada")
    local = make_local()
    bearer = {"Authorization": f"Bearer {secret}"}
    async with listening(local.url, None, **bearer) as first, listening(local.url, None, **bearer) as second:
        one, two = await anext(first), await anext(second)
        assert one.data["number"] == two.data["number"]
        assert (one.data["identity"], one.data["name"]) == ("ada", "ada")
        url = f"{local.url}/v1/channels/lobby/peers/{one.data['number']}/messages"
        async with httpx.AsyncClient() as client:
            answer = await client.post(url, content='"psst"', headers=bearer)
            assert (answer.status_code, answer.json()["delivered"]) == (202, 2)
            async with client.stream("GET", f"{local.url}/v1/channels/lobby/events?key={secret}") as response:
                assert response.status_code == 200
        assert (await anext(first)).data["content"] == (await anext(second)).data["content"] == "psst"


@pytest.mark.anyio
@pytest.mark.parametrize("limit", ["connections", "connections_per_address"])
async def test_streams_are_connections_and_as_limited(make_local: Callable[..., Any], limit: str) -> None:
    local = make_local(limits={"rates": "off", limit: 1})
    async with listening(local.url) as first:
        await anext(first)
        async with httpx.AsyncClient() as client:
            refused = await client.get(f"{local.url}/v1/channels/lobby/events")
    assert refused.status_code == 503
    assert f"limits.{limit}" in refused.json()["detail"]
