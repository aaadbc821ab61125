"""Long lists, as REST answers them: what is looked at, and written, in one turn of the loop is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import anyio

from gateway.core.jsontext import dumps
from gateway.runtime import Gateway

from . import views
from .callers import Caller

BATCH = 64  # things that are looked at, or written, in one turn of the loop: a millisecond's work
MAX_SCANNED = 4_096  # channels that are looked at for one answer, where most may not be shown


async def visible_channels(caller: Caller, after: str, limit: int) -> tuple[list[str], str | None]:
    """At most *limit* names of channels after one that *caller* may know, and after which name there may be more."""
    shown: list[str] = []
    for _ in range(MAX_SCANNED // BATCH):
        names = caller.gateway.channels.listed(after, BATCH)
        for name in filter(caller.may_know, names):
            if len(shown) == limit:
                return shown, shown[-1]
            shown.append(name)
        if len(names) < BATCH:
            return shown, None
        after = names[-1]
        await anyio.sleep(0)
    return shown, after


async def describe_channels(gateway: Gateway, names: list[str]) -> list[dict[str, Any]]:
    """What REST shows of the channels with these *names*."""
    rows: list[dict[str, Any]] = []
    for start in range(0, len(names), BATCH):
        rows += views.channels(gateway, names[start : start + BATCH])
        await anyio.sleep(0)
    return rows


def list_slices(name: str, rows: Iterable[Any], /, **more: Any) -> Iterator[bytes]:
    """An object with *more* members and a list called *name*, `BATCH` of its *rows* in each slice; for `paced`."""
    rows, before = iter(rows), dumps({**more, name: []})[:-2]
    while some := list(islice(rows, BATCH)):
        yield before + b",".join(map(dumps, some))
        before = b","
    yield (b"" if before == b"," else before) + b"]}"
