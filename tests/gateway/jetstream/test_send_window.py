"""The send window keeps the order of what was sent, whatever a server loses, repeats or leaves unanswered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.jetstream.send_window import MAX_IN_FLIGHT, OutgoingBatch, SendWindow

ARRIVES, IS_LOST, ANSWER_IS_LOST, ARRIVES_LATE = "arrives", "is lost", "answer is lost", "arrives late"


class StreamWindow:
    """A stream, and whoever reads it: a number counts if it is the next."""

    def __init__(self) -> None:
        self.position = 0
        self.counted: list[int] = []

    def append(self, data: bytes) -> int:
        self.position += 1
        if int(data) == len(self.counted):
            self.counted.append(int(data))
        return self.position


class Network:
    """Brings batches to *server*, and its answers back: first those of *fates*, then as it should be."""

    def __init__(self, server: StreamWindow, fates: list[str]) -> None:
        self.server = server
        self.fates = fates
        self.flying: list[tuple[OutgoingBatch, str]] = []  # not answered
        self.answers: dict[int, int] = {}
        self.late: list[OutgoingBatch] = []

    def send(self, item: OutgoingBatch) -> None:
        fate = self.fates.pop() if self.fates else ARRIVES
        self.flying.append((item, fate))
        if fate == ARRIVES_LATE:
            self.late.append(item)
        elif fate != IS_LOST:
            self._arrive(item)

    def answer(self, which: int) -> tuple[OutgoingBatch, int | None]:
        """One of the answers that are outstanding; None if it does not come."""
        while self.late:
            self._arrive(self.late.pop(0))
        item, fate = self.flying.pop(which % len(self.flying))
        return item, self.answers[id(item)] if fate in (ARRIVES, ARRIVES_LATE) else None

    def _arrive(self, item: OutgoingBatch) -> None:
        self.answers[id(item)] = self.server.append(item.data)


def drive(window: SendWindow, network: Network, count: int, order: list[int]) -> None:
    """Send *count* batches; *order* says which answer comes next."""
    for number in range(count):
        window.add(b"%d" % number)
    for _ in range(40 * count + 200):
        while (item := window.next()) is not None:
            network.send(item)
        assert len(network.flying) <= MAX_IN_FLIGHT
        if network.flying:
            item, position = network.answer(order.pop() if order else 0)
            if position is None:
                window.failed()
            else:
                window.acknowledged(item, position)
        if window.is_stalled:
            assert not network.flying
            window.resume()


@given(
    count=st.integers(1, 12),
    fates=st.lists(st.sampled_from((ARRIVES, IS_LOST, ANSWER_IS_LOST, ARRIVES_LATE)), max_size=20),
    order=st.lists(st.integers(0, 3), max_size=60),
)
def test_property_all_count_in_their_order(count: int, fates: list[str], order: list[int]) -> None:
    window, server = SendWindow(), StreamWindow()
    drive(window, Network(server, fates), count, order)
    assert server.counted == [*range(count)]
    assert (len(window), window.size) == (0, 0)


def test_an_unacknowledged_batch_counts_as_unsent() -> None:
    window = SendWindow()
    window.add(b"abc")
    window.add(b"de")
    first, second = window.next(), window.next()
    assert first is not None
    assert second is not None
    window.acknowledged(second, 7)
    assert (len(window), window.size) == (2, 5), "its predecessor may have been lost"
    window.failed()
    assert window.is_stalled
    window.resume()
    assert window.next() is first
