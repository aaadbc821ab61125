"""The error of this folder."""

from __future__ import annotations


class BackupError(Exception):
    """A backup cannot be made, read or restored; the text says why, and where in the file."""
