"""Messages that wait for their key: in the order they came, and not too many.

What one publisher says in one partition is a lane. Lanes do not wait for each other.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from adapters.streamr.wire.message import StreamMessage
from gateway.core.errors import RequestError
from gateway.core.session import Session

from .keyring import Owner

MAX_HELD = 1_000  # messages that wait, of all publishers together
MAX_HELD_SIZE = 4 << 20  # the same in bytes of their texts, and in characters of their contents

SMALLEST = 512  # what each message takes beside that

Say = Callable[[StreamMessage], None]
Refuse = Callable[[RequestError], None]
Open = Callable[[StreamMessage], StreamMessage | None]


class Lane(NamedTuple):
    """Whose messages are said in order, and in which partition."""

    owner: Owner
    partition: int


class Held(NamedTuple):
    """A message that waits, how to say it, and how to tell its sender that it could not be said.

    The session that brought it is its *bearer*, None where it came by none.
    """

    message: StreamMessage
    say: Say
    refuse: Refuse
    bearer: Session | None = None


class Lanes:
    """All lanes in which something waits. *open* answers what to say for a message, None where it has to wait."""

    def __init__(self, open: Open) -> None:
        self._open = open
        self._lanes: OrderedDict[Lane, deque[Held]] = OrderedDict()
        self._sizes: dict[Lane, int] = {}
        self._borne: Counter[Session] = Counter()
        self._count = self._size = 0

    def __contains__(self, lane: Lane) -> bool:
        return lane in self._lanes

    @property
    def full(self) -> bool:
        """Whether more waits than may."""
        return self._count > MAX_HELD or self._size > MAX_HELD_SIZE

    @property
    def oldest(self) -> Lane | None:
        """The lane in which something waits for longest, if there is one."""
        return next(iter(self._lanes), None)

    @property
    def largest(self) -> Lane | None:
        """The lane that waits with most, if there is one: who says much does not end the waiting of others."""
        return max(self._sizes, key=lambda lane: self._sizes[lane], default=None)

    @property
    def size(self) -> int:
        """How much waits, in all lanes, as `MAX_HELD_SIZE` counts it."""
        return self._size

    def borne(self, bearer: Session) -> int:
        """How much waits that *bearer* brought."""
        return self._borne[bearer]

    def of(self, bearer: Session) -> list[Lane]:
        """The lanes in which something waits that *bearer* brought."""
        return [lane for lane, queue in self._lanes.items() if any(held.bearer is bearer for held in queue)]

    def hold(self, lane: Lane, held: Held) -> None:
        """Let *held* wait at the end of *lane*."""
        self._lanes.setdefault(lane, deque()).append(held)
        self._count += 1
        self._size += size_of(held)
        self._sizes[lane] = self._sizes.get(lane, 0) + size_of(held)
        if held.bearer is not None:
            self._borne[held.bearer] += size_of(held)

    def drain(self, owner: Owner) -> None:
        """Say what *owner* said, up to what still has to wait."""
        for lane in [lane for lane in self._lanes if lane.owner == owner]:
            queue = self._lanes[lane]
            while queue and (opened := self._open(queue[0].message)) is not None:
                self._sizes[lane] -= size_of(queue[0])
                self._say(queue.popleft(), opened)
            if not queue:
                del self._lanes[lane], self._sizes[lane]

    def release(self, lane: Lane) -> int:
        """Say everything in *lane* as it came; how much that was."""
        queue = self._lanes.pop(lane)
        del self._sizes[lane]
        for held in queue:
            self._say(held, held.message)
        return len(queue)

    def _say(self, held: Held, message: StreamMessage) -> None:
        self._count -= 1
        self._size -= size_of(held)
        if held.bearer is not None:
            self._borne[held.bearer] -= size_of(held)
            if not self._borne[held.bearer]:
                del self._borne[held.bearer]
        try:
            held.say(message)
        except RequestError as error:
            held.refuse(error)


def size_of(held: Held) -> int:
    """What a message that waits takes: its content, and its text, which it keeps as well."""
    return SMALLEST + len(held.message.content) + len(held.message.wire or b"")
