"""`python -m pipeline JOB`."""

from __future__ import annotations

from .submit import main

main()
