"""What the harness knows to have said and to have been told; the only witness that the checks believe.

Every message has a token that nobody else uses: the first word of its `content`, or, where that is encrypted, the id
of its group key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Any

LATE = 600_000  # ms, as docs/protocols.md has it; clocks may lag by as much


@dataclass
class Said:
    """A message that was sent, and what came of it. *text* is its content as it was written, None where it is rebuilt.

    *node* is its Arbor id, *parent* that of the node it answers, *key* its Idempotency-Key; `seq` and `id` are what
    REST answered; *at* is when it was said, ms.
    """

    token: str
    channel: str
    protocol: str
    content: Any
    text: str | None = None
    node: str | None = None
    raw: bytes = b""
    key: str | None = None
    parent: str | None = None
    accepted: bool = False
    seq: int | None = None
    id: str | None = None
    at: int = field(default_factory=lambda: time_ns() // 1_000_000)


@dataclass
class Ledger:
    """Everything that was said, by token; `chains` are the tokens that one connection sent to a channel, in order."""

    said: dict[str, Said] = field(default_factory=dict)
    nodes: dict[str, Said] = field(default_factory=dict)  # of these those of Arbor, by their ids
    chains: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    seen: dict[tuple[str, int], str] = field(default_factory=dict)  # an event showed it, by channel and sequence
    heard: int = 0  # deliveries on the topic relay, Streamr and Sprout
    excused: set[str] = field(default_factory=set)  # their records were damaged by us
    again: set[str] = field(default_factory=set)  # sent more than once
    wrong: list[str] = field(default_factory=list)  # promises that were broken, in words
    latest: dict[str, int] = field(default_factory=dict)  # by listener, the last sequence it was shown
    keeping: bool = False  # retention is at work
    look: Callable[[], dict[str, int]] = dict  # at where messages stand, as `placed` has it
    kept: int = 1  # the first message that it has left; what was accepted before is gone
    kept_since: int = 0  # ms
    placed: dict[str, int] = field(default_factory=dict)  # by token, where it stands, or stood until retention took it
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # by channel, what streams were told to miss
    doubts: list[tuple[str, int]] = field(default_factory=list)  # said again, and accepted as if for the first time
    orphans: list[list[Said]] = field(default_factory=list)  # parents of which one was missing, as announces were told
    known: dict[str, Any] = field(default_factory=dict)  # what is to be the same in each life, by what it is of

    def say(self, connection: str, said: Said) -> Said:
        """A message is about to be sent on *connection*."""
        if said.token in self.said:
            self.again.add(said.token)
            return self.said[said.token]
        self.said[said.token] = said
        if said.node is not None:
            self.nodes[said.node] = said
        self.chains.setdefault((connection, said.channel), []).append(said.token)
        return said

    def accept(self, said: Said, seq: int | None = None, id: str | None = None) -> None:
        """It was answered as accepted; a second answer has to be the first one."""
        if said.accepted and said.token not in self.excused and (said.seq, said.id) != (seq, id):
            if self.keeping and said.seq is not None:
                self.doubts.append((said.token, said.seq))  # it may be gone by now, and its key is free
            else:
                self.complain(f"{said.token} was answered {said.seq} {said.id}, and again {seq} {id}")
        if seq is not None:
            self.excused.discard(said.token)
        said.accepted, said.seq, said.id = True, seq, id

    def orphan(self, told: Sequence[Said]) -> None:
        """Status 4 answered an announce of nodes that were *told*: something above one of them is not held."""
        self.orphans.append([above for said in told for above in self.above(said)])

    def show(self, listener: str, channel: str, seq: int, content: Any) -> None:
        """An event stream showed the record *seq*: so it is on disk."""
        token = token_of(content)
        if seq <= self.latest.get(listener, 0):
            self.complain(f"{listener} was shown {seq} after {self.latest[listener]}")
        self.latest[listener] = seq
        if self.seen.setdefault((channel, seq), token) != token:
            self.complain(f"record {seq} of {channel} was {self.seen[channel, seq]}, and is {token}")
        self.hear(channel, content)

    def hear(self, channel: str, content: Any) -> None:
        """Somebody was told something: it is what was sent."""
        self.heard += 1
        token = token_of(content)
        said = self.said.get(token)
        if said is None or said.channel != channel:
            self.complain(f"{channel} heard {token!r}, which nobody said there")
        elif plain(content) != said.content:
            self.complain(f"{token} was heard as {content!r}")

    def excuse(self, tokens: set[str], last: int) -> None:
        """The records of *tokens* were damaged while the gateway was down; *last* is the last that is left whole.

        They may be gone, and the numbers beyond *last* may be given again.
        """
        self.excused |= tokens
        self.seen = {place: token for place, token in self.seen.items() if token not in self.excused}
        self.latest = {listener: min(seq, last) for listener, seq in self.latest.items()}

    def skip(self, channel: str, after: int, before: int) -> None:
        """An event stream told of a gap between two sequences, of which it has the first."""
        if not self.keeping:
            self.complain(f"a gap in {channel} that nobody made: {after} to {before}")
        self.gaps.setdefault(channel, []).append((after, before))

    def keep(self, kept: int, time: int) -> None:
        """The first message that is left is *kept*, which was accepted at a *time* (ms)."""
        if kept < self.kept:
            self.complain(f"{kept} is kept, and {self.kept} was the first before")
        self.kept, self.kept_since, self.placed = kept, time, self.look()
        for token, seq in self.doubts:
            if seq >= kept:
                self.complain(f"{token} was accepted twice: as {seq}, which is kept, and again")
        self.doubts.clear()
        for parents in self.orphans:
            if all(self.is_held(said) and said.token not in self.again for said in parents):
                self.complain(f"status 4 answered nodes below {[said.token for said in parents]}, which are held")
        self.orphans.clear()

    def above(self, said: Said) -> Iterator[Said]:
        """The nodes that the node *said* stands below, the nearest first."""
        while said.parent is not None:
            said = self.nodes[said.parent]
            yield said

    def is_held(self, said: Said) -> bool:
        """Whether it was accepted, and neither damaged by us nor retired."""
        accepted = said.accepted and said.token not in self.excused
        return accepted and not (self.is_gone(said) or self._is_set_aside(said))

    def is_gone(self, said: Said) -> bool:
        """Whether retention took it."""
        return 0 < max(said.seq or 0, self.placed.get(said.token, 0)) < self.kept

    def may_be_overtaken(self, token: str) -> bool:
        """Whether it was sent more than once, or the gateway had to ask for what it stands below."""
        return token in self.again or self.is_cut(self.said[token])

    def is_cut(self, said: Said) -> bool:
        """Whether retention took something that the node *said* stands below."""
        return any(map(self.is_gone, self.above(said)))

    def _is_set_aside(self, said: Said) -> bool:
        """Whether it may have come when nobody could tell any more that it is no copy of what is gone."""
        return said.node is not None and said.token not in self.placed and said.at < self.kept_since - LATE

    def same(self, what: str, value: Any) -> None:
        """What is told of something is the same as in every life before."""
        if self.known.setdefault(what, value) != value:
            self.complain(f"{what} was {self.known[what]}, and is {value}")

    def complain(self, what: str) -> None:
        """A promise was broken."""
        if what not in self.wrong:
            self.wrong.append(what)

    @property
    def accepted(self) -> list[Said]:
        """What is held."""
        return [said for said in self.said.values() if self.is_held(said)]


def plain(content: Any) -> Any:
    """The *content* as its author wrote it: what it answers is told apart from it."""
    return {name: value for name, value in content.items() if name != "inReplyTo"}


def token_of(content: Any) -> str:
    """Which message has this *content*; empty for none of ours."""
    match content:
        case {"content": str(text)}:
            return text.partition(" ")[0]
        case {"encrypted": {"groupKeyId": str(token)}}:
            return token
    return ""
