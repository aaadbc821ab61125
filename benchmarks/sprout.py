"""`python -m benchmarks.sprout`: Sprout, side by side with a relay on the Go library (sprout_relay/).

Each round measures how many items (nodes taken, deliveries, answers) a second of the server's CPU time buys, and how
many a second of the clock. The servers take turns. What only the gateway can do is measured without a ratio.
Exit codes: 0 done, 1 a server did not start, stalled or refused a node.
"""

from __future__ import annotations

import argparse
import http.client
import json
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from adapters.sprout import forest
from adapters.sprout.codec import NodeLine, Parser, Response

from .measure import cpu_seconds
from .servers import ROOT, Unavailable, _last_words, _program, _running
from .sprout_forest import plant
from .sprout_load import Peer, Stalled, announce, ask_all, subscribe, until_held
from .sprout_nodes import Tree, trees

RELAY = Path(__file__).parent / "sprout_relay"
PATIENCE_SECONDS = 120.0
LISTENERS = 50


@dataclass(frozen=True)
class Server:
    """A server that is up."""

    name: str
    pid: int
    sprout: str
    http: str = ""


@dataclass(frozen=True)
class Round:
    """One server under one workload, once: *items* in so many seconds of its CPU and of the clock."""

    work: str
    server: str
    items: int
    cpu_seconds: float
    seconds: float

    @property
    def per_cpu_second(self) -> float:
        """What is compared."""
        return self.items / self.cpu_seconds

    @property
    def per_second(self) -> float:
        """What its users see."""
        return self.items / self.seconds


@contextmanager
def trellis(work: Path, name: str = "trellis", planted: int = 0) -> Iterator[Server]:
    """This gateway as a user starts it, with its log on disk, but without rate limits; with *planted* replies."""
    data = work / "trellis-sprout-data"
    shutil.rmtree(data, ignore_errors=True)
    if planted:
        plant(data, planted)
    program = _program("trellis", str(Path(sys.executable).parent))
    command = [program, "serve", "--port", "0", "--sprout-port", "0", "--data", str(data)]
    with _running("trellis-sprout", command, work, TRELLIS_LIMITS__RATES="off") as (process, log):
        yield _ready(name, process, log)
    shutil.rmtree(data, ignore_errors=True)


@contextmanager
def reference(work: Path, name: str = "go", flags: Sequence[str] = ()) -> Iterator[Server]:
    """The relay on the Go library, with its grove on disk; it watches that and logs, as the genuine one does."""
    binary, grove = work / "sprout-relay", work / "grove"
    made = subprocess.run(
        [_program("go"), "build", "-o", binary, "."], cwd=RELAY, capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise Unavailable(made.stderr)
    shutil.rmtree(grove, ignore_errors=True)
    grove.mkdir(parents=True)
    with _running("sprout-relay", [str(binary), *flags, str(grove)], work) as (process, log):
        yield _ready(name, process, log)
    shutil.rmtree(grove, ignore_errors=True)


def _ready(name: str, process: subprocess.Popen[bytes], log: Path) -> Server:
    stdout = process.stdout
    assert stdout is not None  # it is a pipe
    line = stdout.readline() if select.select([stdout], [], [], PATIENCE_SECONDS)[0] else b""
    if not line:
        raise Unavailable(_last_words(log))
    told = json.loads(line)
    return Server(name, process.pid, told["sprout"], told.get("http", ""))


SERVERS: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "go": reference,
    "go-lean": partial(reference, name="go-lean", flags=["-lean"]),
    "trellis": trellis,
    "trellis-50": partial(trellis, name="trellis-50", planted=50),
    "trellis-5k": partial(trellis, name="trellis-5k", planted=5_000),
    "trellis-500k": partial(trellis, name="trellis-500k", planted=500_000),
}
USUAL = ("go", "trellis")


class Work:
    """One workload: `prepare` is not measured, `run` is, and says how many items there were."""

    title: str
    must: float | None = None
    reference = True  # whether the Go relay can do it

    def __init__(self, size: int) -> None:
        self.size = size
        self.trees: list[Tree] = []

    def fresh(self) -> None:
        """Make the nodes of the next round, the same for all servers."""
        self.trees = trees(1, self.size)

    def measures(self, server: str) -> bool:
        """Whether *server* can do it."""
        return server == "trellis" or (self.reference and server.startswith("go"))

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        """Connect, and yield what is to be measured."""
        raise NotImplementedError


class Announce(Work):
    """Nodes taken in, one a message; the gateway verifies them and has them on disk, the reference does neither."""

    title = "announce, 1 connection, 1 node a message"
    must = 8.0
    batch = 1

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer, tree = Peer(server.sprout), self.trees[0]
        subscribe([peer], tree.community.id)
        announce(peer, [tree.identity])
        until_held(peer, [tree.identity.id])
        announce(peer, [tree.community])
        until_held(peer, [tree.community.id])

        def run() -> int:
            announce(peer, tree.replies, batch=self.batch)
            for start in range(0, self.size, 500):
                until_held(peer, [line.id for line in tree.replies[start : start + 500]])
            return self.size

        yield run
        _close([peer])


class AnnounceMany(Announce):
    """The same, twenty nodes a message."""

    title = "announce, 1 connection, 20 nodes a message"
    batch = 20


class Fan(Work):
    """What one announces, fifty hear."""

    title = f"fan-out to {LISTENERS}"
    must = 10.0

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer, tree = Peer(server.sprout), self.trees[0]
        listeners = [Peer(server.sprout) for _ in range(LISTENERS)]
        subscribe([peer, *listeners], tree.community.id)
        for root in (tree.identity, tree.community):
            announce(peer, [root], listeners)
            until_held(peer, [root.id])

        def run() -> int:
            announce(peer, tree.replies, listeners)
            return self.size * LISTENERS

        yield run
        _close([peer, *listeners])


class Ask(Work):
    """One question about a forest of a certain size, again and again."""

    question: bytes
    forest_size = 5_000

    def fresh(self) -> None:
        self.trees = self.trees or trees(1, self.forest_size)

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer, tree = Peer(server.sprout), self.trees[0]
        subscribe([peer], tree.community.id)
        for root in (tree.identity, tree.community):
            announce(peer, [root])
            until_held(peer, [root.id])
        announce(peer, tree.replies)
        for start in range(0, self.forest_size, 500):
            until_held(peer, [line.id for line in tree.replies[start : start + 500]])
        count = self.size if server.name != "trellis" else 20 * self.size
        text = self.question.replace(b"ID", tree.community.id.encode())
        time.sleep(0.5)  # the index is written in the background

        def run() -> int:
            ask_all(peer, text, count)
            return count

        yield run
        _close([peer])


class Flat(Work):
    """One question about forests that were planted: the time is to be the same for all of them."""

    title = "leaves_of 10, whatever the forest's size"
    question = b"leaves_of %d ID 10\n"

    def fresh(self) -> None:
        pass

    def measures(self, server: str) -> bool:
        return server.startswith("trellis-")

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer = Peer(server.sprout)
        community = next(line for line in _nodes(peer.ask(b"list %d 1 9\n")) if b"room " in line.raw)
        text = self.question.replace(b"ID", community.id.encode())

        def run() -> int:
            ask_all(peer, text, self.size)
            return self.size

        yield run
        _close([peer])


class FlatList(Flat):
    """The newest of all."""

    title = "list 10, whatever the forest's size"
    question = b"list %d 2 10\n"


class LeavesOf(Ask):
    """The newest of a community."""

    title = "leaves_of 10 of 5,000"
    must = 30.0
    question = b"leaves_of %d ID 10\n"


class List(Ask):
    """The newest of all."""

    title = "list 10 of 5,000"
    must = 30.0
    question = b"list %d 2 10\n"


class Bootstrap(Work):
    """What a client does that begins: communities, authors, and each node with all that is above it."""

    title = "bootstrap of 10,000 nodes"
    reference = False

    def fresh(self) -> None:
        self.trees = self.trees or trees(10, self.size // 10)

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        peer = Peer(server.sprout)
        for tree in self.trees:
            announce(peer, [tree.identity, tree.community, *tree.replies], batch=20)
        time.sleep(0.5)

        def run() -> int:
            held: set[str] = set()
            for community in _nodes(peer.ask(b"list %d 1 1024\n")):
                id = community.id.encode()
                _bootstrap(peer, id, held)
            return len(held)

        yield run
        _close([peer])


def _bootstrap(peer: Peer, community: bytes, held: set[str]) -> None:
    peer.ask(b"subscribe %%d %b\n" % community)
    leaves = _nodes(peer.ask(b"leaves_of %%d %b 1024\n" % community))
    peer.ask(b"announce %d 0\n")
    for leaf in leaves:
        if leaf.id in held:
            continue
        node = forest.decode(leaf.raw)
        above = _nodes(peer.ask(b"ancestry %%d %b %d\n" % (leaf.id.encode(), node.depth)))
        for line in (*above, leaf):
            author = forest.decode(line.raw).author
            if author != forest.NULL_ID and author not in held:
                held |= {found.id for found in _nodes(peer.ask(b"query %%d 1\n%b\n" % author.encode()))}
            held.add(line.id)


def _nodes(text: bytes) -> tuple[NodeLine, ...]:
    parser = Parser()
    parser.feed(text[text.find(b"response ") :])
    frame = parser.next_frame()
    assert isinstance(frame, Response), text[:100]
    return frame.nodes


class Bridge(Work):
    """What REST says becomes nodes that the gateway signs, for one who listens or for many."""

    title = "bridged from REST to 1 listener"
    listeners = 1
    reference = False

    def fresh(self) -> None:
        pass

    @contextmanager
    def prepare(self, server: Server) -> Iterator[Callable[[], int]]:
        path = f"/v1/channels/bridge{time.time_ns()}"
        _rest(server, "PUT", path)
        while (community := _rest(server, "GET", path).get("community")) is None:
            time.sleep(0.02)
        listeners = [Peer(server.sprout) for _ in range(self.listeners)]
        subscribe(listeners, community)
        _rest(server, "POST", f"{path}/messages", b'"first"')
        _hear(listeners, [2] * self.listeners)  # the identity of who speaks, and the first node
        body = b"".join(b'{"n": %d, "text": "%b"}\n' % (n, b"x" * 80) for n in range(self.size))

        def run() -> int:
            before = [each.nodes for each in listeners]
            connection = http.client.HTTPConnection(server.http)
            connection.request("POST", f"{path}/messages", body, {"Content-Type": "application/x-ndjson"})
            _hear(listeners, [count + self.size for count in before])
            connection.close()
            return self.size

        yield run
        _close(listeners)


class BridgeMany(Bridge):
    """The same, to fifty."""

    title = f"bridged from REST to {LISTENERS} listeners"
    listeners = LISTENERS


def _hear(listeners: Sequence[Peer], wanted: Sequence[int]) -> None:
    waiting = {each.socket: (each, want) for each, want in zip(listeners, wanted, strict=True)}
    while waiting := {key: pair for key, pair in waiting.items() if pair[0].nodes < pair[1]}:
        readable, _, _ = select.select(list(waiting), [], [], PATIENCE_SECONDS)
        if not readable:
            raise Stalled("nothing came any more")
        for each in readable:
            waiting[each][0].take()


def _rest(server: Server, method: str, path: str, body: bytes | None = None) -> Any:
    connection = http.client.HTTPConnection(server.http)
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    text = connection.getresponse().read()
    connection.close()
    return json.loads(text)


def _close(peers: Sequence[Peer]) -> None:
    refused = sum(peer.refused for peer in peers)
    for peer in peers:
        peer.close()
    if refused:
        raise Stalled(f"{refused} requests were refused")


# fmt: off
WORKS: dict[str, Callable[[], Work]] = {
    "announce":  lambda: Announce(3_000),
    "announce20": lambda: AnnounceMany(3_000),
    "fan50":     lambda: Fan(500),
    "leaves_of": lambda: LeavesOf(200),
    "list":      lambda: List(100),
    "flat":      lambda: Flat(4_000),
    "flat-list": lambda: FlatList(4_000),
    "bootstrap": lambda: Bootstrap(10_000),
    "bridge":    lambda: Bridge(4_000),
    "bridge50":  lambda: BridgeMany(4_000),
}
# fmt: on


def measure(name: str, work: Work, server: Server) -> Round:
    """Run one round."""
    with work.prepare(server) as run:
        time.sleep(0.3)
        before, start = cpu_seconds(server.pid), time.perf_counter()
        items = run()
        taken, seconds = cpu_seconds(server.pid) - before, time.perf_counter() - start
    result = Round(name, server.name, items, taken, seconds)
    sys.stderr.write(
        f"{name:10} {server.name:8} {result.per_cpu_second:9.0f} a CPU-s  {result.per_second:9.0f} a second\n"
    )
    return result


def table(rounds: Sequence[Round]) -> str:
    """The best of each, with the ratio to the reference."""
    best: dict[tuple[str, str], list[Round]] = {}
    for each in rounds:
        best.setdefault((each.work, each.server), []).append(each)
    lines = [
        "| work | server | a CPU-second: best (median) | ratio | a second: best | ratio | must |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, server), group in best.items():
        other = best.get((name, "go")) if server != "go" else None
        cpu, wall = [each.per_cpu_second for each in group], [each.per_second for each in group]
        ratios = (
            (
                f"{max(cpu) / max(r.per_cpu_second for r in other):.1f}",
                f"{max(wall) / max(r.per_second for r in other):.1f}",
            )
            if other
            else ("", "")
        )
        must = WORKS[name]().must
        lines.append(
            f"| {WORKS[name]().title} | {server} | {max(cpu):,.0f} ({median(cpu):,.0f}) | {ratios[0]} |"
            f" {max(wall):,.0f} | {ratios[1]} | {must if must and server != 'go' else ''} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sprout", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--servers", nargs="+", choices=SERVERS, help="; ".join(SERVERS))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where results are written")
    options = parser.parse_args(argv)
    usual = [name for name in USUAL if name != "go" or shutil.which("go")]
    rounds: list[Round] = []
    try:
        for name in options.works:
            work = WORKS[name]()
            for number in range(options.rounds):
                work.fresh()
                names = [each for each in options.servers or usual if work.measures(each)]
                for each in names if number % 2 == 0 else names[::-1]:
                    with SERVERS[each](options.out / "servers") as server:
                        rounds.append(measure(name, work, server))
    except (Unavailable, Stalled, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    date = datetime.now(UTC)
    text = f"# Sprout, {date:%Y-%m-%d %H:%M} UTC\n\n{table(rounds)}\n"
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"sprout-{date:%Y%m%dT%H%M%SZ}.md"
    path.write_text(text)
    path.with_suffix(".json").write_text(json.dumps([asdict(each) for each in rounds], indent=1) + "\n")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
