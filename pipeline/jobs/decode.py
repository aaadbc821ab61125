"""Decodes the messages of each protocol: `silver/streamr`, `silver/arbor_nodes`, `silver/topic_packets`."""

from __future__ import annotations

from pipeline.derive import update
from pipeline.run import Run
from pipeline.schemas import ARBOR_NODES, STREAMR, TOPIC_PACKETS
from pipeline.transforms import decode

JOB = "decode"


def run(run: Run) -> int:
    """Decode every record that has not been decoded yet; return the number of batches."""
    return update(
        run,
        JOB,
        {
            STREAMR: lambda _run, rows: decode.streamr(rows),
            ARBOR_NODES: lambda _run, rows: decode.arbor_nodes(rows),
            TOPIC_PACKETS: lambda _run, rows: decode.topic_packets(rows),
        },
    )
