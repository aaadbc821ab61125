"""Peers at two gateways of a cluster send each other direct messages."""

from __future__ import annotations

import json

import pytest

from gateway.cluster.directs import WAIT_SECONDS
from gateway.cluster.signals import (
    AdapterSignal,
    DirectSignal,
    encode_signal,
)
from gateway.core.message import Message, Peer
from tests.adapters.streamr.conftest import Publisher
from tests.gateway.cluster.conftest import Pair
from tests.properties.in_process_gateway import NOW
from tests.properties.parties import Party


def key_listener(pair: Pair, at: int, publisher: Publisher) -> Party:
    """A Streamr client that has logged in and listens to its key exchange."""
    party: Party = pair.enter(at, "streamr")
    logins = party.instance.adapters["streamr"].logins
    challenge = logins.challenge(publisher.address, NOW)
    signature = publisher.sign(challenge.text)
    token = logins.log_in(challenge.id, challenge.text, signature, publisher.address, NOW).token
    party.send([2, 9, "keys", f"SYSTEM/keyexchange/{publisher.address}", 0, token])
    pair.heard(party)
    return party


def test_streamr_clients_exchange_group_keys_over_gateways(pair: Pair) -> None:
    writer, reader = Publisher(5), Publisher(6)
    writes, reads = key_listener(pair, 0, writer), key_listener(pair, 1, reader)
    there = pair.nodes[0].instance.adapters["streamr"]

    def send(party: Party, publisher: Publisher, stream: str, kind: int, text: str) -> None:
        message = publisher.message(stream, json.dumps([text]), NOW, kind=kind)
        party.send([2, 8, "send", message, None])

    send(reads, reader, f"SYSTEM/keyexchange/{writer.address}", 28, "please")
    assert pair.heard(writes).count(b"please") == 1
    send(writes, writer, f"SYSTEM/keyexchange/{reader.address}", 29, "here it is")
    assert pair.heard(reads).count(b"here it is") == 1
    assert pair.heard(writes) == b""
    send(writes, writer, "lobby", 32, "rotated")
    assert pair.heard(reads).count(b"rotated") == 1

    bad, me = pair.nodes[0].membership.signalling.bad, pair.nodes[1].turn.me
    stranger = Publisher(7)
    signed = stranger.message(f"SYSTEM/keyexchange/{writer.address}", '["forged"]', NOW, kind=28)
    signed[1][4] = reader.address
    plain = stranger.message("lobby", {"plain": 1}, NOW)
    for value in (signed, plain, [], [32]):
        pair.nodes[0].transport.on_signal(encode_signal(AdapterSignal(me, "streamr", json.dumps(value).encode())))
    assert pair.nodes[0].membership.signalling.bad == bad + 4
    heard = pair.heard(writes)
    assert (heard.count(b"rotated"), heard.count(b"forged")) == (1, 0)
    own = there.parts.participant.address
    answered = list[object]()
    there.parts.participant._key_responder.answer = lambda *asked: answered.append(asked)
    send(reads, reader, f"SYSTEM/keyexchange/{own[:-1]}0", 28, "for a bridged sender")
    assert answered == [], "the gateway of who asks answers"


KINDS_ELSEWHERE = ["topic_relay", "streamr", "rest", "alice"]


@pytest.mark.parametrize("kind", KINDS_ELSEWHERE)
def test_a_direct_message_goes_to_the_other_gateway_and_is_answered(pair: Pair, kind: str) -> None:
    one, other = pair.nodes
    relay = pair.enter(0, "topic_relay")
    party = pair.enter(1, kind)
    number = min(party.numbers("lobby"))
    if kind == "streamr":
        party.open_inbox("lobby", number)
    one.catch_up()
    relay.send_direct("lobby", number, "secret 000001.")
    for node in pair.nodes:  # a form of Arbor's is signed, and what is signed is logged
        node.catch_up()
        node.instance.settle(synced=True)
    pair.settle()
    party.read()
    assert party.seen == {1: 1}
    other.catch_up()
    if kind == "alice":
        assert party.reply(next(iter(party.held)), "secret 000002.")
    else:
        party.send_direct("lobby", relay.number, "secret 000002.")
    pair.settle()
    relay.read()
    assert relay.seen == {2: 1}
    assert b"secret" not in b"".join(one.lines() + other.lines())


def direct(pair: Pair, at: int, number: int, text: str = '"hi"', ids: tuple[str, ...] = ()) -> list[int | None]:
    """What a program at that gateway is answered that sends a direct message."""
    bus, answers = pair.nodes[at].instance.gateway.bus, list[int | None]()
    message = Message("lobby", Peer(1 << 40, "rest"), "rest", text.encode(), ids=ids)
    bus.send_direct(message, number, answers.append)
    pair.settle()
    return answers


def test_the_answer_counts_the_connections_that_got_a_direct_message(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = pair.enter(1, "topic_relay")
    assert direct(pair, 0, relay.number) == [1]
    assert direct(pair, 0, relay.number, ids=("once",)) == [1]
    assert direct(pair, 1, relay.number, ids=("once",)) == [1], "it came another way, and is not delivered again"
    assert pair.heard(relay).count(b'"json":"hi"') == 2
    assert direct(pair, 0, 1 << 41) == [0], "nobody has that number"
    assert direct(pair, 0, relay.number, '"%s"' % ("x" * (1 << 20))) == [0], "it is too long for the topic relay"
    signalling = pair.nodes[1].membership.signalling
    monkeypatch.setattr(signalling, "tell", lambda _signal, _to="": None)
    signalling._verbs.pop(DirectSignal)
    answers = direct(pair, 0, relay.number)
    assert answers == []
    pair.nodes[0].transport.seconds += WAIT_SECONDS
    pair.nodes[0].membership.signalling.beat()
    assert answers == [None], "nobody knows"
