"""A gateway joins its cluster: it writes what the stream has into its log, and waits for its first turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gateway.cluster.accepting_turn import Turn
from gateway.cluster.bookmark import Bookmark
from gateway.cluster.common_settings import Agreement
from gateway.cluster.leaving_reasons import QUIET, REMOVED, STREAM_DAMAGED, TOO_SHORT, UNWRITTEN
from gateway.storage.log import Log
from gateway.storage.record import Entry
from gateway.storage.segments import Segments, parse_header

from .transport import TICK_SECONDS, CannotJoin, ClusterTransport

# Much is indexed before the turn is wanted, and again what came meanwhile: all others would wait for that.
MAX_UNINDEXED: Final = 10_000  # records that may be indexed in the first turn, half a second
NAMESAKE_SECONDS: Final = 0.5  # in which another gateway with the same name, if it has the turn, says so
NO_TURN: Final = "no turn in the cluster for {:.0f} seconds: {}"
JOIN_SECONDS: Final = 60.0  # without anything that comes, or with all read and no turn


def join(
    folder: Path,
    bookmark: Bookmark,
    turn: Turn,
    transport: ClusterTransport,
    agreement: Agreement,
    clock: Callable[[], float],
    index: Callable[[], object],
) -> None:
    """Write what the stream has into the log in *folder*, have it *index*ed, and get the turn; raises `CannotJoin`."""
    turn.callbacks = joining = _JoiningLog(folder)
    turn.pinned, turn.base = True, joining.log.next_seq
    try:
        place, transport.digest = bookmark.load(turn.position, joining.log.next_seq)
        transport.open(turn, place)
        begun, asked, indexed, read = clock(), -1.0, -MAX_UNINDEXED, place
        agreement.refresh()
        while not turn.acting:
            if _is_at_end(transport):
                joining.check_end(turn.position.next_seq)
                if (end := joining.log.next_seq) - indexed > MAX_UNINDEXED:
                    joining.close()
                    index()
                    turn.callbacks = joining = _JoiningLog(folder)
                    begun, indexed = clock(), end
                    continue
                asked = _want(turn, agreement, clock, asked)
            elif transport.place != read:
                begun, read = clock(), transport.place
            _do_next(turn, transport)
            if clock() - begun > JOIN_SECONDS:
                raise CannotJoin(NO_TURN.format(JOIN_SECONDS, transport.status().error or QUIET))
        joining.check_end(turn.position.next_seq)
        joining.close()
    except BaseException:
        transport.close()
        raise
    finally:
        if not joining.is_closed:
            joining.log.close()


def _want(turn: Turn, agreement: Agreement, clock: Callable[[], float], asked: float) -> float:
    """Want the turn, once the terms of the others were asked for; return when, before which *asked* is negative."""
    if asked < 0:  # the member that passes the turn on answers this first
        agreement.ask()
        asked = clock()
    if clock() - asked >= (NAMESAKE_SECONDS if turn.is_namesakes else 0):
        turn.want()
    return asked


def _do_next(turn: Turn, transport: ClusterTransport) -> None:
    """Do what is due next, or look at the time."""
    if (call := transport.receive(TICK_SECONDS)) is not None:
        call()
    else:
        turn.tick()


def _is_at_end(transport: ClusterTransport) -> bool:
    """Whether the stream was read as far as the servers said last that it goes, with a leader."""
    stored = transport.status().stored if transport.caught_up else None
    return stored is not None and transport.place >= stored.last


class _JoiningLog:
    """The log while the gateway joins: what the others logged goes straight into it."""

    def __init__(self, folder: Path) -> None:
        segments = Segments(folder)
        seqs = segments.first_seqs
        self._last = segments.last_line(seqs[-1])[0].rstrip(b"\n") if seqs else b""
        self._last_seq = parse_header(self._last)[0] if self._last else 0
        self._folder, self.is_closed = folder, False
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

    def close(self) -> None:
        """Write the log to its end; raises `CannotJoin` if the disk did not take all."""
        self.is_closed = True
        self.log.close()
        segments = Segments(self._folder)
        segments.close()
        if segments.next_seq != self.log.next_seq:
            raise CannotJoin(UNWRITTEN.format(segments.next_seq - 1, self.log.next_seq - 1))

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
