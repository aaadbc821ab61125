"""What is read of the forest: the answers to `list`, `query`, `ancestry` and `leaves_of`, as lines.

A peer gets what it may read, and nothing tells it of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final

from gateway.message import Form
from gateway.record import Fact
from gateway.session import Session

from .tables import COMMUNITY, DAY, IDENTITY, REPLY, Spot, Where

if TYPE_CHECKING:
    from .relay import Relay

MAX_PASSED: Final = 4096  # nodes that an answer passes over because the peer may not read them


class Reader:
    """Finds nodes for those who ask; the lines of some may still be being made."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._store = relay.store

    def newest(self, asker: Session, type: int, quantity: int) -> list[Form]:
        """The newest nodes of a type, newest first."""
        if type == REPLY:
            return self._lines_at(asker, self._store.newest(quantity), quantity)
        return self._lines_of(asker, self._store.of_type(type, quantity) if type < REPLY else ())

    def held(self, asker: Session, ids: Iterable[str]) -> list[Form]:
        """The nodes with these ids, as far as they are held."""
        return self._lines_of(asker, (spot for id in ids if (spot := self._relay.spot(id)) is not None))

    def above(self, asker: Session, id: str, levels: int) -> list[Form] | None:
        """The nodes above the node *id*, shallowest first; None where that is unknown."""
        spot = self._relay.spot(id)
        if spot is None or not self._relay.may_read(asker, spot):
            return None
        above: list[Spot] = []
        while len(above) < levels and (spot := self._parent(spot)) is not None:
            above.append(spot)
        return self._lines_of(asker, above[::-1])

    def below(self, asker: Session, id: str, quantity: int) -> list[Form]:
        """The newest nodes that are, or are below, the node *id*; oldest first."""
        spot = self._relay.spot(id)
        if spot is None or not self._relay.may_read(asker, spot):
            return []
        places = merge(self._below(id, spot, quantity), [spot.where], reverse=True)
        return self._lines_at(asker, places, quantity, own=spot.seq)[::-1]

    def _below(self, id: str, spot: Spot, hint: int) -> Iterable[Where]:
        if spot.type == IDENTITY:
            return ()
        if spot.type == COMMUNITY:
            channel = self._relay.channel(id)
            return () if channel is None else self._store.newest(hint, channel)
        node = self._relay.node(id)
        if node is not None and node.depth == 1:
            return self._store.thread(spot.channel, self._names(id, spot), hint)
        return self._store.below(spot.channel, spot.key)

    def _parent(self, spot: Spot) -> Spot | None:
        parent = spot.parent
        if parent.startswith(DAY):
            parent = self._store.minted(parent) or ""
        return self._store.known_as(parent)

    def _names(self, id: str, spot: Spot) -> list[str]:
        """What replies may call a conversation: by its id, and by the name under which the gateway minted it."""
        entry = self._store.entry(spot.seq)
        name = entry.fields.get("what") if isinstance(entry, Fact) else None
        return [id] if name is None else [id, name]

    def _lines_of(self, asker: Session, spots: Iterable[Spot]) -> list[Form]:
        lines = (self._relay.line_at(spot.seq) for spot in spots if self._relay.may_read(asker, spot))
        return [line for line in lines if line is not None]

    def _lines_at(self, asker: Session, places: Iterable[Where], quantity: int, own: int | None = None) -> list[Form]:
        """The lines of the first *quantity* replies that *asker* may read; the node at *own* it may."""
        lines: list[Form] = []
        readable: dict[str, bool] = {}
        for _, seq, channel in islice(places, quantity + MAX_PASSED) if quantity else ():
            if channel not in readable:
                readable[channel] = self._relay.bus.allowed(asker.principal, "history", channel)
            if not readable[channel] and seq != own:
                continue
            if (line := self._relay.line_at(seq)) is not None:
                lines.append(line)
                if len(lines) == quantity:
                    break
        return lines
