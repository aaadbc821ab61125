"""The roster lists the current members of a cluster, and follows their signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.roster import MAX_MEMBERS, MEMBER_SILENCE_SECONDS
from gateway.cluster.signalling import Signalling
from gateway.cluster.signals import MAX_SIGNAL, Heartbeat, Leaving, TurnRequest, encode_signal
from tests.properties.cluster import ClusterInstance, Stream, copy_of, next_seq
from tests.properties.in_process_gateway import template


class SignalListener:
    """A member that hears signals; *now* is its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[bytes] = []
        self.wanted: list[tuple[str, int]] = []
        self.signalling = Signalling(
            self,
            lambda: self.now,
            lambda *wish: self.wanted.append(wish),
            lambda: Heartbeat("me@1", "1", 5, 2),
        )

    def tell(self, data: bytes, _to: str = "") -> None:
        self.told.append(data)

    def later(self, _seconds: float, call: Callable[[], None]) -> None:
        call()

    def names(self) -> list[tuple[str, int]]:
        return [(each.name, each.epoch) for each in self.signalling.members()]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[ClusterInstance]]:
    folders = [copy_of(template(), tmp_path / name) for name in "ab"]
    stream = Stream(next_seq(folders[0]))
    nodes = [ClusterInstance(stream, folder) for folder in folders]
    yield nodes
    for node in nodes:
        node.stop()


def test_members_know_each_other_and_their_positions(nodes: list[ClusterInstance]) -> None:
    one, other = nodes
    one.membership.tick()
    other.membership.tick()
    there = one.membership.signalling.members()
    assert [each.name for each in there] == ["a", "b"]
    assert [each.name for each in other.membership.signalling.members()] == ["b", "a"]
    assert there[1].place == other.transport.place > 0
    assert there[1].next_seq == other.turn.position.next_seq
    other.membership.signalling.leave()
    assert [each.name for each in one.membership.signalling.members()] == ["a"]


def test_a_silent_member_is_gone() -> None:
    listener = SignalListener()
    listener.signalling.hear(encode_signal(Heartbeat("one@5", "1", 7, 3, is_accepting=True)))
    listener.now = MEMBER_SILENCE_SECONDS
    listener.signalling.beat()
    assert listener.signalling.members()[1] == ("one", 5, "1", MEMBER_SILENCE_SECONDS, 7, 3, True)
    listener.now += 0.1
    listener.signalling.beat()
    assert listener.names() == [("me", 1)]


def test_a_new_life_replaces_the_former_one() -> None:
    listener = SignalListener()
    for signal in (
        Heartbeat("one@5", "1", 7, 3),
        Heartbeat("one@6", "1", 7, 3),
        Heartbeat("one@5", "1", 7, 3),
        Leaving("one@5"),
    ):
        listener.signalling.hear(encode_signal(signal))
    assert listener.names() == [("me", 1), ("one", 6)]


def test_forged_members_use_little_memory() -> None:
    listener = SignalListener()
    for number in range(2 * MAX_MEMBERS):
        listener.signalling.hear(encode_signal(Heartbeat(f"one{number}@5", "1", 7, 3)))
    assert len(listener.names()) == MAX_MEMBERS + 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"name@1",
        b"[]",
        b'{"signal":"want","member":"no life"}',
        b'{"signal":"want","member":"a@1\\n"}',
        b'{"signal":"unknown","member":"one@1"}',
        b'{"signal":"alive","member":"one@1","version":"1","next_seq":-1,"place":0}',
        b'{"signal":"alive","member":"one@1","version":"%b","next_seq":1,"place":0}' % (b"1" * 65),
        b'{"signal":"want","member":"one@1","x":"%b"}' % (b"x" * MAX_SIGNAL),
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_malformed_signals_are_counted_and_ignored(data: bytes) -> None:
    listener = SignalListener()
    listener.signalling.hear(data)
    assert (listener.signalling.ignored, listener.wanted, listener.names()) == (1, [], [("me", 1)])
    for signal in (encode_signal(TurnRequest("one@1", 3)), b'{"signal":"want","member":"two@1"}'):
        listener.signalling.hear(signal)
    assert listener.wanted == [("one@1", 3), ("two@1", 0)], "an older version names no number"


@given(st.binary() | st.builds(lambda text: b'{"signal":"want","member":' + text.encode() + b"}", st.text()))
def test_no_bytes_harm(data: bytes) -> None:
    SignalListener().signalling.hear(data)
