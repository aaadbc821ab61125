"""The answers of a webhook receiver cannot harm the gateway."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_network

import anyio
import anyio.to_thread
import pytest

from gateway.webhooks.addresses import FREE_LINES, LINE_BURST, LINE_SECONDS, LINE_SHARE, MAX_LINES
from gateway.webhooks.sender import Sender, Verdict
from tests.still import PATIENCE
from tests.turns_of_others import turns_of_others

TOO_LONG = "the head of its answer is too long"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TRIES = 5
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
# Each answer with what is said of it. A head of 33,000 lines took 93 ms at once, and so many chunks 260 ms in all.
MANY_PARTS = {
    "chunks of one byte": (CHUNKED + b"1\r\nx\r\n" * 12_000 + b"0\r\n\r\n", ""),
    "informational responses": (b"HTTP/1.1 100 \r\n\r\n" * 5_000 + EMPTY, TOO_LONG),
    "headers": (OK + b"a:\n" * 33_000 + b"\n", TOO_LONG),
    "a long header": (OK + b"a:" + b"b" * 99_000 + b"\r\n\r\n", TOO_LONG),
    "trailers": (CHUNKED + b"0\r\n" + b"a:\n" * 33_000 + b"\n", ""),
    "a long body": (OK + b"Content-Length: 99999999\r\n\r\n" + b"x" * 999_999, ""),
}


@contextmanager
def receiver(answer: bytes) -> Iterator[str]:
    """The URL of a receiver that answers one delivery with these bytes."""

    def run(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            with suppress(ConnectionError):
                connection.sendall(answer)
                while connection.recv(1 << 16):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, args=(listener,))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join()


@pytest.mark.parametrize(("answer", "fault"), MANY_PARTS.values(), ids=MANY_PARTS)
def test_an_answer_of_many_parts_leaves_the_loop_to_others(answer: bytes, fault: str) -> None:
    """64 KiB of it held the loop for 30 to 80 ms, each time; anything may be slow once on a busy machine."""
    longest = list[float]()

    async def scenario() -> None:
        sender = Sender([ip_network("127.0.0.0/8")], "test")
        with receiver(answer) as url:
            async with turns_of_others(longest):
                outcome = await sender.send(url, {}, b"{}", 20)
            await sender.close()
        assert outcome.verdict is (Verdict.UNREACHABLE if fault else Verdict.DELIVERED)
        assert outcome.error == fault

    while not longest or (longest[-1] >= 0.02 and len(longest) < TRIES):
        anyio.run(scenario)
    assert min(longest) < 0.02, f"{min(longest) * 1000:.0f} ms of work at once"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_connection_whose_tls_handshake_takes_too_long_is_closed(loop: str) -> None:
    """It would stay open until the garbage collector finds it."""

    def run(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE)
            while connection.recv(1 << 16):
                pass
        closed.set()

    async def scenario(url: str) -> None:
        sender = Sender([ip_network("127.0.0.0/8")], "test")
        assert (await sender.send(url, {}, b"{}", 0.2)).error == "no complete answer within 0.2 s"
        assert await anyio.to_thread.run_sync(closed.wait, PATIENCE), "while the loop goes on"
        await sender.close()

    closed = threading.Event()
    gc.disable()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=run, args=(listener,), daemon=True).start()
            anyio.run(scenario, f"https://127.0.0.1:{listener.getsockname()[1]}/", backend=loop)
    finally:
        gc.enable()


def test_lines_beyond_the_usual_are_paced_over_all_answers() -> None:
    """A receiver that answers at once with as many lines as it may would take the whole loop."""
    most = MAX_LINES - 2 * FREE_LINES
    answer = OK + b"a:\r\n" * most + b"Content-Length: 0\r\n\r\n"
    seconds = (most - FREE_LINES) * LINE_SECONDS

    async def scenario() -> float:
        sender = Sender([ip_network("127.0.0.0/8")], "test")
        begin = time.monotonic()
        for _ in range(round(2 * LINE_BURST / seconds)):
            with receiver(answer) as url:
                assert (await sender.send(url, {}, b"{}", 20)).verdict is Verdict.DELIVERED
                await sender.close()
        return time.monotonic() - begin

    assert anyio.run(scenario) > 0.8 * LINE_BURST / LINE_SHARE
