"""Faults under load: seeded runs of the real gateway, each checked against what the harness itself wrote down.

`python -m tests.faults.harness --seed 7` plays one run, `--runs 1000` as many from that seed on. What is done is
decided by `plan` from the seed alone; `shim.c` makes system calls fail below the gateway, `disk` changes files while
it is down, `load` speaks all four protocols, `ledger` remembers what came of it, and `checks` compares.
"""
