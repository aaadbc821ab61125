"""The outbox of a session agrees with a list on order and bounds, and delays no available frame."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.bus import Bus
from gateway.core.message import Form, Message, Peer, PendingForm
from gateway.core.outbox import LOW_WATER
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.monitoring.metrics import Metrics

MAX_OUTBOX = 4 * LOW_WATER
SIZES = st.sampled_from([1, 10, LOW_WATER // 3, LOW_WATER])


class Nowhere:
    """As much of a bus as an outbox needs."""

    congested = False

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.ledger = self

    def join(self, _session: Session) -> Peer:
        return Peer(0, "toy")

    def wait_for_log(self, _session: Session) -> None: ...


class Outbox(Session):
    protocol = "toy"
    max_outbox = MAX_OUTBOX

    def handle(self, data: bytes) -> None: ...

    def deliver(self, message: Message) -> None: ...


class Item:
    """One thing queued: its bytes, and the form that may still be made."""

    def __init__(self, data: bytes | None, form: Form) -> None:
        self.data = data
        self.form = form

    @property
    def ready(self) -> bool:
        return not isinstance(self.form, PendingForm) or self.form.done


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bus = Nowhere()
        self.session = Outbox(cast(Bus, self.bus), Principal("anonymous"))
        self.session.wake = self.woken
        self.queue: deque[Item] = deque()  # what the outbox holds, in order
        self.streams: deque[deque[Item]] = deque()
        self.unmade: list[Item] = []
        self.listeners = [self.session]
        self.ended = False
        self.awake = False
        self.made = 0

    def woken(self) -> None:
        self.awake = True

    @initialize()
    def begin(self) -> None:
        assert self.session.data_to_send() == []

    def item(self, size: int, kind: str) -> Item:
        self.made += 1
        data = None if kind == "failing" else b"%08d" % self.made + b"x" * size
        if kind == "bytes":
            return Item(data, cast(bytes, data))
        form = PendingForm()
        item = Item(data, form)
        if kind == "made":
            form.fill(data)
        else:
            self.unmade.append(item)
        return item

    @rule(size=SIZES)
    def send(self, size: int) -> None:
        item = self.item(size, "bytes")
        self.session.send(cast(bytes, item.form))
        self.notice_end()
        self.queue.append(item)

    @precondition(lambda self: not self.ended)
    @rule(size=SIZES)
    def hear(self, size: int) -> None:
        item = self.item(size, "bytes")
        self.queue.append(item)
        assert Outbox.fan_out([cast(bytes, item.form)], self.listeners, (None,)) == 1
        self.bound(item)

    @rule(size=SIZES, kind=st.sampled_from(["bytes", "made", "unmade", "failing"]))
    def put(self, size: int, kind: str) -> None:
        item = self.item(size, kind)
        self.session.put(item.form)
        if not self.ended:
            self.queue.append(item)
            self.bound(item)

    @precondition(lambda self: len(self.streams) < 3 and self.session.closing is None)
    @rule(items=st.lists(st.tuples(SIZES, st.sampled_from(["bytes", "made", "unmade", "failing"])), max_size=6))
    def stream(self, items: list[tuple[int, str]]) -> None:
        made = deque(self.item(size, kind) for size, kind in items)
        self.streams.append(made)
        self.session.stream(self.pulled(made))

    def pulled(self, items: deque[Item]) -> Iterator[Form]:
        """The stream; what the outbox pulls stands in its queue from then on."""
        while items:
            item = items.popleft()
            if item.ready and item.data is None:
                yield item.form
                continue
            self.queue.append(item)
            yield item.form
        self.streams.remove(items)

    @precondition(lambda self: self.unmade)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        item = self.unmade.pop(data.draw(st.integers(0, len(self.unmade) - 1)))
        form = cast(PendingForm, item.form)
        form.fill(item.data)
        if item in self.queue:
            self.bound(item)

    @rule()
    def look(self) -> None:
        has_more = self.session.has_more
        self.notice_end()
        assert has_more == (bool(self.queue) and self.queue[0].ready) or self.streams

    @rule()
    def count(self) -> None:
        waiting = self.session.waiting
        self.notice_end()
        assert waiting == len(self.queue)

    @rule()
    def take_all(self) -> None:
        data = self.session.all_to_send()
        self.notice_end()
        if data is not None:
            assert data == b"".join(item.data or b"" for item in self.queue)
            self.queue.clear()
            self.awake = False
        else:
            assert self.streams or self.session.closing or not self.queue or self.session._pending_count

    @rule()
    def take(self) -> None:
        self.awake = False
        # The queue of the model grows while streams are pulled: so look at it afterwards.
        out = self.session.data_to_send()
        self.notice_end()
        expected = []
        for data in out:
            while self.queue and self.queue[0].ready and self.queue[0].data is None:
                self.queue.popleft()
            assert self.queue[0].ready
            expected.append(self.queue.popleft().data)
            assert data == expected[-1]
        while self.queue and self.queue[0].ready and self.queue[0].data is None:
            self.queue.popleft()
        assert not self.queue or not self.queue[0].ready, "something ready was left behind"

    def bound(self, item: Item) -> None:
        """A slow peer is closed exactly when more than its share is there."""
        self.notice_end()
        assert self.ended or not (item.ready and item.data) or self.waiting() <= MAX_OUTBOX

    def waiting(self) -> int:
        """The bytes in the outbox."""
        return sum(len(item.data or b"") for item in self.queue if item.ready)

    def notice_end(self) -> None:
        if self.session.closing is not None and not self.ended:
            self.ended = True
            assert self.bus.metrics.counts["overflows"]["toy",] == 1
            self.queue.clear()
            self.streams.clear()

    @invariant()
    def sizes_are_what_is_there(self) -> None:
        if self.session.closing is None:
            assert self.session._size == self.waiting()
            assert self.session._pending_count == sum(isinstance(form, PendingForm) for form in self.session._queue)

    @invariant()
    def who_can_write_is_awake(self) -> None:
        ready = bool(self.queue) and self.queue[0].ready and self.queue[0].data is not None
        if ready and self.session.closing is None:
            assert self.awake


OutboxMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestOutbox = OutboxMachine.TestCase
