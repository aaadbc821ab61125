"""Both shells give a peer the same session."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.core.outbox import LOW_WATER
from gateway.shells import connection, portable_shell
from tests.gateway.shells.toys import (
    FAST_WEBSOCKET,
    HYPERCORN,
    PIECE,
    SHELLS,
    TCP,
    WEBSOCKET,
    Framed,
    Shells,
    ShellServer,
    end,
    hear_all,
    run,
    write_until_stuck,
)

pytestmark = pytest.mark.usefixtures("_patience", "_quiet")

STALLED = 0.5  # seconds, where a test is about who reads nothing


def only(shells: Shells) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", shells, indirect=True, scope="module")


@pytest.fixture(params=SHELLS, scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ShellServer]:
    backend, shell = SHELLS[request.param]
    yield from run(backend, shell, request.param in WEBSOCKET)


@pytest.fixture
def peer(server: ShellServer) -> Iterator[Framed]:
    with server.connect() as client:
        assert isinstance(client, Framed)
        yield client


# Order, and any cut


def test_replies_come_in_the_order_of_requests(server: ShellServer) -> None:
    with server.connect() as client:
        client.say(*(b"echo %d" % i for i in range(2000)))
        assert [client.hear() for _ in range(2000)] == [b"%d" % i for i in range(2000)]


def test_requests_may_be_cut_anywhere(server: ShellServer) -> None:
    with server.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"".join(client.wrap(b"echo %d" % i + b"!" * 120 * i) for i in range(3)):
            client.socket.sendall(bytes([byte]))
        assert [client.hear() for _ in range(3)] == [b"%d" % i + b"!" * 120 * i for i in range(3)]


def test_all_listeners_of_a_channel_receive_the_same_order(server: ShellServer) -> None:
    channel = server.channel()
    with server.connect() as alice, server.connect() as bob, server.connect() as carol:
        for listener in bob, carol:
            listener.say(b"join " + channel)
            assert listener.hear() == b"joined"
        for i in range(300):
            alice.say(b"say %s a%d" % (channel, i))
            carol.say(b"say %s c%d" % (channel, i))
        heard = [bob.hear() for _ in range(600)]
        assert [x for x in heard if isinstance(x, bytes) and x[0:1] == b"a"] == [b"a%d" % i for i in range(300)]
        assert [x for x in heard if isinstance(x, bytes) and x[0:1] == b"c"] == [b"c%d" % i for i in range(300)]
        assert [carol.hear() for _ in range(300)] == [b"a%d" % i for i in range(300)]


@only(TCP | FAST_WEBSOCKET)
def test_nagle_does_not_wait_and_the_kernel_looks_after_the_dead(server: ShellServer) -> None:
    with server.connect() as client, other_end(client.socket) as theirs:
        assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert theirs.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def other_end(mine: socket.socket) -> socket.socket:
    """The server's socket, which is one of this process."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found = socket.socket(fileno=os.dup(int(link.name)))
            with suppress(OSError):
                if found.getpeername() == mine.getsockname():
                    return found
            found.close()
    raise AssertionError("the server has no such connection")


# Back-pressure


def test_only_a_listener_that_does_not_read_is_closed(server: ShellServer) -> None:
    channel, overflows = server.channel(), server.counts.overflows
    with server.connect() as speaker, server.connect() as deaf, server.connect() as listener:
        for client in deaf, listener:
            client.say(b"join " + channel)
            assert client.hear() == b"joined"
        said = []
        for i in range(2000):
            said.append(b"%d " % i + b"." * 16000)
            speaker.say(b"say %s %s" % (channel, said[i]))
            assert listener.hear() == said[i]
            if deaf.session.closing is not None:
                break
        assert server.counts.overflows == overflows + 1
        heard, code = hear_all(deaf)
        assert heard == said[: len(heard)]
        assert code == end(server, 1013)
        speaker.say(b"say %s more" % channel)
        assert listener.hear() == b"more"
        server.eventually(lambda: deaf.session.over == 1)


def test_a_requester_that_does_not_read_is_slowed_and_gets_every_answer(server: ShellServer) -> None:
    request = b"size 10000 " + b"." * 1000
    with server.connect() as client:
        sent = write_until_stuck(client, client.wrap(request))
        assert client.session.closing is None
        assert client.session.peak < LOW_WATER + 400 * 10000  # what one read of the wire can ask for
        for _ in range(sent // len(client.wrap(request))):
            assert client.hear() == b"x" * 10000
        rest = client.wrap(request)[sent % len(client.wrap(request)) :]
        client.socket.sendall(rest + client.wrap(b"echo last"))
        assert [client.hear() for _ in range(2)] == [b"x" * 10000, b"last"]


@pytest.mark.slow
def test_a_long_answer_is_pulled_as_it_is_read_and_delays_no_other(server: ShellServer) -> None:
    count = 16_000
    with server.connect() as reader, server.connect() as other:
        reader.say(b"long %d" % count)
        assert reader.hear() == b"0 " + b"." * PIECE
        for i in range(100):
            other.say(b"echo %d" % i)
            assert other.hear() == b"%d" % i
        assert reader.session.pulled * PIECE < 10 << 20  # most of it in the kernel, which takes 4 MiB
        reader.say(b"echo between")
        heard = [reader.hear() for _ in range(count)]
        heard.remove(b"between")
        assert heard == [b"%d " % i + b"." * PIECE for i in range(1, count)]


@only(TCP | FAST_WEBSOCKET)
def test_a_stalled_reader_of_a_long_answer_is_disconnected(
    server: ShellServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shell in (portable_shell, connection):
        monkeypatch.setattr(shell, "STALLED_SECONDS", STALLED)
    longest = STALLED
    while longest > STALLED / 2:  # otherwise the machine was too slow for who reads
        longest = 0.0
        with server.connect() as deaf, server.connect() as slow:
            deaf.say(b"long 1000000")
            slow.say(b"long 1000000")
            before, last = server.counts.overflows, time.monotonic()
            while deaf.session.closing is None and slow.session.closing is None:
                for _ in range(100):
                    slow.hear()
                now = time.monotonic()
                longest, last = max(longest, now - last), now
            server.eventually(lambda deaf=deaf: deaf.session.closing is not None)  # type: ignore[misc]
            found = server.counts.overflows - before, deaf.session.closing, slow.session.closing
    overflows, closing, reading = found
    assert reading is None, "who reads is not"
    assert overflows == 1
    assert closing is not None
    assert closing.code == 1013


def test_a_reader_of_a_long_answer_may_leave(server: ShellServer) -> None:
    with server.connect() as reader:
        reader.say(b"long 1000000")
        reader.hear()
        reader.reset()
        server.eventually(lambda: reader.session.over == 1)


def test_nothing_is_read_while_the_disk_does_not_keep_up(server: ShellServer) -> None:
    with server.connect() as client:
        client.say(b"jam it")
        assert client.hear() == b"it"
        client.say(b"echo one", b"echo two")

        def room() -> None:
            server.ledger.congested = False
            server.bus.resume_waiting()

        server.call(room)
        assert [client.hear(), client.hear()] == [b"one", b"two"]


# The end


def test_a_close_arrives_while_the_peer_keeps_sending(server: ShellServer) -> None:
    with server.connect() as client:
        client.say(b"size 300000", b"bye now", *(b"echo unheard" for _ in range(3000)))
        assert hear_all(client) == ([b"x" * 300000, b"now"], end(server, 4000))
        server.eventually(lambda: client.session.over == 1)


def test_a_broken_protocol_ends_with_1002(server: ShellServer) -> None:
    with server.connect() as client:
        client.say(b"fail sorry", b"echo unheard")
        assert hear_all(client) == ([b"sorry"], end(server, 1002))


def test_goodbye_ends_the_connection_with_1001(server: ShellServer) -> None:
    with server.connect() as client:
        server.call(client.session.goodbye)
        assert hear_all(client) == ([b"goodbye"], end(server, 1001))
        server.eventually(lambda: client.session.over == 1)


def test_an_unfinished_message_at_the_end_is_discarded(server: ShellServer) -> None:
    with server.connect() as client:
        client.socket.sendall(client.wrap(b"echo this") + client.wrap(b"echo that")[:-1])
        assert client.hear() == b"this"
        client.socket.shutdown(socket.SHUT_WR)
        assert client.hear() in (0, 1001, 1006)
        server.eventually(lambda: client.session.over == 1)


@pytest.mark.parametrize("after", [b"", b"size 100000", b"long 100000", b"say nobody hears"])
def test_a_peer_may_vanish_at_any_time(server: ShellServer, after: bytes) -> None:
    with server.connect() as client:
        if after:
            client.say(*[after] * 20)
        client.reset()
        server.eventually(lambda: client.session.over == 1)
    with server.connect() as client:
        assert client.session not in server.sessions[:-1]


@only(HYPERCORN)
def test_a_peer_may_vanish_while_both_sides_wait(server: ShellServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable_shell.WebSocketWire, "unread_seconds", 0.05)
    with server.connect() as client:
        client.say(*[b"size 1000000"] * 40)  # hypercorn queues ten, the session is saturated by one
        server.eventually(lambda: client.session.saturated)
        time.sleep(0.2)
        client.reset()
        server.eventually(lambda: client.session.over == 1)


def test_a_peer_that_reset_its_connection_stops_listening(server: ShellServer) -> None:
    channel = server.channel()
    with server.connect() as listener, server.connect() as speaker:
        listener.say(b"join " + channel)
        assert listener.hear() == b"joined"
        listener.reset()
        speaker.say(*(b"say %s %d" % (channel, i) for i in range(200)), b"echo done")
        assert speaker.hear() == b"done"
        server.eventually(lambda: not server.bus.listener_count(channel.decode()))


def test_lingering_after_a_close_is_bounded(server: ShellServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.connect() as client:
        client.say(b"long 1000000")
        client.hear()
        monkeypatch.setattr(portable_shell, "LINGER_SECONDS", 0.1)
        monkeypatch.setattr(connection, "LINGER_SECONDS", 0.1)
        server.call(client.session.goodbye)
        server.eventually(lambda: client.session.over == 1)
        client.reset()  # hypercorn waits for it


@only(TCP | FAST_WEBSOCKET)
def test_a_peer_that_does_not_hang_up_is_cut(server: ShellServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable_shell, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.1)
    with server.connect() as client:
        client.say(b"bye now")
        assert client.hear() == b"now"
        assert isinstance(client.hear(), int)
        with suppress(ConnectionResetError, BrokenPipeError):
            while client.session:
                client.say(b"echo unheard")


@only(TCP)
def test_answers_still_come_after_a_half_close(server: ShellServer) -> None:
    with server.connect() as client:
        client.say(*[b"size 100000"] * 20, b"long 200", b"echo last")
        client.socket.shutdown(socket.SHUT_WR)
        heard, _ = hear_all(client)
        assert heard.count(b"x" * 100000) == 20
        assert b"last" in heard
        assert len(heard) == 221


@only(TCP)
def test_an_unfinished_answer_still_comes_after_a_half_close(server: ShellServer) -> None:
    with server.connect() as client:
        client.say(b"parts 5", b"echo last")
        client.socket.shutdown(socket.SHUT_WR)
        assert hear_all(client)[0] == [b"p"] * 5 + [b"last"]


@only(TCP)
@pytest.mark.parametrize("garbage", [b"\x00" * 100_000, b"\xff\xfe\n"[:2], b""])
def test_malformed_bytes_end_the_connection_without_an_answer(server: ShellServer, garbage: bytes) -> None:
    with server.connect() as client:
        client.socket.sendall(garbage)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.hear() == 0
