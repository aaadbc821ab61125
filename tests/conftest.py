"""The synchronous core on a real disk, without an event loop: what threads post waits until a test drains it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import typer.testing
import uvicorn.server
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import settings

from adapters.sprout.forest import openpgp
from gateway.core.bus import Bus
from gateway.core.channels import Channels
from gateway.core.message import Message, MessageIds, Peer
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.core.stamper import LogClock, Stamper
from gateway.monitoring.metrics import Metrics
from gateway.storage import index
from gateway.storage.compaction import Compaction
from gateway.storage.index import Index
from gateway.storage.index_schema import Row
from gateway.storage.indexed_log import IndexedLog
from gateway.storage.log import SealPolicy
from gateway.storage.record import Entry, Fact
from gateway.storage.retention import MIN_FACTS_BYTES, Retention, RetentionLimits
from gateway.storage.segments import Segments
from tests import analysed_routes
from tests.still import PATIENCE, Clock, Posted

pytest_plugins = ["tests.quick", "tests.order", "tests.sharing"]

# A shell that starts the suite in the background has it ignore SIGINT, and so would the programs that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines are busy: an example may take as long as it takes.
settings.register_profile("patient", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=int(os.environ.get("TRELLIS_FUZZ", "1")))
settings.load_profile("fuzz" if "TRELLIS_FUZZ" in os.environ else "patient")


# So may the answer to a request; httpx waits for 5 s unless it is told otherwise.
httpx._config.DEFAULT_TIMEOUT_CONFIG.read = PATIENCE

# With the defaults, the garbage collector spends a sixth of the suite's time on the tests themselves, which are many
# objects and stay. The service has the same thresholds.
gc.set_threshold(50_000, 20, 50)


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what was collected."""
    gc.collect()
    gc.freeze()


_create_tls_context = httpx._config.create_ssl_context


@cache
def _default_tls_context(trust_env: bool, _file: str | None, _folder: str | None) -> ssl.SSLContext:
    return _create_tls_context(trust_env=trust_env)


def _tls_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    """Clients that verify by default share a context: each of them would read all authorities, which takes 30 ms."""
    if verify is not True or cert is not None:
        return _create_tls_context(verify=verify, cert=cert, trust_env=trust_env)
    return _default_tls_context(trust_env, *map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))


httpx._transports.default.create_ssl_context = _tls_context  # type: ignore[attr-defined]

analysed_routes.share()

# Each call of the command in this process would build all sixty commands again, which takes 50 ms.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

# Tests wait for the tables of the index again and again, and each stop of a gateway does; 0.1 s each is minutes.
index.GATHER_SECONDS = 0.002


class HurriedAsyncio:
    """asyncio with sleeps that take a twentieth."""

    sleep = staticmethod(lambda seconds: asyncio.sleep(seconds / 20))

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


# uvicorn notices within 0.1 s that it is to stop, and then gives its connections as long: hundreds of tests stop one.
uvicorn.server.asyncio = HurriedAsyncio()  # type: ignore[assignment, attr-defined]


class Toy:
    """A protocol whose addresses are the names in capitals."""

    name = "toy"
    tables = ""
    tables_by_record = ()

    def flaw(self, _entry: Entry) -> str | None:
        return None

    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:
        address = channel.upper()
        while taken(address):
            address += "~"
        return address

    def channel(self, address: str) -> str | None:
        return None if address.endswith("~") else address.lower()

    def rows(self, _entries: Sequence[Entry]) -> Iterator[Row]:
        return iter(())

    def lifetime(self, _fact: Fact) -> None:
        return None

    def references(self, _entry: Entry) -> Iterator[str]:
        return iter(())

    def removal_statements(self, _fact: Fact) -> Iterator[Any]:
        return iter(())

    def pruning_statements(self) -> Iterator[Any]:
        return iter(())


class ToySession(Session):
    """Hears what is delivered, greeted and said farewell to, in order; what it is fed is published on `lobby`."""

    protocol: ClassVar[str] = "toy"

    def __init__(self, bus: Bus, name: str = "anonymous", address: str = "") -> None:
        super().__init__(bus, Principal(name, address))
        self.heard: list[Any] = []
        self.ticks: list[int] = []
        self.wakes = 0
        self.wake = self._woken

    def handle(self, data: bytes) -> None:
        self.bus.publish(Message("lobby", self.who, "toy", data), self)

    def deliver(self, message: Message) -> None:
        self.heard.append(message.content)
        self.put(message.form("toy", lambda m, _key: m.content))

    def peer_joined(self, channel: str, peer: Peer) -> None:
        self.heard.append(("+", channel, peer.number))

    def peer_left(self, channel: str, peer: Peer) -> None:
        self.heard.append(("-", channel, peer.number))

    def tick(self, now: int) -> None:
        self.ticks.append(now)

    def take(self) -> list[Any]:
        """What was heard since the last time."""
        heard, self.heard = self.heard, []
        return heard

    def _woken(self) -> None:
        self.wakes += 1


class EchoSession(ToySession):
    """A session of another protocol, which hears itself."""

    protocol = "echo"
    echo = True


@dataclass
class Core:
    """Everything between the listeners and the disk, in *data*."""

    data: Path
    clock: Clock = field(default_factory=Clock)
    sealing: SealPolicy = field(default_factory=SealPolicy)
    rules: tuple[Any, ...] = (Toy(),)
    create: bool = True
    salt: int = 0x2BADCAFE

    def __post_init__(self) -> None:
        self.posted = Posted()
        self.disk_faults: list[Exception] = []
        self.ids = MessageIds(self.salt)
        self.metrics = Metrics()
        self.segments = Segments(self.data / "log")
        self.index = Index(self.data / "index.sqlite", self.segments, self.ids, self.rules, self.posted.put)
        self.index.on_fault = self.disk_faults.append
        self.applied = self.index.catch_up()
        self.log_time = LogClock(self.clock, self.index.last_time).now
        self.log = IndexedLog(
            self.index,
            self.segments,
            self.posted.put,
            self.log_time,
            sealing=self.sealing,
            on_fault=self.disk_faults.append,
        )
        self.channels = Channels(self.rules, self._channel, create=self.create)
        for name, addresses, is_open in self.index.channels():
            self.channels.restore(name, addresses, open=is_open)
        self.peers = PeerRegistry(
            self.index.next_number,
            lambda first, count: void(self.log.fact("peer", {"first": first, "count": count})),
            self._peer,
            self.index.peer,
            self.index.peer_numbered,
        )
        self.bus = Bus(self.log, self.channels, self.peers, Stamper(self.ids, self.log_time), self.clock, self.metrics)
        self.log.on_resume = self.bus.resume_waiting
        self.open = True

    def start(self) -> Core:
        """Begin to write and to index."""
        self.index.start()
        self.log.start()
        return self

    def drain(self) -> None:
        """Run what the threads have posted."""
        self.posted.drain()

    def until(self, true: Callable[[], bool]) -> None:
        """Run what is posted until something is *true*."""
        self.posted.until(true)

    def sync(self) -> None:
        """Wait until everything appended is on disk; the callbacks that were due have run."""
        self.posted.until_called(lambda done: self.log.when_synced(self.log.next_seq - 1, done))

    def settle(self) -> None:
        """Wait until everything appended is on disk and in the tables."""
        self.sync()
        self.posted.until_called(lambda done: self.index.submit(lambda: self.posted.put(done)))

    def say(self, content: bytes = b'"hi"', channel: str = "lobby", **fields: Any) -> Message:
        """Publish something that peer 1000 says."""
        message = Message(channel, fields.pop("sender", Peer(1000, "toy")), "toy", content, **fields)
        return self.bus.publish(message)

    def retention(self, compaction: Compaction | None = None, slack: int = MIN_FACTS_BYTES, **keep: int) -> Retention:
        """Retention of this log, with the faults of the disk where others are."""
        retention = Retention(
            self.segments,
            self.index,
            RetentionLimits(**keep),
            self.clock,
            post=self.posted.put,
            append_marker=lambda: self.log.fact("counts", {"minute": 0, "flows": []}),
            compaction=compaction,
            min_facts_bytes=slack,
        )
        retention.on_fault = self.disk_faults.append
        return retention

    def stop(self) -> None:
        """Stop cleanly."""
        if self.open:
            self.open = False
            self.log.close()
            self.drain()
            self.index.close()

    def _channel(self, channel: str, addresses: Any, is_open: bool) -> None:
        self.log.fact("channel", {"channel": channel, "addresses": dict(addresses), "open": is_open})

    def _peer(self, peer: Peer) -> None:
        fields = {"peer": peer.number, "protocol": peer.protocol, "sender": peer.identity}
        self.log.fact("peer", fields | ({} if peer.name is None else {"name": peer.name}))


def void(_value: object) -> None:
    """Nothing."""


# OpenSSL proves that the numbers of a secret key are prime whenever one is read, 36 ms; tests read the same few keys.
openpgp._read_secret = cache(openpgp._read_secret)

_generate_rsa_key = rsa.generate_private_key


@cache
def _rsa_key(_number: int, *parameters: Any) -> Any:
    return _generate_rsa_key(*parameters)


@pytest.fixture
def rsa_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test generates the same RSA keys, in order: one takes 60 ms, and each new gateway with Sprout makes two."""
    numbers = count()
    monkeypatch.setattr(rsa, "generate_private_key", lambda *parameters: _rsa_key(next(numbers), *parameters))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_core(tmp_path: Path) -> Iterator[Callable[..., Core]]:
    """Makes a started core; a second one in the same place begins where the first, which is stopped, ended."""
    cores: list[Core] = []

    def make(**options: Any) -> Core:
        for core in cores:
            core.stop()
        cores.append(Core(tmp_path / "data", **options).start())
        return cores[-1]

    yield make
    for core in cores:
        core.stop()


@pytest.fixture
def core(make_core: Callable[..., Core]) -> Core:
    return make_core()


@pytest.fixture
def toy_session() -> type[ToySession]:
    return ToySession


@pytest.fixture
def echo_session() -> type[EchoSession]:
    return EchoSession


@pytest.fixture
def core_class() -> type[Core]:
    return Core
