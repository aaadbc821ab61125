"""Messages of a channel are delivered in their order, however long their signatures take."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.mint.reply_signer import ReplySigner
from adapters.sprout.outgoing import delivery
from adapters.sprout.wire import base64url
from gateway.core.message import Message, PendingForm


class PendingLine(PendingForm):
    """A line that is made when the test says so."""

    number = -1


class SigningJob:
    """Makes lines, and keeps them."""

    def __init__(self) -> None:
        self.lines: list[PendingLine] = []

    def __call__(self, _message: Message) -> PendingLine:
        self.lines.append(PendingLine())
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


def told(line: Any) -> list[str]:
    """What it heard but the nodes' bodies: the announces, and what was said."""
    return [text.partition("__")[2].partition(" ")[0] or text for text in line.read().splitlines()]


def test_signed_lines_wait_for_those_that_are_being_signed(place: Any, lobby: str, signing: SigningJob) -> None:
    ear, toy = listen(place, lobby), place.toy()
    told(ear)
    now = 0.0
    place.adapter.parts.delivery._clock = lambda: now
    for n in range(5):
        toy.say(n)
    for n in (0, 2, 1):
        signing.lines[n].fill(b"SHA512_B32__%d x" % n)
    assert told(ear) == []
    now = delivery.MAX_WAIT
    signing.lines[4].fill(b"SHA512_B32__4 x")
    assert told(ear) == ["announce 0 3", "0", "1", "2"], "they have waited long enough"
    signing.lines[3].fill(b"SHA512_B32__3 x")
    assert told(ear) == ["announce 1 2", "3", "4"], "nothing is left to wait for"


def test_signed_lines_wait_for_a_second_at_most(place: Any, lobby: str, signing: SigningJob) -> None:
    ear, toy = listen(place, lobby), place.toy()
    told(ear)
    toy.say("one")
    toy.say("two")
    signing.lines[0].fill(b"SHA512_B32__one x")
    place.adapter.tick(place.clock())
    assert told(ear) == ["announce 0 1", "one"]


def test_so_many_signed_lines_wait_at_most(
    place: Any, lobby: str, signing: SigningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MAX_GROUP", 3)
    monkeypatch.setattr(delivery, "MAX_WAIT", 1e9)
    ear, toy = listen(place, lobby), place.toy()
    told(ear)
    for n in range(5):
        toy.say(n)
    for n in range(3):
        assert told(ear) == []
        signing.lines[n].fill(b"SHA512_B32__%d x" % n)
    assert told(ear) == ["announce 0 3", "0", "1", "2"]


def test_grouped_lines_equal_lines_sent_one_by_one(
    place: Any, lobby: str, signing: SigningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However their signatures come, or fail, and whoever speaks, comes, leaves or hangs up meanwhile."""
    monkeypatch.setattr(delivery, "MAX_WAIT", 1e9)
    community = lobby.split(" ")[0]

    def play(seed: int, group: int) -> list[list[str]]:
        monkeypatch.setattr(delivery, "MAX_GROUP", group)
        random, toy = Random(seed), place.toy()
        ears = [listen(place, lobby) for _ in range(3)]
        left = signing.lines = list[PendingLine]()
        for n in range(40):
            if (kind := random.randrange(10)) < 4:
                toy.say(n)
                if left and left[-1].number < 0:  # else nobody of Arbor listens
                    left[-1].number = n
            elif kind < 7 and left:
                line = left.pop(random.randrange(len(left)))
                line.fill(None if random.random() < 0.2 else b"SHA512_B32__%d x" % line.number)
            elif kind < 9:
                ear = random.choice(ears)
                ear.session.receive_data(f"{random.choice(('', 'un'))}subscribe 7 {community}\n".encode())
            elif random.random() < 0.2:
                ears.append(listen(place, lobby))
                ears.pop(0).close()
        while left:
            line = left.pop()
            line.fill(b"SHA512_B32__%d x" % line.number)
        heard = [[text for text in told(ear) if text.isdigit()] for ear in ears]
        for ear in ears:
            ear.close()
        toy.receive_eof()
        assert place.adapter.parts.delivery.size == 0
        return heard

    outcomes = [(play(seed, 1), play(seed, 8)) for seed in range(40)]
    assert all(one == other for one, other in outcomes)
    assert sum(len(heard) for one, _ in outcomes for heard in one) > 500


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
