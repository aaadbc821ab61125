"""The errors of the pipeline, which its operator can act on."""

from __future__ import annotations


class PipelineError(Exception):
    """A job cannot go on; the text says why, and what its operator can do."""


class NoJava(PipelineError):
    """No Java that Spark can run on was found."""


class CheckpointLocked(PipelineError):
    """Another process has the lock of the checkpoint."""


class DamagedWarehouse(PipelineError):
    """The warehouse is inconsistent: going on would lose records or write them twice."""
