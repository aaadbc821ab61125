"""Random nodes of Arbor, and the forest that a loop makes of them."""

from __future__ import annotations

import random
from typing import Any

NULL_HASH = "NullHash_B0__"


def random_nodes() -> list[dict[str, Any]]:
    """Nodes of three communities, some with a wrong depth, an unknown parent or one that the gateway signed."""
    dice = random.Random(3)
    made: list[dict[str, Any]] = [{"node_id": "user", "type": 0, "parent": NULL_HASH, "depth": 0}]
    made += [{"node_id": f"com{n}", "type": 1, "parent": NULL_HASH, "depth": 0} for n in range(3)]
    for n in range(120):
        parent = dice.choice(made[1:] + [{"node_id": "gone", "depth": 3, "type": 2, "conversation": "lost"}] * 3)
        is_root = parent["type"] == 1
        conversation = (
            NULL_HASH
            if is_root
            else parent["node_id"]
            if parent.get("conversation") == NULL_HASH
            else parent["conversation"]
        )
        depth = parent["depth"] + (2 if n % 17 == 5 else 1)
        made.append(
            {
                "node_id": f"n{n}",
                "type": 2,
                "parent": parent["node_id"],
                "depth": depth,
                "conversation": conversation,
                "community": "com0",
            }
        )
    made.append(
        {"node_id": "below", "type": 2, "parent": "bridged", "depth": 9, "conversation": "x", "community": "com1"}
    )
    return made


def drawn_node(id: str, one: dict[str, Any], made: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of the node *one* in the forest of the nodes that were *made*, by a loop over all of them."""
    by_id = {other["node_id"]: other for other in made}
    children = [other for other in made if other["type"] == 2 and other["parent"] == id]
    above = by_id.get(one["parent"])
    thread = None if one["type"] != 2 else id if one["conversation"] == NULL_HASH else one["conversation"]
    size = sum(
        o["type"] == 2 and (o["node_id"] if o["conversation"] == NULL_HASH else o["conversation"]) == thread
        for o in made
    )
    return {
        "node_id": id,
        "root": one.get("community", id),
        "depth_ok": one["depth"] == 0
        if one["type"] != 2
        else None
        if above is None
        else one["depth"] == above["depth"] + 1,
        "parent_present": one["type"] != 2 or above is not None or one["parent"] == "bridged",
        "children": len(children),
        "is_leaf": not children,
        "thread_size": None if thread is None else size,
    }
