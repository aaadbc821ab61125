"""Answers of a server that may be cut off or behind the others are not trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ClusterInfo, StreamInfo
from nats.js.errors import NotFoundError
from nats.js.manager import JetStreamManager

from gateway.jetstream import reader
from gateway.jetstream.connecting import JetStreamSettings
from tests.nats import NatsServer
from tests.waiting import until

from .test_stream import StreamReader

HOLE_SECONDS = 0.3


class Answers:
    """What the server says of the stream to readers, after `change`; `count` is how often it was asked.

    *now* is the time of the readers, in seconds: it passes when a test says so.
    """

    def __init__(self) -> None:
        self.count = self.unchanged = 0
        self.now = 0.0
        self.change: Callable[[StreamInfo], None] | None = None

    def leave_alone(self) -> None:
        """Let the next answers be what they are, and wait for the first of them."""
        before = self.unchanged
        self.change = None
        until(lambda: self.unchanged > before)

    def lose_leader(self, last: int) -> None:
        """Answer as a server does that is cut off: about its own copy, which ends at *last*, without a leader."""

        def change(info: StreamInfo) -> None:
            info.cluster, info.state.last_seq = ClusterInfo(name="trellis", leader=None), last

        self.change = change

    def lag(self, last: int) -> None:
        """Answer as a server does that is cut off and still leads its own copy, which ends at *last*."""

        def change(info: StreamInfo) -> None:
            info.cluster, info.state.last_seq = ClusterInfo(name="trellis", leader="one"), last

        self.change = change

    def miss(self) -> None:
        """Answer that there is no such stream."""

        def change(_info: StreamInfo) -> None:
            raise NotFoundError(code=404, err_code=10059, description="stream not found")

        self.change = change

    async def info(self, manager: JetStreamManager, name: str) -> StreamInfo:
        info = await manager.stream_info(name)
        change = self.change
        self.count += 1
        if change is not None:
            change(info)
        else:
            self.unchanged += 1
        return info

    def stay(self, seconds: float = 2 * HOLE_SECONDS) -> None:
        """Let the next answers be so for a while."""
        self._pass()
        self.now += seconds
        self._pass()

    def _pass(self) -> None:
        """Wait until an answer from now on has been taken: the reader asks again."""
        count = self.count
        until(lambda: self.count > count + 1)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()

    class Manager(JetStreamManager):
        """Asks the genuine server."""

        async def stream_info(self, name: str, *_arguments: Any, **_options: Any) -> StreamInfo:
            return await answers.info(JetStreamManager(self._nc), name)

    monkeypatch.setattr(reader, "JetStreamManager", Manager)
    monkeypatch.setattr(reader, "HOLE_SECONDS", HOLE_SECONDS)
    monkeypatch.setattr(reader, "monotonic", lambda: answers.now)
    return answers


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[JetStreamSettings]:
    server = NatsServer(tmp_path)
    yield JetStreamSettings("test", (server.url,))
    server.stop()


@pytest.fixture
def member(settings: JetStreamSettings) -> Iterator[StreamReader]:
    """A member that has read two messages."""
    member = StreamReader(settings)
    for number in (b"1", b"2"):
        member.stream.submit(number)
    until(lambda: len(member.entries) == 2)
    yield member
    member.stream.stop()


def read_again(member: StreamReader, answers: Answers) -> None:
    """Let *member* ask again, as after it was connected again, and wait until it was answered."""
    found, count = member.stream._reader, answers.count
    assert found is not None
    member.stream._call(found.restart)
    until(lambda: answers.count > count)


def reads_on(member: StreamReader) -> bool:
    """Whether *member* takes what comes next."""
    member.stream.submit(b"3")
    until(lambda: member.faults or len(member.entries) == 3)
    return not member.faults


def test_entries_missing_at_a_server_without_a_leader_are_not_lost(member: StreamReader, answers: Answers) -> None:
    """A server that led the stream answered about its own copy as long as it was cut off."""
    answers.lose_leader(last=1)
    read_again(member, answers)
    answers.stay()
    answers.leave_alone()
    assert reads_on(member)


def test_the_end_of_the_stream_is_not_taken_from_a_server_without_leader(
    settings: JetStreamSettings, member: StreamReader, answers: Answers
) -> None:
    """A member that joins would take itself for caught up, or its log for longer than the stream."""
    answers.lose_leader(last=0)
    late = StreamReader(settings)
    try:
        until(lambda: answers.count > 2)
        assert late.stream.end is None
        answers.leave_alone()
        until(lambda: late.stream.end == 2)
        assert len(member.entries) == 2
    finally:
        late.stream.stop()


def test_the_end_of_the_stream_is_not_taken_from_a_server_without_consumer(
    settings: JetStreamSettings, member: StreamReader, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is cut off names itself as the leader for some seconds."""
    answers.lag(last=1)

    async def cut_off(*_arguments: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(JetStreamManager, "add_consumer", cut_off)
        late = StreamReader(settings)
        until(lambda: answers.count > 2)
        assert late.stream.end is None
        answers.leave_alone()
    until(lambda: late.stream.end == 2)
    late.stream.stop()
    assert not member.faults


@pytest.mark.parametrize("lacks_all", [True, False])
def test_entries_missing_twice_are_not_lost_at_once(member: StreamReader, answers: Answers, lacks_all: bool) -> None:
    """Nothing new came in between; the time counts from the second lack."""
    for _ in range(2):
        if lacks_all:
            answers.miss()
        else:
            answers.lag(last=1)
        read_again(member, answers)
        answers.leave_alone()
        answers.now += 2 * HOLE_SECONDS
    assert reads_on(member)


def test_entries_missing_at_two_servers_in_turn_are_not_lost(member: StreamReader, answers: Answers) -> None:
    """No server answers in between, or one without a leader."""
    answers.lag(last=1)
    read_again(member, answers)
    answers.lose_leader(last=1)
    answers.stay()
    answers.lag(last=1)
    answers.stay(0)
    answers.leave_alone()
    assert reads_on(member)
