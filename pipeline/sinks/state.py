"""What a table says of itself: a record in the metadata of each commit, which readers of the table need not know."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pipeline import spans

KEY: Final = "trellis"  # of the record among the metadata of a commit

SpansByGateway = dict[str, spans.Spans]


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table after a commit.

    *batch* is the number of its last batch, which added *added* of its *rows*. *changes* counts the commits that added
    or changed rows, beside those that rebuilt the table. *plan* is the plan of that batch where other tables follow
    this one. *spans* are the sequences of the log that are in the table, by gateway, and *segments*
    the keys (`Segment.key`) of the segments that they were read from. *counts* is the row of the batch for
    `ops/batches`, where the table is the last of its job.
    """

    batch: int = 0
    rows: int = 0
    added: int = 0
    changes: int = 0
    plan: dict[str, Any] | None = None
    spans: SpansByGateway = field(default_factory=dict)
    segments: dict[str, list[int]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    counts: list[Any] | None = None

    @classmethod
    def load(cls, saved: dict[str, Any]) -> TableState:
        """Restore the state that `dump` wrote; names that this version does not know are left out."""
        return cls(**{name: value for name, value in saved.items() if name in cls.__dataclass_fields__})

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return asdict(self)

    def covering(self, new: SpansByGateway) -> SpansByGateway:
        """Return `spans` with the sequences *new*."""
        return self.spans | {
            gateway: spans.union(self.spans.get(gateway, []), ranges) for gateway, ranges in new.items()
        }
