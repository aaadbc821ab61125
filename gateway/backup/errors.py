"""The error of backups."""

from __future__ import annotations

from gateway.core.errors import OperatorError


class BackupError(OperatorError):
    """A backup cannot be made, read or restored; the text says why, and where in the file."""
