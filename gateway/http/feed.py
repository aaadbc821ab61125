"""The subscriptions of a session: each delivers every message once, in order.

A message is passed on once it is on disk, because it shows its sequence. A subscription may begin after a sequence:
then it first gets what it missed (`gateway.http.replay`). Each remembers the last sequence that it was given, so that
nothing is given twice, however subscriptions overlap.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from gateway.core.message import Message
from gateway.core.session import Session
from gateway.runtime import Gateway

from .replay import Page, Replay
from .selection import Selection


class Subscription:
    """Channels that a session listens to; each message up to the sequence *seen* was delivered, or does not match."""

    __slots__ = ("replay", "seen", "selection")

    def __init__(self, selection: Selection, seen: int) -> None:
        self.selection = selection
        self.seen = seen
        self.replay: Replay | None = None  # while it gets what it missed


class Feed:
    """The subscriptions of one *session*. *emit* takes each message for a subscription once it is on disk.

    *wake* is called when there is a page of missed messages to read.
    """

    def __init__(
        self,
        gateway: Gateway,
        session: Session,
        emit: Callable[[Subscription, Message], None],
        wake: Callable[[], None],
    ) -> None:
        self._gateway = gateway
        self._session = session
        self._emit = emit
        self._wake = wake
        self._by_channel: dict[str, list[Subscription]] = {}
        self._by_prefix: dict[str, list[Subscription]] = {}
        self._replaying: OrderedDict[Subscription, Replay] = OrderedDict()
        self._furthest = 0  # the highest sequence that the client had seen when it subscribed
        self._unsynced: deque[Message] = deque()  # delivered by the bus, in order, and not on disk yet

    # Subscriptions

    def add(self, selection: Selection, after: int | None) -> Subscription:
        """Listen to *selection* after the sequence *after*; None means from now on.

        The session must be subscribed on the bus already, in the same turn of the loop.
        """
        last = self._gateway.log.next_seq - 1
        if after is None or (after > last and self._gateway.membership is None):
            after = last  # in a cluster the client may have seen what this gateway has not taken yet
        self._furthest = max(self._furthest, after)
        added = Subscription(selection, after)
        for places, names in ((self._by_channel, selection.channels), (self._by_prefix, selection.prefixes)):
            for name in names:
                places.setdefault(name, []).append(added)
        if added.seen < last:
            added.replay = Replay(
                self._gateway, selection, added.seen, self._may_read, self._may_read_history, self._wake
            )
            self._replaying[added] = added.replay
            self._wake()
        return added

    def remove(self, ended: Subscription) -> None:
        """End a subscription."""
        selection = ended.selection
        for places, names in ((self._by_channel, selection.channels), (self._by_prefix, selection.prefixes)):
            for name in names:
                places[name].remove(ended)
                if not places[name]:
                    del places[name]
        self._replaying.pop(ended, None)

    def discard(self) -> None:
        """Discard what waits for the disk, and what was missed."""
        self._unsynced.clear()
        self._replaying.clear()

    @property
    def held_size(self) -> int:
        """The bytes of content that wait until what was missed has been read."""
        return sum(replay.held_size for replay in self._replaying.values())

    def _covering(self, channel: str) -> list[Subscription]:
        found = dict.fromkeys(self._by_channel.get(channel, ()))
        for prefix, there in self._by_prefix.items():
            if channel.startswith(prefix):
                found |= dict.fromkeys(there)
        return list(found)

    def _may_read(self, channel: str) -> bool:
        session = self._session
        return channel in session.channels or session.bus.allowed(session.principal, "subscribe", channel)

    def _may_read_history(self, channel: str) -> bool:
        return self._session.bus.allowed(self._session.principal, "history", channel)

    # What the bus brings

    def offer(self, message: Message) -> None:
        """Pass *message* on once it is on disk, to each subscription that covers its channel."""
        live = False
        for each in self._covering(message.channel):
            if each.replay is None:
                live = True
            else:
                each.replay.hold(message)
        if live:
            self._unsynced.append(message)
            if len(self._unsynced) == 1:
                self._await_sync()

    def _await_sync(self) -> None:
        self._gateway.bus.ledger.when_synced(self._unsynced[0].seq, self._on_synced)

    def _on_synced(self) -> None:
        on_disk = self._gateway.log.synced_seq
        while self._unsynced and self._unsynced[0].seq <= on_disk:
            message = self._unsynced.popleft()
            for each in self._covering(message.channel):
                if each.replay is None and message.seq > each.seen:
                    each.seen = message.seq
                    self._emit(each, message)
        if self._unsynced:
            self._await_sync()

    def take_unsynced(self) -> list[Message]:
        """Take what waits for the disk and was not given before, in order; the caller passes it on."""
        taken = [
            message
            for message in self._unsynced
            if any(message.seq > each.seen for each in self._covering(message.channel))
        ]
        self._unsynced.clear()
        return taken

    # What was missed

    @property
    def is_behind(self) -> bool:
        """Whether a subscription still gets what it missed, or has seen more than this gateway has."""
        return bool(self._replaying) or self._furthest >= self._gateway.log.next_seq

    @property
    def ready(self) -> bool:
        """Whether there may be a page of missed messages to read now."""
        return any(replay.ready for replay in self._replaying.values())

    def next_page(self) -> tuple[Subscription, Page] | None:
        """Return a page, of each subscription in turn; None if there is none now.

        Raises `Unavailable` if the log or the index cannot be read.
        """
        for _ in range(len(self._replaying)):
            current, replay = next(iter(self._replaying.items()))
            self._replaying.move_to_end(current)
            if not replay.ready:
                continue
            page = replay.next_page()
            current.seen = replay.seen
            if replay.over:
                self._end_replay(current, replay.held)
            return current, page
        return None

    def _end_replay(self, current: Subscription, held: Iterable[Message]) -> None:
        """Continue with what the bus delivered meanwhile, merged in order with what other subscriptions wait for."""
        current.replay = None
        del self._replaying[current]
        waiting = {message.seq: message for message in (*self._unsynced, *held)}
        self._unsynced = deque(waiting[seq] for seq in sorted(waiting))
        if self._unsynced:
            self._await_sync()
