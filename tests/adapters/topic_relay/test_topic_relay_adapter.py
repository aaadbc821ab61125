"""The adapter accepts connections, maps names to topics, and encodes foreign and logged messages."""

from __future__ import annotations

from base64 import b32encode
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from adapters.topic_relay import TopicRelayAdapter
from adapters.topic_relay.adapter import PREFIX, TopicRelaySettings, channel_of, shortened, topic_of
from adapters.topic_relay.codec import MAX_PACKET, MAX_TOPIC, utf16_length
from gateway.adapter import ConnectionRequest
from gateway.core.channels import valid_name
from gateway.core.frames import payload
from gateway.core.message import Message, PendingForm
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.storage.record import decode, encode

if TYPE_CHECKING:
    from .conftest import Relay

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a test asserts no time


@pytest.mark.parametrize("path", ["/", "/relay"])
def test_connections(new_relay: type[Relay], path: str) -> None:
    relay = new_relay(max_outbox=100_000)
    session = relay.adapter.accept(ConnectionRequest(Principal("somebody"), path))
    assert isinstance(session, Session)
    assert session.text
    assert session.max_outbox == 100_000


@pytest.mark.parametrize("settings", [{"max_outbox": 10}, {"unheard_of": 1}])
def test_settings_that_make_no_sense(settings: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        TopicRelaySettings.model_validate(settings)


# Names

ODD = st.sampled_from(
    [
        *"%@/~:#é測😀",
        "topic:",
        "topic:%",
        "%00",
        "%u0000",
        "%uD800",
        "/@",
        "\x00",
        "\x1f",
        "\x7f",
        "\x80",
        "\ud800",
        "\udc00",
    ]
)
UNFIT = dict.fromkeys([*range(32), *range(127, 160), *range(0xD800, 0xE000)])
OPERATIONS = st.lists(ODD | st.characters(), max_size=40).map("".join)
TOPICS = (
    OPERATIONS.map(lambda text: text[: MAX_TOPIC // 2])
    | st.text(max_size=MAX_TOPIC // 2)
    | st.text("%@\0\ud800", max_size=30)
)
NAMES = (OPERATIONS.map(lambda text: text.translate(UNFIT)) | st.text(max_size=255)).filter(valid_name)


def free(_address: str) -> bool:
    return False


@PATIENT
@given(TOPICS)
def test_every_topic_maps_to_a_channel_and_back(relay_adapter: TopicRelayAdapter, topic: str) -> None:
    channel = relay_adapter.channel(topic)
    assert channel is not None
    assert valid_name(channel)
    assert relay_adapter.address(channel, free) == topic


@PATIENT
@given(NAMES)
def test_every_channel_has_a_topic(relay_adapter: TopicRelayAdapter, name: str) -> None:
    topic = relay_adapter.address(name, free)
    assert topic is not None
    assert utf16_length(topic) <= MAX_TOPIC
    if topic_of(name) is not None:
        assert relay_adapter.channel(topic) == name
    if utf16_length(name) <= MAX_TOPIC and not name.startswith(PREFIX):
        assert topic == name


@PATIENT
@given(st.lists(st.tuples(st.booleans(), NAMES, TOPICS), max_size=12))
def test_names_and_topics_stay_one_to_one(new_relay: type[Relay], used: list[tuple[bool, str, str]]) -> None:
    channels = new_relay().channels
    entered: dict[str, str] = {}
    for by_name, name, topic in used:
        channel = name if by_name else channels.channel("topic_relay", topic)
        channels.hold(channel)
        entered[channel] = channels.address("topic_relay", channel) or ""
    assert len(set(entered.values())) == len(entered)
    assert all(channels.channel("topic_relay", topic) == channel for channel, topic in entered.items())


@pytest.mark.parametrize(
    ("topic", "channel"),
    [
        ("lobby", "lobby"),
        ("", "topic:"),
        ("a\nb", "topic:a%0Ab"),
        ("\ud800", "topic:%uD800"),
        ("a/@b%\x85", "topic:a/%40b%25%85"),
        ("100%", "100%"),
        ("topic:x", "topic:topic:x"),
        ("topic:", "topic:topic:"),
    ],
)
def test_names_of_topics(topic: str, channel: str) -> None:
    assert channel_of(topic) == channel
    assert topic_of(channel) == topic


def test_topics_of_long_names(relay_adapter: TopicRelayAdapter) -> None:
    for name, beginning in [("x" * 31, "x" * 19), ("x" * 18 + "😀" * 10, "x" * 18), ("topic:x", "topic:x")]:
        digest = b32encode(sha256(name.encode()).digest()).decode().lower()[:10]
        assert relay_adapter.address(name, free) == f"{beginning}~{digest}"
    taken = {shortened("x" * 31, 0)}
    assert relay_adapter.address("x" * 31, taken.__contains__) == shortened("x" * 31, 1)
    assert relay_adapter.address("lobby", {"lobby"}.__contains__) == shortened("lobby", 0)
    assert relay_adapter.channel("x" * 31) is None


# Forms


def logged(message: Message) -> Message:
    """The *message* as it is read back from the log."""
    entry = decode(encode(message))
    assert isinstance(entry, Message)
    return entry


@pytest.mark.parametrize(
    "text", [b'{"type":6,"topic":"t","n":1.0} ', b'{"src":7,"type":6,"topic":"t"}', b'{"type":6.0,"topic":"\xff"}']
)
def test_out_of_the_log_as_it_was_live(relay: Relay, text: bytes) -> None:
    (a,) = relay.members(1)
    a.receive_data(text)
    (live,) = relay.ledger.messages
    assert relay.adapter.form(logged(live), "topic_relay") == live.forms["topic_relay"]


def test_foreign_messages_are_logged_and_shown_the_same(relay: Relay) -> None:
    message = relay.stranger().says("t", b'{"n":1.0}')
    form = relay.adapter.form(logged(message), "topic_relay")
    assert isinstance(form, bytes)
    assert payload(form) == b'{"type":6,"topic":"t","src":0,"n":1.0}'


@pytest.mark.parametrize(("character", "size"), [("x", 1), ("測", 1), ("😀", 2)])
def test_messages_too_long_for_a_packet_are_undelivered(relay: Relay, character: str, size: int) -> None:
    (a,) = relay.members(1)
    stranger = relay.stranger()
    a.data_to_send()
    room = MAX_PACKET - len('{"type":6,"topic":"t","src":1,"json":""}')
    fitting = character * (room // size) + "x" * (room % size)
    for text, delivered in [(fitting, 1), (fitting + "x", 0)]:
        message = stranger.says("t", f'"{text}"'.encode())
        assert message.undelivered == (() if delivered else ("topic_relay",))
        assert len(a.data_to_send()) == delivered
        assert isinstance(relay.adapter.form(message, "topic_relay"), bytes if delivered else PendingForm)
    stranger.tells(a.peer.number, "t", f'"{fitting}"'.encode())  # a Message also names its destination
    assert a.data_to_send() == []


def test_a_packet_of_maximal_size_may_grow_by_its_sender(relay: Relay) -> None:
    a, b = relay.members(2)
    text = '{"type":6,"topic":"t","x":"'
    a.receive_data((text + "x" * (MAX_PACKET - len(text) - 2) + '"}').encode())
    (frame,) = b.data_to_send()
    assert len(payload(frame)) == MAX_PACKET + len(',"src":0')
