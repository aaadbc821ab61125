"""Each type of packet takes effect on the bus and reaches the other peers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.topic_relay import codec
from adapters.topic_relay.session import VERBS
from gateway.core.buckets import TokenBuckets
from gateway.core.frames import payload
from gateway.core.message import Peer
from gateway.core.notices import FEW
from gateway.core.presence import JOIN_NOTICES_PER_REQUEST
from gateway.core.read_pacer import MAX_MALFORMED, ReadPacer

if TYPE_CHECKING:
    from .conftest import Relay

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a test asserts no time


def test_every_type_but_hello_has_a_verb() -> None:
    assert set(range(8)) - set(VERBS) == {codec.HELLO}


# Saying


def test_all_subscribers_are_sent_one_and_the_same_frame(relay: Relay) -> None:
    a, *others = relay.members(4)
    a.receive_data(b'{"type":6,"topic":"t","n":12345678901234567890}')
    frames = [session.data_to_send() for session in others]
    assert payload(frames[0][0]) == b'{"type":6,"topic":"t","n":12345678901234567890,"src":0}'
    assert all(len(frame) == 1 and frame[0] is frames[0][0] for frame in frames)
    assert a.data_to_send() == []


def test_a_publish_packet_becomes_a_message_on_the_bus(relay: Relay) -> None:
    (a,) = relay.members(1)
    a.receive_data(b'{"type":6,"topic":"t","inReplyTo":"nobody knows it"}')
    (first,) = relay.ledger.messages
    assert first.parent is None
    text = b'{"type":6,"topic":"t",\r\n"n":1e400,"inReplyTo":"%b"} ' % first.id.encode()
    a.receive_data(text)
    (_, message) = relay.ledger.messages
    assert (message.channel, message.sender, message.protocol) == ("t", a.peer, "topic_relay")
    assert message.content == b'{  "n":1e400,"inReplyTo":"%b"}' % first.id.encode()
    assert message.parent == first.id
    assert message.wire == text


def test_other_protocols_receive_only_the_content(relay: Relay) -> None:
    (a,) = relay.members(1)
    stranger = relay.stranger()
    for rest in ('"text":"hi"', '"json":[1.0,"x"]'):
        a.receive_data(f'{{"type":6,"topic":"t",{rest}}}'.encode())
    assert [message.content for message in stranger.heard] == [b'{"text":"hi"}', b'[1.0,"x"]']


def test_a_peer_may_publish_without_a_subscription(relay: Relay) -> None:
    (a,) = relay.members(1)
    assert relay.ask(relay.open(), '{"type":6,"topic":"t"}') == []
    assert relay.packets(a) == [{"type": 6, "topic": "t", "src": 1}]


def test_a_foreign_message_is_encoded_once_for_all_peers(relay: Relay) -> None:
    a, b = relay.members(2)
    stranger = relay.stranger()
    relay.texts(a), relay.texts(b)
    stranger.says("t", b'{"n":1.0}')
    stranger.says("t", b"5")
    first, second = a.data_to_send(), b.data_to_send()
    assert [payload(frame) for frame in first] == [
        b'{"type":6,"topic":"t","src":2,"n":1.0}',
        b'{"type":6,"topic":"t","src":2,"json":5}',
    ]
    assert all(one is other for one, other in zip(first, second, strict=True))


# Telling


def test_a_direct_message_reaches_one_peer_and_no_log(relay: Relay) -> None:
    a, b, c = relay.members(3)
    assert relay.ask(b, '{"dst":0,"m":1.0,"type":4,"topic":"t"}') == []
    assert relay.texts(a) == [b'{"dst":0,"m":1.0,"type":4,"topic":"t","src":1}']
    assert relay.texts(c) == []
    assert relay.ledger.messages == []


def test_direct_messages_cross_protocols_in_both_directions(relay: Relay) -> None:
    (a,) = relay.members(1)
    stranger = relay.stranger()
    relay.texts(a)
    assert stranger.tells(0, "t", b'{"n":1}') == 1
    assert relay.packets(a) == [{"type": 4, "topic": "t", "src": 1, "dst": 0, "n": 1}]
    a.receive_data(b'{"type":4,"topic":"t","dst":1,"n":2.0}')
    (message,) = stranger.heard
    assert (message.content, message.sender, message.target) == (b'{"n":2.0}', a.peer, stranger.peer)


def test_a_direct_message_to_an_unknown_number_gets_no_answer(relay: Relay) -> None:
    (a,) = relay.members(1)
    for dst in ("7", "-1", "0.5", "1e400", "1" * 400):
        assert relay.ask(a, f'{{"type":4,"topic":"t","dst":{dst}}}') == []


# Listening


def test_a_hello_is_encoded_once_for_all_peers(relay: Relay) -> None:
    a, b = relay.members(2)
    relay.open().receive_data(b'{"type":2,"topic":"t"}')
    ((one,), (other,)) = a.data_to_send(), b.data_to_send()
    assert one is other
    assert json.loads(payload(one)) == {"type": 7, "topic": "t", "src": 2}


def test_peers_of_every_protocol_are_seen(relay: Relay) -> None:
    (a,) = relay.members(1)
    relay.stranger()
    assert relay.packets(a) == [{"type": 7, "topic": "t", "src": 1}]
    assert relay.ask(relay.open(), '{"type":2,"topic":"t"}')[0]["peers"] == [0, 1]


def test_two_connections_of_an_identity_are_one_peer(relay: Relay) -> None:
    identity = Peer(500, "topic_relay", "somebody")
    first, second = relay.open(), relay.open()
    for session in (first, second):
        relay.bus.bind(session, identity)
        assert relay.ask(session, '{"type":2,"topic":"t"}')[0]["peers"] == []
    assert relay.packets(first) == []
    first.receive_data(b'{"type":6,"topic":"t"}')
    assert relay.packets(second) == [{"type": 6, "topic": "t", "src": 500}]


def test_echo_returns_the_packet_and_info_describes_the_topic(relay: Relay) -> None:
    a, _ = relay.members(2)
    a.receive_data(b' {"type":1,"topic":"t","n":1.0,"n":2} ')
    assert relay.texts(a) == [b' {"type":1,"topic":"t","n":1.0,"n":2} ']
    assert relay.ask(a, '{"type":5,"topic":"t","peers":0}') == [
        {
            "type": 5,
            "topic": "t",
            "peers": [1],
            "info": {"channel": "t", "addresses": {"topic_relay": "t"}, "topic": "t", "version": "1.2.3"},
        }
    ]


def test_info_follows_the_hello_of_every_listed_peer(relay: Relay) -> None:
    """Also where notices of joins wait, which is where many listen."""
    a, *_ = relay.members(FEW + 1)
    notices = relay.bus.presence.notices
    notices.post, notices.later = (lambda _call: None), (lambda _seconds, _call: None)
    newcomer = relay.open()
    relay.ask(newcomer, '{"type":2,"topic":"t"}')
    assert relay.packets(a) == []
    hello, info = relay.ask(a, '{"type":5,"topic":"t"}')
    assert info["peers"][-1] == hello["src"] == newcomer.peer.number


def test_a_long_channel_name_is_delivered_under_its_short_topic(relay: Relay) -> None:
    channel = "a channel whose name is no topic"
    topic = relay.channels.address("topic_relay", channel)
    stranger = relay.stranger(channel)
    a = relay.open()
    reply, *_ = relay.ask(a, json.dumps({"type": 2, "topic": topic}))
    assert reply["peers"] == [0]
    stranger.says(channel, b"1")
    assert relay.packets(a) == [{"type": 6, "topic": topic, "src": 0, "json": 1}]
    a.receive_data(json.dumps({"type": 6, "topic": topic, "n": 1}).encode())
    assert stranger.heard[0].channel == channel


# Errors

EVERY = ["2", "4", "5", "6"]


def packet(kind: str) -> dict[str, Any]:
    return {"type": int(kind), "topic": "t", "dst": 0, "id": 3}


@pytest.mark.parametrize("kind", EVERY)
def test_requests_without_the_right_are_refused(new_relay: type[Relay], kind: str) -> None:
    verbs: list[tuple[str, str]] = []

    def allowed(_principal: object, verb: str, channel: str) -> bool:
        verbs.append((verb, channel))
        return False

    relay = new_relay(allowed=allowed)
    assert relay.ask(relay.open(), json.dumps(packet(kind))) == [packet(kind) | {"error": "PermissionDenied"}]
    assert verbs == [({"2": "subscribe", "4": "direct", "5": "subscribe", "6": "publish"}[kind], "t")]


@pytest.mark.parametrize("kind", EVERY)
def test_requests_over_the_rate_are_refused(new_relay: type[Relay], kind: str) -> None:
    relay = new_relay(throttle=lambda _principal, _peer, _channel: 1.0)
    assert relay.ask(relay.open(), json.dumps(packet(kind))) == [packet(kind) | {"error": "TooManyRequests"}]


@pytest.mark.parametrize("kind", ["2", "6"])
def test_unconfigured_topics_are_refused(new_relay: type[Relay], kind: str) -> None:
    relay = new_relay(create=False)
    assert relay.ask(relay.open(), json.dumps(packet(kind))) == [packet(kind) | {"error": "UnknownTopic"}]


def test_publishing_is_refused_while_the_log_is_congested(relay: Relay) -> None:
    (a,) = relay.members(1)
    relay.ledger.congested = True
    a.handle(b'{"type":6,"topic":"t"}')
    assert relay.packets(a) == [{"type": 6, "topic": "t", "error": "Unavailable"}]


def test_only_the_peer_that_does_not_read_is_closed(new_relay: type[Relay]) -> None:
    relay = new_relay(max_outbox=1 << 20)
    a, slow, quick = relay.members(3)
    text = json.dumps({"type": 6, "topic": "t", "x": "x" * 60_000}).encode()
    for _ in range(20):
        a.receive_data(text)
        assert len(quick.data_to_send()) == 1
    assert slow.closing is not None
    assert slow.closing.code == 1013
    assert quick.closing is None
    assert slow.data_to_send() == []


def test_goodbye_closes_the_session_with_1001(relay: Relay) -> None:
    a = relay.open()
    a.goodbye()
    assert a.closing is not None
    assert a.closing.code == 1001


@PATIENT
@given(
    st.lists(
        st.binary(max_size=30)
        | st.builds(
            lambda kind, rest: f'{{"type":{kind},"topic":"t"{rest}}}'.encode(),
            st.sampled_from(["0", "1", "2", "3", "4", "5", "6", "7", "8", "2.5", "1e400", "null"]),
            st.sampled_from(["", ',"dst":0', ',"src":0', ',"\\u0073rc":{}', ',"json":1', ',"dst":1e400', ',"x":']),
        ),
        max_size=20,
    )
)
def test_a_few_malformed_packets_do_not_end_a_connection(new_relay: type[Relay], packets: list[bytes]) -> None:
    relay = new_relay()
    a, b = relay.members(2)
    for data in packets:
        a.receive_data(data)
        for text in relay.texts(a) + relay.texts(b):
            assert isinstance(json.loads(text), dict)
    assert a.closing is b.closing is None


@pytest.mark.parametrize("data", [b"no json", b"[]", b'{"type":2}', b'{"type":6,"topic":"%b"}' % (b"t" * 31)])
def test_malformed_packets_are_answered_and_too_many_end_the_connection(relay: Relay, data: bytes) -> None:
    relay.bus.read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 0.0), lambda: 1e6)
    (a,) = relay.members(1)
    for _ in range(MAX_MALFORMED):
        (answer,) = relay.ask(a, data)
        assert "error" in answer
    assert a.closing is None
    a.receive_data(data)
    assert a.closing is not None


def test_refused_requests_do_not_count_as_malformed_input(relay: Relay) -> None:
    relay.bus.read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 0.0), lambda: 1e6)
    (a,) = relay.members(1)
    for _ in range(MAX_MALFORMED + 1):
        (answer,) = relay.ask(a, '{"type":2,"topic":"t"}')
        assert answer["error"] == "AlreadySubscribed"
    assert a.closing is None


def test_on_a_full_disk_only_publishing_is_refused(relay: Relay) -> None:
    a, b = relay.members(2)
    relay.ledger.congested, relay.ledger.failing = True, "No space left on device"
    said = [b'{"type":6,"topic":"t","n":%d}' % n for n in range(3)]
    a.receive_all([*said, b'{"type":1,"topic":"alive?"}', b'{"n":4,"type":6,"topic":"t"}'])
    answers = relay.packets(a)
    assert [answer.get("error") for answer in answers] == ["Unavailable"] * 3 + [None, "Unavailable"]
    assert [answer.get("n") for answer in answers] == [0, 1, 2, None, 4]
    assert a.ask_to_read()
    assert relay.packets(b) == []
    assert relay.ask(a, '{"type":3,"topic":"t"}') == []
    assert relay.ask(a, b'{"type":4,"topic":"t","dst":%d,"n":1}' % b.peer.number) == []
    assert [packet["n"] for packet in relay.packets(b)] == [1], "what is not logged needs no disk"
    relay.ledger.congested, relay.ledger.failing = False, None
    assert relay.ask(a, said[0]) == []
    assert [packet["n"] for packet in relay.packets(b)] == [0]


def test_a_subscription_is_charged_for_every_listed_peer(relay: Relay) -> None:
    """Also for those who are not told of the newcomer."""
    channel = relay.bus.channels.channel("topic_relay", "t")
    for _ in range(3 * JOIN_NOTICES_PER_REQUEST):
        relay.stranger(channel)
    charged: list[float] = []
    relay.bus.charge = lambda _network, requests: charged.append(requests)
    (a,) = relay.members(1)
    assert charged == [3]
    relay.stranger(channel)
    assert charged == [3], "nobody is listed to it, or told of it"
    assert a.closing is None


def test_info_about_a_crowd_counts_as_more_requests(relay: Relay) -> None:
    charged: list[float] = []
    a, *_ = relay.members(JOIN_NOTICES_PER_REQUEST + 1)
    relay.bus.charge = lambda _network, requests: charged.append(requests)
    relay.ask(a, '{"type":5,"topic":"t"}')
    assert charged == [1]
