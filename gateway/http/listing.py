"""Long lists: the work of one turn of the event loop is bounded, however long the list is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import anyio

from gateway.core.jsontext import dumps
from gateway.runtime import Gateway

from . import views
from .callers import Caller

BATCH = 64  # items that are read or written in one turn of the loop: a millisecond of work
MAX_SCANNED = 4_096  # channels that are checked for one response, if most of them are not to be in it


async def visible_channels(
    caller: Caller, after: str, limit: int, contains: str, *, listened: bool
) -> tuple[list[str], str | None]:
    """Return at most *limit* names of channels after *after* that *caller* may know, and the name to continue after.

    The latter is None at the end of the list. Only names with *contains* in them, in either case, are returned, and
    with *listened* only channels that somebody listens to.
    """
    bus, wanted = caller.gateway.bus, contains.casefold()

    def is_shown(name: str) -> bool:
        return wanted in name.casefold() and (not listened or bus.listener_count(name) > 0) and caller.may_know(name)

    shown: list[str] = []
    for _ in range(MAX_SCANNED // BATCH):
        caller.charge(1)
        names = caller.gateway.channels.listed(after, BATCH)
        for name in filter(is_shown, names):
            if len(shown) == limit:
                return shown, shown[-1]
            shown.append(name)
        if len(names) < BATCH:
            return shown, None
        after = names[-1]
        await anyio.sleep(0)
    return shown, after


async def describe_channels(gateway: Gateway, names: list[str]) -> list[dict[str, Any]]:
    """Return what REST shows of the channels with these *names*."""
    rows: list[dict[str, Any]] = []
    for start in range(0, len(names), BATCH):
        rows += views.channels(gateway, names[start : start + BATCH])
        await anyio.sleep(0)
    return rows


def list_slices(name: str, rows: Iterable[Any], /, **more: Any) -> Iterator[bytes]:
    """Yield a JSON object with *more* members and a list called *name*, `BATCH` of its *rows* in each slice."""
    rows, before = iter(rows), dumps({**more, name: []})[:-2]
    while some := list(islice(rows, BATCH)):
        yield before + b",".join(map(dumps, some))
        before = b","
    yield (b"" if before == b"," else before) + b"]}"
