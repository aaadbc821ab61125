"""All members ignore the same foreign elements of the stream, and stay equal."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from gateway.cluster.accepting_turn import LEASE_SECONDS
from gateway.cluster.batch import BadBatch, Batch, decode_batch, encode_batch
from gateway.cluster.removal import encode_removal
from gateway.cluster.signalling import Signalling
from gateway.cluster.signals import Heartbeat, Leaving, PresenceChanges, Terms, TurnRequest, encode_signal
from gateway.membership.membership import Membership
from gateway.storage.record import Fact, encode
from tests.gateway.cluster.turn_members import SEEDS, TurnMember, UnreliableNetwork

MOVES = 300


class ObservingMember(TurnMember):
    """A member that notes which elements of the stream it ignores."""

    def __init__(self, world: UnreliableNetwork, name: str) -> None:
        super().__init__(world, name)
        self.ignored: set[int] = set()

    def read_one(self, *, has_more: bool = False) -> None:
        before, read = self.turn.ignored, self.read
        super().read_one(has_more=has_more)
        if self.turn.ignored > before:
            self.ignored.add(read)


def _flipped(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


def _batch(number: int, first: int, lines: list[bytes], member: str = "x@1") -> bytes:
    return encode_batch(Batch(member, number, member, first, lines))


def _is_batch(data: bytes) -> bool:
    try:
        return bool(decode_batch(data))
    except BadBatch:  # what was damaged once could be whole when it is damaged again
        return False


def noise(random: Random, world: UnreliableNetwork) -> bytes:
    """Something that counts nowhere, made of what is in the stream."""
    reader = TurnMember(world, "reader")
    reader.read_all()
    number, first = reader.turn.position.number + 1, reader.turn.position.next_seq or 1
    found = random.choice([*filter(_is_batch, world.stream), _batch(1, 1, [])])
    fact = encode(Fact("start", {"gateway": "x", "version": "1"}, first, 0))
    unknown = encode(Fact("peer", {"peer": -1}, first, 0))
    kinds: list[Callable[[], bytes]] = [
        lambda: found[: random.randrange(len(found))],
        lambda: _flipped(random, found),
        lambda: found + random.randbytes(5),
        lambda: random.randbytes(random.randrange(200)),
        lambda: b"v9 " + found,
        lambda: found.replace(b" ", b"\t", 1),
        lambda: found.partition(b"\n")[0],
        lambda: b"\n" * random.randrange(500),
        lambda: _batch(number + random.randrange(1, 1000), first, [fact]),
        lambda: _batch(max(number, 2), first + random.randrange(1, 1000), []),  # the first may have any place
        lambda: _batch(number, first, [fact[:-2] + b"\n"]),
        lambda: _batch(number, first, [unknown]),
        lambda: _batch(number, first, [fact, fact]),
        lambda: _batch(number - 1, first, [fact]) if number > 1 else b"",
        lambda: encode_removal("a")[:-1],
        lambda: _flipped(random, encode_removal("b")),
    ]
    return random.choice(kinds)()


def _beat(members: list[Any]) -> None:
    for one in members:
        for other in members:
            if other is not one and other.read >= one.read:
                one.turn.compare(other.turn.position.number)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_members_ignore_the_same_elements_of_the_stream(seed: int) -> None:
    random = Random(seed)
    world = UnreliableNetwork(random)
    members: list[ObservingMember] = [ObservingMember(world, name) for name in "abc"]
    world.members = list(members)
    sent = 0
    for _ in range(MOVES):
        if random.random() < 0.1:
            world.stream.append(noise(random, world))
            sent += 1
        member = random.choice(members)
        move = random.choice([member.say, member.say, member.run, member.run, member.read_one, member.read_all])
        if random.random() < 0.3:
            move = random.choice([world.land, world.land, member.turn.tick])
        if random.random() < 0.02:
            for each in members:
                each.read_all()
            world.now += random.choice([0.5, LEASE_SECONDS + 1])
        _beat(members)
        move()
        for place, each in enumerate(members):
            if each.is_lost:
                members[place] = again = ObservingMember(world, each.name)
                world.members = list(members)
                again.read_all()
    for each in members:
        each.read_all()
    there = [each for each in members if not each.is_lost]
    assert there
    assert not any(each.is_damaged or each.is_removed for each in members)
    assert all(each.ignored == there[0].ignored and each.log == world.lines() for each in there)
    assert len(there[0].ignored) >= sent > 0


class SilentTransport:
    """Tells nobody anything."""

    def tell(self, data: bytes, to: str = "") -> None: ...
    def later(self, seconds: float, call: Callable[[], None]) -> None: ...


@pytest.mark.parametrize("seed", SEEDS)
def test_all_members_ignore_the_same_signals(seed: int) -> None:
    random, wanted = Random(seed), [list[tuple[str, int]](), list[tuple[str, int]]()]
    members = [
        Signalling(
            SilentTransport(),
            lambda: 0.0,
            lambda *wish, n=n: wanted[n].append(wish),
            lambda n=n: Heartbeat(f"{n}@1", "1", 5, 2),  # type: ignore[misc]
        )
        for n in range(2)
    ]
    good = [
        encode_signal(each)
        for each in (
            Heartbeat("x@5", "1", 7, 3, batches=4),
            TurnRequest("x@5", 3),
            Terms("x@5", "1", {"a": "b"}),
            PresenceChanges("x@5", 3, [("talk", 5)]),
            Leaving("x@4"),
        )
    ]
    for _ in range(100):
        data = random.choice(good)
        kinds = [data, data[: random.randrange(len(data))], _flipped(random, data), random.randbytes(50), b"[" * 9_999]
        data = random.choice([*kinds, data.replace(b"x@5", b"x"), data.replace(b"alive", b"new"), b"null", b"{}"])
        for each in members:
            each.hear(data)
    assert members[0].ignored == members[1].ignored > 0
    assert members[0].roster.members() == members[1].roster.members()
    assert wanted[0] == wanted[1]


def test_a_member_compares_counted_batches_and_logs_the_sender_of_noise() -> None:
    status = SimpleNamespace(silence=0.0, error=None)
    transport: Any = SimpleNamespace(
        place=10,
        status=lambda: status,
        tell=SilentTransport().tell,
        later=SilentTransport().later,
        answers=lambda: True,
    )
    now = 0.0
    member = Membership("me", transport, lambda: now)
    ended: list[str] = []
    member.turn.callbacks = SimpleNamespace(stream_damaged=lambda: ended.append("damaged"), hold=lambda _: None)
    transport.publish, transport.want = lambda _: None, lambda *_: None
    member.turn.arrived(_batch(9, 1, [], "x@1"))
    member.turn.want()
    with structlog.testing.capture_logs() as logs:
        transport.on_signal(encode_signal(Heartbeat("other@1", "1", 1, 9, batches=0)))
        transport.on_signal(encode_signal(Heartbeat("other@1", "1", 1, 10, batches=3)))
    assert [(line["sender"], line["number"], line["expected"]) for line in logs] == [("x@1", 9, 1)], "once"
    now = LEASE_SECONDS - 1
    transport.on_signal(encode_signal(Heartbeat("other@1", "1", 1, 10, batches=0)))
    now = 2 * LEASE_SECONDS
    member.turn.tick()
    assert ended == [], "the other has read it, and counted nothing of it"
    member.turn.arrived(_batch(9, 1, [], "x@1"))
    transport.on_signal(encode_signal(Heartbeat("other@1", "1", 1, 9, batches=0)))
    transport.on_signal(encode_signal(Heartbeat("other@1", "1", 1, 12, batches=3)))
    now = 4 * LEASE_SECONDS
    member.turn.tick()
    assert ended == ["damaged"], "the other has not read it, or has counted more"


def test_noise_is_of_all_kinds() -> None:
    """Some of it is a batch, whose number or place is wrong: else the walks above would prove little."""
    random, world = Random(1), UnreliableNetwork()
    world.stream.append(_batch(1, 1, [], "a@1"))
    batches = 0
    for _ in range(300):
        try:
            batches += decode_batch(noise(random, world)).number > 1
        except BadBatch:
            continue
    assert batches > 30
