"""Sessions listen on the bus with identities, and are forgotten when they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import AlreadySubscribed, NotSubscribed, TooManySubscriptions, Unavailable
from gateway.core.message import Message, Peer
from gateway.core.notices import FEW
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.core.watchers import MAX_PREFIXES
from gateway.storage.record import decode_body
from tests.gateway.core.bus_toys import Make

if TYPE_CHECKING:
    from tests.conftest import Core, EchoSession, ToySession


# Listening


def test_joining_notifies_other_sessions_and_returns_their_peers(core: Core, join: Make) -> None:
    a, b = join("lobby"), join("lobby")
    c = join()
    assert core.bus.subscribe(c, "lobby") == [a.peer, b.peer]
    assert (a.take(), b.take(), c.take()) == (
        [("+", "lobby", 1), ("+", "lobby", 2)],
        [("+", "lobby", 2)],
        [],
    )
    core.bus.unsubscribe(a, "lobby")
    assert (a.take(), b.take(), c.take()) == ([], [("-", "lobby", 0)], [("-", "lobby", 0)])
    assert core.bus.peers_in("lobby") == [b.peer, c.peer]
    assert core.bus.listener_count("lobby") == 2
    assert (core.bus.listeners("lobby", "toy"), core.bus.listeners("lobby", "x")) == ([b, c], [])


def test_who_listens_to_too_much_is_told_what_to_do(core: Core, join: Make) -> None:
    core.bus.subscriptions = 1
    session = join("lobby")
    text = (
        "this connection listens to 1 channels already, the most that limits.subscriptions allows; unsubscribe from one"
    )
    with pytest.raises(TooManySubscriptions, match=text):
        core.bus.subscribe(session, "attic")
    for number in range(MAX_PREFIXES):
        core.bus.watchers.add(session, f"{number}/")
    with pytest.raises(TooManySubscriptions, match=r"listens to 100 patterns already, .*; unsubscribe from one"):
        core.bus.watchers.add(session, "attic/")


class Deaf(Session):
    """A session of a protocol that has no word for joining, as most."""

    protocol = "toy"

    def handle(self, data: bytes) -> None:
        """Nothing."""

    def deliver(self, message: Message) -> None:
        """Nothing."""


def test_sessions_without_presence_cause_no_notices(core: Core, join: Make) -> None:
    deaf = [Deaf(core.bus, Principal("anonymous")) for _ in range(FEW + 1)]
    core.bus.presence.notices.post = list[Callable[[], None]]().append
    core.bus.presence.notices.later = lambda _seconds, _call: None
    for each in deaf:
        core.bus.subscribe(each, "lobby")
    assert not core.bus.presence.notices
    assert (type(join()).hears_presence, Deaf.hears_presence) == (True, False)


def test_a_channel_without_listeners_is_forgotten_unless_registered(core: Core, join: Make) -> None:
    a = join("lobby", "other")
    core.say()
    assert core.bus.active_channels() == ["lobby", "other"]
    core.bus.leave(a)
    assert core.bus.active_channels() == []
    assert core.channels.registered() == ["lobby"]
    assert core.bus.peers_in("lobby") == []


def test_subscribing_or_unsubscribing_twice_is_refused(core: Core, join: Make) -> None:
    a = join("lobby")
    with pytest.raises(AlreadySubscribed):
        core.bus.subscribe(a, "lobby")
    core.bus.unsubscribe(a, "lobby")
    with pytest.raises(NotSubscribed):
        core.bus.unsubscribe(a, "lobby")


def test_a_session_that_leaves_the_bus_leaves_every_channel_once(core: Core, join: Make) -> None:
    a, b = join("x", "y"), join("x", "y")
    b.receive_eof()
    b.receive_eof()
    assert a.take()[2:] == [("-", "x", 1), ("-", "y", 1)]
    assert core.bus.sessions() == [a]
    assert (core.bus.session_count, core.bus.connection_count(1), core.bus.session_count_from("")) == (1, 0, 1)


def test_sessions_are_counted_by_address(core: Core, toy_session: type[ToySession]) -> None:
    sessions = [toy_session(core.bus, address=address) for address in ("x", "x", "y")]
    assert [core.bus.session_count_from(address) for address in "xyz"] == [2, 1, 0]
    for session in sessions:
        session.receive_eof()
    assert [core.bus.session_count_from(address) for address in "xyz"] == [0, 0, 0]
    assert not core.bus._networks


# Identities


def test_binding_an_identity_notifies_other_sessions(core: Core, join: Make) -> None:
    a, b, c = join("lobby"), join("lobby"), join("lobby")
    a.take(), b.take()
    alice = core.peers.identity("toy", "alice")
    core.bus.bind(b, alice)
    assert a.take() == c.take() == [("-", "lobby", 1), ("+", "lobby", alice.number)]
    assert b.take() == []
    assert core.bus.peers_in("lobby") == [a.peer, c.peer, alice], "who is somebody else now came last"
    core.bus.bind(c, alice)
    assert a.take() == b.take() == [("-", "lobby", 2)]
    assert core.bus.peers_in("lobby") == [a.peer, alice]
    assert core.bus.connection_count(alice.number) == 2
    core.bus.unsubscribe(b, "lobby")
    assert a.take() == []
    c.receive_eof()
    assert a.take() == [("-", "lobby", alice.number)]


def test_a_second_identity_makes_a_session_a_link(core: Core, join: Make) -> None:
    a, b = join("lobby"), join("lobby")
    alice, bob = core.peers.identity("toy", "alice"), core.peers.identity("toy", "bob")
    core.bus.bind(b, alice)
    a.take()
    core.bus.bind(b, bob)
    assert (b.link, b.who, a.take()) == (True, b.peer, [("-", "lobby", alice.number), ("+", "lobby", b.peer.number)])
    core.bus.bind(b, alice)
    assert (b.who, core.bus.connection_count(alice.number), core.bus.connection_count(bob.number)) == (b.peer, 0, 0)


def test_a_new_name_is_not_a_second_identity(core: Core, join: Make) -> None:
    a, b, c = join("lobby"), join("lobby"), join("lobby")
    core.bus.bind(b, core.peers.identity("toy", "alice", "Alice"))
    core.bus.bind(c, core.peers.identity("toy", "alice", "Alicia"))
    a.take()
    core.bus.bind(b, core.peers.identity("toy", "alice"))
    assert (b.link, b.who.name, a.take()) == (False, "Alicia", [])
    core.bus.bind(b, core.peers.identity("toy", "alice", "Al"))
    core.bus.unsubscribe(b, "lobby")
    assert a.take() == []  # the other connection is still there


# Time and room


def test_every_session_is_ticked(core: Core, join: Make) -> None:
    sessions = [join(), join()]
    core.bus.tick()
    assert [session.ticks for session in sessions] == [[core.clock.now]] * 2


@pytest.fixture
def full_disk(core: Core) -> Iterator[Callable[[bool], None]]:
    def switch(full: bool) -> None:
        core.log.congested = full
        if not full:
            core.bus.resume_waiting()

    yield switch
    core.log.congested = False


def test_waiting_sessions_resume_in_order(join: Make, full_disk: Callable[[bool], None]) -> None:
    a, b, listener = join(), join(), join("lobby")
    full_disk(True)
    for data in (b"1", b"2"):
        a.receive_data(data)
    b.receive_data(b"3")
    assert (listener.take(), a.ask_to_read(), b.ask_to_read()) == ([], False, False)
    full_disk(False)
    assert (listener.take(), a.ask_to_read(), b.ask_to_read()) == ([b"1", b"2", b"3"], True, True)
    assert (a.wakes, b.wakes) == (1, 1)


def test_only_a_session_that_misses_a_message_is_closed(
    core: Core, join: Make, echo_session: type[EchoSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = join("lobby", kind=echo_session), join("lobby")

    def deliver(_session: EchoSession, _message: Message) -> None:
        raise Unavailable("the log cannot be read")

    monkeypatch.setattr(echo_session, "deliver", deliver)
    said = core.say(b"1")
    core.sync()
    assert (one.closing, other.closing) == ((1011, "the log cannot be read"), None)
    assert (other.take(), core.log.synced_seq >= said.seq) == ([b"1"], True)


def test_no_session_waits_for_a_failing_disk(core: Core, join: Make, full_disk: Callable[[bool], None]) -> None:
    a = join()
    full_disk(True)
    a.receive_data(b"1")
    assert not a.ask_to_read()
    core.log.failing = "No space left on device"
    with pytest.raises(Unavailable, match="No space left on device"):
        core.bus.resume_waiting()
    with pytest.raises(Unavailable, match="No space left on device"):
        a.receive_data(b"2")
    assert a.ask_to_read()
    core.log.failing = None


def test_a_session_that_was_only_not_read_is_woken_too(join: Make, full_disk: Callable[[bool], None]) -> None:
    a = join()
    full_disk(True)
    assert not a.ask_to_read()
    full_disk(False)
    assert (a.wakes, a.ask_to_read()) == (1, True)


def test_a_session_waits_for_its_peer_and_then_for_the_disk(join: Make, full_disk: Callable[[bool], None]) -> None:
    a, listener = join(), join("lobby")
    a.send(b"x" * (1 << 16))
    a.receive_data(b"1")
    full_disk(True)
    assert a.data_to_send() == [b"x" * (1 << 16)]
    full_disk(False)
    assert listener.take() == [b"1"]


def test_a_session_that_left_while_waiting_is_not_resumed(join: Make, full_disk: Callable[[bool], None]) -> None:
    a, listener = join(), join("lobby")
    full_disk(True)
    a.receive_data(b"1")
    a.receive_eof()
    full_disk(False)
    assert listener.take() == []


def test_the_record_in_the_log_is_the_published_message(core: Core) -> None:
    message = core.say(b'{"n": 1.0}', wire=b"raw", sender=Peer(7, "toy", "alice"))
    core.sync()
    back = decode_body(core.segments.read(message.seq, 0))
    assert isinstance(back, Message)
    assert (back.content, back.wire, back.sender) == (b'{"n": 1.0}', b"raw", Peer(7, "toy", "alice"))
