"""A stateful fuzzer of connections: random programs open, half-close and reset them, stop reading, and send much.

Every program follows from its seed, and is played on a gateway of its own, which has to serve a pair of honest peers
all the time, and to stop in order. A program uses only some of the moves (swarm testing): much of a few finds more
than a little of all.

`python -m tests.attacks.fuzz_connections FIRST LAST` plays programs and says which find something; `--tree` is as in
`python -m tests.attacks`.
"""

from __future__ import annotations

import argparse
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.server import Server

from .client_frames import (
    PING,
    RELAY,
    STREAMR,
    TRACKER,
    broadcast,
    frame,
    http,
    message,
    publish,
    request,
    subscribe_relay,
    subscribe_streamr,
    text_frame,
    websocket,
)
from .target import Target
from .unread import community_of
from .wire import NARROW, Raw

STEPS = 40
MAX_CONNECTIONS = 24  # at once
SERVED_SECONDS = 20.0  # an honest pair is served by then, however busy the machine is
STOP_SECONDS = 30.0
TOPICS = ("one", "two")
LARGE = 60_000  # characters, nearly the most that all protocols have room for
ALWAYS = ("open", "burst", "close")
ALL = '[2,11,"r","%s",0,1000,null]'
RESET = struct.pack("ii", 1, 0)


class Found(Exception):
    """The program has found a fault."""


class Program:
    """One random program against *target*. `done` is what it did, to be read when it found something."""

    def __init__(self, target: Target, seed: int) -> None:
        self.done: list[str] = []
        self._target = target
        self._chance = random.Random(seed)
        self._peers: list[Raw] = []
        self._reading: set[Raw] = set()
        self._topics = TOPICS[: self._chance.choice((1, 1, 2))]
        self._openings = self._chance.sample(OPENINGS, self._chance.choice((1, 2, len(OPENINGS))))
        self._moves = [name for name in MOVES if name in ALWAYS or self._chance.random() < 0.4]
        self._pause = self._chance.choice((0, 0.002, 0.002))  # seconds between two messages of a burst
        self._sizes = self._chance.choice(((10, 1_000, LARGE), (LARGE,), (LARGE,)))
        self._communities = {topic: community_of(target, topic) for topic in TOPICS}
        self._pair = websocket(target, RELAY), websocket(target, RELAY)
        self._said = 0
        self._pair[1].send(subscribe_relay("honest"))
        self._pair[1].receive_until(b"peers")

    def run(self, steps: int = STEPS) -> None:
        """Make *steps* moves; `Found` tells what is wrong."""
        weights = [MOVES[name][1] for name in self._moves]
        for _ in range(steps):
            name = self._chance.choices(self._moves, weights)[0]
            self.done.append(name)
            try:
                MOVES[name][0](self)
            except OSError:  # it was dropped, or there is no room
                self.done[-1] += " (in vain)"
            self._read()
            self._is_served()
        for peer in (*self._peers, *self._pair):
            peer.socket.close()

    # Moves

    def open(self) -> None:
        """Somebody comes and listens, reading or not."""
        if len(self._peers) >= MAX_CONNECTIONS:
            self.close()
        topic = self._chance.choice(self._topics)
        window = self._chance.choice((0, NARROW))
        peer = self._chance.choice(self._openings)(self._target, topic, self._communities[topic], window)
        peer.socket.setblocking(False)
        self._peers.append(peer)
        if not window:
            self._reading.add(peer)

    def close(self) -> None:
        """Somebody hangs up."""
        self._part(self._any())

    def reset(self) -> None:
        """Somebody is gone without a word."""
        peer = self._any()
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._part(peer)

    def half_close(self) -> None:
        """Somebody sends nothing more, and goes on reading or not."""
        self._any().socket.shutdown(socket.SHUT_WR)

    def stop_reading(self) -> None:
        """Somebody reads no more."""
        self._reading.discard(self._any())

    def read(self) -> None:
        """Somebody reads again."""
        self._reading.add(self._any())

    def half(self) -> None:
        """Somebody says half of something."""
        text = self._chance.choice(HALVES)
        self._any().socket.send(text[: self._chance.randint(1, len(text))])

    def noise(self) -> None:
        """Somebody says what is nothing at all."""
        self._any().socket.send(self._chance.randbytes(self._chance.choice((1, 100, 10_000))))

    def pings(self) -> None:
        """Somebody pings."""
        self._any().socket.send(frame(b"p" * 125, PING) * 200)

    def ask(self) -> None:
        """Somebody asks for everything, a few times, by REST."""
        peer = Raw(self._target.http)
        peer.send(request(self._target, f"/v1/channels/{self._chance.choice(self._topics)}/messages?limit=256") * 5)
        peer.socket.setblocking(False)
        self._peers.append(peer)

    def churn(self) -> None:
        """Several come and go at once."""
        for _ in range(10):
            peer = Raw(self._target.http if self._chance.random() < 0.7 else self._target.sprout)
            if self._chance.random() < 0.5:
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            peer.socket.close()

    def burst(self) -> None:
        """Somebody says much, one message after another, or at once."""
        topic, size = self._chance.choice(self._topics), self._chance.choice(self._sizes)
        count, streams = self._chance.randint(50, 250), self._chance.random() < 0.1
        speaker = websocket(self._target, STREAMR if streams else RELAY)
        now = time.time_ns() // 1_000_000
        for n in range(count):
            text = "x" * size
            speaker.send(publish(message(topic, f'"{text}"', now, n)) if streams else broadcast(topic, text))
            if self._pause:
                time.sleep(self._pause)
            self._read()
        speaker.socket.close()

    # What moves are made of

    def _any(self) -> Raw:
        if not self._peers:
            self.open()
        return self._chance.choice(self._peers)

    def _part(self, peer: Raw) -> None:
        self._peers.remove(peer)
        self._reading.discard(peer)
        peer.socket.close()

    def _read(self) -> None:
        for peer in self._reading:
            if peer.ended is None:
                peer.pull(1 << 20)

    def _is_served(self) -> None:
        """A message goes from one of the pair to the other, and REST answers."""
        self._said += 1
        speaker, listener = self._pair
        listener.socket.settimeout(SERVED_SECONDS)
        heard = b""
        try:
            speaker.send(broadcast("honest", str(self._said)))
            while b'"%d"' % self._said not in heard:
                if not (data := listener.socket.recv(1 << 16)):
                    raise Found("an honest peer was dropped")
                heard += data
        except OSError as error:
            raise Found(f"an honest pair is not served: {error!r}") from None
        if self._said % 10 == 0 and b" 200 " not in http(self._target, "/readyz")[:20]:
            raise Found("it is not ready")


STATUS = text_frame([2, 1, "r", {"streams": {"one::0": {}}}])
Opening = Callable[[Target, str, str, int], Raw]
# fmt: off
OPENINGS: Final[tuple[Opening, ...]] = (
    lambda at, topic, _, window: _after(websocket(at, RELAY, window=window), subscribe_relay(topic)),
    lambda at, topic, _, window: _after(websocket(at, RELAY, window=window), subscribe_relay(topic)),
    lambda at, topic, _, window: _after(websocket(at, RELAY, window=window), subscribe_relay(topic)),
    lambda at, topic, _, window: _after(websocket(at, RELAY, window=window), subscribe_relay(topic)),
    lambda at, topic, _, window: _after(websocket(at, STREAMR, window=window), subscribe_streamr(topic)),
    lambda at, topic, _, window: _after(websocket(at, STREAMR, window=window), frame(ALL % topic)),
    lambda at, _, community, window: _after(Raw(at.sprout, window=window), f"subscribe 1 {community}\n".encode()),
    lambda at, _, community, window: _after(Raw(at.sprout, window=window), f"leaves_of 1 {community} 999\n".encode()),
    lambda at, topic, _, window: _after(Raw(at.http, window=window), request(at, f"/v1/channels/{topic}/events")),
    lambda at, _topic, _, window: _after(websocket(at, TRACKER, window=window), STATUS),
)
HALVES: Final = (
    broadcast("one", "x" * 60_000), publish(message("one", '"x"', 1)), b"announce 1 5\nSHA512_B32__", frame(b"x", 0),
    b"GET / HTTP/1.1\r\nHost: localhost\r\n", frame(b"x" * 1000, final=False), frame(b"\x03\xe8", 8), b"query 1 3\n",
)
# What a program does, and how often it does that beside the others.
MOVES: Final[dict[str, tuple[Callable[[Program], None], int]]] = {
    "open":         (Program.open, 30),
    "close":        (Program.close, 4),
    "reset":        (Program.reset, 4),
    "half close":   (Program.half_close, 4),
    "stop reading": (Program.stop_reading, 8),
    "read":         (Program.read, 4),
    "half":         (Program.half, 6),
    "noise":        (Program.noise, 2),
    "pings":        (Program.pings, 4),
    "ask":          (Program.ask, 4),
    "churn":        (Program.churn, 4),
    "burst":        (Program.burst, 26),
}
# fmt: on


def _after(peer: Raw, text: bytes) -> Raw:
    peer.send(text)
    return peer


def play(data: Path, seed: int, env: dict[str, str] | None = None) -> str | None:
    """Play the program of *seed* on a gateway of its own; what it found, if anything."""
    server = Server(data, env={"TRELLIS_LIMITS__RATES": "on", **(env or {})})
    http_port, sprout_port = (int(at.rpartition(":")[2]) for at in (server.http, server.sprout))
    program = Program(Target(http_port, sprout_port), seed)
    try:
        program.run()
    except Found as found:
        server.kill()
        return f"{found}; after {program.done}; {errors(server.log)}"
    try:
        code = server.stop(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it does not stop; after {program.done}; {errors(server.log)}"
    if code or errors(server.log):
        return f"it ended with {code}; after {program.done}; {errors(server.log)}"
    return None


def errors(log: str) -> list[str]:
    """The last line of each kind of traceback in *log*, without addresses."""
    ends = re.findall(r"Traceback .*\n(?:[ \t].*\n|\n)*(.*)", log)
    return sorted({re.sub(r"0x[0-9a-f]+", "0x", end) for end in ends})


def main() -> int:
    """Play many; tell by the exit code whether something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.fuzz_connections")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--tree", type=Path, help="the source of the gateway, if not this one")
    arguments = parser.parse_args()
    env = {} if arguments.tree is None else {"PYTHONPATH": str(arguments.tree), "PYTHONSAFEPATH": "1"}
    found = 0
    for seed in range(arguments.first, arguments.last + 1):
        with tempfile.TemporaryDirectory(prefix="trellis-") as folder:
            result = play(Path(folder), seed, env)
        found += result is not None
        sys.stdout.write(f"seed {seed}: {result or 'nothing'}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{found} of {arguments.last - arguments.first + 1} programs found something\n")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
