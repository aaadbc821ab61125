"""What every REST interface of the gateway and its adapters needs: to read a path, and to wait for the disk."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import anyio

from gateway.core.contracts import Ledger
from gateway.core.errors import OutcomeUnknown


def decoded(segment: str) -> str:
    """The text of a raw *segment* of a path (RFC 3986, section 2.1), percent-encoded or not.

    Raises `UnicodeError` where that is not UTF-8.
    """
    return unquote_to_bytes(segment.encode("latin-1")).decode()


async def synced(ledger: Ledger, seq: int) -> None:
    """Wait until everything up to *seq* is on disk; `OutcomeUnknown` where the disk fails meanwhile."""
    done, doubts = anyio.Event(), list[bool]()

    def doubt() -> None:
        doubts.append(True)
        done.set()

    ledger.when_synced(seq, done.set, doubt)
    await done.wait()
    if doubts:
        raise in_doubt(ledger)


def in_doubt(ledger: Ledger) -> OutcomeUnknown:
    """The error for those who wait for a disk that fails: whether they are accepted is not known."""
    return OutcomeUnknown(f"the log cannot be written: {ledger.failing}")
