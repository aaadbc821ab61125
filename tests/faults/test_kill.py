"""Records acknowledged as on disk survive kill -9 at any moment, once and in order.

`TRELLIS_SOAK` says how many runs; each has its seed in its name.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.core.message import Message
from gateway.storage.record import decode
from gateway.storage.segments import parse_header

if TYPE_CHECKING:
    from tests.conftest import Core

RUNS = int(os.environ.get("TRELLIS_SOAK", "5"))
ROUNDS = 3  # how often each run is killed

# Says numbers, and prints each once it is on disk; the time of the kill is not its business.
WRITER = """
import os, random, sys
from pathlib import Path
from queue import SimpleQueue
from gateway.storage.index import Index
from gateway.storage.indexed_log import IndexedLog
from gateway.storage.log import SealPolicy
from gateway.core.message import Message, MessageIds, Peer
from gateway.runtime import clock
from gateway.storage.segments import Segments

data, seed, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance, posted, ids = random.Random(seed), SimpleQueue(), MessageIds(7)
segments = Segments(data / "log")
index = Index(data / "index.sqlite", segments, ids, (), posted.put)
index.catch_up()
log = IndexedLog(index, segments, posted.put, clock, sealing=SealPolicy(bytes=chance.choice([1, 2_000, 100_000])))
index.start()
log.start()
while True:
    for _ in range(chance.randint(1, 50)):
        content = b'"%d %s"' % (number, b"x" * chance.choice([0, 100, 5_000]))
        seq, now = log.next_seq, clock()
        message = Message("lobby", Peer(1, "toy"), "toy", content, id=ids.make(now, seq), seq=seq, time=now)
        message.timestamp = now
        log.append(message)
        line = b"%d %d\\n" % (seq, number)
        log.when_synced(seq, lambda line=line: os.write(1, line))
        number += 1
    while not posted.empty() or log.synced_seq < log.next_seq - 500:
        posted.get()()
"""


def killed(data: Path, seed: int, number: int, lines: int) -> list[tuple[int, int]]:
    """Run the writer from *number* on and kill it after so many *lines*; the sequences and numbers it printed."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(data), str(seed), str(number)], stdout=subprocess.PIPE, bufsize=0
    )
    assert writer.stdout is not None
    with writer.stdout as output:
        printed = b""
        try:
            while printed.count(b"\n") < lines:
                more = os.read(output.fileno(), 1 << 16)
                assert more, f"the writer ended by itself: {writer.wait()}"
                printed += more
        finally:
            writer.kill()
        while more := os.read(output.fileno(), 1 << 16):
            printed += more
    writer.wait()
    whole = printed[: printed.rfind(b"\n") + 1]
    return [(int(seq), int(number)) for seq, number in (line.split() for line in whole.splitlines())]


@pytest.mark.parametrize("seed", range(RUNS))
def test_accepted_messages_survive_a_kill(tmp_path: Path, core_class: type[Core], seed: int) -> None:
    chance = random.Random(seed)
    data = tmp_path / "data"
    accepted: list[tuple[int, int]] = []
    for round in range(ROUNDS):
        number = accepted[-1][1] + 1_000_000 if accepted else 0
        accepted += killed(data, 100 * seed + round, number, chance.randint(1, 2_000))
        if round == ROUNDS - 1 and chance.random() < 0.5:
            (data / "index.sqlite").unlink()
    core = core_class(data, salt=7).start()
    try:
        check(core, accepted)
    finally:
        core.stop()


def check(core: Core, accepted: list[tuple[int, int]]) -> None:
    """Everything *accepted* is in the log and in the index, once and in order."""
    found: list[tuple[int, int]] = []
    seqs = []
    for line in core.segments.scan():
        seqs.append(parse_header(line.data)[0])
        entry = decode(line.data)
        if isinstance(entry, Message):
            found.append((entry.seq, int(entry.content[1:].split()[0])))
    assert seqs == list(range(1, core.log.next_seq))
    assert found == sorted(set(found))
    assert [number for _, number in found] == sorted(number for _, number in found)
    there = set(found)
    assert [entry for entry in accepted if entry not in there] == []
    assert all("torn tail" in fault.reason for fault in core.segments.faults)
    listed: list[Message] = []
    while page := core.index.history("lobby", after=listed[-1].seq if listed else 0):
        listed += page
    assert [message.seq for message in listed] == [seq for seq, _ in found]


def test_the_check_fails_if_an_accepted_record_is_missing(tmp_path: Path, make_core: Callable[..., Core]) -> None:
    """The check notices what it is for: one accepted line too many is a failure."""
    accepted = killed(tmp_path / "data", 0, 0, 10)
    core = make_core(salt=7)
    check(core, accepted)
    with pytest.raises(AssertionError):
        check(core, [*accepted, (accepted[-1][0] + 1_000_000, 1)])
