"""A client continues at a gateway that lags behind what the client has seen at another one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import Request

from gateway.cluster.batch import Batch, encode_batch
from gateway.core.message import Message
from gateway.http.callers import Caller
from gateway.http.events import EventSession
from gateway.http.selection import Selection
from tests.properties.cluster import ClusterInstance, Stream, copy_of, next_seq
from tests.properties.in_process_gateway import template
from tests.properties.parties import RestParty


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[ClusterInstance]]:
    folders = [copy_of(template(), tmp_path / name) for name in "ab"]
    stream = Stream(next_seq(folders[0]))
    nodes = [ClusterInstance(stream, folder) for folder in folders]
    yield nodes
    for node in nodes:
        node.stop()


def shown(session: EventSession) -> bytes:
    data = b""
    while part := session.data_to_send():
        data += b"".join(part)
    return data


@pytest.mark.parametrize("detached", [False, True])
def test_messages_seen_at_another_member_are_not_repeated(nodes: list[ClusterInstance], detached: bool) -> None:
    one, other = nodes
    one.catch_up()
    program = RestParty(one.instance)
    program.publish("lobby", "seen at one")
    one.instance.settle(synced=True)
    seen = one.instance.gateway.log.synced_seq
    assert other.instance.gateway.log.next_seq <= seen, "it is behind"
    caller = Caller(other.instance.gateway, Request({"type": "http", "headers": [], "client": ("127.0.0.1", 1)}))
    session = EventSession(other.instance.gateway, caller, Selection(("lobby",)), seen)
    assert not session.has_caught_up
    program.publish("lobby", "new")
    one.instance.settle(synced=True)
    other.transport.pump()
    other.catch_up()
    if detached:  # before the disk has what it lacked
        shown(session)
        assert session.has_caught_up
        session.detach()
    other.instance.settle(synced=True)
    told = shown(session)
    assert b"new" in told
    assert b"seen at one" not in told
    assert session.has_caught_up
    session.receive_eof()


def test_nothing_is_written_or_accepted_before_the_stream_has_it(nodes: list[ClusterInstance]) -> None:
    one, other = nodes
    one.catch_up()
    one.instance.settle(synced=True)
    before, accepted = one.lines(), list[bool]()
    log, bus = one.instance.gateway.log, one.instance.gateway.bus
    message = Message("lobby", bus.peers.identity("rest", "ann"), "rest", b'"hi"')
    bus.publish(message)
    bus.acceptance.when_accepted(message, lambda: accepted.append(True))
    assert message.seq
    assert (log.unsynced_bytes, one.lines(), accepted) == (0, before, [])
    one.transport.pump()
    one.instance.settle(synced=True)
    assert accepted == [True]
    assert b'"hi"' in one.lines()[-1]
    other.catch_up()
    other.instance.settle(synced=True)
    assert other.lines()[: len(one.lines())] == one.lines()


def test_a_member_that_lost_its_turn_stops_and_reads_the_missed_batch(
    nodes: list[ClusterInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: killed.append(number))
    one, other = nodes
    one.catch_up()
    RestParty(one.instance).publish("lobby", "in a turn that is over")  # it is not sent yet
    other.transport.pump()
    place = other.turn.position
    other.stream.entries.append(encode_batch(Batch(other.turn.me, place.number + 1, other.turn.me, place.next_seq, [])))
    other.transport.pump()
    RestParty(other.instance).publish("lobby", "in the next turn")
    other.transport.pump()
    for _ in range(2):
        one.transport.take()
    assert (one.turn.over, killed) == (True, [signal.SIGTERM])
    one.instance.stop()
    one.open()
    for node in nodes:
        node.catch_up()
        node.instance.settle(synced=True)
    assert b"in a turn that is over" not in b"".join(one.lines())
    assert b"in the next turn" in b"".join(one.lines())
    shorter = min(len(one.lines()), len(other.lines()))
    assert one.lines()[:shorter] == other.lines()[:shorter]
