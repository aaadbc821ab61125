"""What every REST interface of the gateway and its adapters needs: to read a path, and to wait for the disk."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import anyio

from gateway.core.contracts import Ledger
from gateway.core.errors import OutcomeUnknown


def decode_segment(segment: str) -> str:
    """The text of a raw *segment* of a path (RFC 3986, section 2.1), percent-encoded or not.

    Raises `UnicodeError` where that is not UTF-8.
    """
    return unquote_to_bytes(segment.encode("latin-1")).decode()


async def wait_until_synced(ledger: Ledger, seq: int) -> None:
    """Wait until everything up to *seq* is on disk; `OutcomeUnknown` where the disk fails meanwhile."""
    done, failures = anyio.Event(), list[bool]()

    def fail() -> None:
        failures.append(True)
        done.set()

    ledger.when_synced(seq, done.set, fail)
    await done.wait()
    if failures:
        raise outcome_unknown(ledger)


def outcome_unknown(ledger: Ledger) -> OutcomeUnknown:
    """The error for those who wait for a disk that fails: whether they are accepted is not known."""
    return OutcomeUnknown(f"the log cannot be written: {ledger.failing}")
