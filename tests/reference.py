"""`python -m tests.reference`: writes the pages of docs/reference, which are made from the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gateway.monitoring.metrics import COUNTERS, FAULT_KINDS, GAUGES, HISTOGRAMS, REFUSAL_REASONS, Family
from tests import reference_rest, reference_wire

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
MADE = "Made from the code by `python -m tests.reference`; a test compares them."
METRICS = """# Metrics

{made}

`GET /metrics` serves them in the text format of Prometheus: with a key that has the right `history:*` as soon as there
are keys, and without a key on a port of its own (`metrics.port`). [Monitor](../how-to/monitor.md) says how to use them.

The names are a contract: they do not change within a major version. Label values are protocols, reasons and kinds,
never names of peers or channels. Every counter is there from the start, at 0. `process_*` are those that every client
of Prometheus has: CPU seconds, memory, file descriptors, the time of the start.
"""


def metrics() -> str:
    """The page of all metrics."""
    return "\n".join(
        [
            METRICS.format(made=MADE),
            *_table("Counters", {f"trellis_{name}_total": family for name, family in COUNTERS.items()}),
            f"Kinds of `trellis_faults_total`: {_codes(FAULT_KINDS)}.",
            "",
            f"Reasons of `trellis_refused_total` that are there from the start: {_codes(REFUSAL_REASONS)},",
            "with the meaning that HTTP gives them. Protocols add reasons of their own.",
            "",
            *_table("Gauges", {f"trellis_{name}": family for name, family in GAUGES.items()}),
            *_table("Histograms", {f"trellis_{name}": family for name, family in HISTOGRAMS.items()}),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "metrics.md": metrics,
    "rest.md": lambda: reference_rest.page(MADE),
    "wire.md": lambda: reference_wire.page(MADE),
}


def _table(title: str, families: dict[str, Family]) -> Iterator[str]:
    yield from (f"## {title}", "", "| metric | labels | is | look when |", "|---|---|---|---|")
    for name, family in families.items():
        yield f"| `{name}` | {_codes(family.labels)} | {family.help} | {family.watch} |"
    yield ""


def _codes(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


if __name__ == "__main__":
    for file, make in PAGES.items():
        (FOLDER / file).write_text(make())
