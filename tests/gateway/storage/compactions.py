"""Logs whose facts are compacted, and what they and the index say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.message import Message
from gateway.facts_in_use import GatewayFactCache
from gateway.storage.archive import export
from gateway.storage.compaction import Compaction
from gateway.storage.fact_lifetimes import Lifetimes
from gateway.storage.log import SealPolicy
from gateway.storage.record import Fact, decode
from gateway.storage.retention import Retention

if TYPE_CHECKING:
    from tests.conftest import Core

EACH = SealPolicy(bytes=1)  # a segment for each batch

MakeCore = Callable[..., "Core"]


def retention(core: Core, *, slack: int = 1, **keep: int) -> Retention:
    memory = GatewayFactCache(core.bus, ())
    compaction = Compaction(core.segments, core.index, Lifetimes(core.rules), memory, core.posted.put)
    return core.retention(compaction, slack, **keep)


def run(core: Core, retention: Retention) -> None:
    """One tick, and all it brings about."""
    retention.tick()
    core.until(lambda: not retention._busy and not retention.compacting)
    core.settle()


def names(core: Core) -> list[str]:
    return sorted(path.name for path in (core.data / "log").iterdir())


def size(core: Core) -> int:
    return sum(path.stat().st_size for path in (core.data / "log").iterdir())


def entries(directory: Path) -> list[Message | Fact]:
    out = BytesIO()
    assert export(directory, out).faults == []
    return [decode(line) for line in out.getvalue().splitlines(keepends=True)]


def facts(core: Core) -> list[Fact]:
    return [entry for entry in entries(core.data / "log") if isinstance(entry, Fact)]


def tables(core: Core) -> dict[str, list[Any]]:
    """What the index says, but for offsets: those of the front are found by searching."""
    return {
        "records": core.index.rows("SELECT seq, channel, sender, at FROM records ORDER BY seq"),
        **{
            table: core.index.rows(f"SELECT * FROM {table} ORDER BY 1")
            for table in ("ids", "aliases", "channels", "peers", "meta")
        },
    }


def churn(core: Core, *numbers: int) -> None:
    """Channels and peers come, say something, and go."""
    for number in numbers:
        who = core.peers.identity("toy", f"peer {number}", "a name " * 20)
        core.say(b'"hello"', channel=f"channel {number}", sender=who)
        core.channels.close(f"channel {number}")
    core.settle()
    core.clock.now += 1_000


def same_when_made_anew(core: Core) -> None:
    before = tables(core)
    core.index.rebuild()
    core.drain()
    assert tables(core) == before | {"meta": tables(core)["meta"]}


def copy_before(core: Core, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Path]:
    copies: list[Path] = []
    real = getattr(owner, name)

    def copying(*arguments: Any, **options: Any) -> Any:
        copy = core.data.parent / f"copy {len(copies)}"
        copies.append(copy)
        shutil.copytree(core.data, copy)
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, copying)
    return copies


def forgettable(core: Core) -> None:
    """Make a log whose compaction lets go of somebody."""
    churn(core, 1)
    core.clock.now += 10_000
    core.say(b'"today"')
    core.settle()
    run(core, retention(core, age=1, slack=1 << 40))
