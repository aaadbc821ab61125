"""A link to another topic relay exchanges messages, and refuses unrequested or malformed packets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.topic_relay import TopicRelayAdapter, link
from adapters.topic_relay.link import KEEPALIVE_MS, RelayLink
from gateway.core.buckets import TokenBuckets
from gateway.core.message import Peer
from gateway.core.principal import Principal
from gateway.core.read_pacer import ReadPacer
from gateway.link_channels import WebSocketPeer
from gateway.shells.links import Dialler
from tests.conftest import Core

from .conftest import Relay

URL = "ws://relay.example:8080"
ID = "0190b3c2-1111-7abc-8def-{:012d}"

settings: Any = TopicRelayAdapter.settings_model  # peers as a file has them

Dial = Callable[..., tuple[Relay, RelayLink]]


@pytest.fixture
def dial() -> Dial:
    """A gateway's inside, and its link for these channels."""

    def dial(*channels: str, direction: str = "both", **options: Any) -> tuple[Relay, RelayLink]:
        relay = Relay(peers=[{"url": URL, "channels": channels, "direction": direction}], **options)
        (outbound,) = relay.adapter.links()
        session = outbound.open()
        assert isinstance(session, RelayLink)
        return relay, session

    return dial


def said(topic: str, **fields: Any) -> bytes:
    return json.dumps({"type": 6, "topic": topic, "src": 7, **fields}).encode()


def test_it_asks_for_topics_and_sends_with_ids(dial: Dial) -> None:
    relay, session = dial("talk", "news/*")
    assert relay.packets(session) == [{"type": 2, "topic": "talk", "trellisId": True}]
    relay.bus.channels.register("news/today")
    relay.bus.channels.register("newsletter")
    session.tick(relay.bus.clock())
    assert relay.packets(session) == [{"type": 2, "topic": "news/today", "trellisId": True}]
    message = relay.stranger("other").says("talk", b'{"content":"hi","src":5}')
    assert relay.packets(session) == [
        {
            "type": 6,
            "topic": "talk",
            "src": message.sender.number,
            "json": {"content": "hi", "src": 5},
            "trellisId": message.id,
        }
    ]
    relay.stranger("y").says("talker", b"1")
    assert relay.packets(session) == []


def test_a_link_of_another_gateway_gets_ids_and_others_do_not(dial: Dial) -> None:
    relay, _ = dial("x")
    gateway, plain = relay.open(), relay.open()
    relay.ask(gateway, '{"type":2,"topic":"t","trellisId":true}')
    relay.ask(plain, '{"type":2,"topic":"t"}')
    stranger = relay.stranger()
    relay.packets(gateway), relay.packets(plain)
    message = stranger.says("t", b'{"content":"hi"}')
    (with_id,), (without_id,) = relay.packets(gateway), relay.packets(plain)
    assert with_id == {**without_id, "trellisId": message.id}
    assert "trellisId" not in without_id


def test_copies_are_not_published_again(dial: Dial) -> None:
    relay, session = dial("t")
    listener = relay.stranger()
    session.receive_data(said("t", content="one", trellisId=ID.format(1)))
    session.receive_data(said("t", content="one", trellisId=ID.format(1)))
    client = relay.open()
    client.receive_data(said("t", content="one", trellisId=ID.format(1)))
    assert [(m.id, json.loads(m.content)) for m in listener.heard] == [(ID.format(1), {"content": "one"})]
    client.receive_data(said("t", content="two", trellisId=ID.format(2)))
    assert listener.heard[-1].id == ID.format(2)
    assert relay.packets(session)[-1]["trellisId"] == ID.format(2)


def test_a_forged_gateway_id_suppresses_no_message(dial: Dial) -> None:
    relay, session = dial("t", "u")
    listener = relay.stranger()
    relay.bus.subscribe(listener, "u")
    mallory = relay.open()
    told = [("t", "forged"), ("t", "true"), ("t", "true"), ("u", "true"), ("t", "forged"), ("u", "true")]
    for number, (topic, content) in enumerate(told):  # mallory guessed the id, and is first
        (session if number else mallory).receive_data(said(topic, content=content, trellisId=ID.format(1)))
    heard = [(m.channel, json.loads(m.content)["content"]) for m in listener.heard]
    assert heard == [("t", "forged"), ("t", "true"), ("u", "true")]
    assert len({m.id for m in listener.heard}) == 3
    assert relay.metrics.counts["ids_taken"] == {("topic_relay",): 2}
    mallory.receive_data(said("t", content="again", trellisId=ID.format(1)))
    assert relay.packets(session)[-1]["trellisId"] == ID.format(1), "other gateways know it by the id that was told"


def test_an_id_of_this_gateway_with_another_content_is_kept_beside_it(dial: Dial) -> None:
    relay, session = dial("t")
    listener = relay.stranger()
    own = relay.stranger().says("t", b'{"n":1.0,"m":[1e3,{"b":1,"a":2}],"inReplyTo":"x"}')
    copy = {"m": [1000, {"a": 2, "b": 1}], "n": 1}  # as a relay writes it that reads it first
    session.receive_data(said("t", **copy, trellisId=own.id))
    session.receive_data(said("t", **copy, inReplyTo=ID.format(3), trellisId=own.id))
    session.receive_data(said("t", **{**copy, "n": True}, trellisId=own.id))
    session.receive_data(said("t", **copy, trellisId=own.id[:-3] + "fff"))
    assert [json.loads(m.content).get("n") for m in listener.heard] == [1.0, True]
    assert listener.heard[1].id != own.id


def test_a_link_is_slowed_and_loses_nothing(dial: Dial) -> None:
    left = [3]  # requests until the next second

    def throttle(_principal: Principal, _peer: Peer | None, _channel: str) -> float:
        left[0] -= 1
        return 0.5 if left[0] < 0 else 0.0

    relay, session = dial("t", throttle=throttle)
    relay.bus.read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 1.0), lambda: 1.0)
    listener = relay.stranger()
    for number in range(10):
        session.receive_data(said("t", content=number))
    for expected in (3, 6, 9, 10):
        assert len(listener.heard) == expected
        assert session.ask_to_read() == (expected == 10)
        session.data_to_send()
        left[0] = 3
        session.tick(relay.bus.clock())
    heard = [json.loads(message.content)["content"] for message in listener.heard]
    assert heard == list(range(10))
    assert (session.penalty, session.received, relay.metrics.counts["refused"]) == (None, 10, {})


def test_a_link_waits_while_the_log_cannot_be_written(dial: Dial) -> None:
    relay, session = dial("t")
    listener = relay.stranger()
    relay.ledger.congested, relay.ledger.failing = True, "No space left on device"
    for number in range(3):
        session.receive_data(said("t", content=number))
    session.tick(relay.bus.clock())
    assert (listener.heard, session.ask_to_read(), relay.metrics.counts["refused"]) == ([], False, {})
    relay.ledger.congested, relay.ledger.failing = False, None
    session.tick(relay.bus.clock())
    assert [json.loads(message.content)["content"] for message in listener.heard] == [0, 1, 2]
    assert session.ask_to_read()


def test_senders_beyond_a_bound_share_a_number(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MAX_SENDERS", 3)
    relay, session = dial("t")
    listener = relay.stranger()
    for source in (0, 1, 2, 3, 4, 1, "x", True, None):
        session.receive_data(said("t", content=1) if source is None else said("t", **{"src": source}))
    numbers = [message.sender.number for message in listener.heard]
    assert len(set(numbers[:3])) == 3
    assert set(numbers[3:5]) == {session.peer.number}
    assert numbers[5] == numbers[1]
    assert set(numbers[6:]) == {session.peer.number}


def test_unrequested_packets_are_not_published(dial: Dial) -> None:
    relay, session = dial("t", direction="out")
    listener = relay.stranger()
    assert relay.packets(session) == []
    hostile = [
        said("t"),
        said("other"),
        b'{"type":4,"topic":"t","src":1,"dst":0,"content":"direct"}',
        b'{"error":"InvalidJSON"}',
        b'{"type":7,"topic":"t","src":9}',
        b"\xff",
        b"[]",
    ]
    for data in hostile:
        session.receive_data(data)
    assert (listener.heard, session.closing) == ([], None)
    assert relay.packets(session) == [], "a client answers nothing"


def test_an_idle_link_sends_keep_alives(dial: Dial) -> None:
    relay, session = dial("t", direction="out")
    session.tick(relay.bus.clock() + KEEPALIVE_MS)
    assert relay.packets(session) == [{"type": 0, "topic": "keep-alive"}]
    session.tick(relay.bus.clock() + KEEPALIVE_MS + 1)
    assert relay.packets(session) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://x", "channels": ["a"]},
        {"url": "ws://", "channels": ["a"]},
        {"url": "ws://x:0", "channels": ["a"]},
        {"url": "ws://x:99999", "channels": ["a"]},
        {"url": "ws://u:p@x", "channels": ["a"]},
        {"url": URL, "channels": []},
        {"url": URL, "channels": [""]},
        {"url": URL, "channels": ["a\n"]},
        {"url": URL, "channels": ["a"], "direction": "sideways"},
        {"url": URL},
    ],
)
def test_invalid_peer_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WebSocketPeer(**wrong)


def test_a_url_configured_twice_is_refused() -> None:
    peer = {"url": URL, "channels": ["a"]}
    with pytest.raises(ValidationError, match="the same url twice"):
        settings(peers=[peer, peer])


def test_an_address_becomes_a_dialled_websocket() -> None:
    home: Any = None
    for url, host, port, tls, path in (
        ("ws://a.example", "a.example", 80, False, "/"),
        ("wss://a.example/relay?key=k", "a.example", 443, True, "/relay?key=k"),
        ("ws://[::1]:9/x", "::1", 9, False, "/x"),
    ):
        adapter = TopicRelayAdapter(settings(peers=[{"url": url, "channels": ["*"]}]), home)
        (found,) = adapter.links()
        assert (found.host, found.port, found.tls, found.path) == (host, port, tls, path)


def test_a_key_is_sent_to_the_relay_and_never_shown(core: Core) -> None:
    home: Any = None
    peers = [
        {"url": "wss://a.example/relay?key=secret", "channels": ["*"]},
        {"url": "ws://b.example/relay?x=1", "channels": ["*"], "key": "secret&more"},
    ]
    adapter = TopicRelayAdapter(settings(peers=peers), home)
    old, new = adapter.links()
    assert (old.path, new.path) == ("/relay?key=secret", "/relay?x=1&key=secret%26more")
    assert "secret" not in repr(adapter.settings.peers[1])
    shown = [Dialler("topic_relay", each, core.clock).report()["address"] for each in (old, new)]
    assert shown == ["wss://a.example/relay", "ws://b.example/relay"]


def test_a_relay_creates_no_channels_and_confirms_only_requested_topics(dial: Dial) -> None:
    relay, session = dial("talk", "news/*")
    listener, before = relay.stranger(), relay.channels.count
    for number in range(100):
        session.receive_data(said(f"news/{number}", content=1))
        session.receive_data(b'{"type":2,"topic":"t%d","peers":[]}' % number)
    session.receive_data(b'{"type":2,"topic":"talk","peers":[]}')
    assert (session.topics, relay.channels.count, listener.heard) == ({"talk"}, before, [])


def test_malformed_packets_end_a_link_and_long_errors_are_not_logged(dial: Dial) -> None:
    relay, session = dial("talk")
    relay.bus.read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 1.0), lambda: 1.0)
    logged: list[Any] = []
    relay.metrics.on_refused = lambda *refused: logged.append(refused)
    session.receive_data(json.dumps({"type": 6, "topic": "talk", "error": "x" * 60_000}).encode())
    session.receive_data(json.dumps({"type": 6, "topic": "talk", "error": ["x" * 60_000]}).encode())
    assert all(len(str(each)) < 500 for each in logged)
    for _ in range(1_000):
        session.receive_data(b"[" * 60_000)
    assert session.closing is not None
    assert session.closing.code == 1008
