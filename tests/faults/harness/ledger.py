"""What the harness has sent and received: the record that all checks compare with.

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
class SentMessage:
    """A message that was sent, and what came of it. *text* is its content as it was written, None where it is rebuilt.

    *node* is its Arbor id, *parent* that of the node it answers, *key* its Idempotency-Key; `seq` and `id` are what
    REST answered; *at* is when it was sent, ms.
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
    """Everything that was sent, by token; `chains` are the tokens that one connection sent to a channel, in order."""

    messages: dict[str, SentMessage] = field(default_factory=dict)
    nodes: dict[str, SentMessage] = field(default_factory=dict)  # those of them that Arbor has, by node id
    chains: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    seen: dict[tuple[str, int], str] = field(default_factory=dict)  # an event showed it, by channel and sequence
    deliveries: int = 0  # on the topic relay, Streamr and Sprout
    damaged: set[str] = field(default_factory=set)  # tokens of messages whose records the harness damaged
    resent: set[str] = field(default_factory=set)  # tokens of messages that were sent more than once
    violations: list[str] = field(default_factory=list)  # broken promises, in words
    latest: dict[str, int] = field(default_factory=dict)  # by listener, the last sequence it was shown
    retention_runs: bool = False
    locate: Callable[[], dict[str, int]] = dict  # reads the current `positions`
    first_retained: int = 1  # the first sequence that retention has left
    retained_since: int = 0  # when that message was accepted, ms
    positions: dict[str, int] = field(default_factory=dict)  # by token, its last sequence, retired or not
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # by channel, gaps reported to event streams
    accepted_again: list[tuple[str, int]] = field(default_factory=list)  # resent, and answered as if new
    orphans: list[list[SentMessage]] = field(default_factory=list)  # ancestors of nodes answered with status 4
    known: dict[str, Any] = field(default_factory=dict)  # values that must not change between lives

    def add(self, connection: str, sent: SentMessage) -> SentMessage:
        """A message is about to be sent on *connection*."""
        if sent.token in self.messages:
            self.resent.add(sent.token)
            return self.messages[sent.token]
        self.messages[sent.token] = sent
        if sent.node is not None:
            self.nodes[sent.node] = sent
        self.chains.setdefault((connection, sent.channel), []).append(sent.token)
        return sent

    def record_accept(self, sent: SentMessage, seq: int | None = None, id: str | None = None) -> None:
        """It was answered as accepted; a second answer has to be the first one."""
        if sent.accepted and sent.token not in self.damaged and (sent.seq, sent.id) != (seq, id):
            if self.retention_runs and sent.seq is not None:
                self.accepted_again.append((sent.token, sent.seq))  # it may be gone by now, and its key is free
            else:
                self.add_violation(f"{sent.token} was answered {sent.seq} {sent.id}, and again {seq} {id}")
        if seq is not None:
            self.damaged.discard(sent.token)
        sent.accepted, sent.seq, sent.id = True, seq, id

    def record_orphans(self, told: Sequence[SentMessage]) -> None:
        """Status 4 answered an announce of the nodes *told*: an ancestor of one of them is not held."""
        self.orphans.append([above for sent in told for above in self.above(sent)])

    def record_event(self, listener: str, channel: str, seq: int, content: Any) -> None:
        """An event stream showed the record *seq*: so it is on disk."""
        token = token_of(content)
        if seq <= self.latest.get(listener, 0):
            self.add_violation(f"{listener} was shown {seq} after {self.latest[listener]}")
        self.latest[listener] = seq
        if self.seen.setdefault((channel, seq), token) != token:
            self.add_violation(f"record {seq} of {channel} was {self.seen[channel, seq]}, and is {token}")
        self.record_delivery(channel, content)

    def record_delivery(self, channel: str, content: Any) -> None:
        """A client received a message: it has to be one that was sent."""
        self.deliveries += 1
        token = token_of(content)
        sent = self.messages.get(token)
        if sent is None or sent.channel != channel:
            self.add_violation(f"{channel} received {token!r}, which was not sent there")
        elif plain(content) != sent.content:
            self.add_violation(f"{token} was received as {content!r}")

    def mark_damaged(self, tokens: set[str], last: int) -> None:
        """The records of *tokens* were damaged while the gateway was down; *last* is the last that is left whole.

        They may be gone, and the numbers beyond *last* may be given again.
        """
        self.damaged |= tokens
        self.seen = {place: token for place, token in self.seen.items() if token not in self.damaged}
        self.latest = {listener: min(seq, last) for listener, seq in self.latest.items()}

    def record_gap(self, channel: str, after: int, before: int) -> None:
        """An event stream reported a gap between two sequences, of which it has the first."""
        if not self.retention_runs:
            self.add_violation(f"a gap in {channel} that nobody made: {after} to {before}")
        self.gaps.setdefault(channel, []).append((after, before))

    def record_retention(self, kept: int, time: int) -> None:
        """The first message that is left is *kept*, which was accepted at a *time* (ms)."""
        if kept < self.first_retained:
            self.add_violation(f"{kept} is kept, and {self.first_retained} was the first before")
        self.first_retained, self.retained_since, self.positions = kept, time, self.locate()
        for token, seq in self.accepted_again:
            if seq >= kept:
                self.add_violation(f"{token} was accepted twice: as {seq}, which is kept, and again")
        self.accepted_again.clear()
        for parents in self.orphans:
            if all(self.is_held(sent) and sent.token not in self.resent for sent in parents):
                self.add_violation(f"status 4 answered nodes below {[sent.token for sent in parents]}, which are held")
        self.orphans.clear()

    def above(self, sent: SentMessage) -> Iterator[SentMessage]:
        """The nodes that the node *messages* stands below, the nearest first."""
        while sent.parent is not None:
            sent = self.nodes[sent.parent]
            yield sent

    def is_held(self, sent: SentMessage) -> bool:
        """Whether it was accepted, and neither damaged by us nor retired."""
        accepted = sent.accepted and sent.token not in self.damaged
        return accepted and not (self.is_retired(sent) or self._may_be_taken_for_copy(sent))

    def is_retired(self, sent: SentMessage) -> bool:
        """Whether retention took it."""
        return 0 < max(sent.seq or 0, self.positions.get(sent.token, 0)) < self.first_retained

    def may_be_reordered(self, token: str) -> bool:
        """Whether it was sent more than once, or the gateway had to ask for what it stands below."""
        return token in self.resent or self.has_retired_ancestor(self.messages[token])

    def has_retired_ancestor(self, sent: SentMessage) -> bool:
        """Whether retention took something that the node *messages* stands below."""
        return any(map(self.is_retired, self.above(sent)))

    def _may_be_taken_for_copy(self, sent: SentMessage) -> bool:
        """Whether it may have been taken for a copy of a retired message, which can no longer be told apart."""
        return sent.node is not None and sent.token not in self.positions and sent.at < self.retained_since - LATE

    def check_unchanged(self, what: str, value: Any) -> None:
        """A *value* is the same as in every life before."""
        if self.known.setdefault(what, value) != value:
            self.add_violation(f"{what} was {self.known[what]}, and is {value}")

    def add_violation(self, what: str) -> None:
        """A promise was broken."""
        if what not in self.violations:
            self.violations.append(what)

    @property
    def accepted(self) -> list[SentMessage]:
        """What is held."""
        return [sent for sent in self.messages.values() if self.is_held(sent)]


def plain(content: Any) -> Any:
    """The *content* as its author wrote it: `inReplyTo` is carried apart from it."""
    return {name: value for name, value in content.items() if name != "inReplyTo"}


def token_of(content: Any) -> str:
    """Which message has this *content*; empty for none of ours."""
    match content:
        case {"content": str(text)}:
            return text.partition(" ")[0]
        case {"encrypted": {"groupKeyId": str(token)}}:
            return token
    return ""
