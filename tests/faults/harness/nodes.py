"""What Arbor is offered, compared with what is held: all that can be checked, and nothing that retention took.

What retention takes while we ask is judged neither way: it is looked at before and after.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from gateway.demo_clients import ArborNode

from .connections import RequestRefused, Sprout
from .ledger import Ledger, SentMessage, plain, token_of
from .load import author

LEAVES = 20  # of a community that are asked for: those of others are signed for it
ASKED = 500  # nodes in one query
LEVELS = 9  # of an ancestry
ABOVE = 3  # nodes of which it is asked for


class Before(NamedTuple):
    """What was known before the gateway was asked: the nodes that are *held*, by id, and tokens of messages.

    Those that retention took are *gone*; what they stood above is *cut*, which Arbor is not offered either.
    """

    held: dict[str, SentMessage]
    cut: set[str]
    gone: set[str]

    @classmethod
    def of(cls, ledger: Ledger) -> Before:
        """What *ledger* records now."""
        held = {id: sent for id, sent in ledger.nodes.items() if ledger.is_held(sent)}
        cut = {sent.token for sent in held.values() if ledger.has_retired_ancestor(sent)}
        return cls(held, cut, {sent.token for sent in ledger.messages.values() if ledger.is_retired(sent)})


class Offered(NamedTuple):
    """What the gateway answered: nodes by id, the ids above some of them, and the leaves of each channel."""

    found: dict[str, bytes]
    above: dict[str, list[str] | RequestRefused]
    leaves: dict[str, list[ArborNode]]


async def ask(address: str, ledger: Ledger, before: Before, communities: dict[str, str]) -> Offered:
    """Ask the gateway, whose Sprout is at *address*, for every node, and for what hangs together with them."""
    ids = [*before.held, *(id for id, sent in ledger.nodes.items() if sent.token in before.gone)]
    complete = [id for id, sent in before.held.items() if sent.token not in before.cut]
    found: dict[str, bytes] = {}
    async with Sprout(address) as sprout:
        for begin in range(0, len(ids), ASKED):
            some = ids[begin : begin + ASKED]
            found |= {node.id: node.raw for node in await sprout.response(f"query {{}} {len(some)}", some)}
        leaves = {
            channel: await sprout.response(f"leaves_of {{}} {community} {LEAVES}")
            for channel, community in communities.items()
        }
        return Offered(found, {id: await _above(sprout, id) for id in complete[-ABOVE:]}, leaves)


def judge(ledger: Ledger, communities: dict[str, str], before: Before, offered: Offered) -> None:
    """Record what was not offered although it is held and whole, and of what was, but could not be checked."""
    for id, sent in before.held.items():
        if not ledger.is_held(sent) or ledger.has_retired_ancestor(sent):
            continue
        if offered.found.get(id) != sent.raw:
            ledger.add_violation(f"the node of {sent.token} is not given to who asks for it")
        path = [communities[sent.channel], *(each.node for each in [*ledger.above(sent)][::-1])][-LEVELS:]
        if offered.above.get(id, path) != path:
            ledger.add_violation(f"the ancestry of {sent.token} is {offered.above[id]!r}, not {path}")
    for id in offered.found:
        if (token := ledger.nodes[id].token) in before.cut | before.gone:
            ledger.add_violation(f"the node of {token} is given, although retention took it or what it stands below")
    for channel, leaves in offered.leaves.items():
        for node in leaves:
            if node.id != communities[channel] and (wrong := _wrong_with(node, channel, ledger, before)):
                ledger.add_violation(f"a leaf of {channel} {wrong}")


def _wrong_with(leaf: ArborNode, channel: str, ledger: Ledger, before: Before) -> str:
    """What is wrong with a *leaf*, which has to be a message of its *channel*, and nobody else's; empty for nothing."""
    reply = author().read(leaf.raw)
    if reply is None or reply.keys & {"channel/1", "activity/1"}:
        return ""
    content = json.loads(reply.text) if "json/1" in reply.keys else {"content": reply.text}
    sent = ledger.messages.get(token_of(content))
    if sent is None or sent.channel != channel or plain(content) != sent.content:
        return f"is {content!r}"
    if sent.token in before.cut | before.gone:
        return f"is {sent.token}, although retention took it or what it stands below"
    return f"is {sent.token}, but not as it was announced" if sent.raw not in (b"", leaf.raw) else ""


async def _above(sprout: Sprout, id: str) -> list[str] | RequestRefused:
    """The ids of the nodes above the node *id*, the shallowest first; or why it has no answer."""
    try:
        return [node.id for node in await sprout.response(f"ancestry {{}} {id} {LEVELS}")]
    except RequestRefused as refused:
        return refused
