"""A gateway joins its cluster: it writes what the stream has into its log, and waits for its first turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gateway.cluster.agreement import Agreement
from gateway.cluster.bookmark import Bookmark
from gateway.cluster.reasons import QUIET, REMOVED, STREAM_DAMAGED, TOO_SHORT
from gateway.cluster.turn import Turn
from gateway.storage.log import Log
from gateway.storage.record import Entry
from gateway.storage.segments import Segments, parse_header

from .transport import TICK, CannotJoin, ClusterTransport

JOIN_SECONDS: Final = 60.0  # to get the turn for the first time, once the stream was read


def join(
    folder: Path,
    bookmark: Bookmark,
    turn: Turn,
    transport: ClusterTransport,
    agreement: Agreement,
    clock: Callable[[], float],
) -> None:
    """Write what the stream has into the log in *folder*, and get the turn; raises `CannotJoin`."""
    turn.callbacks = joining = _JoiningLog(folder)
    turn.pinned, turn.base = True, joining.log.next_seq
    try:
        place, transport.digest = bookmark.load(turn.position, joining.log.next_seq)
        transport.open(turn, place)
        begun, asked = clock(), False
        agreement.refresh()
        while not turn.acting:
            if transport.caught_up:
                joining.check_end(turn.position.next_seq)
                if not asked:  # the member that passes the turn on answers this first
                    agreement.ask()
                    asked = True
                turn.want()
            elif turn.position.number:
                begun = clock()
            if (call := transport.receive(TICK)) is not None:
                call()
            else:
                turn.tick()
            if clock() - begun > JOIN_SECONDS:
                raise CannotJoin(
                    f"no turn in the cluster for {JOIN_SECONDS:.0f} seconds: {transport.status().error or QUIET}"
                )
        joining.check_end(turn.position.next_seq)
    except BaseException:
        transport.close()
        raise
    finally:
        joining.log.close()


class _JoiningLog:
    """The log while the gateway joins: what the others logged goes straight into it."""

    def __init__(self, folder: Path) -> None:
        segments = Segments(folder)
        seqs = segments.first_seqs
        self._last = segments.last_line(seqs[-1])[0].rstrip(b"\n") if seqs else b""
        self._last_seq = parse_header(self._last)[0] if self._last else 0
        self.log = Log(segments, lambda _call: None, lambda: 0)
        self.log.start()

    def take(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Log those of *lines* that are not in the log yet."""
        have = self.log.next_seq - entries[0].seq
        if have < 0:
            raise CannotJoin(TOO_SHORT.format(self.log.next_seq - 1, entries[0].seq))
        if entries[0].seq <= self._last_seq <= entries[-1].seq:
            theirs = lines[self._last_seq - entries[0].seq].rstrip(b"\n")
            if self._last != theirs:
                raise CannotJoin(
                    f"record {self._last_seq} of the log is not the one in the stream: this is the log of another "
                    "gateway. Start with an empty log"
                )
        if have < len(entries):
            self.log.adopt(entries[have:], lines[have:])

    def check_end(self, end: int) -> None:
        """Raise `CannotJoin` if the log does not end where the stream does, which is before *end*; 0 if it is empty."""
        if end and self.log.next_seq < end:
            raise CannotJoin(TOO_SHORT.format(self.log.next_seq - 1, end))
        if end and self.log.next_seq > end:
            raise CannotJoin(
                f"the log has record {self.log.next_seq - 1}, and the stream ends with {end - 1}: the stream was "
                "lost, or is another one's. Start with an empty log, or name another cluster (cluster.name)"
            )

    # What the turn calls

    def confirm(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Do nothing: this gateway logs nothing of its own while it joins."""

    def begin(self) -> None:
        """Do nothing: the turn is kept until the gateway has started."""

    def hold(self, why: str | None) -> None:
        """Do nothing: nothing is published yet."""

    def removed(self) -> None:
        """Refuse to start."""
        raise CannotJoin(REMOVED)

    def turn_lost(self) -> None:
        """Do nothing: nothing was accepted yet."""

    def stream_damaged(self) -> None:
        """Refuse to start."""
        raise CannotJoin(STREAM_DAMAGED)
