"""Every batch gets into the stream in its order, whatever is lost, late or repeated on the way."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.jetstream.unconfirmed import REPEAT_SECONDS, Unconfirmed

ARRIVES, IS_LOST, ANSWER_IS_LOST, ARRIVES_LATE = "arrives", "is lost", "answer is lost", "arrives late"


class Network:
    """A stream, and the way there: what becomes of each batch is the next of *fates*, and in the end it arrives."""

    def __init__(self, fates: list[str]) -> None:
        self.fates = fates
        self.late: list[bytes] = []
        self.stream: list[bytes] = []

    def send(self, data: bytes) -> int:
        """Send *data*; return its position in the stream (from 1) if the server answered that it is there, else 0."""
        fate = self.fates.pop() if self.fates else ARRIVES
        if fate == ARRIVES_LATE:
            self.late.append(data)
        elif fate != IS_LOST:
            self.stream.append(data)
        return len(self.stream) if fate == ARRIVES else 0

    def deliver_late(self) -> None:
        """Let one that is late come into the stream."""
        if self.late:
            self.stream.append(self.late.pop(0))

    @property
    def counted(self) -> list[int]:
        """What counts for those that read the stream: each number that is the next."""
        counted: list[int] = []
        for data in self.stream:
            if int(data) == len(counted):
                counted.append(int(data))
        return counted


@given(
    count=st.integers(1, 12),
    fates=st.lists(st.sampled_from((ARRIVES, IS_LOST, ANSWER_IS_LOST, ARRIVES_LATE)), max_size=30),
    steps=st.lists(st.sampled_from(("submit", "read", "arrive", "repeat")), max_size=60),
)
@example(count=2, fates=[IS_LOST, ARRIVES, ARRIVES, IS_LOST], steps=["submit", "submit", "repeat", "read", "repeat"])
def test_property_all_count_in_their_order(count: int, fates: list[str], steps: list[str]) -> None:
    unconfirmed, network, read, submitted = Unconfirmed(), Network(fates), 0, 0
    for step in [*steps, *["submit"] * count, *["repeat", "arrive"] * (len(fates) + count)]:
        if step == "submit" and submitted < count:
            unconfirmed.add(b"%d" % submitted, 0.0)
            network.send(b"%d" % submitted)
            submitted += 1
        elif step == "read" and read < len(network.stream):
            read += 1
            unconfirmed.came(network.stream[read - 1], read)
        elif step == "arrive":
            network.deliver_late()
        elif step == "repeat" and (data := unconfirmed.first()) is not None and (position := network.send(data)):
            unconfirmed.came(data, position)
    assert network.counted == [*range(count)]
    assert (unconfirmed.first(), unconfirmed.size) == (None, 0)


def test_a_batch_before_its_predecessor_is_not_confirmed() -> None:
    unconfirmed = Unconfirmed()
    unconfirmed.add(b"1 abc", 0.0)
    unconfirmed.add(b"2 de", 0.0)
    assert not unconfirmed.came(b"2 de", 7)
    assert (unconfirmed.first(), unconfirmed.size) == (b"1 abc", 9)
    assert unconfirmed.came(b"1 abc", 8)
    assert (unconfirmed.first(), unconfirmed.size) == (b"2 de", 4)
    assert not unconfirmed.came(b"2 de", 7), "it is read late"
    assert unconfirmed.came(b"2 de", 9)


def test_a_batch_is_overdue_after_some_time() -> None:
    unconfirmed = Unconfirmed()
    assert not unconfirmed.is_overdue(100.0)
    unconfirmed.add(b"1", 10.0)
    unconfirmed.add(b"2", 20.0)
    assert not unconfirmed.is_overdue(10 + REPEAT_SECONDS)
    assert unconfirmed.is_overdue(10.1 + REPEAT_SECONDS)
    unconfirmed.came(b"1", 1)
    assert not unconfirmed.is_overdue(10.1 + REPEAT_SECONDS)
