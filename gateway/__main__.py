"""`python -m gateway` is the `trellis` command."""

from __future__ import annotations

from .entry import main

main()
