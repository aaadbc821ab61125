"""Why a job did not do what it was asked to."""

from __future__ import annotations


class PipelineError(Exception):
    """Something that whoever runs the pipeline can put right; the text says what and how."""


class NoJava(PipelineError):
    """There is no Java that Spark can run on."""


class Busy(PipelineError):
    """Another process is at work on the same checkpoint."""


class Damaged(PipelineError):
    """What is in the warehouse does not fit together: going on would lose records or write them twice."""
