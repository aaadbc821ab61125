"""What comes at once does what it does when it comes packet by packet."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.topic_relay.session import TopicRelaySession
from gateway.core.outbox import LOW_WATER
from tests.adapters.topic_relay.conftest import Relay

LONG = b"x" * 65_000
TOPICS = st.sampled_from(["t", "t", "t", "u", "secret", "x" * 31])
EXTRA: list[dict[str, Any]] = [
    *({}, {"n": 1}, {"text": "日本"}, {"inReplyTo": "nobody"}, {"src": 7}, {"json": [1]}, {"dst": 0}),
]
# Broadcasts mostly, in the usual shapes and others; some of what is answered, and some that is refused.
TYPES = st.sampled_from([6, 6, 6, 6, 6, 6.0, 4, 1, 2, 3, 5, 0, 7])


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    own: dict[str, Any] = {"type": draw(TYPES), "topic": draw(TOPICS)}
    extra: dict[str, Any] = draw(st.sampled_from(EXTRA))
    packet = draw(st.sampled_from([own | extra, extra | own]))
    separators = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")]))
    return draw(
        st.sampled_from([json.dumps(packet, separators=separators).encode()] * 9 + [b'{"type":6,"topic":"t",}'])
    )


def room(limit: int) -> tuple[Relay, TopicRelaySession, list[TopicRelaySession]]:
    """A relay where nobody may speak in one topic and *limit* requests pass; who speaks, and all who are there."""
    asked = count()
    relay = Relay(
        allowed=lambda _principal, verb, channel: channel != "secret" or verb != "publish",
        throttle=lambda _principal, _peer, _channel: float(next(asked) >= limit),
    )
    people = [*relay.members(2, "t"), *relay.members(1, "u"), *relay.members(1, "secret")]
    return relay, people[0], people


def after(limit: int, speak: Callable[[TopicRelaySession], None]) -> Any:
    """What is logged and what everybody has been told once somebody spoke."""
    relay, speaker, people = room(limit)
    speak(speaker)
    logged = [(m.seq, m.id, m.channel, m.content, m.parent, m.wire, m.refs) for m in relay.ledger.messages]
    counts = {name: dict(counter) for name, counter in relay.metrics.counts.items()}
    return logged, [b"".join(person.data_to_send()) for person in people], counts


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(texts(), max_size=12), st.integers(4, 16))
@example([b'{"type":6,"topic":"t","n":1}', b'{"type":3,"topic":"t"}', b'{"type":6,"topic":"t","n":2}'], 16)
@example([b'{"type":6,"topic":"t","n":1}', b'{"type":6,"topic":"u","n":2}', b'{"type":6,"topic":"t","n":3}'], 16)
@example([b'{"type":6,"topic":"t","n":1}', b'{"type":6,"topic":"t",', b'{"type":6,"topic":"t","n":"%b"}' % LONG], 16)
@example([b'{"n":1,"type":6,"topic":"t"}', b',"type":6,"topic":"t"}', b'{"n":"%b","type":6,"topic":"t"}' % LONG], 16)
@example([b'{"type":6,"topic":"t","n":1}', b'{"type":6,"topic":"t",}', b'{"type":6,"topic":"t","n":1,}'], 16)
@example([b'{"n":1,"type":6,"topic":"t"}', b'{,"type":6,"topic":"t"}', b'[1,"type":6,"topic":"t"}'], 16)
def test_at_once_is_one_by_one(packets: list[bytes], limit: int) -> None:
    def one_by_one(speaker: TopicRelaySession) -> None:
        for packet in packets:
            speaker.receive_data(packet)

    assert after(limit, lambda speaker: speaker.receive_all(packets)) == after(limit, one_by_one)


def test_who_has_to_wait_says_nothing_out_of_turn() -> None:
    relay, speaker, people = room(100)
    filler = json.dumps({"type": 1, "topic": "t", "pad": "x" * (LOW_WATER // 2)}).encode()
    speaker.receive_all([b'{"type":6,"topic":"t","n":1}', filler, filler, b'{"type":6,"topic":"t","n":2}'])
    assert len(relay.ledger.messages) == 1, "its outbox is full of what it asked for"
    speaker.data_to_send()
    assert [message.content for message in relay.ledger.messages] == [b'{"n":1}', b'{"n":2}']
    assert b"".join(people[1].data_to_send()).count(b'"src"') == 2
    speaker.close(1000, "enough")
    speaker.receive_all([b'{"type":6,"topic":"t","n":3}'] * 2)
    assert len(relay.ledger.messages) == 2
