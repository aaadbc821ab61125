"""The harness knows which records of a retired log must remain, and requests them from Arbor."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.message import Message, Peer
from gateway.demo_clients import ArborNode
from gateway.storage.record import encode
from tests.faults.harness import nodes
from tests.faults.harness.checks import check_history, records
from tests.faults.harness.connections import PATIENCE, RequestRefused, Sprout
from tests.faults.harness.disk import damage
from tests.faults.harness.fault_injector import FaultInjector
from tests.faults.harness.fork_server import ForkServer, GatewayProcess
from tests.faults.harness.ledger import LATE, Ledger, SentMessage
from tests.faults.harness.load import LoadClients, author
from tests.faults.harness.plan import GatewayFault
from tests.faults.harness.retired import RetentionAudit, removed_files_of
from tests.faults.harness.shim import Control
from tests.faults.runs import fork_server
from tests.faults.test_harness import GOOD, ledger, line, told

__all__ = ["fork_server"]
COMMUNITY = "SHA512_B32__" + "A" * 43


def test_records_of_a_retired_log_are_counted_once(tmp_path: Path) -> None:
    for first, name in ((1, "{0}"), (1, "{0}-{1:020d}"), (7, "{0}"), (10, "{0}")):
        (tmp_path / f"{name.format(f'{first:020d}', 9)}.facts.jsonl").write_bytes(line(first))
    (tmp_path / f"{1:020d}-{6:020d}.facts.jsonl").write_bytes(line(2))
    for first in (10, 12):
        (tmp_path / f"{first:020d}.jsonl").write_bytes(line(first))
    assert [record.seq for record in records(tmp_path)] == [1, 10, 12]


def retired(kept: int) -> Ledger:
    """A ledger of three, of which retention has left those from *kept* on."""
    held = ledger("a", "b", "c")
    held.retention_runs, held.locate = True, lambda: {"a": 1, "b": 2}
    held.record_retention(kept, 0)
    return held


def test_a_history_must_lack_exactly_the_retired_messages() -> None:
    check_history(held := retired(3), "lobby", GOOD[2:])
    assert held.violations == []
    check_history(held := retired(3), "lobby", GOOD[1:])
    assert held.violations == ["1 are shown that retention took: b"]
    check_history(held := retired(2), "lobby", GOOD[2:])
    assert held.violations == ["1 that were accepted are lost: b"]
    held.record_retention(1, 0)
    assert held.violations[1:] == ["1 is kept, and 2 was the first before"]


def test_a_key_may_be_reused_once_its_message_is_retired() -> None:
    held = retired(1)
    held.record_accept(held.messages["a"], 4, "id 4")
    held.record_retention(2, 0)
    assert held.violations == []
    held.record_accept(held.messages["b"], 5, "id 5")
    held.record_retention(2, 0)
    assert held.violations == ["b was accepted twice: as 2, which is kept, and again"]


def test_a_reused_key_is_located_at_its_last_use() -> None:
    held = retired(2)
    held.add("d", held.messages["a"])
    held.locate = lambda: {"a": 7}
    assert held.is_retired(held.messages["a"])
    held.record_retention(2, 0)
    assert not held.is_retired(held.messages["a"])
    check_history(held, "lobby", [*GOOD[1:], told(7, "a")])
    assert held.violations == [], "its answer was lost"
    held.record_retention(2, 0)
    check_history(held, "lobby", [GOOD[1], told(4, "c"), told(7, "a")])
    assert held.violations == ["c was accepted as 3 id 3 and is 4 id 4"]


# Nodes


def forest(*parents: str | None) -> Ledger:
    """Nodes that were accepted one after the other, called by their places; each below that of *parents*, if any."""
    held = Ledger(retention_runs=True)
    for number, parent in enumerate(parents):
        above = None if parent is None else held.messages[parent]
        content = f"{number} says something"
        on = None if above is None else ArborNode(above.node or "", above.raw)
        node = author().reply(COMMUNITY, content, {}, on)
        below = None if above is None else above.node
        sent = SentMessage(
            str(number), "lobby", "sprout", {"content": content}, node=node.id, raw=node.raw, parent=below
        )
        held.record_accept(held.add("c", sent))
    held.locate = lambda: {token: seq for seq, token in enumerate(held.messages, 1)}
    held.record_retention(1, 0)
    return held


def offered(held: Ledger, *tokens: str) -> nodes.Offered:
    """An answer that gives the nodes of *tokens*, all of which stand right below the community."""
    sent = [held.messages[token] for token in tokens]
    found = {each.node or "": each.raw for each in sent}
    leaves = [ArborNode(each.node or "", each.raw) for each in sent]
    return nodes.Offered(found, {id: [COMMUNITY] for id in found}, {"lobby": leaves})


def complaints(held: Ledger, before: nodes.Before, answer: nodes.Offered) -> list[str]:
    nodes.judge(held, {"lobby": COMMUNITY}, before, answer)
    return held.violations


def test_a_held_node_that_is_not_offered_is_a_violation() -> None:
    held = forest(None, None)
    before = nodes.Before.of(held)
    assert complaints(held, before, offered(held, "0", "1")) == []
    assert complaints(held, before, offered(held, "1")) == ["the node of 0 is not given to who asks for it"]


def test_nodes_retired_during_a_request_may_be_offered_or_not() -> None:
    held = forest(None, None)
    before = nodes.Before.of(held)
    held.record_retention(2, 0)
    assert complaints(held, before, offered(held, "1")) == complaints(held, before, offered(held, "0", "1")) == []


def test_offering_retired_nodes_or_their_descendants_is_a_violation() -> None:
    held = forest(None, "0", None)
    held.record_retention(2, 0)
    before = nodes.Before.of(held)
    assert complaints(held, before, offered(held, "2")) == []
    complaints(held, before, offered(held, "0", "1", "2"))
    given = "is given, although retention took it or what it stands below"
    assert held.violations[:2] == [f"the node of {token} {given}" for token in ("0", "1")]
    assert [wrong.split(",")[0] for wrong in held.violations[2:]] == ["a leaf of lobby is 0", "a leaf of lobby is 1"]


def test_a_refused_or_incomplete_ancestry_is_a_violation() -> None:
    held = forest(None, "0")
    first, second = held.nodes
    good = offered(held, "0", "1")
    before = nodes.Before.of(held)
    assert complaints(held, before, good._replace(above={second: [COMMUNITY, first]})) == []
    complaints(held, before, good._replace(above={second: [COMMUNITY]}))
    complaints(held, before, good._replace(above={second: RequestRefused("status 4")}))
    assert [wrong[:21] for wrong in held.violations] == ["the ancestry of 1 is "] * 2
    held.violations.clear()
    held.record_retention(2, 0)
    assert complaints(held, before, good._replace(above={second: RequestRefused("status 4")})) == []


def test_status_4_without_a_retired_ancestor_is_a_violation() -> None:
    held = forest(None, "0")
    held.record_orphans([held.messages["1"]])
    held.record_retention(1, 0)
    assert held.violations == ["status 4 answered nodes below ['0'], which are held"]
    held.violations.clear()
    held.record_orphans([held.messages["1"]])
    held.record_retention(2, 0)
    assert held.violations == []


def test_only_descendants_of_retired_nodes_may_be_reordered() -> None:
    held = forest(None, "0", None)
    assert not held.may_be_reordered("1")
    held.record_retention(2, 0)
    assert held.may_be_reordered("1")
    assert not held.may_be_reordered("2")


def test_an_unlocated_message_counts_as_held_until_it_would_be_late() -> None:
    held = forest(None)
    held.locate = dict
    (sent,) = held.messages.values()
    held.record_retention(1, sent.at + LATE)
    assert held.is_held(sent)
    held.record_retention(1, sent.at + LATE + 1)
    assert not held.is_held(sent), "nobody could tell any more that it was no copy of something retired"


def message(seq: int, token: str) -> bytes:
    content = json.dumps({"content": token}).encode()
    return encode(Message("lobby", Peer(1, "rest"), "rest", content, seq=seq, id=f"id {seq}", time=1000 + seq))


def test_the_audit_finds_messages_in_every_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    audit = RetentionAudit(data)
    (data / "log").mkdir(parents=True)
    (removed_files_of(data) / f"{1:020d}.jsonl").write_bytes(message(1, "a") + message(2, "b"))
    (data / "log" / f"{3:020d}.jsonl").write_bytes(message(3, "c"))
    opened = data / "log" / f".open-{4:020d}.jsonl"
    opened.write_bytes(message(4, "a"))
    assert audit.positions() == {"a": 4, "b": 2, "c": 3}
    opened.write_bytes(b"")
    assert audit.positions() == {"a": 1, "b": 2, "c": 3}, "what was not synced may be cut"


@pytest.mark.parametrize("seed", range(4))
def test_damage_to_an_unread_file_is_marked_as_unread(tmp_path: Path, seed: int) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / f".open-{3:020d}.jsonl").write_bytes(line(3))
    (log / f"{1:020d}.jsonl").write_bytes(message(1, "a") + message(2, "b"))
    assert not damage("cut sealed", tmp_path, random.Random(seed)).unread
    (log / f"{1:020d}.jsonl").write_bytes(message(1, "a") + message(2, "b"))
    (log / f"{1:020d}.facts.jsonl").touch()
    done = damage("cut sealed", tmp_path, random.Random(seed))
    assert done.tokens
    assert done.unread


# With a gateway


@pytest.fixture(scope="module")
def running(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    place = tmp_path_factory.mktemp("gateway")

    async def start() -> GatewayProcess:
        grants = {"TRELLIS_AUTH__GRANTS": json.dumps({"anonymous": ["*:*", "admin:*"]})}
        return await fork_server.start(place / "data", place / "life", grants, Control(place / "control"))

    running = asyncio.run(start())
    yield running
    running.kill()
    asyncio.run(fork_server.ended())


def test_a_request_that_is_answered_with_a_status_raises_request_refused(running: GatewayProcess) -> None:
    async def ask() -> list[ArborNode]:
        async with Sprout(running.sprout) as sprout:
            return await sprout.response(f"ancestry {{}} {COMMUNITY} 9")

    with pytest.raises(RequestRefused, match="status 4"):
        asyncio.run(ask())


def test_an_author_brings_an_identity_that_the_gateway_lacks(running: GatewayProcess) -> None:
    async def publish() -> int:
        clients = LoadClients(lambda: running, Ledger(), random.Random(1), "t", sure=True)
        await clients.find_communities()
        identity, codes = author().identity(), list[int]()
        async with Sprout(running.sprout) as sprout:
            sprout.held[identity.id] = identity
            sprout.on_status = lambda _number, code: codes.append(code)
            sprout.announce([author().reply(clients.communities["lobby"], "hello", {})])
            async with asyncio.timeout(PATIENCE):
                while not codes:
                    await sprout.read()
        return codes[0]

    assert asyncio.run(publish()) == 0


def test_a_run_that_ends_during_a_fault_leaves_nothing_open(running: GatewayProcess) -> None:
    async def end() -> None:
        injector = FaultInjector(running, Ledger(), random.Random(1), "t")
        injecting = asyncio.create_task(injector.inject(GatewayFault("pause", 5.0)))
        while state(running.pid) != "T":
            await asyncio.sleep(0.01)
        injecting.cancel()
        await asyncio.gather(injecting, return_exceptions=True)
        running.signal(signal.SIGCONT)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(end())
        gc.collect()
    assert [str(each.message) for each in told] == []


def state(pid: int) -> str:
    """What a process does: R, S, T, Z..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
