"""The end of a process at a place that a test chooses."""

from __future__ import annotations


class Killed(BaseException):
    """As if the process ended here."""
