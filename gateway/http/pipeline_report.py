"""The numbers of the pipeline's last report, which it writes into its warehouse as JSON (docs/pipeline.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from .problems import Problem

FILE: Final = "report.json"
PAGE: Final = "report.html"
MAX_BYTES: Final = 1 << 20  # of the numbers; a report has about 10 KiB
MAX_PAGE_BYTES: Final = 16 << 20  # of the page, which has pictures
NO_REPORT: Final = "the pipeline has not written %s; `trellis pipeline report` does"
UNREADABLE: Final = "%s is not a report: %s"


class _CamelCase(msgspec.Struct, rename="camel"):
    """The base of types whose members REST names in camel case."""


class ProtocolTraffic(_CamelCase):
    """Messages that were published by one protocol."""

    protocol: str
    messages: int
    bytes: int


class ChannelTraffic(_CamelCase):
    """Messages of one of the busiest channels."""

    channel: str
    messages: int
    bytes: int


class FlowLatency(_CamelCase):
    """Deliveries from one protocol to another, with percentiles of their latency in ms; null if none was measured."""

    from_: str = msgspec.field(name="from")
    to: str
    delivered: int
    undelivered: int
    p50: float | None
    p95: float | None
    p99: float | None


class CheckCount(_CamelCase):
    """How many records passed a check of ids or signatures, or failed it."""

    check: str
    verdict: str
    count: int


class Counted(_CamelCase):
    """How often something was found."""

    name: str
    count: int


class Work(_CamelCase):
    """What one job of the pipeline has done since the tables began."""

    job: str
    batches: int
    rows_read: int
    rows_written: int
    seconds: float


class Report(_CamelCase):
    """A report; times are in ms since 1970, and null if there are no records."""

    made: int
    gateways: list[str]
    records: int
    messages: int
    channel_count: int
    first_time: int | None
    last_time: int | None
    protocols: list[ProtocolTraffic]
    channels: list[ChannelTraffic]
    flows: list[FlowLatency]
    verdicts: list[CheckCount]
    gaps: list[Counted]
    nodes: list[Counted]
    unreadable: list[Counted]
    work: list[Work]


def read_report(warehouse: Path) -> bytes:
    """Return the last report in *warehouse* as JSON; raise `Problem` 404 if there is none that can be read."""
    path = warehouse / FILE
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise Problem("no-report", UNREADABLE % (FILE, f"it has more than {MAX_BYTES:,} bytes"))
        return msgspec.json.encode(msgspec.json.decode(data, type=Report))
    except FileNotFoundError:
        raise Problem("no-report", NO_REPORT % FILE) from None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise Problem("no-report", UNREADABLE % (FILE, getattr(error, "strerror", None) or error)) from None


def read_page(warehouse: Path) -> bytes:
    """Return the page of the last report in *warehouse*; raise `Problem` 404 if there is none that can be read."""
    try:
        with (warehouse / PAGE).open("rb") as file:
            data = file.read(MAX_PAGE_BYTES + 1)
    except FileNotFoundError:
        raise Problem("no-report", NO_REPORT % PAGE) from None
    except OSError as error:
        raise Problem("no-report", UNREADABLE % (PAGE, error.strerror or error)) from None
    if len(data) > MAX_PAGE_BYTES:
        raise Problem("no-report", UNREADABLE % (PAGE, f"it has more than {MAX_PAGE_BYTES:,} bytes"))
    return data


def written(warehouse: Path) -> int | None:
    """Return when the last report was written (ms since 1970); None if there is none."""
    try:
        return (warehouse / FILE).stat().st_mtime_ns // 1_000_000
    except OSError:
        return None
