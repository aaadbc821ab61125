"""Helpers for every REST interface of the gateway and its adapters: paths, waiting for the disk, reporting bugs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import anyio
import structlog
from starlette.requests import Request

from gateway.core.bus import Bus
from gateway.core.contracts import Ledger, Receipt
from gateway.core.errors import OutcomeUnknown, Throttled
from gateway.core.message import Message

if TYPE_CHECKING:
    from gateway.monitoring.metrics import Metrics

BODY_CUT_OFF = "the body was cut off"
LOGGED = "trellis.logged"  # in the scope of a request in a cluster: called once all that it logs was logged

logger = structlog.get_logger("trellis")


def decode_segment(segment: str) -> str:
    """Return the text of a raw *segment* of a path (RFC 3986, section 2.1), percent-encoded or not.

    Raises `UnicodeError` if it is not UTF-8.
    """
    return unquote_to_bytes(segment.encode("latin-1")).decode()


async def wait_until_synced(ledger: Ledger, seq: int) -> None:
    """Wait until everything up to *seq* is on disk; raise `OutcomeUnknown` if the disk fails meanwhile."""
    await _wait(ledger, partial(ledger.when_synced, seq))


async def wait_until_accepted(bus: Bus, taken: Receipt | Message) -> None:
    """Wait until *taken*, which was published now or before, is accepted; raises what `wait_until_synced` does."""
    await _wait(bus.ledger, partial(bus.acceptance.when_accepted, taken))


async def _wait(ledger: Ledger, begin: Callable[[Callable[[], None], Callable[[], None]], None]) -> None:
    done, failures = anyio.Event(), list[bool]()

    def fail() -> None:
        failures.append(True)
        done.set()

    begin(done.set, fail)
    await done.wait()
    if failures:
        raise outcome_unknown(ledger)


def outcome_unknown(ledger: Ledger) -> OutcomeUnknown:
    """Return the error for requests that wait for a failing disk: whether they were accepted is not known."""
    return OutcomeUnknown(f"the log cannot be written: {ledger.failing}")


def retry_after(error: Throttled) -> dict[str, str]:
    """Return the header that tells when to try again (RFC 9110, section 10.2.3), in whole seconds."""
    return {"Retry-After": str(ceil(error.retry_after_seconds))}


def report_bug(error: Exception, request: Request, metrics: Metrics) -> None:
    """Count *error*, which no handler should raise, and log it with its traceback."""
    logger.error("a request failed", method=request.method, path=request.url.path, exc_info=error)
    metrics.count("faults", "request")
