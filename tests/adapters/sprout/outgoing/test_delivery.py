"""What is said in a channel comes in its order, however long its lines take to be made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.mint.reply_signer import ReplySigner
from adapters.sprout.outgoing import delivery
from adapters.sprout.wire import base64url
from gateway.core.message import Message, PendingForm


class SigningJob:
    """Lines that are made when the test says so."""

    def __init__(self) -> None:
        self.lines: list[PendingForm] = []

    def __call__(self, _message: Message) -> PendingForm:
        self.lines.append(PendingForm())
        return self.lines[-1]


@pytest.fixture
def signing(monkeypatch: pytest.MonkeyPatch) -> SigningJob:
    signing = SigningJob()
    monkeypatch.setattr(ReplySigner, "form", signing)
    return signing


@pytest.fixture
def lobby(place: Any, alice: Any, announce: Any) -> str:
    community: str = alice.community("lobby")
    announce(place.connect(), alice.identity, community)
    return community


def listen(place: Any, lobby: str) -> Any:
    ear = place.connect()
    ear.send(f"subscribe 0 {lobby.split(' ')[0]}\n")
    return ear


def test_an_unsigned_line_delays_its_channel_alone(
    place: Any, lobby: str, alice: Any, announce: Any, signing: SigningJob
) -> None:
    ear, toy, mouth, den = listen(place, lobby), place.toy(), place.connect(), alice.community("den")
    announce(mouth, den)
    ear.send(f"subscribe 1 {den.split(' ')[0]}\n")
    toy.say("one")
    reply, elsewhere = alice.reply(lobby, "two"), alice.reply(den, "else")
    announce(mouth, reply, elsewhere)
    toy.say("three")
    assert ear.read().splitlines()[1:] == [elsewhere]
    one, three = signing.lines
    three.fill(b"SHA512_B32__three x")
    assert ear.read() == ""
    one.fill(b"SHA512_B32__one x")
    assert ear.read().splitlines()[1:] == ["SHA512_B32__one x", reply, "SHA512_B32__three x"]


def test_a_line_that_cannot_be_signed_is_skipped(place: Any, lobby: str, signing: SigningJob) -> None:
    ear, toy = listen(place, lobby), place.toy()
    toy.say("one")
    toy.say("two")
    signing.lines[0].fill(None)
    signing.lines[1].fill(b"SHA512_B32__two x")
    assert ear.read().splitlines()[1:] == ["SHA512_B32__two x"]


def test_nothing_is_delivered_after_unsubscribing(place: Any, lobby: str, signing: SigningJob) -> None:
    ear, gone, toy = listen(place, lobby), listen(place, lobby), place.toy()
    toy.say("one")
    gone.send(f"unsubscribe 1 {lobby.split(' ')[0]}\n")
    signing.lines[0].fill(b"SHA512_B32__one x")
    assert (len(ear.read()), gone.read()) == (len("announce 0 1\nSHA512_B32__one x\n"), "")


def test_messages_queued_for_a_channel_are_bounded(
    place: Any, lobby: str, signing: SigningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MAX_UNSIGNED", 3)
    ear, toy = listen(place, lobby), place.toy()
    for n in range(3):
        toy.say(n)
    assert ear.session.closing is None
    toy.say(3)
    assert ear.session.closing is not None
    for line in signing.lines:
        line.fill(b"SHA512_B32__late x")
    assert ear.read() == ""


def test_bytes_queued_for_all_channels_are_bounded(
    place: Any, lobby: str, alice: Any, announce: Any, signing: SigningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MAX_BYTES", 100_000)
    den, toy = alice.community("den"), place.toy()
    announce(place.connect(), den)
    many, few = listen(place, lobby), listen(place, den)
    toy.say("modest", "den")
    for _ in range(3):
        toy.say("x" * 40_000)
    assert many.session.closing is not None, "most of it was for this channel"
    assert few.session.closing is None
    assert place.adapter.parts.delivery.size < 10_000
    for line in signing.lines:
        line.fill(b"SHA512_B32__line x")
    assert few.read().splitlines()[1:] == ["SHA512_B32__line x"]
    assert place.adapter.parts.delivery.size == 0


def test_a_direct_message_that_arbor_has_no_room_for_is_not_delivered(place: Any, lobby: str) -> None:
    ear, toy = listen(place, lobby), place.toy()
    number = ear.session.peer.number
    fits, not_so = ({"content": "x" * size} for size in (forest.MAX_BLOB, forest.MAX_BLOB + 1))
    message = Message("lobby", toy.who, "toy", json.dumps(not_so).encode())
    assert place.bus.direct(message, number) == 0
    assert message.undelivered == ("sprout",)
    assert place.gateway.metrics.counts["undeliverable"] == {("sprout",): 1}
    assert place.bus.direct(Message("lobby", toy.who, "toy", json.dumps(fits).encode()), number) == 1
    place.settle()
    raw = base64url.decode(ear.read().splitlines()[-1].split(" ")[1].encode())
    node = forest.decode(raw)
    assert isinstance(node, forest.Reply)
    assert len(node.content.blob) == forest.MAX_BLOB
