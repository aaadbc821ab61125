"""The log stays bounded while channels, peers, nodes and streams come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters import ADAPTERS
from adapters.sprout.forest import forest
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.wire import base64url
from gateway.adapter import ConnectionRequest
from gateway.core.message import Message
from gateway.core.principal import Principal
from gateway.http.stats import report
from gateway.runtime import Gateway, clock
from gateway.settings.settings import settings_model
from gateway.storage import compaction
from gateway.storage import index as index_module
from gateway.storage.archive import verify
from gateway.storage.log import SealPolicy
from gateway.storage.retention import RetentionLimits
from tests.still import Posted

KEY = Path(__file__).parents[1] / "vectors/sprout/keys/alice.privkey"
ROUNDS = 20


class ChurningGateway:
    """A gateway without an event loop whose log keeps 10,000 bytes, and those who come and go."""

    def __init__(self, data: Path) -> None:
        self.posted = Posted()
        values: dict[str, Any] = {"data": data, "limits": {"rates": "off"}}
        self.gateway = Gateway(settings_model(ADAPTERS)(**values), ADAPTERS)
        self.gateway.start(self.posted.put)
        self.gateway.log._writer._sealing = SealPolicy(bytes=4096)
        self.adapters: dict[str, Any] = {adapter.name: adapter for adapter in self.gateway.adapters}
        self.retention = self.gateway.retention
        self.retention.limits = RetentionLimits(bytes=10_000)
        self.retention._min_facts_bytes = 5_000
        self.key = SecretKey(KEY.read_bytes())

    def settle(self) -> None:
        """Wait until everything is on disk and in the index."""
        log, index = self.gateway.log, self.gateway.index
        for _ in range(2):
            self.posted.until_called(lambda done: self.adapters["sprout"].services.work(lambda: None, lambda _: done()))
            self.posted.until_called(lambda done: log.when_synced(log.next_seq - 1, done))
        self.posted.until_called(lambda done: index.submit(lambda: self.posted.put(done)))

    def round(self, number: int) -> None:
        """Ten of most kind come, say something, and go."""
        bus, now = self.gateway.bus, clock()
        for each in range(10 * number, 10 * number + 10):
            name = f"channel {each}"
            bus.publish(Message(name, bus.peers.identity("streamr", f"0x{each:040x}"), "rest", b'"hello"'))
            bus.channels.close(name)
            streams = self.adapters["streamr"].streams
            streams.describe(f"stream {each}", {"description": "mine"})
            streams.forget(f"stream {each}")
        identity = forest.sign_identity(f"alice {number}", self.key, now - 10)
        author = forest.node_id(identity)
        community = forest.sign_community(f"community {number}", author, self.key, now - 9)
        root = forest.decode(community)
        assert isinstance(root, forest.Community)
        place = forest.position_below(forest.node_id(community), root)
        reply = forest.sign_reply(place, forest.Content(b"hi"), author, self.key, now - 8)
        lines = [f"{forest.node_id(raw)} {base64url.encode(raw).decode()}" for raw in (identity, community, reply)]
        session = self.adapters["sprout"].accept(ConnectionRequest(Principal("sprout:anonymous", "")))
        session.receive_data("\n".join(("announce 1 3", *lines, "")).encode())
        self.settle()
        session.receive_eof()
        for channel in bus.channels.registered():
            bus.channels.close(channel)
        self.settle()

    def retire(self) -> None:
        """Retire what is old, and compact what is left."""
        self.retention.tick()
        self.posted.until(lambda: not self.retention._busy and not self.retention.compacting)

    def size(self) -> int:
        """The bytes of the log."""
        return sum(path.stat().st_size for path in (self.gateway.settings.data / "log").iterdir())


@pytest.fixture
def churning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChurningGateway]:
    monkeypatch.setattr(index_module, "GATHER_SECONDS", 0)
    monkeypatch.setattr(compaction, "GRACE_SECONDS", 0)
    churning = ChurningGateway(tmp_path / "data")
    yield churning
    churning.gateway.stop()
    churning.posted.drain()


@pytest.mark.slow
def test_the_log_stays_bounded_while_everything_in_it_changes(churning: ChurningGateway) -> None:
    sizes = []
    for number in range(ROUNDS):
        churning.round(number)
        churning.retire()
        sizes.append(churning.size())
    assert max(sizes[ROUNDS // 2 :]) < 1.3 * max(sizes[: ROUNDS // 2]), sizes
    assert sizes[-1] < 50_000
    assert 0 < report(churning.gateway)["factsBytes"] < sizes[-1]
    proofs = [row.signature_check() for row in ADAPTERS]
    log = churning.gateway.settings.data / "log"
    assert verify(log, lambda entry: next(filter(None, (proof(entry) for proof in proofs)), None)).faults == []
