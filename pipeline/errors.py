"""The errors of the pipeline; an operator can act on each of them."""

from __future__ import annotations

from gateway.core.errors import OperatorError


class PipelineError(OperatorError):
    """A job cannot continue; the text says why, and what the operator can do."""


class Unreachable(PipelineError):
    """A gateway does not answer now, or has no time; the same request may be answered later."""


class NoJava(PipelineError):
    """No Java that Spark can run on was found."""


class NotStarted(PipelineError):
    """Spark refuses its settings or its master."""


class SparkEnded(PipelineError):
    """Spark's Java process ended while a job ran."""


class JobLocked(PipelineError):
    """Another process runs the job."""


class DamagedWarehouse(PipelineError):
    """The warehouse is inconsistent: another batch would lose records or write them twice."""
