"""`python -m tests.faults.cluster`."""

from .run import main

main()
