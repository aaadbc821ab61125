"""A genuine implementation of negentropy (nostr-tools, from npm) learns its differences from a set here."""

from __future__ import annotations

import asyncio
import random
from hashlib import sha256
from typing import Any

import pytest

from gateway.reconciliation.items import ItemSet, id_of, make_item
from gateway.reconciliation.rounds import answer
from tests.npm import node_client, require_clients

MIB = 1 << 20


@pytest.mark.parametrize(
    ("ours", "theirs", "limit"), [(0, 200, MIB), (200, 0, MIB), (5_000, 5_000, MIB), (250, 250, 4_096)]
)
def test_a_genuine_client_learns_the_differences(ours: int, theirs: int, limit: int) -> None:
    require_clients()
    pick, all_items = (
        random.Random(ours + limit),
        [make_item(n // 2, sha256(b"%d" % n).digest(), n) for n in range(6_000)],
    )
    here, there = (set(pick.sample(all_items, count)) if count < 4_000 else set(all_items) for count in (ours, theirs))
    here -= set(pick.sample(all_items, 20))
    there -= set(pick.sample(all_items, 20))
    items = ItemSet()
    items.add(here)
    said = asyncio.run(learned(items, there, limit))
    assert set(said["have"]) == {id_of(item).hex() for item in there - here}
    assert set(said["need"]) == {id_of(item).hex() for item in here - there}


async def learned(items: ItemSet, there: set[bytes], limit: int) -> dict[str, Any]:
    """What the client, which has the items *there*, was told at the end."""
    async with node_client("negentropy.cjs") as client:
        pairs = [[int.from_bytes(item[:8]), id_of(item).hex()] for item in there]
        client.do("begin", items=pairs, limit=limit)
        while (said := await client.next_event("next"))["message"] is not None:
            reply = answer(items, bytes.fromhex(said["message"]), limit)
            assert len(reply) <= limit + 1_024
            client.do("answer", message=reply.hex())
        found: dict[str, Any] = said
        return found
