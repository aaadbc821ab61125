"""Reports faults in the background: counts them, and logs their consequence for the operator."""

from __future__ import annotations

import structlog

from gateway.storage.segments import Fault

from .metrics import Metrics

logger = structlog.get_logger("trellis")


class Faults:
    """Counts faults in *metrics*, and logs them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def record(self, fault: Fault) -> None:
        """A record of the log is damaged."""
        self._metrics.count("faults", "record")
        logger.error("damaged log", file=fault.file, offset=fault.offset, reason=fault.reason)

    def index(self, error: Exception) -> None:
        """The index is damaged, or cannot be written."""
        self._metrics.count("faults", "index")
        logger.error("the index is damaged or cannot be written", error=repr(error), consequence="it is retried")

    def retention(self, error: Exception) -> None:
        """Old messages could not be retired."""
        self._metrics.count("faults", "retention")
        logger.error("old messages could not be retired", error=repr(error), consequence="it is retried")

    def retired(self, segments: int, first_kept: int) -> None:
        """So many segments were retired; *first_kept* is the first sequence that is left."""
        logger.info("old messages were retired", segments=segments, first_kept=first_kept)

    def disk(self, error: OSError) -> None:
        """The log cannot be written."""
        self._metrics.count("faults", "disk")
        logger.error("the log cannot be written", error=str(error), consequence="publishing is refused until it can")

    def stalled(self, name: str) -> None:
        """The part called *name* makes no progress."""
        self._metrics.count("faults", "stalled")
        logger.error("no progress", of=name, consequence="the gateway is not ready until it continues")

    def late(self, seconds: float, where: str) -> None:
        """The event loop was late by so many *seconds*; *where* says what it did."""
        self._metrics.count("faults", "late")
        logger.error("the event loop is late", seconds=round(seconds, 1), where=where)

    def worker(self, error: Exception) -> None:
        """A call in the worker failed."""
        self._metrics.count("faults", "worker")
        logger.error("a form could not be made", error=repr(error))
