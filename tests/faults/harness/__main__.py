"""`python -m tests.faults.harness` plays runs."""

from .run import main

main()
