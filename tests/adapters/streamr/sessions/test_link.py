"""A link to another broker exchanges messages in both directions and resumes at its cursor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.streamr import StreamrAdapter
from adapters.streamr.sessions import link_spool
from adapters.streamr.sessions.link import ANSWER_MS, KEEP_MS, MARGIN_MS, StreamrLink
from adapters.streamr.sessions.link_cursors import CURSORS_FILE
from adapters.streamr.sessions.link_spool import MAX_HELD_BYTES
from gateway.core.message import Peer
from gateway.core.outbox import LOW_WATER
from gateway.core.principal import Principal
from tests.adapters.streamr.conftest import V32, Broker, Publisher, unsigned

URL = "ws://broker.example:8890"
SINCE = 1_700_000_000_000

settings: Any = StreamrAdapter.settings_model  # peers as a file has them
Dial = Callable[..., tuple[Broker, StreamrLink]]


@pytest.fixture
def dial(make_broker: Callable[..., Broker], tmp_path: Path) -> Dial:
    """A gateway's inside, and its link for these channels, after it has come to *cursor* before."""

    def dial(*channels: str, cursor: tuple[int, int] | None = None, **peer: Any) -> tuple[Broker, StreamrLink]:
        if cursor is not None:
            file = tmp_path / "keys" / CURSORS_FILE
            file.write_text(json.dumps({"cursors": {URL: cursor}}))
            file.chmod(0o600)
        broker = make_broker(peers=[{"url": URL, "channels": channels, **peer}])
        return broker, open_link(broker)

    return dial


def open_link(broker: Broker) -> StreamrLink:
    (outbound,) = broker.adapter.links()
    session = outbound.open()
    assert isinstance(session, StreamrLink)
    return session


def told(broker: Broker, session: StreamrLink) -> list[Any]:
    """What the link has to send, until it has nothing more."""
    frames: list[Any] = []
    for _ in range(20):
        broker.core.drain()
        frames += broker.frames(session)  # type: ignore[arg-type]
    return frames


def hear(session: StreamrLink, *frames: Any) -> None:
    for frame in frames:
        session.receive_data(frame if isinstance(frame, bytes) else json.dumps(frame).encode())


def sent(frames: list[Any]) -> list[Any]:
    return [json.loads(frame[3][7]) for frame in frames if frame[1] == 8]


def test_a_link_subscribes_and_requests_missed_messages(dial: Dial) -> None:
    broker, session = dial("talk", "news/*", cursor=(SINCE, 0), direction="in", key="secret")
    assert told(broker, session) == [[2, 9, "link 1", "talk", 0, "secret"]]
    hear(session, [2, 2, "link 1", "talk", 0])
    assert told(broker, session) == [[2, 12, "link 2", "talk", 0, [SINCE, 0], None, "secret"]]
    assert not session.report()["caughtUp"]
    hear(session, [2, 6, "link 2", "talk", 0])
    assert session.report() == {"streams": 1, "received": 0, "sent": 0, "caughtUp": True}
    broker.say("news/today#1", 1)
    broker.say("newsletter", 1)
    session.tick(broker.clock())
    assert [frame[3:5] for frame in told(broker, session)] == [["news/today", 1]]
    assert "secret" not in repr(broker.adapter.settings)


def test_received_messages_are_published_once(dial: Dial) -> None:
    broker, session = dial("talk", direction="in")
    alice, at, ear = Publisher(1), broker.clock(), broker.toy("talk")
    message = alice.message("talk", {"n": 1}, at)
    hear(session, [2, 0, "", message], [2, 1, "link 9", message], [2, 0, "", unsigned("talk", {"n": 2}, at)])
    broker.core.drain()
    assert list(map(json.loads, ear.take())) == [{"n": 1}, {"n": 2}]
    first, second = broker.logged("talk")
    assert (first.sender.identity, second.sender.number) == (alice.address, session.peer.number)
    assert session.report()["received"] == 2


def test_hostile_input_is_not_published(dial: Dial) -> None:
    broker, session = dial("talk")
    told(broker, session)
    alice, at, ear = Publisher(1), broker.clock(), broker.toy("talk", "other")
    forged = alice.message("talk", {"n": 1}, at)
    forged[7] = '{"n":2}'
    own = broker.say("talk", "mine")
    as_gateway = json.loads(broker.adapter.parts.forms.stream_message(own).encode(32))  # type: ignore[union-attr]
    altered = [*as_gateway[:7], '"other"', *as_gateway[8:]]
    ear.take()
    for message in (
        forged,
        as_gateway,
        altered,
        alice.message("other", 1, at),
        alice.message("talk", 1, at + 10_000_000),
        alice.message("talk", 1, at, partition=7),
        unsigned("talk/@7", 1, at),
        unsigned("SYSTEM/keyexchange/0x" + "1" * 40, 1, at),
    ):
        hear(session, [2, 0, "", message])
    hear(session, b"\xff", b"[]", b"{}", b"[2,2]", [2, 2, "link 99", "x", 0], [2, 5, "sent 5", "talk", 0])
    hear(session, [2, 7, "link 1", "no", "NOT_FOUND"], [2, 8, "p", alice.message("talk", 5, at), None])
    broker.core.drain()
    assert (ear.take(), session.closing, session.streams) == ([], None, set())


def test_the_log_is_sent_from_the_cursor_on_in_its_order(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_spool, "PAGE", 2)
    monkeypatch.setattr(link_spool, "MAX_HELD", 2)
    broker, _ = dial("x")
    said = [broker.say("talk" if n != 5 else "other", n) for n in range(9)]
    broker.core.sync()
    broker, session = dial("talk", cursor=(SINCE, said[1].seq), direction="out")
    for n in range(9, 13):
        broker.say("talk", n)  # while it catches up
    broker.core.sync()
    frames = told(broker, session)
    assert sent(frames) == [2, 3, 4, 6, 7, 8, 9, 10, 11, 12]
    broker.say("talk", 13)
    assert sent(told(broker, session)) == [13]


def test_messages_held_during_catch_up_are_bounded_in_bytes(dial: Dial) -> None:
    broker, _ = dial("x")
    first, half = broker.say("talk", 0), "x" * (MAX_HELD_BYTES // 2)
    broker.core.sync()
    broker, session = dial("talk", cursor=(SINCE, first.seq), direction="out")
    for n in range(1, 6):
        broker.say("talk", f"{n}{half}")
        assert session.held_size <= MAX_HELD_BYTES
    assert session.held_size > len(half)
    broker.core.sync()
    session.tick(broker.clock())
    assert [content[:1] for content in sent(told(broker, session))] == list("12345")
    assert session.held_size == 0


def test_messages_dropped_during_catch_up_are_sent_from_the_log(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_spool, "MAX_HELD", 3)
    broker, _ = dial("x")
    first, large = broker.say("talk", 0), "x" * LOW_WATER
    broker.core.sync()
    broker, session = dial("talk", cursor=(SINCE, first.seq), direction="out")
    assert broker.frames(session) == []  # type: ignore[arg-type]
    broker.core.sync()
    session.tick(broker.clock())  # it has asked the log to its end, and is not read yet
    for n in range(1, 4):
        broker.say("talk", f"{n}{large}")
    frames = broker.frames(session)  # type: ignore[arg-type]
    assert len(sent(frames)) == 1, "which fills what a peer is sent at once"
    for n in range(4, 9):
        broker.say("talk", f"{n}{large}")
    broker.core.sync()
    frames += told(broker, session)
    assert [content[:1] for content in sent(frames)] == list("12345678")


def test_messages_not_yet_on_disk_at_the_start_are_sent(dial: Dial) -> None:
    broker, _ = dial("x")
    first = broker.say("talk", 0)
    broker.core.sync()
    broker, session = dial("talk", cursor=(SINCE, first.seq), direction="out")
    assert told(broker, session) == []
    session.receive_eof()
    messages = [broker.say("talk", n) for n in (1, 2)]  # no thread has told the loop yet that they are on disk
    session = open_link(broker)
    broker.say("talk", 3)
    frames = broker.frames(session)  # type: ignore[arg-type]
    assert sent(frames) == [], "what was said after them has to wait"
    broker.core.sync()
    session.tick(broker.clock())
    frames = told(broker, session)
    assert sent(frames) == [1, 2, 3]
    hear(session, [2, 7, str(messages[1].seq), "Publish request failed: too fast", "REQUEST_FAILED"])
    session.tick(broker.clock())
    assert sent(told(broker, session)) == [1, 2, 3], "from the cursor on"


def test_messages_refused_before_they_were_on_disk_are_sent_again(dial: Dial) -> None:
    broker, session = dial("talk", direction="out")
    assert told(broker, session) == []
    message = broker.say("talk", 1)  # no thread has told the loop yet that it is on disk
    assert sent(broker.frames(session)) == [1]  # type: ignore[arg-type]
    hear(session, [2, 7, str(message.seq), "Publish request failed: too fast", "REQUEST_FAILED"])
    session.tick(broker.clock())
    assert sent(broker.frames(session)) == []  # type: ignore[arg-type]
    broker.core.sync()
    session.tick(broker.clock())
    assert sent(told(broker, session)) == [1]


def test_the_cursor_advances_once_sent_messages_have_arrived(dial: Dial, tmp_path: Path) -> None:
    broker, session = dial("talk", direction="out")
    message = broker.say("talk", 1)
    broker.core.sync()
    assert sent(told(broker, session)) == [1]
    before = session.spool.cursor if session.spool else 0
    session.tick(broker.clock())
    (question,) = told(broker, session)
    assert question[1:6] == [11, f"sent {message.seq}", "talk", 0, 1]
    session.tick(broker.clock())
    assert told(broker, session) == [], "one question at a time"
    assert session.spool is not None
    assert session.spool.cursor == before < message.seq
    hear(session, [2, 6, question[2], "talk", 0])
    assert session.spool.cursor == message.seq
    session.tick(broker.clock() + KEEP_MS)
    broker.core.drain()
    (kept,) = json.loads((tmp_path / "keys" / CURSORS_FILE).read_text())["cursors"].values()
    assert kept == [broker.clock() + KEEP_MS - MARGIN_MS, message.seq]


def test_messages_refused_by_the_broker_are_sent_once_more(dial: Dial) -> None:
    broker, session = dial("talk", direction="out")
    one, two = broker.say("talk", 1), broker.say("talk", 2)
    broker.core.sync()
    told(broker, session)
    session.tick(broker.clock())
    refusal = [2, 7, str(one.seq), "Publish request failed: too fast", "REQUEST_FAILED"]
    hear(session, refusal, [2, 6, f"sent {two.seq}", "talk", 0])
    session.tick(broker.clock())
    assert sent(told(broker, session)) == [1, 2]
    session.tick(broker.clock())
    hear(session, refusal, [2, 6, f"sent {two.seq}", "talk", 0])
    session.tick(broker.clock())
    assert sent(told(broker, session)) == []
    assert session.spool is not None
    assert session.spool.cursor >= two.seq


def test_the_link_to_a_silent_broker_is_closed(dial: Dial) -> None:
    broker, session = dial("talk", direction="in")
    session.tick(broker.clock() + ANSWER_MS)
    assert session.closing is None
    session.tick(broker.clock() + ANSWER_MS + 1)
    assert session.closing is not None
    assert session.closing.reason == "it does not answer"


@pytest.mark.parametrize(
    "wrong", [{"url": "http://x"}, {"url": URL, "channels": []}, {"url": URL, "direction": "up"}, {"key": "x" * 1025}]
)
def test_invalid_peer_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(peers=[{"url": URL, "channels": ["a"], **wrong}])
    with pytest.raises(ValidationError, match="the same url twice"):
        settings(peers=[{"url": URL, "channels": [name]} for name in "ab"])


def test_an_address_becomes_a_dialled_websocket(make_broker: Callable[..., Broker]) -> None:
    versions = "controlLayerVersion=2&messageLayerVersion=32&trellisId=1"
    for url, host, port, tls, path in (
        ("ws://a.example", "a.example", 80, False, f"/api/v1/ws?{versions}"),
        ("wss://a.example/x?key=k", "a.example", 443, True, f"/x?{versions}&key=k"),
    ):
        adapter = make_broker(peers=[{"url": url, "channels": ["*"]}]).adapter
        (found,) = adapter.links()
        assert (found.host, found.port, found.tls, found.path) == (host, port, tls, path)


def test_the_id_of_gateways_goes_with_a_message(dial: Dial) -> None:
    broker, session = dial("talk")
    told(broker, session)
    own, ear = broker.say("talk", 1), broker.toy("talk")
    (row,) = [frame[3] for frame in told(broker, session) if frame[1] == 8]
    assert row[6] == own.id
    alice, at, id = Publisher(1), broker.clock(), "0190b3c2-1111-7abc-8def-000000000001"
    listener = broker.listener("talk")
    lost = own.id[:-3] + "fff"
    claims = ((1, id), (1, id), (1, own.id), (4, lost), (5, "no id of a gateway"), (6, "x" * 99))
    for n, (content, claim) in enumerate(claims):
        hear(session, [2, 0, "", [*(row := alice.message("talk", content, at + n))[:6], claim, *row[7:]]])
    broker.core.drain()
    assert [json.loads(each) for each in ear.take() if isinstance(each, bytes)] == [1, 5, 6]
    assert broker.bus.canonical_id(id) == broker.logged("talk")[1].id != id
    heard = [frame[3] for frame in broker.frames(listener)]
    assert [row[6] for row in heard] == [None, "no id of a gateway", "x" * 99], "readers do not see it"
    rows = broker.ask(broker.open(), [2, 11, "r", "talk", 0, 9, None])
    assert [frame[3] for frame in rows if frame[1] == 1][1:] == heard
    gateway = broker.open({**V32, "trellisId": "1"})
    rows = broker.ask(gateway, [2, 11, "r", "talk", 0, 9, None])
    assert [frame[3][6] for frame in rows if frame[1] == 1][:2] == [own.id, id]
    broker.ask(gateway, [2, 9, "r", "talk", 0, None])
    last = broker.say("talk", 7)
    assert [frame[3][6] for frame in broker.frames(gateway)] == [last.id]


def test_a_forged_gateway_id_suppresses_no_message(dial: Dial) -> None:
    broker, session = dial("talk")
    ear, alice, at = broker.toy("talk"), Publisher(1), broker.clock()
    id = "0190b3c2-1111-7abc-8def-000000000001"
    mallory, gateway = broker.open(), broker.open({**V32, "trellisId": "1"})
    broker.ask(gateway, [2, 9, "r", "talk", 0, None])
    forged = unsigned("talk", {"a": "forged"}, at)
    broker.ask(mallory, [2, 8, "r", [*forged[:6], id, *forged[7:]], None])
    for n, content in enumerate(("true", "true", "forged", "true")):  # each signed anew
        hear(session, [2, 0, "", [*(row := alice.message("talk", {"a": content}, at + n + 1))[:6], id, *row[7:]]])
    broker.core.drain()
    heard = [frame[3] for frame in broker.frames(gateway)]
    assert [json.loads(row[7])["a"] for row in heard] == ["forged", "true"]
    assert [row[6] for row in heard] == [id, id], "other gateways know both by the id that was told"
    assert [json.loads(each)["a"] for each in ear.take() if isinstance(each, bytes)] == ["forged", "true"]
    assert broker.core.metrics.counts["ids_taken"] == {("streamr",): 1}
    assert len({message.id for message in broker.logged("talk")}) == 2


def test_a_link_is_slowed_and_loses_nothing(dial: Dial) -> None:
    broker, session = dial("talk")
    ear, alice, at = broker.toy("talk"), Publisher(1), broker.clock()
    told(broker, session)
    left = 3  # requests until the next second

    def throttle(_principal: Principal, _peer: Peer | None, channel: str) -> float:
        nonlocal left
        left -= channel == "talk"
        return 0.5 if left < 0 else 0.0

    broker.bus.throttle = throttle
    for number in range(8):
        hear(session, [2, 0, "", alice.message("talk", number, at + number)])
    hear(session, [2, 2, "link 1", "talk", 0])  # an answer that is not read yet
    heard: list[object] = []
    for expected in (3, 6, 8):
        broker.core.drain()
        heard += [json.loads(each) for each in ear.take() if isinstance(each, bytes)]
        assert heard == list(range(expected))
        assert (session.closing, session.ask_to_read()) == (None, expected == 8)
        left, later = 3, broker.clock() + ANSWER_MS + expected
        session.tick(later)
    assert session.streams == {("talk", 0)}
    assert broker.core.metrics.counts["refused"] == {}


def test_the_cursor_does_not_pass_a_message_that_waits(dial: Dial, tmp_path: Path) -> None:
    broker, session = dial("talk", direction="in")
    hear(session, [2, 2, "link 1", "talk", 0])
    hear(session, [2, 6, "link 2", "talk", 0])
    begin = broker.clock()

    def kept_after(milliseconds: int) -> int:
        session.tick(begin + milliseconds)
        broker.core.drain()
        ((until, _sent),) = json.loads((tmp_path / "keys" / CURSORS_FILE).read_text())["cursors"].values()
        return int(until)

    assert kept_after(KEEP_MS) == begin + KEEP_MS - MARGIN_MS
    broker.bus.throttle = lambda *_: 0.5
    hear(session, [2, 0, "", Publisher(1).message("talk", 1, begin)])
    for times in (2, 3):
        assert kept_after(times * KEEP_MS) == begin + KEEP_MS - MARGIN_MS, "the message has waited since then"
    broker.bus.throttle = None
    kept_after(4 * KEEP_MS)
    assert kept_after(5 * KEEP_MS) == begin + 5 * KEEP_MS - MARGIN_MS
