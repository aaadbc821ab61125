"""Messages that wait for their group key, in the order in which they came, and within bounds.

Each publisher has one queue for each partition of a stream. Queues do not wait for each other.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from adapters.streamr.wire.message import StreamMessage
from gateway.core.errors import RequestError
from gateway.core.session import Session

from .keyring import KeyOwner

MAX_HELD = 1_000  # messages, of all publishers together
MAX_HELD_SIZE = 4 << 20  # the same, as `size_of` counts them
MESSAGE_OVERHEAD = 512  # bytes that each message takes beside its content and its text

Deliver = Callable[[StreamMessage], None]
Refuse = Callable[[RequestError], None]
Decrypt = Callable[[StreamMessage], StreamMessage | None]


class QueueKey(NamedTuple):
    """The publisher and stream, and the partition, whose messages are delivered in order."""

    owner: KeyOwner
    partition: int


class HeldMessage(NamedTuple):
    """A message that waits, how to deliver it, and how to tell its sender that it was refused.

    *origin* is the session that brought it, None if no session did.
    """

    message: StreamMessage
    deliver: Deliver
    refuse: Refuse
    origin: Session | None = None


class HeldMessages:
    """All queues that are not empty. *decrypt* returns what to deliver for a message, None if it has to wait."""

    def __init__(self, decrypt: Decrypt) -> None:
        self._decrypt = decrypt
        self._queues: OrderedDict[QueueKey, deque[HeldMessage]] = OrderedDict()
        self._sizes: dict[QueueKey, int] = {}
        self._sizes_by_origin: Counter[Session] = Counter()
        self._count = self._size = 0

    def __contains__(self, key: QueueKey) -> bool:
        return key in self._queues

    @property
    def is_over_limit(self) -> bool:
        """Whether more than the limits allow is held."""
        return self._count > MAX_HELD or self._size > MAX_HELD_SIZE

    @property
    def oldest(self) -> QueueKey | None:
        """The queue that has existed for longest, None if there is no queue."""
        return next(iter(self._queues), None)

    @property
    def largest(self) -> QueueKey | None:
        """The largest queue, None if there is no queue. It is given up first, so that it does not displace others."""
        return max(self._sizes, key=lambda key: self._sizes[key], default=None)

    @property
    def size(self) -> int:
        """The size of all queues together, as `MAX_HELD_SIZE` counts it."""
        return self._size

    def size_from(self, origin: Session) -> int:
        """The size of what *origin* brought, in all queues."""
        return self._sizes_by_origin[origin]

    def queues_from(self, origin: Session) -> list[QueueKey]:
        """The queues that hold something that *origin* brought."""
        return [key for key, queue in self._queues.items() if any(held.origin is origin for held in queue)]

    def append(self, key: QueueKey, held: HeldMessage) -> None:
        """Add *held* to the end of the queue *key*."""
        self._queues.setdefault(key, deque()).append(held)
        self._count += 1
        self._size += size_of(held)
        self._sizes[key] = self._sizes.get(key, 0) + size_of(held)
        if held.origin is not None:
            self._sizes_by_origin[held.origin] += size_of(held)

    def drain(self, owner: KeyOwner) -> None:
        """Deliver the messages of *owner*, in each queue up to the first that still has to wait."""
        for key in [key for key in self._queues if key.owner == owner]:
            queue = self._queues[key]
            while queue and (decrypted := self._decrypt(queue[0].message)) is not None:
                self._sizes[key] -= size_of(queue[0])
                self._deliver(queue.popleft(), decrypted)
            if not queue:
                del self._queues[key], self._sizes[key]

    def release(self, key: QueueKey) -> int:
        """Deliver everything in the queue *key* undecrypted; return how many messages that were."""
        queue = self._queues.pop(key)
        del self._sizes[key]
        for held in queue:
            self._deliver(held, held.message)
        return len(queue)

    def _deliver(self, held: HeldMessage, message: StreamMessage) -> None:
        self._count -= 1
        self._size -= size_of(held)
        if held.origin is not None:
            self._sizes_by_origin[held.origin] -= size_of(held)
            if not self._sizes_by_origin[held.origin]:
                del self._sizes_by_origin[held.origin]
        try:
            held.deliver(message)
        except RequestError as error:
            held.refuse(error)


def size_of(held: HeldMessage) -> int:
    """The memory that *held* takes: bytes of its text, characters of its content, and the overhead."""
    return MESSAGE_OVERHEAD + len(held.message.content) + len(held.message.wire or b"")
