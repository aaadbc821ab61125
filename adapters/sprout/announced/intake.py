"""Decides the outcome of an announced node: known, refused, waiting for others, logged, published, or direct.

This file checks what applies to every node, `root_intake` handles identities and communities, `reply_intake` replies.
`adapters.sprout.forest.node_rules` has the rules by which they accept a node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final

from adapters.sprout.forest.canonical import canonical_id
from adapters.sprout.forest.forest import NodeError, Reply, decode_as
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.store.store import Store
from adapters.sprout.wire.codec import NodeLine
from gateway.core.bus import Bus
from gateway.core.errors import Forbidden, Throttled, TooManyChannels, Unavailable, UnknownChannel

from .horizon import RetentionHorizon
from .outcome import IncomingReply, NodeOutcome
from .reply_intake import ReplyIntake
from .root_intake import RootIntake

FAULT: Final = "the gateway has a fault"  # why a node is refused that triggers an error of the gateway's own

logger = logging.getLogger(__name__)

_REFUSALS: Final = (Forbidden, UnknownChannel, TooManyChannels)


class Intake:
    """Takes announced nodes. Its methods raise `Throttled` or `Unavailable` where a node is to be taken later.

    They raise nothing else: a node that triggers an error of the gateway's own is refused, logged and counted by
    *on_fault*, and the connection, link or import that brought it continues.
    """

    def __init__(
        self,
        bus: Bus,
        store: Store,
        horizon: RetentionHorizon,
        roots: RootIntake,
        replies: ReplyIntake,
        on_fault: Callable[[str], None],
    ) -> None:
        self._bus = bus
        self._store = store
        self._horizon = horizon
        self._roots = roots
        self._replies = replies
        self._on_fault = on_fault
        self.channel_of = roots.channel_of

    def take(self, line: NodeLine, session: SproutConnection, *, requested: bool = False) -> NodeOutcome:
        """Take the node that *session* announced on *line*.

        A reply older than the retention horizon is dropped, unless the gateway *requested* it: a node that is kept
        stands below it.
        """
        return self.take_run((line,), session, requested=requested)[0]

    def take_run(
        self, lines: Sequence[NodeLine], session: SproutConnection, *, requested: bool = False
    ) -> list[NodeOutcome]:
        """Take the first of *lines*, and as many after it as are replies by the same author to the same parent.

        Lookups, rights and publication are then done once for all of them. Only the first line can raise.
        """
        try:
            return self._take_run(lines, session, requested=requested)
        except (Throttled, Unavailable):
            raise
        except Exception:
            if len(lines) > 1:  # any of them may be the one that triggers it
                return self.take_run(lines[:1], session, requested=requested)
            logger.exception("the node %s shows a fault of the gateway's; it is refused", lines[0].id)
            self._on_fault("node")
            return [NodeOutcome(reason=FAULT)]

    def _take_run(self, lines: Sequence[NodeLine], session: SproutConnection, *, requested: bool) -> list[NodeOutcome]:
        now = self._bus.clock()
        try:
            first = self._check(lines[0], session, now, requested=requested)
        except _REFUSALS as error:
            return [NodeOutcome(reason=type(error).__name__)]
        if isinstance(first, NodeOutcome):
            return [first]
        checked: list[IncomingReply | NodeOutcome] = [first]
        ids = {first.line.id}
        for line in lines[1:]:
            if (
                line.id in ids
                or (found := self._replies.check_next(first, line, session, now, requested=requested)) is None
            ):
                break
            ids.add(line.id)
            checked.append(found)
        try:
            published = iter(
                self._replies.publish([each for each in checked if isinstance(each, IncomingReply)], session)
            )
        except _REFUSALS as error:
            published = repeat(NodeOutcome(reason=type(error).__name__))
        return [next(published) if isinstance(each, IncomingReply) else each for each in checked]

    def _check(
        self, line: NodeLine, session: SproutConnection, now: int, *, requested: bool
    ) -> IncomingReply | NodeOutcome:
        """The reply on *line* that may be published to its channel, or what became of any other node."""
        try:
            node = decode_as(line.id, line.raw)
        except NodeError as error:
            return NodeOutcome(reason=str(error), forged=True)
        seq = self._store.lookup(line.id, node.created)
        if seq is not None and not (requested and self._store.entry(seq) is None):  # a damaged record is logged again
            return NodeOutcome(seq)
        canonical = canonical_id(line.id, node, line.raw)
        other = "" if canonical == line.id else canonical
        if other and (seq := self._store.seq_by_canonical(other)) is not None:
            return NodeOutcome(seq)
        if not requested and self._horizon.is_retired(node, now):
            return NodeOutcome(dropped="it is older than the messages that are kept")
        if self._bus.congested:
            raise Unavailable("the disk does not keep up; try again in a moment")
        if isinstance(node, Reply):
            return self._replies.check(line, node, session, now, other, requested=requested)
        return self._roots.take(line, node, session, other, requested=requested)
