"""Packets that arrive together, from one peer or from several, have the effects of single packets."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.topic_relay.session import TopicRelaySession
from gateway.core.frames import payload
from gateway.core.outbox import LOW_WATER
from tests.adapters.topic_relay.conftest import Relay

LONG = b"x" * 65_000
TOPICS = st.sampled_from(["t", "t", "t", "u", "secret", "x" * 31])
EXTRA: list[dict[str, Any]] = [
    *({}, {"n": 1}, {"text": "日本"}, {"inReplyTo": "nobody"}, {"src": 7}, {"json": [1]}, {"dst": 0}, {"dst": 1}),
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
def test_a_run_has_the_effects_of_single_packets(packets: list[bytes], limit: int) -> None:
    def one_by_one(speaker: TopicRelaySession) -> None:
        for packet in packets:
            speaker.receive_data(packet)

    assert after(limit, lambda speaker: speaker.receive_all(packets)) == after(limit, one_by_one)


Read = tuple[int | None, list[bytes]]  # what one read brings from which peer; None: the turn of the loop ends


def packet(topic: str, kind: int = 6, **members: Any) -> bytes:
    return json.dumps({"type": kind, "topic": topic, **members}, separators=(",", ":")).encode()


def after_turns(limit: int, reads: Sequence[Read], *, gathers: bool) -> Any:
    """What is logged on each channel, and what everybody was told there and answered, once several spoke."""
    relay, _, people = room(limit)
    due: list[Callable[[], None]] = []

    def gather(call: Callable[[], None], _always: bool) -> bool:
        due.append(call)
        return gathers

    relay.bus.gathering.at_turn_end = gather
    for who, packets in (*reads, (None, [])):
        if who is None:
            while due:
                due.pop()()
        elif gathers:
            people[who].receive_all(packets)
        else:
            for each in packets:
                people[who].receive_data(each)
    logged = defaultdict[str, list[Any]](list)
    for seq, m in enumerate(relay.ledger.messages, start=1):
        assert (m.seq, relay.bus.canonical_id(m.id)) == (seq, m.id)
        logged[m.channel].append((m.content, m.sender, m.parent, m.wire, m.refs))
    told = []
    for person in people:
        heard, answers = defaultdict[str, list[Any]](list), list[Any]()
        for frame in person.data_to_send():
            got = json.loads(payload(frame))
            answered = got.get("type") not in (4, 6, 7) or "error" in got
            (answers if answered else heard[got["topic"]]).append(got)
        told.append((heard, answers))
    return logged, told, {name: dict(counter) for name, counter in relay.metrics.counts.items()}


reads = st.tuples(st.sampled_from([0, 1, 2, 3, 0, 1, None]), st.lists(texts(), min_size=1, max_size=2))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(reads, max_size=12), st.integers(4, 24))
@example([(0, [packet("t", n=1)]), (0, [packet("u", n=2)]), (1, [packet("u", n=3)]), (0, [packet("t", n=4)])], 24)
@example([(0, [packet("t", n=1)]), (1, [packet("t", n=2)]), (0, [packet("t", n=3)])], 24)
@example([(0, [packet("t", n=1)]), (2, [packet("t", 2)]), (2, [packet("t", n=2)]), (1, [packet("t", 3)])], 24)
@example([(0, [packet("t", n=1)]), (0, [packet("t", 4, dst=1, n=2)]), (1, [packet("t", n=3)] * 2)], 24)
def test_gathered_packets_have_the_effects_of_single_ones(reads: list[Read], limit: int) -> None:
    assert after_turns(limit, reads, gathers=True) == after_turns(limit, reads, gathers=False)


def test_packets_behind_a_full_outbox_wait_in_order() -> None:
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
