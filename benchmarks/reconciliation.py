"""What it takes to find a hundred differences among a million messages: `python -m benchmarks.reconciliation`.

Two logs are written, each without some messages of the other; both sets are read from them as a gateway does, saved
and loaded as after a restart, and compared round by round. Times are CPU time of this process, which plays both sides.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Final, TypeVar

from gateway.core.message import Message, MessageIds, Peer
from gateway.reconciliation import rounds
from gateway.reconciliation.items import ItemSet
from gateway.reconciliation.reading import read_items
from gateway.reconciliation.saved import MessageSet, SavedSets
from gateway.storage.index import Index
from gateway.storage.record import encode
from gateway.storage.segments import Segments

CHANNEL: Final = "lobby"
TIME: Final = 1_750_000_000_000  # ms
CONTENT: Final = b'{"text":"%b"}' % (b"x" * 180)

T = TypeVar("T")


def write_log(folder: Path, numbers: Iterable[int]) -> tuple[Segments, Path]:
    """Write the messages with these *numbers* to a log in *folder*, and index it."""
    (folder / "log").mkdir(parents=True)
    ids, own, peer = MessageIds(1), MessageIds(2), Peer(1000, "rest", "ada")
    with (folder / "log" / f"{1:020d}.jsonl").open("wb") as file:
        for seq, number in enumerate(numbers, 1):
            message = Message(CHANNEL, peer, "rest", CONTENT, id=ids.make(TIME + number, number))
            message.seq, message.time = seq, TIME + number
            message.timestamp = message.time
            file.write(encode(message))
    segments, path = Segments(folder / "log"), folder / "index.sqlite"
    index = Index(path, segments, own)
    index.catch_up()
    index.close()
    return segments, path


def read_set(segments: Segments, index: Path) -> MessageSet:
    """Read the set of all messages, as `gateway.http.sync_sets` does."""
    kept = MessageSet(level=segments.next_seq - 1)
    for chunk in read_items(index, segments, (CHANNEL,), 0, kept.level):
        kept.add(chunk)
    return kept


def load_set(saved: SavedSets, level: int) -> ItemSet:
    """Load the set that was saved, as after a restart."""
    found = saved.load(frozenset((CHANNEL,)), 0, level, 0)
    assert found is not None, "the file does not agree with the log"
    return found[1].items


def compare(ours: ItemSet, theirs: ItemSet) -> tuple[int, int, int]:
    """Find the differences; return how many there are, the rounds, and the bytes in both directions."""
    found = count = size = 0
    message: bytes | None = rounds.begin(ours)
    while message is not None:
        answer = rounds.answer(theirs, message)
        size, count = size + len(message) + len(answer), count + 1
        message, have, need = rounds.compare(ours, answer)
        found += len(have) + len(need)
    return found, count, size


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """The result of *call*, and the seconds of CPU time that it took."""
    begin = process_time()
    return call(), process_time() - begin


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--differences", type=int, default=100)
    asked = parser.parse_args()
    differing = random.Random(1).sample(range(asked.messages), asked.differences)
    half = asked.differences // 2
    with tempfile.TemporaryDirectory() as folder:
        logs = [
            write_log(Path(folder, str(side)), (n for n in range(asked.messages) if n not in lacking))
            for side, lacking in enumerate((set(differing[:half]), set(differing[half:])))
        ]
        (kept, first), (other, _) = (timed(partial(read_set, *log)) for log in logs)
        saved, level, theirs = SavedSets(Path(folder, "sync"), logs[0][1], logs[0][0]), kept.level, other.items
        _, save = timed(partial(saved.save, (CHANNEL,), kept))
        del kept
        ours, load = timed(partial(load_set, saved, level))
        (found, count, size), seconds = timed(partial(compare, ours, theirs))
        for segments, _ in logs:
            segments.close()
    sys.stdout.write(
        f"{asked.messages:,} messages on each side, {found} differences: {count} rounds, {size:,} bytes,"
        f" {seconds / 2:.2f} s of CPU time a side; a set is read in {first:.2f} s, saved in {save:.2f} s,"
        f" loaded in {load:.2f} s, and takes {ours.size / 1e6:.0f} MB\n"
    )


if __name__ == "__main__":
    main()
