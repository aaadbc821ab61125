"""Helpers for every REST interface of the gateway and its adapters: decoding paths, waiting for the disk."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import anyio

from gateway.core.contracts import Ledger
from gateway.core.errors import OutcomeUnknown


def decode_segment(segment: str) -> str:
    """Return the text of a raw *segment* of a path (RFC 3986, section 2.1), percent-encoded or not.

    Raises `UnicodeError` if it is not UTF-8.
    """
    return unquote_to_bytes(segment.encode("latin-1")).decode()


async def wait_until_synced(ledger: Ledger, seq: int) -> None:
    """Wait until everything up to *seq* is on disk; raise `OutcomeUnknown` if the disk fails meanwhile."""
    done, failures = anyio.Event(), list[bool]()

    def fail() -> None:
        failures.append(True)
        done.set()

    ledger.when_synced(seq, done.set, fail)
    await done.wait()
    if failures:
        raise outcome_unknown(ledger)


def outcome_unknown(ledger: Ledger) -> OutcomeUnknown:
    """Return the error for requests that wait for a failing disk: whether they were accepted is not known."""
    return OutcomeUnknown(f"the log cannot be written: {ledger.failing}")
