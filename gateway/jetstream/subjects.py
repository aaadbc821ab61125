"""The subjects of a cluster on NATS servers."""

from __future__ import annotations


def signal_subject(name: str, address: str = "") -> str:
    """The subject of signals to all members of the cluster *name*, or to the one at *address*."""
    return f"trellis-aside.{name}.{address}" if address else f"trellis-aside.{name}"


def stream_subject(name: str) -> str:
    """The subject to which the batches of the stream *name* are published."""
    return f"trellis.{name}"
